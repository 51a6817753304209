"""What may change when a run goes on from a checkpoint, and that it does."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from cli_parts import Command, assert_refused
from harness import assert_same_run, assert_same_state, final_state, json_rows, tiny_config, weights
from off_policy_runs import SMALL, tiny_run, train_rows
from offline_runs import write_datasets
from rl_training.errors import ConfigError
from rl_training.experiment.checkpoints import CHECKPOINTS
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.configuration.config_files import load_config
from rl_training.experiment.configuration.fork_rules import FREE, fork_rules
from rl_training.experiment.registry import ALGORITHMS
from rl_training.experiment.runs import read_metadata
from rl_training.runtime.workflows import resume, train
from short_runs import config_of

HALF = f"{CHECKPOINTS}/step_64"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tiny_config(tmp_path_factory.mktemp("trained"), total_timesteps=128, eval_episodes=0)).run_dir


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A run of 128 steps with a checkpoint at 64, which a test may change."""
    copy = tmp_path / "own" / trained.name
    shutil.copytree(trained, copy, symlinks=True)
    return copy


@pytest.mark.parametrize("algo", sorted(ALGORITHMS))
def test_every_parameter_says_whether_a_fork_may_change_it(algo: str) -> None:
    record = ALGORITHMS[algo].load_params()
    assert {entry.name for entry in dataclasses.fields(record)} == set(fork_rules(record))


def test_every_key_of_a_configuration_says_whether_a_fork_may_change_it() -> None:
    assert {entry.name for entry in dataclasses.fields(TrainConfig)} - {"algo_kwargs"} == set(fork_rules(TrainConfig))


# -- what changes does so --------------------------------------------------------------------------


def test_a_fork_learns_with_the_changed_learning_rate(run: Path) -> None:
    """Adam's statistics are the checkpoint's; the rate is the new one, although it stood in the old state's time."""
    same = resume(run / HALF, fork=True)
    other = resume(run / HALF, fork=True, overrides={"algo_kwargs.learning_rate": 1e-12})
    rates = {row["learning_rate"] for row in json_rows(other.run_dir / "metrics.jsonl") if row["event"] == "train"}
    assert rates == {1e-12}
    start = {name: tensor for name, tensor in weights(run_at(run, 64)).items() if "/model/" in name}
    moved = weights(same.run_dir)
    stayed = weights(other.run_dir)
    assert any(not torch.equal(moved[name], tensor) for name, tensor in start.items())
    assert all(torch.allclose(stayed[name], tensor, rtol=0, atol=1e-9) for name, tensor in start.items())
    assert load_config(other.run_dir / "config.yaml").algo_kwargs["learning_rate"] == 1e-12


def run_at(run: Path, step: int) -> Path:
    """Return a copy of the run that ends at an earlier checkpoint."""
    copy = run.parent / f"until-{step}"
    (copy / CHECKPOINTS).mkdir(parents=True)
    shutil.copytree(run / CHECKPOINTS / f"step_{step}", copy / CHECKPOINTS / f"step_{step}")
    (copy / CHECKPOINTS / "latest").symlink_to(f"step_{step}")
    return copy


@pytest.mark.parametrize(
    ("algo", "env_id", "changes"),
    [
        ("sac", "Pendulum-v1", {"learning_rate": 1e-12, "temperature": 0.25, "batch_size": 4, "gradient_steps": 2}),
        (
            "dqn",
            "CartPole-v1",
            {"learning_rate": 1e-12, "double": True, "epsilon_schedule": "constant", "epsilon": 0.5},
        ),
    ],
)
def test_a_fork_of_an_off_policy_run_uses_what_changed(
    algo: str, env_id: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    config = tiny_run(tmp_path, algo, env_id, checkpoint_interval=32, eval_episodes=0)
    half = train(config).run_dir / CHECKPOINTS / "step_32"
    fork = resume(half, fork=True, overrides={f"algo_kwargs.{key}": value for key, value in changes.items()}).run_dir
    row = train_rows(fork)[-1]
    assert row["learning_rate"] == 1e-12
    assert row.get("temperature", 0.25) == pytest.approx(0.25)
    assert row.get("epsilon", 0.5) == 0.5
    changed = read_metadata(fork)["parent"]["changed"]
    assert set(changed) == {f"algo_kwargs.{key}" for key in changes}
    assert changed["algo_kwargs.learning_rate"][1] == 1e-12


def test_a_fork_without_changes_stays_exact_and_says_so(run: Path) -> None:
    fork = resume(run / HALF, fork=True, set_values=["seed=7", "algo_kwargs.learning_rate=3e-4"]).run_dir
    assert read_metadata(fork)["parent"]["changed"] == {}
    assert_same_state(final_state(fork), final_state(run))


def test_a_fork_with_changes_resumes_exactly(run: Path, tmp_path: Path) -> None:
    straight = resume(run / HALF, fork=True, overrides={"algo_kwargs.ent_coef": 0.1, "total_timesteps": 192}).run_dir
    copy = tmp_path / "copy"
    shutil.copytree(straight, copy, symlinks=True)
    resume(copy / CHECKPOINTS / "step_128")
    assert_same_run(copy, straight)


def test_changed_early_stopping_counts_anew_and_lets_a_stopped_run_go_on(tmp_path: Path) -> None:
    first = {"metric": "train_return_mean", "target": 0.0}
    stopped = train(tiny_config(tmp_path, eval_episodes=0, early_stopping=first))
    assert stopped.stop_reason is not None
    steps = stopped.metrics["global_step"]
    second = {"early_stopping.target": 1e9}
    fork = resume(stopped.run_dir, fork=True, overrides=second)
    assert fork.stop_reason is None
    assert fork.metrics["global_step"] == 320 > steps
    assert read_metadata(fork.run_dir)["parent"]["changed"] == {"early_stopping.target": [0.0, 1e9]}


def test_the_discount_may_change_where_no_statistics_depend_on_it(run: Path, tmp_path: Path) -> None:
    assert resume(run / HALF, fork=True, overrides={"algo_kwargs.gamma": 0.9}).status == "completed"
    scaled = tiny_config(tmp_path, total_timesteps=64, eval_episodes=0, env_kwargs={"normalize_reward": True})
    with pytest.raises(ConfigError, match="the reward statistics in the checkpoint were discounted with it"):
        resume(train(scaled).run_dir, fork=True, overrides={"algo_kwargs.gamma": 0.9, "total_timesteps": 128})


# -- what may not ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("algo=a2c", "the checkpoint holds the state of that algorithm"),
        ("env_id=Acrobot-v1", "the environments in the checkpoint were made with it"),
        ("seed=8", "seed: must stay 7, because the random streams in the checkpoint come from it"),
        ("num_envs=4", "or start a new run from the checkpoint's weights by `axiomrl train --init`"),
        ("env_kwargs.frame_stack=2", "env_kwargs.frame_stack: must stay null, because the environments"),
        ("algo_kwargs.hidden_sizes=[9]", "must stay [8], because the networks in the checkpoint were built with it"),
        ("algo_kwargs.num_steps=32", "the unfinished rollout in the checkpoint was collected with it"),
        ("algo_kwargs.optimizer=rmsprop", "the optimizer's statistics in the checkpoint belong to it"),
        ("benchmark.seeds=[1, 2]", "a fork is a single run"),
        ("algo_kwargs.learning_rte=1", "--set: algo_kwargs.learning_rte: unknown key; did you mean `learning_rate`"),
    ],
)
def test_a_fork_keeps_what_the_checkpoint_depends_on(setting: str, reason: str, axiomrl: Command, run: Path) -> None:
    answer = axiomrl("resume", "--checkpoint", run / HALF, "--fork", "--set", setting)
    assert_refused(answer, reason)
    assert [path.name for path in run.parent.iterdir()] == [run.name]


@pytest.mark.parametrize("setting", ["n_step=2", "buffer_size=100", "gamma=0.9", "prioritized=true", "per_alpha=0.1"])
def test_a_fork_keeps_what_the_replay_was_filled_with(setting: str, tmp_path: Path) -> None:
    config = tiny_run(tmp_path, "dqn", "CartPole-v1", total_timesteps=SMALL["learning_starts"] + 2, eval_episodes=0)
    run = train(config).run_dir
    with pytest.raises(ConfigError, match="because the replay in the checkpoint was filled with it"):
        resume(run, fork=True, set_values=[f"algo_kwargs.{setting}", "total_timesteps=40"])


def test_all_refusals_come_together(run: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        resume(run / HALF, fork=True, overrides={"seed": 1, "algo_kwargs.activation": "relu", "algo_kwargs.gamma": 1})
    assert [problem.split(":")[0] for problem in caught.value.problems] == ["seed", "algo_kwargs.activation"]


def test_other_settings_without_a_fork_are_refused(axiomrl: Command, run: Path) -> None:
    answer = axiomrl("resume", "--checkpoint", run / HALF, "--set", "algo_kwargs.learning_rate=1e-4")
    assert_refused(answer, "an exact continuation keeps its settings; add --fork to go on with others in a new run")
    assert_refused(axiomrl("resume", "--checkpoint", run, "--name", "x"), "name: an exact continuation keeps")
    answer = axiomrl("resume", "--checkpoint", run, "--set", "total_timesteps=192", "--set", "eval_episodes=1")
    assert (answer.status, answer.values()["global_step"]) == (0, "192")


def test_a_fork_of_a_finished_run_needs_a_longer_horizon(axiomrl: Command, run: Path) -> None:
    answer = axiomrl("resume", "--checkpoint", run, "--fork", "--set", "algo_kwargs.learning_rate=1e-4")
    assert_refused(answer, "a fork would train nothing with other settings; give a larger number")


def test_a_fork_has_a_name_tags_and_a_place_of_its_own(axiomrl: Command, run: Path, tmp_path: Path) -> None:
    arguments = ["--fork", "--name", "slow", "--tag", "a", "--tag", "b", "--set", f"output_dir={tmp_path / 'there'}"]
    answer = axiomrl("resume", "--checkpoint", run / HALF, *arguments)
    assert answer.status == 0, answer.err
    fork = Path(answer.values()["run_dir"])
    assert fork.parent == tmp_path / "there"
    config = load_config(fork / "config.yaml")
    assert (config.name, config.tags, read_metadata(fork)["name"]) == ("slow", ("a", "b"), "slow")


# -- everything that may change at once ------------------------------------------------------------

OTHER_VALUES: dict[str, Any] = {
    "loss": "squared",
    "value_normalization": "tree",
    "augmentation": "shift",
    "temperature": 0.5,
    "target_entropy": -2.0,
    "minibatch_size": 8,
}
TWO_CHOICES = (("none", "return_range"), ("mean", "sum"), ("first", "min"))
# What takes a minute to start, or does not fit the other settings.
LEFT_ALONE: dict[str, tuple[str, ...]] = {
    "ppo": ("compile",),
    "a2c": ("compile", "minibatch_size", "update_epochs"),
    "c51": ("loss",),
    "qr_dqn": ("loss",),
    "rainbow": ("loss",),
    "sac": ("dropped_quantiles",),
    "crossq": ("dropped_quantiles",),
    "efficientzero": ("augmentation",),
    "scalezero": ("shrink_n_step", "unroll_steps"),
}


def other_value(name: str, value: Any) -> Any:
    """Return another value that a parameter may have."""
    if name in OTHER_VALUES:
        return OTHER_VALUES[name]
    for one, other in TWO_CHOICES:
        if value in (one, other):
            return other if value == one else one
    if name.endswith("_schedule"):
        return {"type": "constant"} if value is None else {"start": 0.5}
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    return value * 0.5 if value else 0.01


@pytest.mark.slow
@pytest.mark.parametrize("algo", sorted(ALGORITHMS))
def test_a_fork_that_changes_everything_it_may_goes_on(
    algo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if ALGORITHMS[algo].loop == "offline":
        write_datasets(tmp_path / "datasets", monkeypatch)
    run = train(config_of(algo, tmp_path)).run_dir
    kwargs = load_config(run / "config.yaml").algo_kwargs
    rules = fork_rules(ALGORITHMS[algo].load_params())
    kept = {"dataset_fraction", *LEFT_ALONE.get(algo, ())}  # there is no dataset to mix in
    free = [name for name, rule in rules.items() if rule == FREE and name not in kept]
    changes = {f"algo_kwargs.{name}": other_value(name, kwargs[name]) for name in free}
    fork = resume(run, fork=True, overrides={**changes, "total_timesteps": 64})
    assert (fork.status, fork.metrics["global_step"]) == ("completed", 64)
    assert set(read_metadata(fork.run_dir)["parent"]["changed"]) == {*changes, "total_timesteps"}

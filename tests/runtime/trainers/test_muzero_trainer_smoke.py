"""MuZero is wired up for every kind of observation, leaves what it promises and follows its schedules."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from harness import assert_same_run, final_state, json_rows, weights
from off_policy_runs import last_row, train_rows
from planning_runs import COMMON_METRICS, EXPLORATION, STEPS, tiny_run, train_tiny
from rl_training.algorithms.muzero import MuZero
from rl_training.cli import main
from rl_training.errors import AxiomError, ConfigError, EnvironmentFailure
from rl_training.experiment.config import algorithm_params
from rl_training.experiment.configuration.config_files import load_config
from rl_training.experiment.runs import read_metadata
from rl_training.runtime.acting.policy import load_policy
from rl_training.runtime.planning import updates_between
from rl_training.runtime.workflows import evaluate, train
from rl_training.search.search import TreeSearch


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The settings of every search of the run's own learner, and how many roots it had."""
    kept: list[dict[str, Any]] = []
    original = TreeSearch.run

    def watched(self: TreeSearch, model: Any, observation: Any, **settings: Any) -> Any:
        found = original(self, model, observation, **settings)
        if "legal" in settings:
            mask = settings["legal"]
            kept.append({**settings, "roots": len(found.action), "mask": mask, "training": "temperature" in settings})
        return found

    monkeypatch.setattr(TreeSearch, "run", watched)
    return kept


# -- spaces --------------------------------------------------------------------------------------


def test_it_trains_and_hands_over_its_policy(tmp_path: Path) -> None:
    result = train_tiny(tmp_path, "muzero", "toy_envs:Toy/Discrete-v0")
    row = last_row(result.run_dir)
    assert row.keys() >= COMMON_METRICS | EXPLORATION
    assert "loss_consistency" not in row
    policy = load_policy(result.run_dir)
    assert policy.plans
    observation = np.array([2.0], dtype=np.float32)
    choices: list[dict[str, Any]] = [{}, {"num_simulations": 4}]
    for options in choices:
        action = policy.predict(observation, **options)
        assert policy.action_space.contains(action)
        assert all(policy.predict(observation, **options) == action for _ in range(3))
        batch = policy.predict(np.zeros((5, 1), dtype=np.float32), deterministic=False, seed=1, **options)
        assert batch.shape == (5,)
        assert (batch >= 1).all()  # this space counts from 1
    again = [evaluate(result.run_dir, num_episodes=3).metrics["eval_return_mean"] for _ in range(2)]
    assert again[0] == again[1]


@pytest.mark.parametrize("kind", ["Image", "Dict"])
def test_images_and_dicts_train(tmp_path: Path, kind: str) -> None:
    result = train_tiny(tmp_path, "muzero", f"toy_envs:Toy/{kind}-v0")
    policy = load_policy(result.run_dir)
    observation = policy.observation_space.sample()
    assert policy.action_space.contains(policy.predict(observation))
    assert policy.action_space.contains(policy.predict(observation, num_simulations=4))
    assert any("convolutions" in name for name in weights(result.run_dir)) is ("Image" in kind)


def test_a_discrete_observation_and_normalised_numbers_train(tmp_path: Path) -> None:
    train_tiny(tmp_path / "lake", "muzero", "FrozenLake-v1")
    train_tiny(tmp_path / "pole", "muzero", "CartPole-v1", env_kwargs={"normalize_observation": True})


def test_stacked_frames_train(tmp_path: Path) -> None:
    result = train_tiny(
        tmp_path, "muzero", "corridor_envs:Corridor/Frames-v0", env_kwargs={"frame_stack": 3}, num_envs=1
    )
    assert load_policy(result.run_dir).observation_space.shape == (3, 36, 36)


@pytest.mark.parametrize("kind", ["MaskedDiscrete", "LateMask"])
def test_illegal_actions_are_never_taken(tmp_path: Path, kind: str) -> None:
    # The environment raises at an illegal action, in training and in evaluation.
    result = train_tiny(tmp_path, "muzero", f"toy_envs:Toy/{kind}-v0", algo_kwargs={"reanalyze_ratio": 0.5})
    evaluate(result.run_dir, num_episodes=2, stochastic=True)
    policy = load_policy(result.run_dir)
    mask = np.array([False, False, True, False])
    sampled: dict[str, Any] = {"deterministic": False, "seed": 1, "num_simulations": 4}
    choices: list[dict[str, Any]] = [{}, {"num_simulations": 4}, sampled]
    for options in choices:
        assert policy.predict(np.zeros(1, np.float32), action_mask=mask, **options) == 3  # counted from 1


# -- the loop ------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_envs", [1, 3])
def test_the_number_of_environments_changes_no_number_of_updates(
    tmp_path: Path, searches: list[dict[str, Any]], num_envs: int
) -> None:
    result = train_tiny(tmp_path, "muzero", "CartPole-v1", num_envs=num_envs, algo_kwargs={"replay_ratio": 0.5})
    assert result.metrics["update_count"] == (STEPS - 16) * 0.5
    made = [search for search in searches if search["training"]]
    assert [search["roots"] for search in made] == [num_envs] * (STEPS // num_envs)  # all in one batch


@pytest.mark.parametrize(("ratio", "beyond"), [(0.25, 16), (0.3, 0), (1.7, 5), (1 / 3, 7)])
def test_updates_follow_the_replay_ratio_whatever_the_stride(ratio: float, beyond: int) -> None:
    for stride in (1, 3, 7):
        done = 0
        for before in range(0, 210, stride):
            done += updates_between(before, before + stride, ratio, beyond=beyond)
            assert done == int((max(0, before + stride - beyond)) * ratio + 1e-9)


def test_the_replay_keeps_what_the_search_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rl_training.data.trajectory_replay import TrajectoryReplay

    kept: list[Any] = []
    original_add, original_run = TrajectoryReplay.add_search, TreeSearch.run

    def run(self: TreeSearch, *arguments: Any, **settings: Any) -> Any:
        found = original_run(self, *arguments, **settings)
        kept.append(found)
        return found

    def note(self: TrajectoryReplay, policy: Any, value: Any, *ends: Any) -> None:
        original_add(self, policy, value, *ends)
        rows = np.arange(self.count - 2, self.count) % self.capacity
        np.testing.assert_array_equal(self.columns["action"][rows], kept[-1].action)
        np.testing.assert_array_equal(self.columns["policy"][rows], kept[-1].weights)
        np.testing.assert_array_equal(self.columns["value"][rows], kept[-1].value)
        # The toy's observation is the action that pays; its steps say how they ended.
        assert (self.columns["ended"][rows] > 0).tolist() == (ends[0] | ends[1]).tolist()

    monkeypatch.setattr(TreeSearch, "run", run)
    monkeypatch.setattr(TrajectoryReplay, "add_search", note)
    train_tiny(tmp_path, "muzero", "toy_envs:Toy/Discrete-v0")
    assert len(kept) > STEPS // 2


def test_scheduled_simulations_reach_search_and_metrics_and_change_no_configuration(
    tmp_path: Path, searches: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[MuZero] = []
    original = MuZero.__init__

    def remembered(self: MuZero, *arguments: Any, **settings: Any) -> None:
        original(self, *arguments, **settings)
        made.append(self)

    monkeypatch.setattr(MuZero, "__init__", remembered)
    settings = {
        "num_simulations": 2,
        "num_simulations_schedule": {"type": "linear", "end": 8},
        "num_simulations_warmup_steps": 12,
        "temperature_schedule": {"type": "step", "milestones": [24], "values": [0.5]},
        "root_exploration_fraction_schedule": "linear",
    }
    config = tiny_run(tmp_path, "muzero", "CartPole-v1", algo_kwargs=settings, log_interval=4)
    before = copy.deepcopy(config)
    result = train(config)
    expected = []
    for step in range(0, STEPS, 2):
        value = (2 + 6 * step / STEPS) * min(1.0, step / 12)
        expected.append(max(1, int(value + 0.5)))
    training = [search for search in searches if search["training"]]
    assert [search["num_simulations"] for search in training] == expected
    assert [search["temperature"] for search in training] == [1.0] * 12 + [0.5] * 12
    assert [search["exploration"] for search in training] == pytest.approx(
        [0.25 * (1 - step / STEPS) for step in range(0, STEPS, 2)]
    )
    rows = train_rows(result.run_dir)
    assert [row["num_simulations"] for row in rows] == expected[1::2]
    assert all(type(row["num_simulations"]) is int for row in rows)
    assert rows[-1]["num_simulations"] == expected[-1] == 8
    assert result.metrics["num_simulations"] == 8
    # The final evaluation plans with the count of the end, without noise.
    evaluated = [search for search in searches if not search["training"]]
    assert {search["num_simulations"] for search in evaluated} == {8}
    assert {search["exploration"] for search in evaluated} == {0.0}
    assert config == before
    assert made[0].params == algorithm_params(before)
    assert made[0].params.num_simulations == 2
    assert load_policy(result.run_dir).num_simulations == 8


def test_fixed_values_go_on_working(tmp_path: Path, searches: list[dict[str, Any]]) -> None:
    settings = {"temperature": 0.0, "temperature_schedule": None, "root_exploration_fraction": 0.5, "per_alpha": 0.0}
    result = train_tiny(tmp_path, "muzero", "CartPole-v1", algo_kwargs=settings)
    training = [search for search in searches if search["training"]]
    assert {(search["temperature"], search["exploration"], search["num_simulations"]) for search in training} == {
        (0.0, 0.5, 3)
    }
    assert "per_beta" not in last_row(result.run_dir)


# -- what a run leaves behind --------------------------------------------------------------------


def test_a_run_leaves_its_artifacts(tmp_path: Path) -> None:
    result = train_tiny(tmp_path, "muzero", "toy_envs:Toy/Discrete-v0", checkpoint_interval=24)
    run_dir = result.run_dir
    assert run_dir.name.startswith("muzero__")
    metadata = json.loads((run_dir / "metadata.json").read_text(encoding="utf-8"))
    assert (metadata["status"], metadata["algo"], metadata["resume_mode"]) == ("completed", "muzero", "exact")
    assert metadata["latest_checkpoint"] == f"checkpoints/step_{STEPS}"
    assert (run_dir / "checkpoints" / "step_24" / "manifest.json").is_file()
    assert len(json_rows(run_dir / "evaluations.jsonl")) == 2
    assert load_config(run_dir / "config.yaml") == tiny_run(
        tmp_path, "muzero", "toy_envs:Toy/Discrete-v0", checkpoint_interval=24
    )


def test_a_seed_repeats_bit_for_bit_and_another_differs(tmp_path: Path) -> None:
    settings = {"reanalyze_ratio": 0.5}
    first = train_tiny(tmp_path / "first", "muzero", "CartPole-v1", algo_kwargs=settings)
    torch.manual_seed(12345)  # the global generator decides nothing
    second = train_tiny(tmp_path / "second", "muzero", "CartPole-v1", algo_kwargs=settings)
    assert_same_run(first.run_dir, second.run_dir)
    other = train_tiny(tmp_path / "other", "muzero", "CartPole-v1", algo_kwargs=settings, seed=8)
    ours, theirs = final_state(first.run_dir), final_state(other.run_dir)
    streams = [path for path in ours if "streams" in path and isinstance(ours[path], torch.Tensor)]
    assert not any(ours[path].equal(theirs[path]) for path in streams)


# -- mistakes ------------------------------------------------------------------------------------


def test_a_continuous_task_is_refused_and_names_what_fits(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        train(tiny_run(tmp_path / "runs", "muzero", "Pendulum-v1"))
    message = str(refused.value)
    assert "muzero does not support the Box actions of Pendulum-v1" in message
    assert "sac" in message
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ("num_simulations_schedule=linear", "goes down to 0, but a search needs at least 1 simulation"),
        ("num_simulations=many", "num_simulations"),
        ("num_simulations=0", "num_simulations"),
        ("search=random", "search"),
        ("suport_size=3", "support_size"),
    ],
)
def test_bad_settings_end_with_status_2_and_the_repair(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], setting: str, complaint: str
) -> None:
    arguments = ["train", "--algo", "muzero", "--env", "CartPole-v1", "--total-timesteps", "5000"]
    output = ["--output-dir", str(tmp_path / "runs"), "--set", f"algo_kwargs.{setting}"]
    assert main([*arguments, *output]) == 2
    said = capsys.readouterr()
    assert complaint in said.err
    assert "Traceback" not in said.err
    assert not (tmp_path / "runs").exists()


def test_simulations_are_refused_where_there_is_no_model(tmp_path: Path) -> None:
    from off_policy_runs import train_tiny as train_off_policy

    policy = load_policy(train_off_policy(tmp_path, "dqn", "CartPole-v1").run_dir)
    with pytest.raises(AxiomError, match="has no model to plan with; leave num_simulations out"):
        policy.predict(np.zeros(4, np.float32), num_simulations=4)


def test_simulations_that_are_no_count_are_refused(tmp_path: Path) -> None:
    policy = load_policy(train_tiny(tmp_path, "muzero", "CartPole-v1", total_timesteps=18).run_dir)
    counts: list[Any] = [0, -3, 2.5, True, "many"]
    for count in counts:
        with pytest.raises(AxiomError, match="num_simulations must be an integer of at least 1"):
            policy.predict(np.zeros(4, np.float32), num_simulations=count)


def test_an_environment_that_allows_nothing_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        EnvironmentFailure,
        match="gave an action mask that allows nothing; allow at least one action, or end the episode",
    ):
        train(tiny_run(tmp_path, "muzero", "toy_envs:Toy/Stuck-v0"))


def test_a_support_too_small_is_said_with_the_share(tmp_path: Path) -> None:
    # Three rewards of 1 are 1.003 after the transform: beyond a support of 1.
    result = train_tiny(tmp_path, "muzero", "CartPole-v1", algo_kwargs={"support_size": 1, "gamma": 1.0})
    (notice,) = [text for text in read_metadata(result.run_dir)["notices"] if "support_size" in text]
    share = float(notice.split("%")[0])
    assert 30 <= share <= 60  # of values and rewards together; a reward of 1 fits
    assert "of the value targets and rewards lie beyond algo_kwargs.support_size 1 and are clipped; raise it" in notice
    assert last_row(result.run_dir)["clipped_targets"] > 0.3


def test_a_support_that_suffices_is_not_talked_about(tmp_path: Path) -> None:
    result = train_tiny(tmp_path, "muzero", "CartPole-v1", algo_kwargs={"support_size": 20})
    assert not [text for text in read_metadata(result.run_dir).get("notices", []) if "support_size" in text]

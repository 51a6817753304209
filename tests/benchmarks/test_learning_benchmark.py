"""The comparison of learning gives both sides the same settings, refuses what only one has, and loses no result."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import learning
from harness import stopped_after
from learning_suites import ACCELERATION, CELLS, MEMORY, PROOF, QUICK, Cell
from peers.clock import Clock
from records import OURS, RESULTS, SB3
from rl_training.experiment.registry import list_algorithm_specs
from rl_training.install_hint import install_hint

AS_CONTRIB = ("algo_kwargs.num_steps=32", "algo_kwargs.update_epochs=20")
EVERY = (*CELLS, *ACCELERATION, *PROOF, *MEMORY)


def job(cell: Any, side: str = "ours", seed: int = 1) -> Any:
    return learning.Job(cell, side, seed, Path("runs"), 3)


def model(preset: str, *changes: str) -> Any:
    pytest.importorskip("stable_baselines3")
    from peers.stable_baselines3_models import make_peer

    return make_peer(job(Cell(preset, changes)).config())


def test_ppo_gets_the_numbers_of_the_preset() -> None:
    peer = model("ppo-cartpole")
    assert (peer.n_envs, peer.n_steps, peer.batch_size, peer.n_epochs) == (8, 32, 256, 20)
    assert (peer.gamma, peer.gae_lambda, peer.ent_coef, peer.vf_coef) == (0.98, 0.8, 0.0, 0.5)
    assert [peer.lr_schedule(share) for share in (1.0, 0.5, 0.0)] == pytest.approx([1e-3, 5e-4, 0.0])
    assert [peer.clip_range(share) for share in (1.0, 0.5, 0.0)] == pytest.approx([0.2, 0.1, 0.0])
    assert peer.policy.optimizer.defaults["eps"] == 1e-5


def test_a_memory_gets_the_numbers_of_the_preset() -> None:
    pytest.importorskip("sb3_contrib")
    peer = model("ppo-cartpolenovel", *AS_CONTRIB)
    assert type(peer).__name__ == "RecurrentPPO"
    assert (peer.n_envs, peer.n_steps, peer.batch_size, peer.n_epochs) == (8, 32, 256, 20)
    memory, critic_memory = peer.policy.lstm_actor, peer.policy.lstm_critic
    assert (memory.hidden_size, memory.num_layers) == (critic_memory.hidden_size, critic_memory.num_layers) == (64, 1)
    assert peer.policy.shared_lstm is False
    assert model("ppo-cartpolenovel", *AS_CONTRIB, "algo_kwargs.recurrent.separate_critic=false").policy.shared_lstm
    for unlike in ("type=gru", "sequence_length=16"):
        with pytest.raises(ValueError, match=f"has no {unlike.partition('=')[0]}"):
            model("ppo-cartpolenovel", *AS_CONTRIB, f"algo_kwargs.recurrent.{unlike}")


def test_what_sac_has_beyond_the_peer_is_refused() -> None:
    for option in ("critic_layer_norm=true", "critic_dropout=0.1", "policy_value=mean", "target_critics=1"):
        with pytest.raises(ValueError, match=f"has no {option.partition('=')[0]}"):
            model("sac-pendulum", f"algo_kwargs.{option}")


def test_a_baseline_of_stacked_observations_has_no_memory() -> None:
    stacked = {cell.preset: job(cell).config() for cell in MEMORY if cell.label == "stacked"}
    assert stacked.keys() == {cell.preset for cell in MEMORY}
    for config in stacked.values():
        assert config.env_kwargs["frame_stack"] == 4
        assert config.algo_kwargs["recurrent"] is None


def test_observations_and_rewards_are_normalised_on_both_sides() -> None:
    env = model("ppo-mountaincar").get_vec_normalize_env()
    assert (env.norm_obs, env.norm_reward, env.gamma, env.clip_obs) == (True, True, 0.99, 10.0)
    assert model("ppo-cartpole").get_vec_normalize_env() is None


def test_algorithms_with_a_replay_get_the_numbers_of_the_preset() -> None:
    dqn = model("dqn-lunarlander")
    assert (dqn.batch_size, dqn.buffer_size, dqn.learning_starts, dqn.gamma) == (128, 50_000, 128, 0.99)
    assert (dqn.train_freq.frequency, dqn.gradient_steps, dqn.target_update_interval) == (4, 4, 250)
    assert (dqn.exploration_final_eps, dqn.exploration_fraction) == (0.1, 0.12)
    td3 = model("td3-pendulum")
    assert (td3.gamma, td3.buffer_size, td3.policy_delay, td3.batch_size) == (0.98, 200_000, 2, 256)
    assert td3.action_noise._sigma.tolist() == [0.1]
    assert model("dqn-cartpole").n_steps == 5


def test_networks_optimizers_and_temperature_are_those_of_the_configuration() -> None:
    settings = ("activation=tanh", "critic_hidden_sizes=[32]", "temperature_init=0.5", "optimizer_beta1=0.5")
    sac = model("sac-pendulum", *(f"algo_kwargs.{setting}" for setting in settings))
    assert [type(layer).__name__ for layer in sac.actor.latent_pi] == ["Linear", "Tanh", "Linear", "Tanh"]
    assert [layer.out_features for layer in sac.critic.q_networks[0] if hasattr(layer, "weight")] == [32, 1]
    assert sac.log_ent_coef.exp().item() == pytest.approx(0.5)
    assert sac.actor.optimizer.defaults["betas"] == (0.5, 0.999)
    assert model("sac-pendulum", "algo_kwargs.temperature=0.2").ent_coef_tensor.item() == pytest.approx(0.2)
    sde = model("sac-pendulum", "algo_kwargs.use_sde=true", "algo_kwargs.log_std_init=-2.0")
    assert (sde.use_sde, sde.sde_sample_freq, sde.actor.log_std_init) == (True, 8, -2.0)
    for preset in ("dqn-lunarlander", "td3-pendulum"):
        peer = model(preset, "algo_kwargs.activation=elu", "algo_kwargs.optimizer_eps=1e-4")
        assert "ELU" in str(peer.policy)
        assert "ReLU" not in str(peer.policy)
        network = peer.policy if preset.startswith("dqn") else peer.critic
        assert network.optimizer.defaults["eps"] == 1e-4


def test_epsilon_falls_over_the_same_steps() -> None:
    whole = model("dqn-lunarlander", "algo_kwargs.epsilon_schedule={start: 0.5, end: 0.2, duration: null}")
    assert (whole.exploration_initial_eps, whole.exploration_final_eps, whole.exploration_fraction) == (0.5, 0.2, 1.0)
    changes = ("total_timesteps=50_000", "algo_kwargs.epsilon_schedule={type: linear, duration: 10_000}")
    assert model("dqn-lunarlander", *changes).exploration_fraction == 0.2
    fixed = model("dqn-lunarlander", "algo_kwargs.epsilon_schedule=null", "algo_kwargs.epsilon=0.1")
    assert (fixed.exploration_initial_eps, fixed.exploration_final_eps) == (0.1, 0.1)


def test_rounds_of_updates_come_after_as_many_steps_of_all_environments() -> None:
    assert model("dqn-lunarlander", "num_envs=2").train_freq.frequency == 2


@pytest.mark.parametrize(
    ("preset", "changes", "problem"),
    [
        ("dqn-mountaincar", (), "repeat_exponent"),
        ("dqn-lunarlander", ("algo_kwargs.double=true",), "double True"),
        ("ppo-cartpole", ("env_kwargs.frame_stack=2",), "frame_stack"),
        ("ppo-cartpole", ("algo_kwargs.learning_rate_warmup_steps=10",), "warm-up of learning_rate"),
        ("ppo-cartpole", ("algo_kwargs.ent_coef_warmup_steps=10",), "ent_coef_warmup_steps 10"),
        ("ppo-cartpole", ("algo_kwargs.learning_rate_schedule={type: linear, duration: 0.5}",), "a share of 0.5"),
        ("dqn-lunarlander", ("algo_kwargs.epsilon_warmup_steps=10",), "warm-up of epsilon"),
        ("dqn-lunarlander", ("algo_kwargs.epsilon_schedule={type: cosine, end: 0.1}",), "cosine schedule of epsilon"),
        ("dqn-lunarlander", ("num_envs=8",), "train_interval 4 with 8 environments"),
        ("sac-pendulum", ("algo_kwargs.policy_delay=2",), "policy_delay 2"),
        ("sac-pendulum", ("algo_kwargs.target_network=false",), "target_network False"),
        ("sac-pendulum", ("algo_kwargs.optimizer_eps=1e-5",), "optimizer_eps 1e-05"),
        ("td3-pendulum", ("algo_kwargs.max_grad_norm=1.0",), "max_grad_norm 1.0"),
    ],
)
def test_what_the_peer_lacks_is_refused(preset: str, changes: tuple[str, ...], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        model(preset, *changes)


def test_every_comparison_of_the_suite_can_be_made() -> None:
    pytest.importorskip("stable_baselines3")
    pytest.importorskip("Box2D")
    from peers.stable_baselines3_models import make_peer

    for cell in (*CELLS, *QUICK, *ACCELERATION, *PROOF):
        config = job(cell).config()
        if SB3 in cell.sides:
            assert make_peer(config).num_timesteps == 0
    names = [learning.result_path(cell, side, Path()).name for cell in EVERY for side in cell.sides]
    assert len(set(names)) == len(names)


def test_results_are_kept_and_told_by_the_package_s_statistics(tmp_path: Path) -> None:
    cell = Cell("ppo-cartpole", ("total_timesteps=20_000",), "quick")
    for side, scores in (("ours", [400.0, 500.0, 450.0]), ("stable_baselines3", [100.0, 450.0, 200.0])):
        for seed, score in enumerate(scores, start=1):
            row = {"seed": seed, "steps": 20_000, "seconds": 1.0, "eval_return_mean": score}
            learning.store(learning.result_path(cell, side, tmp_path), job(cell, side, seed), row)
    stored = json.loads((tmp_path / "stable_baselines3-ppo-cartpole-quick.json").read_text())
    assert [run["seed"] for run in stored["runs"]] == [1, 2, 3]
    assert stored["config"]["total_timesteps"] == 20_000
    assert stored["side"] == "stable_baselines3"
    (line,) = learning.report([cell], tmp_path)
    # Of nine pairs ours is better in seven and equal in one.
    assert "probability of improvement 0.83" in line
    assert line.startswith("ppo-cartpole-quick: ours 450.0 [")


def test_two_seeds_have_no_interval(tmp_path: Path) -> None:
    cell = Cell("ppo-cartpole")
    for side in cell.sides:
        for seed, score in enumerate((100.0, 200.0), start=1):
            row = {"seed": seed, "eval_return_mean": score}
            learning.store(learning.result_path(cell, side, tmp_path), job(cell, side, seed), row)
    (line,) = learning.report([cell], tmp_path)
    assert line == "ppo-cartpole: ours 150.0 over 2 seeds, stable_baselines3 150.0 over 2 seeds"


ROW = {"steps": 1, "seconds": 1.0, "eval_return_mean": 5.0}


@dataclass(frozen=True)
class Fatal(learning.Job):
    """A training that its seed ends."""

    def run(self) -> dict[str, Any]:
        if self.seed == 1:
            os._exit(3)
        if self.seed == 2:
            raise SystemExit("left")
        return {"seed": self.seed, **ROW}


def test_a_training_that_dies_takes_no_other_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(learning, "Job", Fatal)
    assert learning.main(["--preset", "ppo-cartpole", "--seeds", "1,2,3", "--jobs", "2"], tmp_path) == 1
    stored = json.loads((tmp_path / "ppo-cartpole.json").read_text())
    assert stored["runs"] == [{"seed": 3, **ROW}]
    died, left = sorted(capsys.readouterr().out.splitlines()[-2:])
    assert died.startswith("ppo-cartpole ours seed 1 failed, so nothing of it is stored: BrokenProcessPool")
    assert left == "ppo-cartpole ours seed 2 failed, so nothing of it is stored: SystemExit: left"


def test_one_after_another_a_failure_does_not_end_the_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(job: Any) -> dict[str, Any]:
        if job.seed == 1:
            raise RuntimeError("the training was failed")
        return {"seed": job.seed, **ROW}

    monkeypatch.setattr(learning.Job, "run", run)
    given = ["--preset", "ppo-cartpole", "--total-timesteps", "900", "--seeds"]
    assert learning.main([*given, "1,2"], tmp_path) == 1
    assert learning.main([*given, "3,2"], tmp_path) == 0
    stored = json.loads((tmp_path / "ppo-cartpole-900.json").read_text())
    assert [row["seed"] for row in stored["runs"]] == [2, 3]
    again = "python benchmarks/learning.py --preset ppo-cartpole --seeds 2,3 --total-timesteps 900"
    assert stored["command"] == again
    assert {"model", "cores"} <= stored["machine"].keys()


def test_a_quick_suite_trains_everything_every_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[str] = []

    def run(job: Any) -> dict[str, Any]:
        trained.append(job.cell.preset)
        return {"seed": job.seed, **ROW}

    monkeypatch.setattr(learning.Job, "run", run)
    monkeypatch.setattr(learning.Job, "lacks", lambda job: [])
    for _ in range(2):
        assert learning.main(["--suite", "quick", "--output-dir", str(tmp_path / "runs")], tmp_path) == 0
    assert len(trained) == 2 * sum(len(cell.seeds) for cell in QUICK) * 2
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("", "say what to train: --preset NAME, or --suite quick, full, acceleration, proof, memory, workers"),
        ("--suite full --preset ppo-cartpole", "leave out --preset and --total-timesteps"),
        ("--suite full --total-timesteps 10", "leave out --preset and --total-timesteps"),
        ("--suite quick --seeds 1", "leave out --only and --seeds"),
        ("--suite quick --only sac-pendulum", "leave out --only and --seeds"),
        ("--preset ppo-cartpole --only sac-pendulum", "--only chooses from a suite: add --suite full"),
        ("--suite full --only sac-pendulm", "invalid choice: 'sac-pendulm'"),
        ("--preset ppo-cartpole --jobs 0", "--jobs must be at least 1"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(given: str, problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        learning.main(given.split())
    assert left.value.code == 2
    assert problem in capsys.readouterr().err


def test_a_seed_that_is_stored_again_replaces_its_row(tmp_path: Path) -> None:
    cell = Cell("ppo-cartpole")
    path = learning.result_path(cell, "ours", tmp_path)
    for score in (1.0, 2.0):
        learning.store(path, job(cell), {"seed": 1, "eval_return_mean": score})
    assert json.loads(path.read_text())["runs"] == [{"seed": 1, "eval_return_mean": 2.0}]


def test_results_of_another_configuration_are_not_mixed(tmp_path: Path) -> None:
    cell = Cell("ppo-cartpole", sides=("ours",), seeds=(1, 2))
    path = learning.result_path(cell, "ours", tmp_path)
    learning.store(path, job(cell), {"seed": 1, **ROW})
    jobs, _ = learning.plan([cell], 3, Path("runs"), tmp_path)
    assert [one.seed for one in jobs] == [2]
    stored = json.loads(path.read_text())
    stored["config"]["algo_kwargs"]["gamma"] = 0.5
    path.write_text(json.dumps(stored))
    with pytest.raises(SystemExit, match=r"was trained with another algo_kwargs.gamma: move it away"):
        learning.plan([cell], 3, Path("runs"), tmp_path)


def test_what_cannot_be_trained_here_is_said_and_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    cells = [Cell("ppo-cartpole", seeds=(2, 1)), Cell("dqn-lunarlander", sides=("ours",))]
    jobs, skipped = learning.plan(cells, 3, Path("runs"), tmp_path)
    assert [(one.cell.preset, one.side, one.seed) for one in jobs] == [
        ("ppo-cartpole", "ours", 2),
        ("ppo-cartpole", "ours", 1),
    ]
    assert skipped == [
        f"ppo-cartpole stable_baselines3 is left out: stable-baselines3 is not installed: {install_hint('bench')}",
        f"dqn-lunarlander ours is left out: Box2D is not installed: {install_hint('box2d')}",
    ]


def test_a_comparison_of_the_suite_is_trained_alone_by_its_own_seeds_or_by_those_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[tuple[str, str, int]] = []

    def run(job: learning.Job) -> dict[str, Any]:
        trained.append((job.cell.preset, job.side, job.seed))
        return {"seed": job.seed, **ROW}

    monkeypatch.setattr(learning.Job, "run", run)
    monkeypatch.setattr(learning.Job, "lacks", lambda job: [])
    arguments = ["--suite", "full", "--only", "sac-lunarlandercontinuous"]
    assert learning.main([*arguments, "--seeds", "3"], tmp_path) == 0
    assert trained == [("sac-lunarlandercontinuous", side, 3) for side in ("ours", "stable_baselines3")]
    assert learning.main(arguments, tmp_path) == 0
    assert [seed for _, side, seed in trained[2:] if side == "ours"] == [1, 2, 4, 5, 6, 7, 8, 9, 10]
    trained.clear()
    assert learning.main(["--suite", "full", "--only", "ppo-cartpole", "--side", SB3, "--seeds", "1"], tmp_path) == 0
    assert trained == [("ppo-cartpole", SB3, 1)]


def test_the_peer_may_have_fewer_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning.Job, "lacks", lambda job: [])
    cell = Cell("ppo-cartpole", seeds=(1, 2, 3), peer_seeds=(1,))
    jobs, _ = learning.plan([cell], 10, tmp_path, tmp_path)
    assert [(job.side, job.seed) for job in jobs] == [("ours", 1), (SB3, 1), ("ours", 2), ("ours", 3)]


def test_an_interrupted_training_is_resumed_and_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = Cell("ppo-cartpole", ("total_timesteps=1024", "eval_interval=1024", "eval_episodes=1"), "short", ("ours",))
    before = {"seconds": 5000.0, "cpu_seconds": 4000.0}
    with monkeypatch.context() as hours, stopped_after(20):
        hours.setattr(Clock, "read", lambda clock: before)
        with pytest.raises(KeyboardInterrupt):
            learning.Job(cell, "ours", 1, tmp_path, 2).run()
    row = learning.Job(cell, "ours", 1, tmp_path, 2).run()
    for name, seconds in before.items():
        assert seconds < row[name] < seconds + 1000, "with the time before the interruption"
    assert len(list((tmp_path / cell.name).iterdir())) == 1
    (step,) = row["resumed_at_steps"]
    assert 0 < step < row["steps"] == 1024
    whole = learning.Job(cell, "ours", 1, tmp_path / "whole", 2).run()
    with stopped_after(20), pytest.raises(KeyboardInterrupt):
        learning.Job(cell, "ours", 2, tmp_path, 2).run()
    other = replace(cell, changes=(*cell.changes, "algo_kwargs.gamma=0.9"))
    assert learning.Job(other, "ours", 2, tmp_path, 2).run()["resumed_at_steps"] == [], "by other settings"
    assert whole["eval_return_mean"] == row["eval_return_mean"]
    assert whole["resumed_at_steps"] == []


@pytest.mark.parametrize("algo", [spec.name for spec in list_algorithm_specs() if spec.tier == "stable"])
def test_a_stable_algorithm_has_five_stored_seeds_on_two_environments(algo: str) -> None:
    seeds: dict[str, set[int]] = {}
    for path in RESULTS.glob("*.json"):
        summary = json.loads(path.read_text(encoding="utf-8"))
        ours = (
            all("eval_return_mean" in run for run in summary.get("runs") or [{}]) and summary.get("side", OURS) == OURS
        )
        if ours and summary["config"]["algo"] == algo:
            seeds.setdefault(summary["config"]["env_id"], set()).update(run["seed"] for run in summary["runs"])
    assert sum(len(found) >= 5 for found in seeds.values()) >= 2, seeds

"""Sides train in processes of their own with equal settings, and a ratio compares the sides and times that it names."""

from __future__ import annotations

import dataclasses
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

import limits
import rl_training
from peers import cleanrl_scripts, older_checkout, side_process
from records import OURS, SB3
from rl_training.experiment.configuration.config_files import load_config
from speed_cases import seeds_speed, training_side, training_speed
from speed_cases.speed_parts import Effort
from speed_cases.speed_targets import TARGETS
from speed_cases.training_cases import BEST_THREADS, CASES, SBX, Side

CPU = torch.device("cpu")
MADE_UP = {
    "ours": (10.0, 10.0),
    "ours_threads": (8.0, 12.0),
    "stable_baselines3": (5.0, 5.0),
    "sbx": (4.0, 6.0),
    "sbx_threads": (3.0, 4.0),
}
"""Steps per second of the processor's and of the clock's time."""


def made_up(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], dict[str, Any]]]:
    """Let no side train; return what was asked for."""
    asked: list[tuple[list[str], dict[str, Any]]] = []

    def measured(script: Path, words: list[str], **how: Any) -> dict[str, float]:
        asked.append((words, how))
        processor, clock = MADE_UP.get(words[1], (1.0, 1.0))
        return {"steps_per_second": processor, "steps_per_second_of_the_clock": clock}

    monkeypatch.setattr(training_speed, "measure_alone", measured)
    monkeypatch.setattr(training_speed, "why_missing", lambda package: None)
    monkeypatch.setattr(cleanrl_scripts, "why_missing", lambda algo: "CleanRL is not installed")
    return asked


def test_a_ratio_takes_the_best_threads_of_both_sides_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = made_up(monkeypatch)
    outcome = training_speed.measure("sac", Effort(1, quick=True))
    assert outcome.ratios == {"stable-baselines3": [10 / 5], "SBX": [10 / 4], BEST_THREADS: [12 / 6]}
    assert outcome.clocks == {BEST_THREADS: "the clock"}
    assert outcome.details["sides"][BEST_THREADS] == ["ours_threads", "sbx"]
    assert {words[1]: how["one_thread"] for words, how in asked} == {
        "ours": True,
        "ours_threads": False,
        "stable_baselines3": True,
        "sbx": True,
        "sbx_threads": False,
    }
    assert asked[0][0] == ["sac", "ours", "1", "--quick"]


def test_the_older_checkout_is_one_side_and_its_commit_is_stored(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = made_up(monkeypatch)
    (tmp_path / "src" / "rl_training").mkdir(parents=True)
    outcome = training_speed.measure("efficientzero", Effort(1, before=tmp_path))
    assert outcome.ratios == {"itself before": [10.0]}
    assert {words[1]: how["source"] for words, how in asked} == {"ours": None, "before": tmp_path}
    assert outcome.details["before"] == "unknown"  # no repository
    for words in (["init"], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "--allow-empty", "-m", "a"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True, capture_output=True)
    assert len(older_checkout.commit(tmp_path)) == 7
    reason = older_checkout.why_missing(tmp_path / "src")
    assert reason is not None
    assert f"git worktree add build/before {older_checkout.COMMIT}" in reason


SCRIPT = """
import json, os, sys
import rl_training
measured = {
    "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1,
    "omp": os.environ.get("OMP_NUM_THREADS"),
    "xla": os.environ.get("XLA_FLAGS"),
    "package": rl_training.__file__,
    "words": sys.argv[1:3],
}
open(sys.argv[-1], "w").write(json.dumps(measured))
"""


def test_a_side_gets_its_threads_and_its_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    one = side_process.measure_alone(script, ["a", "b"])
    assert (one["cores"], one["omp"], one["words"]) == (1, "1", ["a", "b"])
    assert "intra_op_parallelism_threads=1" in one["xla"]
    assert one["package"] == rl_training.__file__
    package = tmp_path / "older" / "src" / "rl_training" / "__init__.py"
    package.parent.mkdir(parents=True)
    package.write_text("")
    free = side_process.measure_alone(script, [], one_thread=False, source=tmp_path / "older")
    # The shell's own limit does not hold for who may take what it likes.
    assert (free["cores"], free["omp"], free["xla"]) == (side_process.usable_cores(), None, None)
    assert free["package"] == str(package)


def test_a_relative_path_of_the_package_still_leads_there_from_another_folder(tmp_path: Path) -> None:
    paths = side_process.environment({"PYTHONPATH": f"src{os.pathsep}/elsewhere"}, one_thread=True)["PYTHONPATH"]
    assert paths.split(os.pathsep)[-2:] == [str(Path("src").resolve()), "/elsewhere"]


def test_a_side_that_fails_says_why(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("raise SystemExit('no such environment')\n")
    cores = side_process.usable_cores()
    with pytest.raises(RuntimeError, match=r"script\.py one failed:\nno such environment"):
        side_process.measure_alone(script, ["one"])
    assert side_process.usable_cores() == cores


def test_every_ratio_names_sides_of_its_case_and_every_target_a_ratio() -> None:
    for case in CASES.values():
        for ratio in case.ratios.values():
            assert {*ratio.ours, *ratio.peer} <= case.sides.keys()
            assert {case.sides[side].who for side in ratio.ours} == {OURS}
            assert OURS not in {case.sides[side].who for side in ratio.peer}
    for name in TARGETS.keys() & CASES.keys():
        assert TARGETS[name].keys() <= CASES[name].ratios.keys()
    assert TARGETS["seeds"].keys() == {seeds_speed.RATIO}


def test_all_sides_of_a_ratio_train_with_the_same_settings() -> None:
    for case in CASES.values():
        for ratio in case.ratios.values():
            changes = {case.sides[side].changes for side in (*ratio.ours, *ratio.peer)}
            assert len(changes) == 1 or changes == {(), ("algo_kwargs.compile=true",)}


@pytest.mark.parametrize("who", [OURS, SB3, SBX])
def test_each_side_trains_and_is_measured(who: str) -> None:
    if who != OURS:
        pytest.importorskip("sbx" if who == SBX else "stable_baselines3")
    case = dataclasses.replace(CASES["ppo"], quick_steps=1_024, left_out=256)
    measured = training_side.measure(case, Side(who), 1, Effort(1, quick=True))
    assert measured.keys() == {
        *("steps_per_second", "steps_per_second_of_the_clock", "preparation_seconds", "eval_return"),
    }
    assert measured["steps_per_second"] > 0
    assert measured["eval_return"] >= 1


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if "sbx" in case.sides])
def test_sbx_has_networks_of_the_same_size(name: str) -> None:
    pytest.importorskip("sbx")
    import jax

    from peers.sbx_models import make_sbx
    from peers.stable_baselines3_models import make_peer

    case = CASES[name]
    config = case.config(case.sides["sbx"], 1, Effort(1), "runs")
    model, peer = make_sbx(config), make_peer(config)
    states = {
        "ppo": ("actor_state", "vf_state"),
        "dqn": ("qf_state",),
    }.get(case.algo, ("actor_state", "qf_state"))
    count = sum(leaf.size for state in states for leaf in jax.tree.leaves(getattr(model.policy, state).params))
    targets = sum(one.numel() for key, one in peer.policy.named_parameters() if "target" in key)
    assert count == sum(one.numel() for one in peer.policy.parameters()) - targets
    for key in ("gamma", "n_epochs", "n_steps", "batch_size", "buffer_size", "learning_starts", "tau", "policy_delay"):
        assert getattr(model, key, None) == getattr(peer, key, getattr(model, key, None)), key


@pytest.mark.parametrize(
    ("name", "change", "problem"),
    [
        ("ppo", "algo_kwargs.target_kl=0.01", "target_kl 0.01"),
        ("dqn", "algo_kwargs.max_grad_norm=10", "max_grad_norm 10.0"),
        ("dqn", "algo_kwargs.hidden_sizes=[64,32]", r"hidden_sizes \(64, 32\)"),
        ("sac", "algo_kwargs.use_sde=true", "use_sde True"),
        ("td3", "algo_kwargs.learning_rate_schedule={type: linear, end: 0.0}", "learning_rate_schedule"),
    ],
)
def test_what_sbx_lacks_is_refused(name: str, change: str, problem: str) -> None:
    pytest.importorskip("sbx")
    from peers.sbx_models import make_sbx

    case = CASES[name]
    settings = (*case.settings, *case.sides["sbx"].changes, change)
    with pytest.raises(ValueError, match=f"SBX has no {problem}"):
        make_sbx(load_config(preset=case.preset, set_values=settings))


def test_pong_is_played_by_the_same_network_on_both_sides() -> None:
    for module in ("ale_py", "cv2", "stable_baselines3"):
        pytest.importorskip(module)
    from peers.stable_baselines3_models import make_peer, train_peer
    from rl_training.algorithms.ppo import PPO
    from rl_training.envs.make import make_vector_env
    from rl_training.experiment.config import algorithm_params

    case = CASES["ppo-pong"]
    config = dataclasses.replace(case.config(case.sides[SB3], 1, Effort(1), "runs"), num_envs=1)
    peer = make_peer(config)
    env = make_vector_env(config.task_name, config.env_kwargs, mode="training", num_envs=1, backend="local_sync")
    try:
        generator = torch.Generator().manual_seed(0)
        ours: Any = PPO(
            algorithm_params(config), env.observation_space, env.action_space, device=CPU, generator=generator
        )
        assert peer.action_space == env.action_space
        assert peer.observation_space.shape == env.observation_space.shape == (4, 84, 84)
        weights = sum(one.numel() for one in ours.model.parameters())
        assert weights == sum(one.numel() for one in peer.policy.parameters())
    finally:
        env.close()
        peer.get_env().close()
    with pytest.raises(ValueError, match="not evaluated on Atari"):
        train_peer(config, [1])


def test_seeds_use_all_cores_by_the_words_that_the_package_knows() -> None:
    jobs = seeds_speed.all_cores()
    assert jobs in ("auto", str(side_process.usable_cores()))


@pytest.mark.slow
def test_seeds_are_trained_by_both_sides() -> None:
    pytest.importorskip("stable_baselines3")
    outcome = seeds_speed.measure(Effort(1, quick=True))
    (row,) = outcome.details["rounds"]
    assert outcome.ratios == {seeds_speed.RATIO: [row[SB3] / row["ours"]]}


def test_limits_compare_with_an_older_checkout_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    older = tmp_path / "older"
    (older / "src" / "rl_training").mkdir(parents=True)

    def seconds(case: Any, steps: int, source: Path | None = None) -> tuple[float, float]:
        return (8e-4, 4e-5) if source == older else (2e-4, 1e-5)

    monkeypatch.setattr(limits, "seconds_of_training", seconds)
    monkeypatch.setattr(limits, "seconds_of_products", lambda passes, repeats: (1e-4, 1e7))
    now = {"update_microseconds": 200, "share_of_products": 0.5, "collect_microseconds_per_step": 10.0}
    then = {"update_microseconds": 800, "share_of_products": 0.125, "collect_microseconds_per_step": 40.0}
    rest = {"algo": "ppo", "products_microseconds": 100, "gflops_of_products": 100.0}
    assert limits.measure("ppo", Effort(1, before=older)) == {**rest, **now, "before": then}
    assert limits.measure("ppo", Effort(1, before=tmp_path)) == {**rest, **now}

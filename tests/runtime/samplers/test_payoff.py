"""Samplers say once, by the times of the run itself, that they do not pay."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from harness import tiny_config
from replays import off_policy_config
from rl_training.experiment.runs import read_metadata
from rl_training.runtime.samplers import payoff
from rl_training.runtime.samplers.payoff import JUDGED, WARM_UP, Payoff, Times
from rl_training.runtime.workflows import train

LONG_ENOUGH: dict[str, Any] = {
    "acceleration": "off",
    "eval_episodes": 0,
    "eval_interval": None,
    "checkpoint_interval": 10_000,
}


class _Session:
    """The clocks and messages of a run, without a run."""

    def __init__(self, *told: str) -> None:
        self.clocks = {"collect": 100.0, "update": 50.0}  # of the run before it was resumed
        self.told = list(told)

    def spent(self, name: str) -> float:
        return self.clocks[name]

    def was_told(self, beginning: str) -> bool:
        return any(sentence.startswith(beginning) for sentence in self.told)

    def notify(self, sentence: str) -> None:
        self.told.append(sentence)


def _run(session: Any, *, collect: float, alone: float, update: float = 0.1, updates: int = WARM_UP + JUDGED) -> None:
    groups: Any = SimpleNamespace(alone_seconds=0.0, rows=[slice(0, 1), slice(1, 2)])
    judge = Payoff(session, groups)
    for number in range(updates):
        slow = 100.0 if number < WARM_UP else 1.0  # what comes first says nothing
        session.clocks["collect"] += collect * slow
        session.clocks["update"] += update * slow
        groups.alone_seconds += alone
        judge.updated()


def test_the_gain_is_the_time_of_one_process_by_that_of_the_run() -> None:
    times = Times(collect=1.0, update=3.0, alone=2.0)
    assert times.gain == pytest.approx(5 / 4)
    assert Times(7.0, 8.0, 9.0).since(Times(1.0, 1.0, 1.0)) == (6.0, 7.0, 8.0)


def test_samplers_that_do_not_pay_say_so_once() -> None:
    session = _Session()
    _run(session, collect=0.3, alone=0.1, updates=100)
    assert session.told == [
        "samplers: without them collecting would take about 50% of this run, by the times of its first updates, and 2 "
        "samplers make it about 0.50 times as fast; leave them out, or see docs/scaling.md for where they pay"
    ]
    _run(session, collect=0.3, alone=0.1)  # resumed
    assert len(session.told) == 1


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"collect": 0.2, "alone": 0.4}, id="they pay"),
        pytest.param({"collect": 0.3, "alone": 0.1, "updates": WARM_UP + JUDGED - 1}, id="too few updates"),
        pytest.param({"collect": 0.003, "alone": 0.001, "update": 0.001}, id="too short a time"),
    ],
)
def test_samplers_that_pay_or_are_not_yet_known_say_nothing(changes: dict[str, Any]) -> None:
    session = _Session()
    _run(session, **changes)
    assert session.told == []


@pytest.mark.parametrize("algo", ["ppo", "dqn"])
def test_samplers_of_cartpole_say_that_they_do_not_pay(tmp_path: Path, algo: str) -> None:
    steps = {"ppo": 32 * (WARM_UP + JUDGED + 1), "dqn": 160}[algo]
    config = tiny_config if algo == "ppo" else lambda place, **changes: off_policy_config("dqn", place, **changes)
    with mock.patch.object(payoff, "JUDGED_SECONDS", 0.0):
        result = train(config(tmp_path, samplers=2, total_timesteps=steps, **LONG_ENOUGH))
    (notice,) = read_metadata(result.run_dir)["notices"]
    assert notice.startswith("samplers: without them collecting would take about")


def test_samplers_of_slow_environments_say_nothing(tmp_path: Path) -> None:
    settings: dict[str, Any] = {**LONG_ENOUGH, "num_envs": 4, "algo_kwargs": {"num_steps": 8}}
    steps = 4 * 8 * (WARM_UP + JUDGED + 1)
    with mock.patch.object(payoff, "JUDGED_SECONDS", 0.0):
        result = train(
            tiny_config(tmp_path, env_id="env_samples:Sample/Slow-v0", samplers=4, total_timesteps=steps, **settings)
        )
    assert read_metadata(result.run_dir)["notices"] == []

"""`info["metrics"]`: numbers that an environment gives are in the rows of its run, as means since the last row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness import assert_same_run, final_state, metric_rows, tiny_config, train_with_stops
from metric_envs import WRONG
from rl_training.envs.make import make_slots, make_vector_env
from rl_training.envs.slot import EnvSlot
from rl_training.envs.step import StepBatch
from rl_training.errors import AxiomError, EnvironmentFailure
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.storage.schemas import GivenMetrics, mismatch
from rl_training.runtime.acting.evaluator import EpisodeResult, summarize
from rl_training.runtime.callbacks import Callback, TrainingEvent
from rl_training.runtime.recording.env_metrics import EnvironmentMetrics
from rl_training.runtime.workflows import train

METERED = "metric_envs:Metered"


def metered(output_dir: Path, **changes: Any) -> TrainConfig:
    return tiny_config(output_dir, env_id=METERED, **changes)


def given_by(backend: str, steps: int) -> list[StepBatch]:
    env = make_vector_env(METERED, {"num_workers": 2}, mode="training", num_envs=3, backend=backend)
    env.reset([1, 2, 3])
    found = [env.step(np.array([0, 1, step % 2])) for step in range(steps)]
    env.close()
    return found


def step_often(slot: EnvSlot) -> None:
    for _ in range(20):
        if slot.step(0).terminated:
            slot.reset()


def test_every_step_carries_what_the_environments_gave_in_order() -> None:
    steps = given_by("local_sync", 6)
    assert [[sorted(given) for given in step.metrics] for step in steps[3:5]] == [
        [["height"]] * 3,
        [["arrived", "height"]] * 3,
    ]
    assert [given["arrived"] for given in steps[4].metrics] == [0.0, 1.0, 0.0]
    assert len({given["height"] for step in steps for given in step.metrics}) == 18


def test_worker_processes_carry_the_same() -> None:
    assert [step.metrics for step in given_by("local_async", 6)] == [step.metrics for step in given_by("local_sync", 6)]


@pytest.mark.parametrize("backend", ["local_sync", "vector"])
def test_an_environment_without_metrics_gives_none(backend: str) -> None:
    env = make_vector_env("CartPole-v1", {}, mode="training", num_envs=2, backend=backend)
    env.reset([1, 2])
    assert not env.step(np.array([0, 1])).metrics
    env.close()


def test_rows_hold_the_means_since_the_last_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, float]] = []
    add = EnvironmentMetrics.add

    def listening(self: EnvironmentMetrics, metrics: dict[str, float], task: str | None = None) -> None:
        given.append(metrics)
        add(self, metrics, task)

    monkeypatch.setattr(EnvironmentMetrics, "add", listening)
    result = train(metered(tmp_path, total_timesteps=128, log_interval=64, eval_episodes=0))
    rows = metric_rows(result.run_dir)
    assert len(rows) == 2
    for number, row in enumerate(rows):
        part = given[64 * number : 64 * (number + 1)]  # two environments
        arrived = [one["arrived"] for one in part if "arrived" in one]
        assert len(arrived) in (12, 13, 14)
        assert row["env_arrived"] == sum(arrived) / len(arrived)
        assert row["env_height"] == pytest.approx(np.mean([one["height"] for one in part]), rel=1e-12)
    assert result.metrics["env_height"] == rows[-1]["env_height"]


def test_an_evaluation_says_what_its_own_environments_gave(tmp_path: Path) -> None:
    run_dir = train(metered(tmp_path, total_timesteps=64, eval_interval=None, log_interval=64)).run_dir
    training, evaluation = metric_rows(run_dir)
    assert {key for key in training if "env_" in key} == {"env_height", "env_arrived"}
    assert {key for key in evaluation if "env_" in key} == {"eval_env_height", "eval_env_arrived"}
    assert evaluation["eval_env_arrived"] in (0.0, 0.5, 1.0)
    assert training["env_height"] != evaluation["eval_env_height"]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {
            "algo": "dqn",
            "algo_kwargs": {"hidden_sizes": [8], "learning_starts": 32, "batch_size": 8, "buffer_size": 200},
        },
    ],
    ids=["ppo", "dqn"],
)
def test_a_stopped_run_goes_on_with_the_same_sums(changes: dict[str, Any], tmp_path: Path) -> None:
    settings = {**changes, "total_timesteps": 256, "log_interval": 96, "eval_interval": 128}
    straight = train(metered(tmp_path / "straight", **settings)).run_dir
    assert any("env_height" in row for row in metric_rows(straight))
    assert any("/env_metrics/sums/height" in path for path in final_state(straight))
    stopped = train_with_stops(metered(tmp_path / "stopped", **settings), [20, 45])
    assert_same_run(stopped, straight)


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        ("no mapping", "gave [1.0] as info['metrics']; let it be a mapping from names to numbers"),
        ("text", "gave 'high' as info['metrics']['height']; let every metric be a finite number"),
        ("array", "gave array([1., 1.]) as info['metrics']['height']"),
        ("none", "gave None as info['metrics']['height']"),
        ("nan", "gave nan as info['metrics']['height']"),
        ("huge", "as info['metrics']['height']; let every metric be a finite number in the range of float32"),
        ("wide", "as info['metrics']['height']; let every metric be a finite number in the range of float32"),
        ("number as name", "gave info['metrics'] with the name 3; name a metric by 1 to 100 printable characters"),
        ("long name", "gave info['metrics'] with the name 'xxx"),
        ("line break", "gave info['metrics'] with the name 'a\\nb'"),
        ("ever new names", "gave info['metrics'] with 'metric 110', its metric number 101; use at most 100 names"),
    ],
)
def test_what_is_no_metric_is_one_sentence_with_environment_and_key(wrong: str, fault: str) -> None:
    (slot,) = make_slots(METERED, {"wrong": wrong}, mode="training", count=1)
    slot.reset(5)
    with pytest.raises(EnvironmentFailure, match=r"^environment 0 \(seed 5\), at step \d+ of its episode, ") as caught:
        step_often(slot)
    assert fault in str(caught.value)
    assert "\n" not in str(caught.value)


def test_numbers_of_numpy_and_booleans_are_taken() -> None:
    assert "numbers of numpy" in WRONG
    (slot,) = make_slots(METERED, {"wrong": "numbers of numpy"}, mode="training", count=1)
    slot.reset(5)
    metrics = slot.step(0).metrics
    assert metrics == {"height": 2.0, "arrived": 1.0, "left": 3.0, "right": 4.0}
    assert all(type(value) is float for value in metrics.values())


def test_a_task_of_a_suite_has_metrics_of_its_own() -> None:
    metrics = EnvironmentMetrics()
    metrics.add({"height": 1.0}, "one")
    metrics.add({"height": 3.0}, "two")
    metrics.add({"height": 5.0}, "two")
    assert metrics.take() == {"env_height/one": 1.0, "env_height/two": 4.0}
    assert metrics.take() == {}


def test_callbacks_cannot_use_the_names_of_environments(tmp_path: Path) -> None:
    class Wrong(Callback):
        def on_train_start(self, event: TrainingEvent) -> None:
            event.log("env_height", 1.0)

    with pytest.raises(AxiomError, match="'env_height' is a metric of the package itself"):
        train(metered(tmp_path, total_timesteps=32, eval_episodes=0), callbacks=[Wrong()])


@pytest.mark.parametrize(
    "state",
    [
        {"sums": {"a": 1.0}, "counts": {}},
        {"sums": {"a": 1.0}, "counts": {"a": 0}},
        {"sums": {"a": float("inf")}, "counts": {"a": 1}},
    ],
)
def test_sums_of_a_damaged_checkpoint_are_refused(state: dict[str, Any]) -> None:
    assert mismatch(GivenMetrics, state) is not None


def test_an_evaluation_of_a_suite_tells_the_tasks_apart() -> None:
    given = {"one": EnvironmentMetrics({"height": 6.0}, {"height": 3}), "two": None}
    metrics = summarize([EpisodeResult(1.0, 3, 0, task=task, given=metrics) for task, metrics in given.items()])
    assert {name: value for name, value in metrics.items() if "env_" in name} == {"eval_env_height/one": 2.0}


@pytest.mark.parametrize(
    ("info", "success"),
    [
        ({"is_success": np.float32(1.0)}, 1.0),
        ({"success": False}, 0.0),
        ({"is_success": 1, "success": 0}, 1.0),
        ({"is_success": np.array([1, 0])}, None),
        ({"success": "yes"}, None),
        ({}, None),
    ],
)
def test_the_last_step_of_an_episode_tells_whether_it_reached_its_goal(
    info: dict[str, Any], success: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    (slot,) = make_slots("CartPole-v1", {"max_episode_steps": 2}, mode="training", count=1)
    step = type(slot.env.unwrapped).step
    monkeypatch.setattr(type(slot.env.unwrapped), "step", lambda env, action: (*step(env, action)[:4], dict(info)))
    slot.reset(1)
    assert slot.step(0).metrics is None
    assert slot.step(0).metrics == (None if success is None else {"success": success})

"""`event.log`: callbacks add metrics to the rows of a run, and only so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from harness import assert_same_run, last_checkpoint, metric_rows, tiny_config
from rl_training.errors import AxiomError
from rl_training.experiment.runs import read_metadata
from rl_training.runtime.callbacks import Callback, TrainingEvent
from rl_training.runtime.workflows import resume, train


class Logger(Callback):
    """Logs the number of updates at every hook that is named."""

    def __init__(self, *hooks: str) -> None:
        for hook in hooks:
            setattr(self, hook, lambda event, hook=hook: event.log(f"mine/{hook}", event.update_count))


def logged(row: dict[str, Any]) -> dict[str, Any]:
    return {key.removeprefix("mine/"): value for key, value in row.items() if key.startswith("mine/")}


def test_a_logged_value_is_in_the_next_row_and_in_no_other(tmp_path):
    hooks = ("on_train_start", "on_collect_end", "on_update_end", "on_eval_end", "on_train_end")
    config = tiny_config(
        tmp_path, total_timesteps=96, eval_interval=64, log_interval=64, tracking={"tensorboard": True}
    )
    result = train(config, callbacks=[Logger(*hooks)])
    rows = [(row["event"], row["global_step"], logged(row)) for row in metric_rows(result.run_dir)]
    assert rows == [
        ("train", 64, {"on_train_start": 0, "on_collect_end": 1, "on_update_end": 1}),
        ("eval", 64, {"on_update_end": 2}),
        ("train", 96, {"on_eval_end": 2, "on_collect_end": 2, "on_update_end": 3}),
        ("eval", 96, {}),
        ("train", 96, {"on_eval_end": 3, "on_train_end": 3}),  # nothing else would have been written
    ]
    assert result.metrics["mine/on_train_end"] == 3
    assert read_metadata(result.run_dir)["latest_metrics"]["mine/on_train_end"] == 3

    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(result.run_dir / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("mine/on_eval_end")] == [(96, 2.0), (96, 3.0)]


def test_values_that_wait_at_a_checkpoint_are_in_the_rows_of_the_resumed_run(tmp_path):
    """At step 64 a value waits for the row of step 128, and the name is known as the callback's own."""
    changes = {"log_interval": 128, "eval_interval": None, "keep_checkpoints": 10}
    straight = train(tiny_config(tmp_path / "straight", **changes), callbacks=[Logger("on_update_end")]).run_dir
    cut = train(tiny_config(tmp_path / "cut", **changes), callbacks=[Logger("on_update_end")]).run_dir
    first = logged(metric_rows(straight)[0])
    resume(cut / "checkpoints" / "step_64", callbacks=[Logger("on_collect_end")])
    assert logged(metric_rows(cut)[0]) == {"on_update_end": 2, "on_collect_end": 3}
    assert first == {"on_update_end": 3}
    resume(cut / "checkpoints" / "step_64", callbacks=[Logger("on_update_end")])
    assert last_checkpoint(cut).name == "step_320"
    assert_same_run(cut, straight)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("mine", float("nan"), "the value of 'mine' must be a finite number, not nan"),
        ("mine", np.float32("inf"), "must be a finite number, not inf"),
        ("mine", "1", "must be a finite number, not '1'"),
        ("mine", True, "must be a finite number, not True"),
        ("mine", np.zeros(2), "must be a finite number, not array"),
        ("", 1.0, "a metric's name is text of 1 to 200 characters, not ''"),
        ("a\nb", 1.0, "a metric's name is text of 1 to 200 characters"),
        (3, 1.0, "a metric's name is text"),
        ("global_step", 1.0, "'global_step' is a metric of the package itself; choose another name"),
        ("loss_mine", 1.0, "is a metric of the package itself"),
        ("clip_coef", 1.0, "is a metric of the package itself"),
        ("entropy", 1.0, "is a metric of the package itself"),
    ],
)
def test_what_is_no_metric_is_refused_with_the_reason(name, value, reason, tmp_path):
    class Wrong(Callback):
        def on_train_start(self, event):
            event.log(name, value)

    with pytest.raises(AxiomError, match=r"^event\.log: ") as caught:
        train(tiny_config(tmp_path, total_timesteps=64, eval_episodes=0), callbacks=[Wrong()])
    assert reason in str(caught.value)


@pytest.mark.parametrize("value", [2, 2.0, np.float64(2), np.int32(2), np.array(2.0), torch.tensor(2.0)])
def test_numbers_of_other_libraries_are_taken(value, tmp_path):
    class Right(Callback):
        def on_train_start(self, event):
            event.log("mine", value)

    result = train(tiny_config(tmp_path, total_timesteps=32, eval_episodes=0), callbacks=[Right()])
    assert metric_rows(result.run_dir)[0]["mine"] == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda metrics: metrics.__setitem__("mine", 1.0),
        lambda metrics: metrics.update(mine=1.0),
        lambda metrics: metrics.setdefault("mine", 1.0),
        lambda metrics: metrics.pop("loss"),
        lambda metrics: metrics.clear(),
    ],
)
def test_the_metrics_of_an_event_cannot_be_changed(change, tmp_path):
    event = TrainingEvent(tmp_path, 0, 10, 0, lambda reason: None, metrics={"loss": 1.0})
    with pytest.raises(TypeError, match=r"event\.log\(name, value\) adds a metric to the next row"):
        change(event.metrics)
    assert event.metrics == {"loss": 1.0}
    with pytest.raises(AxiomError, match="belongs to no run"):
        event.log("mine", 1.0)

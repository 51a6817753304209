"""What happens in a run and when: cadence, early stopping, callbacks, schedules."""

from __future__ import annotations

import pytest

from harness import (
    assert_same_run,
    json_rows,
    last_checkpoint,
    metric_rows,
    only_run,
    stopped_after,
    tiny_config,
    train_with_stops,
)
from processes import uninterrupted
from rl_training.errors import ConfigError, EnvironmentFailure
from rl_training.experiment.checkpoints import list_checkpoints
from rl_training.experiment.runs import read_metadata
from rl_training.runtime.callbacks import Callback, EarlyStopping, TrainingEvent
from rl_training.runtime.workflows import resume, train

FAULTY = "run_samples:Run/Faulty-v0"

# -- cadence -----------------------------------------------------------------------------------------


def events(run_dir):
    """Return the steps of evaluations, training rows and checkpoints."""
    rows = metric_rows(run_dir)
    return {
        "evaluations": [row["global_step"] for row in rows if row["event"] == "eval"],
        "rows": [row["global_step"] for row in rows if row["event"] == "train"],
        "checkpoints": [path.name for path in list_checkpoints(run_dir)],
    }


@pytest.mark.parametrize("num_envs", [3, 8])
def test_cadence_does_not_depend_on_the_number_of_environments(num_envs, tmp_path):
    """Rollouts of 48 transitions, however many environments share them."""

    def run(count):
        config = tiny_config(
            tmp_path / str(count),
            num_envs=count,
            total_timesteps=480,
            eval_interval=96,
            log_interval=48,
            checkpoint_interval=96,
            keep_checkpoints=None,
            algo_kwargs={"num_steps": 48 // count},
        )
        return uninterrupted(config)

    one, many = run(1), run(num_envs)
    assert events(one) == events(many)
    assert events(one)["evaluations"] == [96, 192, 288, 384, 480]
    assert events(one)["rows"] == list(range(48, 481, 48))
    assert events(one)["checkpoints"] == [f"step_{step}" for step in range(480, -1, -96)]
    updates = [[row["update_count"] for row in metric_rows(path) if row["event"] == "train"] for path in (one, many)]
    assert updates[0] == updates[1] == list(range(1, 11))


@pytest.mark.parametrize("num_envs", [1, 3, 8])
def test_marks_are_crossed_not_hit(num_envs, tmp_path):
    """Rollouts of 16, 48 and 128 transitions against marks that no rollout ends on."""
    config = tiny_config(
        tmp_path,
        num_envs=num_envs,
        total_timesteps=1500,
        eval_interval=250,
        log_interval=150,
        checkpoint_interval=300,
        keep_checkpoints=None,
    )
    counts = {name: len(steps) for name, steps in events(uninterrupted(config)).items()}
    best_at_other_marks = counts.pop("checkpoints")  # evaluations that find a new best save one too
    assert counts == {"evaluations": 6, "rows": 10}
    assert best_at_other_marks >= 6


def test_defaults_are_a_hundred_rows_ten_checkpoints_one_evaluation(tmp_path):
    config = tiny_config(
        tmp_path,
        total_timesteps=800,
        eval_interval=None,
        log_interval=None,
        checkpoint_interval=None,
        keep_checkpoints=None,
        num_envs=1,
        algo_kwargs={"num_steps": 8, "minibatch_size": 8, "update_epochs": 1},
    )
    found = events(uninterrupted(config))
    assert found["evaluations"] == [800]
    assert found["rows"] == list(range(8, 801, 8))
    assert found["checkpoints"] == [f"step_{step}" for step in range(800, -1, -80)]


def test_a_horizon_between_rollouts_is_crossed_and_evaluated_once(tmp_path):
    config = tiny_config(tmp_path, total_timesteps=100, eval_interval=50, log_interval=100)
    found = events(uninterrupted(config))
    assert found["evaluations"] == [64, 128]  # 128 crosses the mark 100, which is the horizon too
    assert found["rows"] == [128]


# -- early stopping ----------------------------------------------------------------------------------


def watch(stopper, values, metric="eval_return_mean"):
    """Report values to an early stopping and return after how many of them it asked to stop."""
    reasons = []
    for count, value in enumerate(values, start=1):
        event = TrainingEvent(
            run_dir=None,
            step=count,
            total_timesteps=100,
            update_count=count,
            request_stop=reasons.append,
            metrics={metric: value},
        )
        stopper.on_eval_end(event)
        if reasons:
            return count, reasons[0]
    return None


@pytest.mark.parametrize(
    ("settings", "values", "stop"),
    [
        ({"target": 10}, [1, 9.9, 10, 11], 3),
        ({"target": 10, "mode": "min"}, [30, 11, 10], 3),
        ({"patience": 2}, [1, 2, 2, 3, 3, 3], 6),
        ({"patience": 2, "mode": "min"}, [5, 4, 4, 3, 3, 3], 6),
        ({"patience": 2, "min_delta": 1}, [1, 1.5, 2.0], 3),
        ({"patience": 2, "min_delta": 1}, [1, 2.5, 4, 4.5, 4.9], 5),
        ({"patience": 3, "target": 2}, [1, 2], 2),
        ({"patience": 3}, [1, 1, 2, 2, 2], None),
    ],
)
def test_early_stopping_stops_by_target_and_patience(settings, values, stop):
    outcome = watch(EarlyStopping(**settings), values)
    assert (outcome and outcome[0]) == stop


def test_early_stopping_ignores_rows_without_its_metric():
    assert watch(EarlyStopping(patience=1), [1, 1, 1], metric="loss_value") is None


def test_early_stopping_without_a_condition_is_refused():
    with pytest.raises(ConfigError, match="patience, target or both"):
        EarlyStopping()


def test_early_stopping_counts_on_after_its_state_was_restored():
    one, other = EarlyStopping(patience=3), EarlyStopping(patience=3)
    assert watch(one, [5, 4, 4]) is None
    other.load_state_dict(one.state_dict())
    assert watch(other, [4])[0] == 1


STOP_EARLY = {"metric": "eval_return_mean", "patience": 2, "min_delta": 1000.0}


def test_a_run_stops_early_and_says_why(tmp_path):
    """The first evaluation counts as an improvement, the next two do not."""
    result = train(tiny_config(tmp_path, eval_interval=32, early_stopping=STOP_EARLY))
    assert result.status == "completed"
    assert result.metrics["global_step"] == 96
    assert result.stop_reason == "eval_return_mean has not improved for 2 reports"
    assert read_metadata(result.run_dir)["status"] == "completed"


def test_early_stopping_survives_a_resume(tmp_path):
    changes = {"eval_interval": 32, "early_stopping": STOP_EARLY}
    stopped = train_with_stops(tiny_config(tmp_path / "stopped", **changes), [20, 20])
    assert_same_run(stopped, uninterrupted(tiny_config(tmp_path / "straight", **changes)))


def test_a_run_that_stopped_early_stays_stopped(tmp_path):
    """A process killed between the decision and the end of the run must not train on; a new horizon may."""
    result = train(tiny_config(tmp_path, eval_interval=32, early_stopping=STOP_EARLY))
    again = resume(result.run_dir)
    assert again.metrics["global_step"] == 96
    assert again.stop_reason == result.stop_reason
    longer = resume(result.run_dir, total_timesteps=640)
    assert longer.metrics["global_step"] == 128  # one more evaluation without improvement


# -- callbacks ---------------------------------------------------------------------------------------

HOOKS = (
    "on_train_start",
    "on_collect_end",
    "on_update_end",
    "on_eval_end",
    "on_checkpoint",
    "on_exception",
    "on_train_end",
)


class Notes(Callback):
    """Writes down every call; its count is checkpointed."""

    def __init__(self, notes, name):
        self.notes, self.name = notes, name
        self.updates = 0

    def on_update_end(self, event):
        self.updates += 1

    def state_dict(self):
        return {"updates": self.updates}

    def load_state_dict(self, state):
        self.updates = state["updates"]


def note(hook):
    own = Notes.__dict__.get(hook)

    def call(self, event):
        self.notes.append((self.name, hook, event))
        if own is not None:
            own(self, event)

    return call


for hook in HOOKS:
    setattr(Notes, hook, note(hook))


def test_callbacks_are_called_in_order(tmp_path):
    notes = []
    config = tiny_config(tmp_path, total_timesteps=64, eval_interval=32, checkpoint_interval=32)
    result = train(config, callbacks=[Notes(notes, "a"), Notes(notes, "b")])
    assert [name for name, _, _ in notes] == ["a", "b"] * (len(notes) // 2)  # in the order they were given
    sequence = [hook for name, hook, _ in notes if name == "a"]
    rollout = ["on_collect_end", "on_update_end", "on_eval_end", "on_checkpoint"]
    assert sequence[:6] == ["on_train_start", "on_checkpoint", *rollout]
    assert sequence[6:9] == rollout[:3]
    assert sequence[-1] == "on_train_end"
    assert "on_exception" not in sequence
    last = notes[-1][2]
    assert (last.status, last.step, last.update_count, last.error) == ("completed", 64, 2, None)
    assert last.run_dir == result.run_dir
    evaluated = next(event for _, hook, event in notes if hook == "on_eval_end")
    assert evaluated.metrics["eval_return_mean"] > 0
    saved = [event for _, hook, event in notes if hook == "on_checkpoint"]
    assert saved[-1].checkpoint_path == result.checkpoint_path
    with pytest.raises(AttributeError):
        last.step = 5


def test_callbacks_hear_of_a_failure_before_the_end(tmp_path):
    notes = []
    config = tiny_config(tmp_path, env_id=FAULTY, env_kwargs={"training": {"fault": "raise"}})
    with pytest.raises(EnvironmentFailure) as caught:
        train(config, callbacks=[Notes(notes, "a")])
    assert [hook for _, hook, _ in notes[-2:]] == ["on_exception", "on_train_end"]
    for _, _, event in notes[-2:]:
        assert (event.status, event.error) == ("failed", caught.value)


def test_a_callback_that_raises_fails_the_run(tmp_path):
    class Broken(Callback):
        def on_update_end(self, event):
            raise ZeroDivisionError("in the callback")

    notes = []
    with pytest.raises(ZeroDivisionError):
        train(tiny_config(tmp_path), callbacks=[Broken(), Notes(notes, "a")])
    assert notes[-1][1] == "on_train_end"
    metadata = read_metadata(only_run(tmp_path))
    assert metadata["status"] == "failed"
    assert metadata["error"] == "ZeroDivisionError: in the callback"


def test_a_callback_can_stop_the_run(tmp_path):
    class Enough(Callback):
        def on_update_end(self, event):
            if event.step >= 96:
                event.request_stop("enough")

    result = train(tiny_config(tmp_path), callbacks=[Enough()])
    assert (result.status, result.stop_reason, result.metrics["global_step"]) == ("completed", "enough", 96)
    assert last_checkpoint(result.run_dir).name == "step_96"


def test_callback_state_is_checkpointed(tmp_path):
    counted = []

    def callbacks():
        counted.append(Notes([], "a"))
        return [counted[-1]]

    train_with_stops(tiny_config(tmp_path), [20, 25, 60], callbacks=callbacks)
    assert len(counted) == 4
    assert counted[-1].updates == 10


# -- schedules and sinks -----------------------------------------------------------------------------


def test_schedules_appear_in_the_metrics(tmp_path):
    config = tiny_config(
        tmp_path,
        algo_kwargs={
            "learning_rate": 0.1,
            "learning_rate_schedule": "linear",
            "ent_coef": 0.5,
            "ent_coef_warmup_steps": 64,
            "clip_coef_schedule": {"type": "step", "milestones": [160], "values": [0.3]},
        },
    )
    rows = [row for row in metric_rows(uninterrupted(config)) if row["event"] == "train"]
    # A row shows the value that the update used, which is that of the step before its rollout was counted.
    expected = [0.1 * (1 - step / 320) for step in range(0, 320, 32)]
    assert [row["learning_rate"] for row in rows] == pytest.approx(expected)
    assert [row["ent_coef"] for row in rows] == pytest.approx([0.0, 0.25] + [0.5] * 8)
    assert [row["clip_coef"] for row in rows] == pytest.approx([0.2] * 5 + [0.3] * 5)


def test_a_training_row_has_the_documented_names(tmp_path):
    run_dir = uninterrupted(tiny_config(tmp_path))
    row = [row for row in json_rows(run_dir / "metrics.jsonl") if row["event"] == "train"][-1]
    documented = (
        *("global_step", "update_count", "train_return_mean", "train_length_mean", "steps_per_second"),
        *("time_collect", "time_update", "time_eval", "loss_policy", "loss_value", "learning_rate"),
    )
    assert set(documented) <= set(row)
    assert row["steps_per_second"] > 0


def test_tensorboard_files_are_written_and_a_stop_does_not_disturb_them(tmp_path):
    with stopped_after(20):
        result = train(tiny_config(tmp_path, tracking={"tensorboard": True}))
    assert resume(result.run_dir).status == "completed"
    assert len(list((result.run_dir / "tensorboard").iterdir())) == 2

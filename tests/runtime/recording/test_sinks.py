"""Where metric rows go, and that each place can be read back."""

from __future__ import annotations

import json

from rl_training.runtime.recording.sinks import JsonLines, TensorBoardSink


def test_rows_are_readable_while_the_file_is_open(tmp_path):
    sink = JsonLines(tmp_path / "metrics.jsonl")
    sink.write({"global_step": 1, "loss": 0.5})
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {"global_step": 1, "loss": 0.5}
    sink.close()


def test_cutting_back_keeps_the_given_length_and_appends(tmp_path):
    path = tmp_path / "metrics.jsonl"
    sink = JsonLines(path)
    sink.write({"global_step": 1})
    length = sink.sync()
    sink.write({"global_step": 2})
    sink.close()

    resumed = JsonLines(path)
    resumed.cut(length)
    resumed.write({"global_step": 3})
    resumed.close()
    assert [json.loads(line)["global_step"] for line in path.read_text().splitlines()] == [1, 3]


def test_a_number_that_json_does_not_know_becomes_null(tmp_path):
    sink = JsonLines(tmp_path / "metrics.jsonl")
    sink.write({"global_step": 1, "value": float("nan"), "other": float("inf")})
    sink.close()
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {"global_step": 1, "value": None, "other": None}


def test_tensorboard_reads_the_scalars_back(tmp_path):
    sink = TensorBoardSink(tmp_path)
    sink.write({"event": "train", "global_step": 7, "loss_policy": 0.25, "update_count": 3})
    sink.write({"event": "train", "global_step": 9, "loss_policy": 0.5, "update_count": 4})
    sink.close()

    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss_policy")] == [(7, 0.25), (9, 0.5)]
    assert "event" not in events.Tags()["scalars"]


def test_tensorboard_leaves_out_what_a_resumed_run_repeats(tmp_path):
    killed = TensorBoardSink(tmp_path)
    for step in (5, 10, 15):
        killed.write({"global_step": step, "loss_policy": float(step)})
    killed.close()
    resumed = TensorBoardSink(tmp_path, resumed_at=5)
    resumed.write({"global_step": 10, "loss_policy": 0.5})
    resumed.close()

    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss_policy")] == [(5, 5.0), (10, 0.5)]


def test_tensorboard_writes_nothing_before_the_first_row(tmp_path):
    TensorBoardSink(tmp_path / "tensorboard").close()
    assert not (tmp_path / "tensorboard").exists()

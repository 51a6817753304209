"""Where metric rows go, and that each place can be read back."""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
import types
from importlib.machinery import ModuleSpec
from typing import Any

import pytest

from harness import only_run, tiny_config
from rl_training.cli import main
from rl_training.errors import MissingExtraError, RunFailure
from rl_training.experiment.configuration.config_blocks import WandbParams
from rl_training.experiment.runs import read_metadata
from rl_training.install_hint import install_hint
from rl_training.runtime.recording.recorder import RunRecorder
from rl_training.runtime.recording.sinks import JsonLines, TensorBoardSink, WandbSink


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


class FakeWandbRun:
    """Remembers what was logged."""

    def __init__(self) -> None:
        self.logged: list[tuple[int, dict[str, Any]]] = []
        self.finished = False

    def log(self, row: dict[str, Any], *, step: int) -> None:
        self.logged.append((step, row))

    def finish(self) -> None:
        self.finished = True


def test_wandb_gets_the_project_the_rows_and_the_end(tmp_path, monkeypatch):
    run, arguments = FakeWandbRun(), {}
    module = types.ModuleType("wandb")

    def init(**given: Any) -> FakeWandbRun:
        arguments.update(given)
        return run

    module.init = init
    monkeypatch.setitem(sys.modules, "wandb", module)
    sink = WandbSink(WandbParams(project="cartpole", mode="offline"), tmp_path, {"seed": 1})
    sink.write({"global_step": 5, "loss_policy": 1.0})
    sink.close()
    assert arguments["project"] == "cartpole"
    assert arguments["mode"] == "offline"
    assert arguments["name"] == tmp_path.name
    assert arguments["config"] == {"seed": 1}
    assert run.logged == [(5, {"global_step": 5, "loss_policy": 1.0})]
    assert run.finished


class LoggedOut(types.ModuleType):
    """A wandb whose user has not logged in."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.__spec__ = ModuleSpec("wandb", None)

    def init(self, **given: Any) -> FakeWandbRun:
        raise LookupError("No API key configured.\nUse `wandb login` to log in.")


def test_a_run_whose_tracker_does_not_start_has_failed_before_anything_was_learned(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", LoggedOut())
    output = tmp_path / "runs"
    command = ["train", "--algo", "ppo", "--env", "CartPole-v1", "--total-timesteps", "64", "--output-dir", str(output)]
    with contextlib.redirect_stderr(io.StringIO()) as said:
        assert main([*command, "--set", "tracking.wandb=true"]) == 1
    sentence = "tracking.wandb: Weights & Biases could not start (LookupError: No API key configured. Use `wandb login`"
    assert sentence in said.getvalue()
    assert "tracking.wandb.mode=offline" in said.getvalue()
    assert "this is a bug" not in said.getvalue()
    run_dir = only_run(output)
    metadata = read_metadata(run_dir)
    assert metadata["status"] == "failed"
    assert sentence in metadata["error"]
    assert metadata["finished_at_utc"] is not None
    assert (run_dir / "metrics.jsonl").read_text() == ""
    assert not (run_dir / "checkpoints").exists()
    monkeypatch.setitem(sys.modules, "wandb", None)
    RunRecorder(run_dir, tiny_config(output)).finish("failed", None)  # nobody holds its lock


def test_without_a_mode_wandb_follows_its_own_variable(tmp_path, monkeypatch):
    modes = []
    module = types.ModuleType("wandb")
    module.init = lambda **given: modes.append(given["mode"]) or FakeWandbRun()
    monkeypatch.setitem(sys.modules, "wandb", module)
    WandbSink(WandbParams(), tmp_path, {})
    assert modes == [None]  # what wandb takes for WANDB_MODE, or online


def test_a_tracker_that_fails_later_is_named(tmp_path, monkeypatch, caplog):
    class Broken(FakeWandbRun):
        def log(self, row: dict[str, Any], *, step: int) -> None:
            raise LookupError("gone")

        def finish(self) -> None:
            raise LookupError("gone")

    module = types.ModuleType("wandb")
    module.init = lambda **given: Broken()
    monkeypatch.setitem(sys.modules, "wandb", module)
    sink = WandbSink(WandbParams(), tmp_path, {})
    with pytest.raises(RunFailure, match=r"did not take the row of step 5 \(LookupError: gone\)"):
        sink.write({"global_step": 5})
    sink.close()
    assert "did not finish its run (LookupError: gone)" in caplog.text


def test_a_missing_wandb_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtraError, match=re.escape(install_hint("wandb"))):
        WandbSink(WandbParams(), tmp_path, {})

"""Dashboards hold every row of a run once, and none of their failures stops training."""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
import types
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from harness import assert_same_run, json_rows, only_run, tiny_config, train_with_stops
from rl_training.cli import main
from rl_training.errors import MissingExtraError
from rl_training.experiment.runs import METRICS, read_metadata
from rl_training.install_hint import install_hint
from rl_training.runtime.recording.trackers import opening
from rl_training.runtime.recording.trackers.tracker import numbers_of
from rl_training.runtime.recording.trackers.tracker_sink import SECONDS_BETWEEN_ATTEMPTS, TrackerSink
from rl_training.runtime.workflows import resume, train

SMALL: dict[str, Any] = {"total_timesteps": 160, "eval_interval": 64, "eval_episodes": 1}


class MemoryTracker:
    """A dashboard in memory that outlives the runs which follow it."""

    def __init__(self) -> None:
        self.rows: list[tuple[tuple[int, int], dict[str, float]]] = []
        self.identity = {"run_id": "one"}
        self.closed: list[str] = []
        self.broken = False

    def held(self) -> set[tuple[int, int]]:
        self._check()
        return {key for key, _ in self.rows}

    def write(self, key: tuple[int, int], numbers: Any) -> None:
        self._check()
        self.rows.append((key, dict(numbers)))

    def close(self, status: str) -> None:
        self._check()
        self.closed.append(status)

    def _check(self) -> None:
        if self.broken:
            raise ConnectionError("no route to host")


class Following:
    """A file of rows, a clock, reports, and a sink that follows."""

    def __init__(self, tracker: MemoryTracker) -> None:
        self.tracker = tracker
        self.file: list[dict[str, Any]] = []
        self.reports: list[str | None] = []
        self.now = 0.0
        self.start()

    def start(self) -> None:
        """Start, or resume after a kill."""

        def made() -> MemoryTracker:
            self.tracker.held()
            return self.tracker

        def report(name: str, error: str | None) -> None:
            self.reports.append(error)

        self.sink = TrackerSink("memory", made, lambda: list(self.file), report, clock=lambda: self.now)

    def write(self, *steps: int) -> None:
        for step in steps:
            self.file.append({"event": "train", "global_step": step, "loss": step / 2})
            self.sink.write(self.file[-1])

    @property
    def keys(self) -> list[tuple[int, int]]:
        return [key for key, _ in self.tracker.rows]


def test_rows_after_the_checkpoint_are_not_sent_again_by_the_resumed_run() -> None:
    run = Following(MemoryTracker())
    run.write(10, 20, 20, 30)
    del run.file[2:]  # the checkpoint, at 20; the row at 20 that follows is an evaluation
    run.start()
    run.write(20, 30, 40)
    assert run.keys == [(1, 10), (2, 20), (3, 20), (4, 30), (5, 40)]
    assert run.reports == []


def test_rows_that_never_arrived_are_sent_when_the_run_is_resumed() -> None:
    run = Following(MemoryTracker())
    run.write(10, 20)
    run.tracker.rows.clear()  # the store was deleted, or the kill came before the rows were sent
    run.start()
    run.write(30)
    assert run.keys == [(1, 10), (2, 20), (3, 30)]


def test_a_resumed_run_that_logs_at_other_steps_sends_them_all() -> None:
    run = Following(MemoryTracker())
    run.write(10, 20, 30)
    del run.file[1:]
    run.start()  # with a longer horizon, and so a longer interval
    run.write(25, 40)
    assert run.keys == [(1, 10), (2, 20), (3, 30), (2, 25), (3, 40)]


def test_a_failure_is_reported_once_and_made_good_when_the_dashboard_works_again() -> None:
    run = Following(MemoryTracker())
    run.write(10)
    run.tracker.broken = True
    run.write(20)
    run.now += SECONDS_BETWEEN_ATTEMPTS / 2
    run.tracker.broken = False
    run.write(30)  # too early for another attempt
    assert run.keys == [(1, 10)]
    run.now += SECONDS_BETWEEN_ATTEMPTS
    run.write(40)
    assert run.keys == [(1, 10), (2, 20), (3, 30), (4, 40)]
    assert run.reports == ["did not take the row of step 20 (ConnectionError: no route to host)", None]
    run.sink.close("completed")
    assert run.tracker.closed == ["completed"]


def test_the_end_of_a_run_is_the_last_attempt() -> None:
    run = Following(MemoryTracker())
    run.tracker.broken = True
    run.write(10, 20, 30)
    run.tracker.broken = False
    run.sink.close("interrupted")
    assert run.keys == [(1, 10), (2, 20), (3, 30)]
    assert run.tracker.closed == ["interrupted"]


def test_a_dashboard_that_did_not_start_is_left_alone() -> None:
    tracker = MemoryTracker()
    tracker.broken = True
    run = Following(tracker)
    tracker.broken = False
    run.now += 10 * SECONDS_BETWEEN_ATTEMPTS
    run.write(10)
    run.sink.close("completed")
    assert run.reports == ["could not start (ConnectionError: no route to host)"]
    assert (tracker.rows, tracker.closed, run.sink.identity) == ([], [], {})


def test_only_finite_numbers_are_sent() -> None:
    row = {"event": "train", "global_step": 3, "loss": 0.5, "count": 2, "bad": float("nan"), "none": None, "on": True}
    assert numbers_of(row) == {"loss": 0.5, "count": 2}


# -- whole runs ------------------------------------------------------------------------------------


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> MemoryTracker:
    """A dashboard in the place of trackio, whose package is not needed then."""
    tracker = MemoryTracker()

    def made(params: Any, run_dir: Path, config: Any, known: Any) -> MemoryTracker:
        tracker.identity = {"run_id": known.get("run_id", f"of {run_dir.name}")}
        return tracker

    monkeypatch.setattr(opening, "find_spec", lambda name: object())
    monkeypatch.setattr(opening, "_make", made)
    return tracker


def test_a_stopped_and_resumed_run_is_in_the_dashboard_once_and_equals_one_without(
    tmp_path: Path, memory: MemoryTracker
) -> None:
    straight = train(tiny_config(tmp_path / "straight", **SMALL)).run_dir
    run_dir = train_with_stops(tiny_config(tmp_path / "stopped", **SMALL, tracking={"trackio": {}}), [21, 30])
    assert_same_run(straight, run_dir)
    rows = json_rows(run_dir / METRICS)
    assert [key for key, _ in memory.rows] == [(n, row["global_step"]) for n, row in enumerate(rows, start=1)]
    assert [numbers for _, numbers in memory.rows] == [numbers_of(row) for row in rows]
    assert memory.closed == ["interrupted", "interrupted", "completed"]
    assert read_metadata(run_dir)["trackers"] == {"trackio": {"run_id": f"of {run_dir.name}", "error": None}}


def test_a_fork_has_its_own_run_in_the_dashboard(tmp_path: Path, memory: MemoryTracker) -> None:
    run_dir = train(tiny_config(tmp_path, **SMALL, tracking={"trackio": {}})).run_dir
    fork = resume(run_dir, fork=True, total_timesteps=192).run_dir
    assert read_metadata(fork)["trackers"]["trackio"]["run_id"] == f"of {fork.name}"


def test_a_dashboard_that_breaks_stops_nothing_and_is_in_the_metadata(
    tmp_path: Path, memory: MemoryTracker, caplog: pytest.LogCaptureFixture
) -> None:
    memory.broken = True
    result = train(tiny_config(tmp_path, **SMALL, tracking={"trackio": {}}))
    assert result.status == "completed"
    sentence = "tracking.trackio: could not start (ConnectionError: no route to host)"
    assert sum(sentence in message for message in caplog.messages) == 1
    metadata = read_metadata(result.run_dir)
    assert metadata["trackers"]["trackio"]["error"] == sentence.removeprefix("tracking.trackio: ")
    assert [sentence in notice for notice in metadata["notices"]] == [True]
    assert metadata["error"] is None
    memory.broken = False
    resume(result.run_dir, total_timesteps=192)
    assert len(memory.rows) == len(json_rows(result.run_dir / METRICS))
    assert read_metadata(result.run_dir)["trackers"]["trackio"]["error"] is None


# -- Weights & Biases ------------------------------------------------------------------------------


class FakeWandb(types.ModuleType):
    """A `wandb` with one run; `broken` makes a part of it fail."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.__spec__ = ModuleSpec("wandb", None)
        self.started: list[dict[str, Any]] = []
        self.logged: list[tuple[int, dict[str, Any]]] = []
        self.exit_codes: list[int] = []
        self.broken: set[str] = set()

    def init(self, **given: Any) -> FakeWandb:
        self._fail("init")
        self.started.append(given)
        return self

    def log(self, row: dict[str, Any], *, step: int) -> None:
        self._fail("log")
        self.logged.append((step, row))

    def finish(self, exit_code: int = 0) -> None:
        self._fail("finish")
        self.exit_codes.append(exit_code)

    def _fail(self, part: str) -> None:
        if part in self.broken:
            raise LookupError("No API key configured.\nUse `wandb login` to log in.")


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> FakeWandb:
    """A stand-in for `wandb` that remembers what it was given."""
    monkeypatch.delenv("WANDB_MODE", raising=False)
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


def test_wandb_gets_the_project_the_rows_and_the_end(tmp_path: Path, wandb: FakeWandb) -> None:
    run_dir = train(tiny_config(tmp_path, **SMALL, tracking={"wandb": {"project": "cartpole"}})).run_dir
    (started,) = wandb.started
    assert (started["project"], started["mode"], started["id"]) == ("cartpole", "offline", run_dir.name[-64:])
    assert started["config"]["seed"] == 7
    rows = json_rows(run_dir / METRICS)
    assert [step for step, _ in wandb.logged] == [row["global_step"] for row in rows]
    assert wandb.exit_codes == [0]


def test_wandb_is_given_no_row_twice(tmp_path: Path, wandb: FakeWandb) -> None:
    run_dir = train_with_stops(tiny_config(tmp_path, **SMALL, tracking={"wandb": True}), [21])
    assert [started["id"] for started in wandb.started] == [run_dir.name[-64:]] * 2
    assert [step for step, _ in wandb.logged] == [row["global_step"] for row in json_rows(run_dir / METRICS)]


def test_wandb_follows_its_own_variable(tmp_path: Path, wandb: FakeWandb, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    train(tiny_config(tmp_path, **SMALL, tracking={"wandb": {}}))
    assert wandb.started[0]["mode"] is None


def test_training_goes_on_without_a_user_who_has_logged_in(tmp_path: Path, wandb: FakeWandb) -> None:
    wandb.broken = {"init"}
    output = tmp_path / "runs"
    command = ["train", "--algo", "ppo", "--env", "CartPole-v1", "--total-timesteps", "64", "--output-dir", str(output)]
    with contextlib.redirect_stderr(io.StringIO()) as said, contextlib.redirect_stdout(io.StringIO()):
        assert main([*command, "--set", "tracking.wandb=true"]) == 0
    sentence = "tracking.wandb: could not start (LookupError: No API key configured. Use `wandb login` to log in.)"
    assert said.getvalue().count(sentence) == 1
    metadata = read_metadata(only_run(output))
    assert metadata["status"] == "completed"
    assert any(sentence in notice for notice in metadata["notices"])


@pytest.mark.parametrize("name", ["wandb", "mlflow", "trackio"])
def test_a_missing_package_is_a_mistake_that_leaves_no_run_behind(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "find_spec", lambda module: None)
    with pytest.raises(MissingExtraError, match=f"^tracking.{name} needs .*{re.escape(install_hint(name))}"):
        train(tiny_config(tmp_path / "runs", tracking={name: True}))
    assert not (tmp_path / "runs").exists()


def test_a_damaged_list_of_sent_rows_loses_only_its_last_line(tmp_path: Path, wandb: FakeWandb) -> None:
    run_dir = train(tiny_config(tmp_path, **SMALL, tracking={"wandb": {}})).run_dir
    sent = run_dir / "wandb" / "axiomrl-rows.jsonl"
    lines = sent.read_text().splitlines()
    assert [json.loads(line)[0] for line in lines] == list(range(1, len(lines) + 1))
    sent.write_text("\n".join(lines)[:-3])
    before = len(wandb.logged)
    resume(run_dir, total_timesteps=192)
    assert next(step for step, _ in wandb.logged[before:]) == 160

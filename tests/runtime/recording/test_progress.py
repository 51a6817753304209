"""Progress is live on a terminal, plain in a pipe, absent when quiet, and never the reason a run ends."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from rl_training.runtime.callbacks import TrainingEvent
from rl_training.runtime.recording.progress import ProgressBar, ProgressLines, StepRate, make_progress

EVALUATION = {"eval_return_mean": 312.5, "eval_return_std": 4.25, "eval_episodes": 10}


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


class Clock:
    """Time that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def event(step: int, metrics: dict[str, Any] | None = None, *, total: int = 20_000) -> TrainingEvent:
    return TrainingEvent(
        run_dir=Path("runs/one"),
        step=step,
        total_timesteps=total,
        update_count=0,
        request_stop=lambda reason: None,
        metrics=metrics or {},
    )


def run_through(progress: ProgressLines | ProgressBar, clock: Clock) -> None:
    progress.on_train_start(event(0))
    for second in range(1, 5):
        clock.now = float(second)
        progress.on_update_end(event(1000 * second, {"train_return_mean": 20.0 + second}))
    progress.on_eval_end(event(4000, EVALUATION))
    progress.on_train_end(event(4000))


def test_pipe_gets_plain_lines_at_log_and_eval_events() -> None:
    stream, clock = io.StringIO(), Clock()
    run_through(ProgressLines(stream, clock), clock)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "training in runs/one"
    assert lines[1] == "step 1,000/20,000 (5%), 1,000 steps/s, ETA 0:00:19, train return 21.0"
    assert lines[-1] == "step 4,000: eval return 312.5 +- 4.25 over 10 episodes"
    assert stream.getvalue().replace("\n", "").isprintable()


def test_pipe_gets_no_line_for_an_update_without_a_row() -> None:
    stream = io.StringIO()
    progress = ProgressLines(stream)
    progress.on_train_start(event(0))
    progress.on_update_end(event(100))
    assert len(stream.getvalue().splitlines()) == 1


def test_terminal_gets_one_live_line_with_everything_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    stream, clock = Terminal(), Clock()
    run_through(ProgressBar(stream, clock), clock)
    last = stream.getvalue().split("\r")[-1]
    for part in ("20%", "4,000/20,000", "1,000 steps/s", "ETA 0:00:16", "train 24.0", "eval 312.5"):
        assert part in last
    assert stream.getvalue().rfind("\x1b[?25h") > stream.getvalue().rfind("\x1b[?25l"), "the cursor is hidden"


def test_form_follows_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    assert [type(part) for part in make_progress(stream=Terminal())] == [ProgressBar]
    assert [type(part) for part in make_progress(stream=io.StringIO())] == [ProgressLines]
    monkeypatch.setenv("TERM", "dumb")
    assert [type(part) for part in make_progress(stream=Terminal())] == [ProgressLines]
    assert make_progress(quiet=True, stream=Terminal()) == []


def test_reader_who_left_does_not_end_the_run() -> None:
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    clock = Clock()
    run_through(ProgressLines(Broken(), clock), clock)


def test_resumed_run_says_where_it_goes_on_and_a_finished_one_how_to_extend_it() -> None:
    stream = io.StringIO()
    ProgressLines(stream).on_train_start(event(500))
    ProgressLines(stream).on_train_start(event(20_000))
    first, second = stream.getvalue().splitlines()
    assert first == "going on at step 500 in runs/one"
    assert "already complete at step 20,000" in first + second
    assert "--total-timesteps" in second


def test_rate_is_that_of_the_last_seconds_and_counts_from_where_the_run_resumed() -> None:
    clock = Clock()
    rate = StepRate(clock)
    rate.add(5000)
    assert rate.per_second() is None
    clock.now = 1.0
    rate.add(5100)
    assert rate.per_second() == 100
    for second in range(2, 40):
        clock.now = float(second)
        rate.add(5100 + 1000 * second)
    assert rate.per_second() == 1000


def test_one_update_longer_than_the_window_still_has_a_rate() -> None:
    clock = Clock()
    rate = StepRate(clock)
    for step in (0, 6000, 12_000):
        rate.add(step)
        clock.now += 60.0
    assert rate.per_second() == 100


def test_the_next_run_starts_counting_anew() -> None:
    """One callback serves every seed of a sweep."""
    clock, stream = Clock(), io.StringIO()
    lines = ProgressLines(stream, clock)
    for rate in (100, 40):
        lines.on_train_start(event(0))
        assert (lines.train_return, lines.eval_return, lines.rate.per_second()) == (None, None, None)
        clock.now += 1.0
        lines.on_update_end(event(rate, {"train_return_mean": 1.0}))
        lines.on_eval_end(event(rate, EVALUATION))
        assert lines.rate.per_second() == rate


def test_the_tasks_of_a_suite_are_told_apart() -> None:
    stream = io.StringIO()
    lines = ProgressLines(stream)
    lines.on_train_start(event(0))
    tasks = {"eval_return_mean/CartPole-v1": 312.51, "eval_return_mean/KeyDoor": 0.9}
    lines.on_eval_end(event(500, {**EVALUATION, **tasks}))
    assert "step 500: eval return CartPole-v1 312.5, KeyDoor 0.9 over 10 episodes\n" in stream.getvalue()
    lines.on_update_end(event(600, {"train_return_mean": 5.0, "train_return_mean/KeyDoor": -0.5}))
    assert stream.getvalue().endswith("train return KeyDoor -0.5\n")

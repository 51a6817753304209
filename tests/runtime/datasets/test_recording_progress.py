"""Progress of work on datasets: plain lines in a pipe, a live line on a terminal, nothing if quiet."""

from __future__ import annotations

import io

import pytest

from rl_training.runtime.datasets import progress as module
from rl_training.runtime.datasets.progress import Progress, progress_of


def test_lines_tell_what_is_done_how_fast_and_how_long_it_takes() -> None:
    now, stream = [0.0], io.StringIO()
    progress = Progress("recording x-v0", 1000, "steps", stream=stream, clock=lambda: now[0])
    progress.start(200)
    for _ in range(12):
        now[0] += 1.0
        progress.add(50)
    assert stream.getvalue().splitlines() == [
        "recording x-v0: 450/1,000 steps (45%), 50 steps/s, ETA 0:00:11",
        "recording x-v0: 700/1,000 steps (70%), 50 steps/s, ETA 0:00:06",
    ]


def test_steps_beyond_the_total_are_not_shown() -> None:
    progress = Progress("x", 10, "steps", stream=io.StringIO())
    progress.start()
    progress.add(15)
    assert progress.text().startswith("10/10 steps (100%)")


def test_quiet_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LINE_INTERVAL", 0.0)
    stream = io.StringIO()
    with progress_of("x", 10, quiet=True, stream=stream) as progress:
        progress.add(5)
    assert stream.getvalue() == ""


def test_a_terminal_gets_a_live_line(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with progress_of("recording x-v0", 10, "episodes", stream=stream) as progress:
        progress.add(10)
    assert "recording x-v0" in stream.getvalue()
    assert "10/10 episodes (100%)" in stream.getvalue()


def test_a_closed_pipe_does_not_end_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LINE_INTERVAL", 0.0)
    stream = io.StringIO()
    stream.close()
    progress = Progress("x", 10, "steps", stream=stream)
    progress.start()
    progress.add(5)
    assert progress.done == 5

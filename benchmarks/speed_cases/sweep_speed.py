"""A sweep of ten seeds on the command line, one after another and with `--jobs 2`."""

from __future__ import annotations

import subprocess
import tempfile
import time
from functools import partial

from speed_cases.speed_parts import COMMAND_LINE, Effort, Outcome, alternate, quotients

JOBS = {"serial": "1", "two jobs": "2"}


def settings(effort: Effort) -> str:
    """Return what is measured, in words."""
    seeds, steps = _work(effort)
    return f"ppo-cartpole, {seeds} seeds of {steps:,} steps, one torch thread per seed, start-up included"


def measure(effort: Effort) -> Outcome:
    """Train the sweep both ways in turn and compare how long one waits."""
    seeds, steps = _work(effort)
    rows = alternate({name: partial(_seconds, jobs, seeds, steps) for name, jobs in JOBS.items()}, effort.rounds)
    return Outcome(
        ratios={"--jobs 2 against serial": quotients(rows, "serial", "two jobs")},
        details={"rounds": rows},
    )


def _work(effort: Effort) -> tuple[int, int]:
    """Return how many seeds are trained, and their steps."""
    return effort.choose((10, 20_000), (4, 2_000))


def _seconds(jobs: str, seeds: int, steps: int, _: int) -> float:
    with tempfile.TemporaryDirectory() as directory:
        words = ["train", "--preset", "ppo-cartpole", "--seeds", ",".join(map(str, range(1, seeds + 1)))]
        words += ["--jobs", jobs, "--total-timesteps", str(steps), "--eval-episodes", "0", "--quiet"]
        words += ["--set", "torch_threads=1", "--output-dir", directory]
        started = time.perf_counter()
        subprocess.run([*COMMAND_LINE, *words], stdout=subprocess.DEVNULL, check=True)
        return time.perf_counter() - started

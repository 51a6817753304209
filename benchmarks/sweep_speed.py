"""A sweep of ten seeds on the command line, one after another and with `--jobs 2`."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from functools import partial

from speed_parts import Effort, Outcome, alternate, quotients

JOBS = {"serial": "1", "two jobs": "2"}


def measure(effort: Effort) -> Outcome:
    """Train the sweep both ways in turn and compare how long one waits."""
    seeds, steps = effort.choose((10, 20_000), (4, 2_000))
    rows = alternate({name: partial(_seconds, jobs, seeds, steps) for name, jobs in JOBS.items()}, effort.rounds)
    return Outcome(
        settings=f"ppo-cartpole, {seeds} seeds of {steps:,} steps, one torch thread per seed, start-up included",
        clock="the clock",
        ratios={"--jobs 2 against serial": quotients(rows, "serial", "two jobs")},
        details={"rounds": rows},
    )


def _seconds(jobs: str, seeds: int, steps: int, _: int) -> float:
    command_line = "import sys; from rl_training.cli import main; sys.exit(main())"
    with tempfile.TemporaryDirectory() as directory:
        words = ["train", "--preset", "ppo-cartpole", "--seeds", ",".join(map(str, range(1, seeds + 1)))]
        words += ["--jobs", jobs, "--total-timesteps", str(steps), "--eval-episodes", "0", "--quiet"]
        words += ["--set", "torch_threads=1", "--output-dir", directory]
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", command_line, *words], stdout=subprocess.DEVNULL, check=True)
        return time.perf_counter() - started

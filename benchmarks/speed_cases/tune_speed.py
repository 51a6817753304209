"""What a search costs beside its runs: `tune` against a plain sweep of as many runs of the same length."""

from __future__ import annotations

import subprocess
import tempfile
import time
from pathlib import Path

from speed_cases.speed_parts import COMMAND_LINE, Effort, Outcome, alternate, quotients

SEEDS = 2
GAMMAS = (0.95, 0.96, 0.97, 0.99)
"""One trial each, after the start's: the settings differ, and what they cost does not."""
RATIO = "a plain sweep"


def settings(effort: Effort) -> str:
    """Return what is measured, in words."""
    runs = SEEDS * (len(GAMMAS) + 1)
    return f"ppo-cartpole, {runs} runs of {_steps(effort):,} steps one after another, start-up included"


def measure(effort: Effort) -> Outcome:
    """Train both in turn and compare how long one waits."""
    rows = alternate(
        {"sweep": lambda _: _sweep_seconds(_steps(effort)), "tune": lambda _: _tune_seconds(_steps(effort))},
        effort.rounds,
    )
    return Outcome(ratios={RATIO: quotients(rows, "sweep", "tune")}, details={"rounds": rows})


def _steps(effort: Effort) -> int:
    return effort.choose(20_000, 2_000)


def _sweep_seconds(steps: int) -> float:
    seeds = f"1-{SEEDS * (len(GAMMAS) + 1)}"
    return _seconds(["train", "--seeds", seeds], steps, "")


def _tune_seconds(steps: int) -> float:
    words = ["tune", "--sampler", "grid", "--trials", str(len(GAMMAS) + 1), "--seeds-per-trial", str(SEEDS)]
    return _seconds([*words, "--finalists", "1", "--confirm-seeds", "0"], steps, f"gamma: {{choice: {list(GAMMAS)}}}\n")


def _seconds(words: list[str], steps: int, space: str) -> float:
    with tempfile.TemporaryDirectory() as directory:
        if space:
            (Path(directory) / "space.yaml").write_text(space)
            words = [*words, "--space", f"{directory}/space.yaml"]
        words = [*words, "--preset", "ppo-cartpole", "--jobs", "1", "--total-timesteps", str(steps)]
        words += ["--eval-episodes", "1", "--set", "torch_threads=1", "--output-dir", directory, "--quiet"]
        started = time.perf_counter()
        subprocess.run([*COMMAND_LINE, *words], stdout=subprocess.DEVNULL, check=True)
        return time.perf_counter() - started

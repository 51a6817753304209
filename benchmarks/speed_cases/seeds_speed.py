"""Ten seeds of a preset on all cores by one command, beside as many calls of stable-baselines3's `learn` in a row.

    PYTHONPATH=benchmarks python benchmarks/speed_cases/seeds_speed.py 10 100000 --output measured.json

measures the peer's side: seeds, steps.

Our time is that of the whole command as one waits for it, start-up and files included; the peer's is that of its calls
alone, after its imports and a first short training. Neither side evaluates. Every seed trains on one thread.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from functools import partial
from pathlib import Path

from peers.side_process import measure_alone, usable_cores
from records import SB3, why_missing
from rl_training import AxiomError, load_config
from speed_cases.speed_parts import COMMAND_LINE, Effort, Outcome, alternate, quotients

PRESET = "ppo-cartpole"
RATIO = "stable-baselines3, one seed after another"


def settings(effort: Effort) -> str:
    """Return what is measured, in words."""
    seeds, steps = _work(effort)
    return f"{PRESET}, {seeds} seeds of {steps:,} steps on all cores, one torch thread per seed; our start-up included"


def measure(effort: Effort) -> Outcome:
    """Train the seeds by both sides in turn and compare how long one waits."""
    reason = why_missing(SB3)
    if reason is not None:
        return Outcome({}, [reason])
    seeds, steps = _work(effort)
    jobs = all_cores()
    rows = alternate({"ours": partial(_ours, seeds, steps, jobs), SB3: partial(_peer, seeds, steps)}, effort.rounds)
    return Outcome(ratios={RATIO: quotients(rows, SB3, "ours")}, details={"jobs": jobs, "rounds": rows})


def all_cores() -> str:
    """Return what `--jobs` takes to use every core: `auto` where the package knows it."""
    try:
        load_config(preset=PRESET, overrides={"benchmark.seeds": [1, 2], "benchmark.jobs": "auto"})
    except AxiomError:
        return str(usable_cores())
    return "auto"


def _work(effort: Effort) -> tuple[int, int]:
    """Return how many seeds are trained, and their steps: the preset's own."""
    return effort.choose((10, 100_000), (2, 4_096))


def _ours(seeds: int, steps: int, jobs: str, _: int) -> float:
    with tempfile.TemporaryDirectory() as directory:
        words = ["train", "--preset", PRESET, "--seeds", f"1-{seeds}", "--jobs", jobs, "--quiet"]
        words += ["--total-timesteps", str(steps), "--eval-episodes", "0"]
        words += ["--set", "torch_threads=1", "--output-dir", directory]
        started = time.perf_counter()
        subprocess.run([*COMMAND_LINE, *words], stdout=subprocess.DEVNULL, check=True)
        return time.perf_counter() - started


def _peer(seeds: int, steps: int, _: int) -> float:
    return float(measure_alone(Path(__file__), [str(seeds), str(steps)]))


def seconds_in_a_row(seeds: int, steps: int) -> float:
    """Train the seeds one after another with stable-baselines3 in this process, and return the clock's seconds."""
    import torch

    from peers.stable_baselines3_models import make_peer

    torch.set_num_threads(1)

    def learn(seed: int, total: int) -> None:
        make_peer(load_config(preset=PRESET, overrides={"seed": seed, "total_timesteps": total})).learn(total)

    learn(0, 256)  # what is done at the first use of a library is no part of a training
    started = time.perf_counter()
    for seed in range(1, seeds + 1):
        learn(seed, steps)
    return time.perf_counter() - started


def main() -> None:
    """Measure the peer's side in this process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seeds", type=int)
    parser.add_argument("steps", type=int)
    parser.add_argument("--output", type=Path, required=True, help="where the JSON goes")
    options = parser.parse_args()
    options.output.write_text(json.dumps(seconds_in_a_row(options.seeds, options.steps)), encoding="utf-8")


if __name__ == "__main__":
    main()

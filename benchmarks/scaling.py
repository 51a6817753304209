"""What samplers and learners yield: measured times, a model fitted to them, and its check on this machine.

    python benchmarks/scaling.py --measure         # times of one process, task by task
    python benchmarks/scaling.py --check --rounds 3   # whole runs with samplers beside one process, in turn
    python benchmarks/scaling.py --peers --rounds 3   # APPO beside Sample Factory and RLlib, where they are installed
    python benchmarks/scaling.py                   # only predict anew, from what is stored

Everything is stored in `benchmarks/results/workers.json`, and `render_results.py` writes it into docs/scaling.md.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from learning import only_errors, stored
from records import RESULTS, origin
from rl_training.experiment.storage.files import write_json_atomically
from rl_training.runtime.workflows import train
from workers import worker_peers
from workers.worker_model import Cluster, Task, one_process, throughput
from workers.worker_times import CASES, Case, Layout, config_of, measure

FILE = "workers.json"
SAMPLERS, LEARNERS = (1, 2, 4, 8, 16, 64, 256, 1000), (1, 2, 4, 8)


def predict(task: Task) -> list[dict[str, Any]]:
    """Return the model's throughput with cores enough for all, beside that of one process."""
    return [
        {"learners": learners, "lag": lag, "samplers": samplers, "steps_per_second": throughput(task, cluster)}
        for learners in LEARNERS
        for lag in (0, 1)
        for samplers in SAMPLERS
        for cluster in [Cluster(samplers, learners, lag)]
    ]


def check(case: Case, task: Task, rounds: int) -> list[dict[str, Any]]:
    """Return, for every layout, how much faster whole runs were than one process, and what the model says."""
    seconds: dict[Layout | None, list[float]] = {}
    for _ in range(rounds):
        for layout in (None, *case.layouts):
            seconds.setdefault(layout, []).append(_seconds(case, layout))
    alone = seconds[None]
    return [_checked(task, layout, alone, seconds[layout]) for layout in case.layouts]


def _checked(task: Task, layout: Layout, alone: Sequence[float], times: Sequence[float]) -> dict[str, Any]:
    if layout.samplers:
        cluster = Cluster(layout.samplers, lag=layout.lag, threads=layout.threads, cores=os.cpu_count())
        predicted = throughput(task, cluster)
    else:
        predicted = one_process(task, layout.threads)
    ratios = [one / other for one, other in zip(alone, times, strict=True)]
    return {
        **layout._asdict(),
        "predicted": predicted / one_process(task),
        "median": statistics.median(ratios),
        "smallest": min(ratios),
        "largest": max(ratios),
    }


def _seconds(case: Case, layout: Layout | None) -> float:
    changes = () if layout is None else layout.settings()
    with tempfile.TemporaryDirectory() as folder:
        config = config_of(case, folder, *changes)
        started = time.perf_counter()
        train(config)
        return time.perf_counter() - started


def compare_peers(rounds: int) -> dict[str, Any]:
    """Return the throughput of every side, and say which ones are missing."""
    for reason in filter(None, map(worker_peers.why_missing, worker_peers.LENGTHS)):
        print(reason)
    sides = worker_peers.rates(rounds)
    for name, found in sides.items():
        print(f"{name}: {found['median']:,.0f} steps/s")
    return {"settings": dict(worker_peers.SETTINGS), "sides": sides}


def main(arguments: Sequence[str] | None = None, results: Path = RESULTS) -> int:
    """Measure and check what is asked for, predict, and store everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true", help="measure the times of one process")
    parser.add_argument("--check", action="store_true", help="train with samplers and compare with the model")
    parser.add_argument("--peers", action="store_true", help="compare with other packages' workers")
    parser.add_argument("--only", action="append", choices=[case.preset for case in CASES], help="one task; repeatable")
    parser.add_argument("--rounds", type=int, default=3, help="repetitions of a check or a comparison")
    options = parser.parse_args(arguments)
    path = results / FILE
    content: dict[str, Any] = stored(path) if path.exists() else {"benchmark": "workers", "tasks": {}}
    if options.peers:
        content["peers"] = compare_peers(options.rounds)
        write_json_atomically(path, {**content, **origin()})
        return 0
    for case in CASES:
        if options.only and case.preset not in options.only:
            continue
        entry = content["tasks"].setdefault(case.preset, {})
        if options.measure:
            entry["times"] = asdict(measure(case))
        if "times" not in entry:
            del content["tasks"][case.preset]
            continue
        task = Task(**entry["times"])
        if options.check:
            entry["checks"] = check(case, task, options.rounds)
        entry["one_process"] = one_process(task)
        entry["predictions"] = predict(task)
        write_json_atomically(path, {**content, **origin()})
        print(f"{case.preset}: one process {entry['one_process']:,.0f} steps/s")
        for row in entry.get("checks", ()):
            layout = f"samplers {row['samplers']}, lag {row['lag']}, threads {row['threads']}"
            print(f"  {layout}: {row['median']:.2f}, model {row['predicted']:.2f}")
    return 0


if __name__ == "__main__":
    only_errors()
    raise SystemExit(main())

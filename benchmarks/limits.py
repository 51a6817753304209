"""How far updates are from the physical limit: their time beside that of their matrix products alone.

    python benchmarks/limits.py                # everything; stores the summary in results/
    python benchmarks/limits.py --algo sac     # one of them; stores nothing
    python benchmarks/limits.py --quick        # one round of little work; stores nothing
    python benchmarks/limits.py --before PATH  # beside an older checkout, by default `build/before` where it is

Each case trains as its preset says, with the changes named here, on one thread and in a process of its own. The
products are made alone, in memory that is there already, in the shapes of the update: theirs is the time of torch's own
products in these shapes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from peers import older_checkout
from peers.side_process import environment, one_core
from records import RESULTS, origin
from rl_training.experiment.runs import METRICS
from rl_training.experiment.storage.files import write_json_atomically
from speed_cases.speed_parts import COMMAND_LINE, Effort, alternate, quickest


@dataclass(frozen=True)
class Pass:
    """Networks of one shape on one batch, and which products of theirs an update makes."""

    networks: int
    sizes: tuple[int, ...]
    batch: int
    forward: bool = True
    by_weights: bool = False
    by_inputs: bool = False
    """Of every layer but the first."""
    by_actions: bool = False
    """Of the first layer too, as where an actor climbs its critics: torch makes the product for all inputs."""
    share: float = 1.0
    """Of the updates that make it."""

    def products(self) -> list[tuple[int, int, int, int]]:
        """Return count, rows, inner size and columns of each product."""
        layers = list(pairwise(self.sizes))
        made: list[tuple[int, int, int, int]] = []
        if self.forward:
            made += [(self.networks, self.batch, inputs, outputs) for inputs, outputs in layers]
        if self.by_weights:
            made += [(self.networks, inputs, self.batch, outputs) for inputs, outputs in layers]
        if self.by_inputs:
            made += [(self.networks, self.batch, outputs, inputs) for inputs, outputs in layers[1:]]
        if self.by_actions:
            made.append((self.networks, self.batch, self.sizes[1], self.sizes[0]))
        return made


@dataclass(frozen=True)
class Case:
    """A training, and the passes of one of its gradient steps."""

    preset: str
    changes: tuple[str, ...]
    steps: int
    updates_per_count: int
    """Gradient steps per counted update."""
    passes: tuple[Pass, ...]


REPLAY = ("algo_kwargs.train_interval=1", "algo_kwargs.gradient_steps=1", "algo_kwargs.learning_starts=500")
ACTOR, CRITIC = (3, 256, 256, 2), (4, 256, 256, 1)
TD3_ACTOR, TD3_CRITIC = (3, 400, 300, 1), (4, 400, 300, 1)
LEARNED: dict[str, Any] = {"by_weights": True, "by_inputs": True}
CASES = {
    "ppo": Case("ppo-cartpole", (), 25_600, 20, (Pass(2, (4, 64, 64, 1), 256, **LEARNED),)),
    "dqn": Case(
        "dqn-cartpole",
        ("algo_kwargs.batch_size=64", "algo_kwargs.hidden_sizes=[64,64]", "algo_kwargs.n_step=1", *REPLAY),
        5_000,
        1,
        (Pass(1, (4, 64, 64, 2), 64), Pass(1, (4, 64, 64, 2), 64, **LEARNED)),
    ),
    "sac": Case(
        "sac-pendulum",
        REPLAY,
        2_500,
        1,
        (
            Pass(1, ACTOR, 512),  # for the successors' actions and for its own
            Pass(2, CRITIC, 256),  # targets
            Pass(2, CRITIC, 256, **LEARNED),
            Pass(2, CRITIC, 256, by_inputs=True, by_actions=True),  # what the actor climbs
            Pass(1, ACTOR, 256, forward=False, **LEARNED),
        ),
    ),
    "td3": Case(
        "td3-pendulum",
        REPLAY,
        2_500,
        1,
        (
            Pass(1, TD3_ACTOR, 256),
            Pass(2, TD3_CRITIC, 256),
            Pass(2, TD3_CRITIC, 256, **LEARNED),
            Pass(1, TD3_CRITIC, 256, by_inputs=True, by_actions=True, share=0.5),
            Pass(1, TD3_ACTOR, 256, share=0.5, **LEARNED),
        ),
    ),
}


def seconds_of_products(passes: Sequence[Pass], repeats: int = 300) -> tuple[float, float]:
    """Return the seconds of all products of an update, made alone, and their floating-point operations."""
    seconds = operations = 0.0
    for one in passes:
        for count, rows, inner, columns in one.products():
            left, right = torch.randn(count, rows, inner), torch.randn(count, inner, columns)
            out = torch.empty(count, rows, columns)
            seconds += one.share * quickest(lambda a=left, b=right, o=out: torch.bmm(a, b, out=o), repeats)  # type: ignore[misc]
            operations += one.share * 2.0 * count * rows * inner * columns
    return seconds, operations


def seconds_of_training(case: Case, steps: int, source: Path | None = None) -> tuple[float, float]:
    """Return the seconds per gradient step and per environment step collected, from the third logged row on.

    `source` is a checkout to train with in place of the package that is imported here.
    """
    with tempfile.TemporaryDirectory() as folder:
        words = ["train", "--preset", case.preset, "--seed", "1", "--total-timesteps", str(steps), "--quiet"]
        words += ["--eval-episodes", "0", "--output-dir", folder]
        for change in (*case.changes, f"log_interval={steps // 10}", "torch_threads=1"):
            words += ["--set", change]
        with one_core():
            subprocess.run(
                [*COMMAND_LINE, *words],
                env=environment(os.environ, one_thread=True, source=source),
                stdout=subprocess.DEVNULL,
                check=True,
            )
        (metrics,) = Path(folder).rglob(METRICS)
        rows = map(json.loads, metrics.read_text(encoding="utf-8").splitlines())
        first, *_, last = [row for row in rows if row["event"] == "train"][2:]
    updates = (last["update_count"] - first["update_count"]) * case.updates_per_count
    collected = last["global_step"] - first["global_step"]
    update = (last["time_update"] - first["time_update"]) / updates
    return update, (last["time_collect"] - first["time_collect"]) / collected


def measure(name: str, effort: Effort) -> dict[str, Any]:
    """Return the quickest of some rounds, which alternate between training, before and now, and products."""
    case = CASES[name]
    steps = effort.choose(case.steps, case.steps // 2)
    sides: dict[str, Callable[[int], tuple[float, float]]] = {
        "now": lambda _: seconds_of_training(case, steps),
        "products": lambda _: seconds_of_products(case.passes, effort.choose(300, 30)),
    }
    if older_checkout.why_missing(effort.before) is None:
        sides["before"] = lambda _: seconds_of_training(case, steps, effort.before)
    rows = alternate(sides, effort.rounds)
    limit, operations = min(row["products"] for row in rows)
    before = {"before": _times([row["before"] for row in rows], limit)} if "before" in sides else {}
    return {
        "algo": name,
        **_times([row["now"] for row in rows], limit),
        "products_microseconds": round(limit * 1e6),
        "gflops_of_products": round(operations / limit / 1e9, 1),
        **before,
    }


def _times(trainings: Sequence[tuple[float, float]], limit: float) -> dict[str, Any]:
    """Return what is stored of the quickest training."""
    update, collect = (min(times) for times in zip(*trainings, strict=True))
    return {
        "update_microseconds": round(update * 1e6),
        "share_of_products": round(limit / update, 3),
        "collect_microseconds_per_step": round(collect * 1e6, 1),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse arguments, measure, store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algo", action="append", choices=tuple(CASES), help="which to measure; all by default")
    parser.add_argument("--rounds", type=int, default=5, help="how often each is measured")
    parser.add_argument("--quick", action="store_true", help="one round of little work, to see that it runs")
    parser.add_argument("--before", type=Path, default=older_checkout.FOLDER, help="an older checkout to compare with")
    parser.add_argument("--output", type=Path, default=RESULTS / "limits.json", help="where the summary goes")
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    torch.set_num_threads(1)
    effort = Effort(1 if options.quick else options.rounds, options.quick, options.before)
    missing = older_checkout.why_missing(effort.before)
    if missing is not None:
        print(missing)
    cases = []
    for algo in options.algo or CASES:
        cases.append(measure(algo, effort))
        print(", ".join(f"{name} {value}" for name, value in cases[-1].items()), flush=True)
    if not options.quick and not options.algo:
        summary = {
            "benchmark": "limits",
            "settings": "one thread; the quickest round counts, since other load only slows down",
            "clock": "the clock",
            "command": f"python benchmarks/limits.py --rounds {options.rounds}",
            "cases": cases,
            **({} if missing else {"before": older_checkout.commit(effort.before)}),
            **origin(),
        }
        write_json_atomically(options.output, summary)


if __name__ == "__main__":
    main()

"""This package against its peers, as ratios with their spread: one command, and a guard against regressions.

    python benchmarks/speed.py                      # everything; stores each summary in results/ as it ends
    python benchmarks/speed.py --only ppo           # one benchmark; repeatable
    python benchmarks/speed.py --quick              # a little of everything, in minutes; stores nothing
    python benchmarks/speed.py --check              # exit 1 where a ratio fell by more than 25 % below the stored one
    python benchmarks/speed.py --only efficientzero --before PATH      # against an older checkout of this package

The sides of a benchmark alternate, with equal settings and one thread unless a ratio says otherwise; a ratio above 1
means that this package is faster, and of every ratio a higher one is better. stable-baselines3, SBX and mctx come with
the extra `bench`, EnvPool with `pip install envpool`. CleanRL's, LightZero's and d3rlpy's requirements contradict ours,
so they live in folders of their own: `peers/cleanrl_scripts.py`, `peers/lightzero_search.py` and
`peers/d3rlpy_learners.py` say how to install them. The older checkout is `build/before` unless `--before` names
another. A peer that is not there is said to be missing.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from records import RESULTS
from rl_training.experiment.storage.files import write_json_atomically
from speed_cases import (
    checkpoint_speed,
    env_speed,
    export_speed,
    offline_speed,
    scaling_speed,
    search_speed,
    seeds_speed,
    startup,
    sum_tree,
    sweep_speed,
    training_speed,
    tune_speed,
)
from speed_cases.speed_guard import check
from speed_cases.speed_parts import Benchmark, Effort, Outcome, spread, spread_words, summary
from speed_cases.training_cases import CASES

BENCHMARKS = {
    benchmark.name: benchmark
    for benchmark in (
        *(
            Benchmark(name, partial(training_speed.measure, name), partial(training_speed.settings, name))
            for name in CASES
        ),
        *(
            Benchmark(name, partial(offline_speed.measure, name), offline_speed.settings)
            for name in offline_speed.CASES
        ),
        Benchmark("search", search_speed.measure, search_speed.settings, search_speed.CLOCK),
        Benchmark("environments", env_speed.measure, env_speed.settings, env_speed.CLOCKS),
        Benchmark("startup", startup.measure, startup.settings, rounds=9),
        Benchmark("checkpoints", checkpoint_speed.measure, checkpoint_speed.settings, "the clock"),
        Benchmark("sweep", sweep_speed.measure, sweep_speed.settings, "the clock", rounds=3),
        Benchmark("seeds", seeds_speed.measure, seeds_speed.settings, "the clock"),
        Benchmark("tune", tune_speed.measure, tune_speed.settings, "the clock"),
        Benchmark("scaling", scaling_speed.measure, scaling_speed.settings, rounds=3),
        Benchmark("export", export_speed.measure, export_speed.settings, export_speed.CLOCK, rounds=9),
        Benchmark("priorities", sum_tree.measure, sum_tree.settings),
    )
}
QUICK_ROUNDS, CHECK_ROUNDS = 1, 3


def main(
    arguments: Sequence[str] | None = None,
    benchmarks: Mapping[str, Benchmark] = BENCHMARKS,
    results: Path = RESULTS,
) -> int:
    """Measure what is asked for and return the exit status."""
    options = _parse(arguments, benchmarks)
    left = [benchmarks[name] for name in options.only or benchmarks]
    found: dict[str, Outcome] = {}
    falls: list[str] = []
    while left:
        benchmark = left[0]
        rounds = options.rounds or (
            QUICK_ROUNDS if options.quick else CHECK_ROUNDS if options.check else benchmark.rounds
        )
        effort = Effort(rounds, options.quick, options.before)
        try:
            if options.check:
                outcome, fell = check(benchmark, effort, results)
                falls += fell
            else:
                outcome = benchmark.measure(effort)
                for reason in outcome.missing:
                    print(f"{benchmark.name}: {reason}")
        except BaseException:
            rest = " ".join([*_flags(options), *(f"--only {one.name}" for one in left)])
            print(f"stopped in {benchmark.name}; to go on: python benchmarks/speed.py {rest}", flush=True)
            raise
        left.pop(0)
        if outcome is None:
            continue
        found[benchmark.name] = outcome
        _say(benchmark.name, outcome)
        if not outcome.ratios:
            print(f"{benchmark.name}: nothing could be compared, so nothing is stored")
        elif not options.quick and not options.check:
            write_json_atomically(results / f"speed-{benchmark.name}.json", summary(benchmark, outcome, effort))
    _print_table([(benchmarks[name], outcome) for name, outcome in found.items()])
    if options.check and not found:
        print("Nothing could be compared, so the check says nothing: run without --check to store ratios first.")
        return 1
    if options.check:
        print("\n".join(falls) or "No ratio fell by more than a quarter below the stored one.")
    return 1 if falls else 0


def _parse(arguments: Sequence[str] | None, benchmarks: Mapping[str, Benchmark]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=tuple(benchmarks), help="what to measure; repeatable")
    parser.add_argument("--rounds", type=int, help="how often the sides of each benchmark alternate")
    parser.add_argument("--before", type=Path, default=Effort.before, help="an older checkout of this package")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--quick", action="store_true", help="little of everything, to see that it runs")
    mode.add_argument("--check", action="store_true", help="compare with the stored ratios")
    options = parser.parse_args(arguments)
    if options.rounds is not None and options.rounds < 1:
        parser.error("--rounds must be at least 1")
    return options


def _flags(options: argparse.Namespace) -> list[str]:
    """Return how the command was asked to measure, as it was written."""
    flags = [f"--{mode}" for mode in ("quick", "check") if getattr(options, mode)]
    flags += [] if options.rounds is None else [f"--rounds {options.rounds}"]
    return flags if options.before == Effort.before else [*flags, f"--before {options.before}"]


def _say(name: str, outcome: Outcome) -> None:
    for ratio, values in outcome.ratios.items():
        print(f"{name}: {ratio}: {spread_words(spread(values))}", flush=True)


def _print_table(found: Sequence[tuple[Benchmark, Outcome]]) -> None:
    lines = [("benchmark", "ratio", "median (smallest..largest)", "clock")]
    for benchmark, outcome in found:
        lines += [
            (benchmark.name, ratio, spread_words(spread(values)), outcome.clocks.get(ratio, benchmark.clock))
            for ratio, values in outcome.ratios.items()
        ]
    widths = [max(len(line[column]) for line in lines) for column in range(4)]
    print()
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


if __name__ == "__main__":
    logging.getLogger("rl_training").setLevel(logging.ERROR)
    raise SystemExit(main())

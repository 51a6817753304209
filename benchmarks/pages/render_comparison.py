"""Write `docs/results.md` and its plots from the stored results of the learning suite.

`python benchmarks/render_results.py` calls it with the other pages. No number comes from anywhere else: a cell without
a file has none, and one that has fewer seeds than wanted says how many.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from pathlib import Path

from learning import EVALUATION_EPISODES
from learning_suites import Cell
from pages.aggregate import AGGREGATE, GAP, IQM, Aggregate, read_aggregate, store_aggregate
from pages.comparisons import (
    ALGORITHM_NAMES,
    PEER_ALGORITHMS,
    SIDE_NAMES,
    Comparison,
    Entry,
    environments,
    read_comparisons,
)
from pages.published import published_section
from pages.result_tables import heading, machine, package_versions, repeat_command, row, score_text, span
from records import OURS, SB3

PAGE, PLOTS = "results.md", "plots"
SOURCES = "../benchmarks/results"
"""Where the page finds the stored results."""
LEAST_PROBABILITY = 0.45
"""Below this a comparison is marked: the peer's runs score higher more often."""
NOTHING = "nothing yet"
_VERSIONS_SHOWN = ("axiomrl", "stable_baselines3", "torch", "numpy", "gymnasium")
# What decides how an environment behaves, by how its name begins.
_SIMULATORS = {
    "LunarLander": "Box2D",
    "ALE/": "ale-py",
    "MinAtar/": "MinAtar",
    **dict.fromkeys(("Hopper", "HalfCheetah", "Walker2d"), "mujoco"),
}

_INTRODUCTION = f"""\
<!-- Written by `python benchmarks/render_results.py` from the files in `benchmarks/results/`; do not edit. -->

# Results beside stable-baselines3

This package and stable-baselines3 learn the same tasks by the same settings: steps, networks, optimisers, schedules,
replay, number of environments. Both are built from one configuration, and what the peer cannot do is switched off on
both sides. From the same weights and the same experience both even make
[the same updates](../tests/algorithms/test_peer_updates.py), so that what differs is how experience is gathered and
drawn, and chance. The planning family, Rainbow and DroQ have no counterpart there and are shown alone, as are tasks and
settings on which the peer, or sb3-contrib for TQC and CrossQ, was not trained.

The score of a seed is the mean return of its **final** policy, never of the best checkpoint, over fresh evaluation
episodes, {EVALUATION_EPISODES} per seed; both sides play the episodes of the same seeds. Everything on this page, the
pictures too, is made from the files that [the last table](#sources) names. To repeat it, with the extras `bench` and
`plot` (seeds that are stored are not trained again, so delete their files first):

```text
python benchmarks/learning.py --suite full --jobs 2
python benchmarks/render_results.py
```

## Overview

IQM is the interquartile mean over the seeds. Brackets hold 95 % bootstrap intervals, which need three seeds
([how they are made](statistics.md#intervals)). The probability of improvement is how often a run of ours scores above
one of the peer's, over all pairs of seeds, ties counted half: 0.5 means no difference, 1 that ours always wins. What
lies below {LEAST_PROBABILITY} is marked. Five seeds on each side tell large differences, not small ones, which is why
the intervals are wide. SAC on LunarLanderContinuous, just below that line with five seeds, was given ten on both sides.
PPO on LunarLander at 1M steps, at 0.39 with five of the peer's beside twenty of ours, was given more of the peer's, and
DQN there at 100k, at 0.44 with five on both sides, was given ten.
PPO on Hopper at 1M steps, planned with five of ours and three of the peer's, was given more after these three had
scored above those five; by the same random numbers both sides gather
[the same experience](../tests/algorithms/test_peer_updates.py) there. All seeds count.

Some presets were changed after results of theirs had been seen, which stay on this page: PPO and SAC on Hopper
(settings of our own in the place of RL Zoo's), PPO on MinAtar (a larger entropy bonus) and Gumbel MuZero on LunarLander
(noise and learning rate that fall to nothing, and twice the steps). For MinAtar and LunarLander the new settings were
tried on seeds that are not shown. CrossQ was given a falling learning rate after its results had been seen, which did
not help and is not in its preset."""
# What the suite compared before: shown, since the budget was changed after it had been seen.
_SUPERSEDED = tuple(Cell(f"{algo}-lunarlandercontinuous", label="30k") for algo in ("sac", "td3"))
_OVER_ALL = """\
## All environments together

Scores on a scale where random actions have 0 and the environment's target 1 (see [Statistics](statistics.md)), over
{tasks} comparisons and {runs} runs; of several budgets of one algorithm on one environment the longest counts that both
sides have trained with three seeds or more. The interquartile mean is over all runs; intervals resample the seeds of
each comparison by themselves. The optimality gap is how far runs fall short of the target on average: less is better.
A profile is the share of runs above each score."""
_SECTIONS = """\
## Environments

Left, the evaluations during training: the interquartile mean over the seeds and its interval (few episodes each, so
rougher than the scores). Right, the score of each final policy as a dot, with the interquartile mean and its interval.
Solid lines and filled marks are ours, dashed lines and hollow marks stable-baselines3's; an algorithm keeps its colour.

Minutes are medians over the seeds and include the evaluations during training. CPU minutes are the processor's, which
other work on the machine does not touch as it does wall minutes; results from before they were measured have none."""
_SOURCES = """\
## Sources

Every file holds each seed's score, steps and times, the complete configuration, the versions and the command."""


def write_comparison(cells: Sequence[Cell], results: Path, docs: Path) -> None:
    """Write the page and a picture for every environment that has results."""
    from pages.aggregate_plot import write_aggregate_plot
    from pages.result_plots import write_plot

    comparisons = read_comparisons(cells, results)
    aggregate = read_aggregate(comparisons)
    (docs / PAGE).write_text(render_comparison(comparisons), encoding="utf-8")
    for env_id, found in environments(comparisons).items():
        if _any_runs(found):
            write_plot(env_id, found, docs / plot_path(env_id))
    if aggregate is not None:
        store_aggregate(aggregate, results)
        write_aggregate_plot(aggregate, docs / plot_path(AGGREGATE))


def render_comparison(comparisons: Sequence[Comparison]) -> str:
    """Return the whole page."""
    results = comparisons[0].entries[0].path.parent
    blocks = [
        _INTRODUCTION,
        "\n".join(_overview(comparisons)),
        _standing(comparisons),
        *_superseded(results),
        *_over_all(read_aggregate(comparisons)),
        *published_section(comparisons),
        _SECTIONS,
    ]
    for env_id, found in environments(comparisons).items():
        blocks.append(f"### {env_id}")
        if _any_runs(found):
            blocks.append(f"![Learning curves and final scores on {env_id}]({plot_path(env_id)})")
        blocks.append("\n".join(_details(found)))
    blocks += [_SOURCES, "\n".join(_sources(comparisons))]
    return "\n\n".join(blocks) + "\n"


def plot_path(place: str) -> str:
    """Return where the page finds the picture of an environment."""
    return f"{PLOTS}/{re.sub('[ /]', '-', place)}.svg"


def _any_runs(comparisons: Sequence[Comparison]) -> bool:
    return any(entry.runs for comparison in comparisons for entry in comparison.entries)


def _overview(comparisons: Sequence[Comparison]) -> list[str]:
    table = heading(
        "environment",
        "algorithm",
        "ours: IQM [interval]",
        "stable-baselines3: IQM [interval]",
        "probability of improvement [interval]",
        "seeds: ours, stable-baselines3",
    )
    for found in environments(comparisons).values():
        for comparison in found:
            shown = [_score(entry) for entry in comparison.entries]
            seeds = [_seed_count(entry) for entry in comparison.entries]
            table.append(
                row(
                    comparison.place,
                    comparison.entries[0].algorithm,
                    *(shown if comparison.paired else [*shown, _why_alone(comparison)]),
                    _improvement(comparison),
                    ", ".join(seeds),
                )
            )
    return table


def simulators(env_id: str) -> list[str]:
    """Return the packages whose versions decide how an environment behaves, besides Gymnasium's."""
    return [package for beginning, package in _SIMULATORS.items() if env_id.startswith(beginning)]


def _why_alone(comparison: Comparison) -> str:
    return "not trained" if comparison.algo in PEER_ALGORITHMS else "no counterpart"


def _over_all(aggregate: Aggregate | None) -> list[str]:
    """Return the section that joins all comparisons on one scale."""
    if aggregate is None:
        return []
    table = heading("side", "IQM of normalised scores [interval]", "optimality gap [interval]")
    for side in (OURS, SB3):
        shown = (aggregate.estimate(of, side).text("{:.3f}".format) for of in (IQM, GAP))
        table.append(row(SIDE_NAMES[side], *shown))
    chance = aggregate.improvement().text("{:.2f}".format)
    return [
        _OVER_ALL.format(tasks=len(aggregate.comparisons), runs=aggregate.run_count),
        "\n".join(table),
        f"The probability of improvement over all of them is {chance}.",
        f"![Performance profiles and probabilities of improvement]({plot_path(AGGREGATE)})",
    ]


def _superseded(results: Path) -> list[str]:
    """Return what an earlier, shorter budget had shown, from its stored files."""
    found = [one for one in read_comparisons(_SUPERSEDED, results) if _any_runs([one])]
    if not found:
        return []
    shown = [
        f"{ALGORITHM_NAMES[one.algo]} {_improvement(one)} "
        f"({', '.join(f'[{SIDE_NAMES[e.side]}]({SOURCES}/{e.path.name}) {len(e.runs)} seeds' for e in one.entries)})"
        for one in found
    ]
    return [
        "The budget on LunarLanderContinuous was 30,000 steps at first, when nearly all seeds of both sides hovered,"
        f" and was doubled after these probabilities had been seen: {'; '.join(shown)}."
    ]


def _standing(comparisons: Sequence[Comparison]) -> str:
    """Return how many comparisons are finished, and which of those that can be judged are below the line."""
    paired = [comparison for comparison in comparisons if comparison.paired]
    finished = sum(comparison.finished for comparison in paired)
    judged = [(comparison, found) for comparison in paired if (found := comparison.improvement()) is not None]
    below = [
        f"{ALGORITHM_NAMES[comparison.algo]} on {comparison.place}"
        for comparison, found in judged
        if found.value < LEAST_PROBABILITY
    ]
    sentence = f"Finished, with all planned seeds on both sides: {finished} of {len(paired)} comparisons."
    if judged:
        sentence += f" Below {LEAST_PROBABILITY}: {', '.join(below) or 'none'}."
    return sentence


def _details(comparisons: Sequence[Comparison]) -> list[str]:
    table = heading(
        "algorithm, side",
        "steps",
        "seeds",
        "IQM [interval]",
        "mean",
        "worst",
        "best",
        "CPU minutes",
        "wall minutes",
        "score of each seed",
    )
    for comparison in comparisons:
        for entry in comparison.entries:
            cells = [NOTHING, *["-"] * 6]
            if entry.runs:
                scores = entry.scores
                cells = [
                    _score(entry),
                    *map(score_text, (statistics.fmean(scores), min(scores), max(scores))),
                    _minutes(entry, "cpu_seconds"),
                    _minutes(entry, "seconds"),
                    ", ".join(f"{run['seed']}: {score_text(run['eval_return_mean'])}" for run in entry.runs),
                ]
            steps = span([run["steps"] for run in entry.runs]) if entry.runs else "-"
            table.append(row(entry.name, steps, _seed_count(entry), *cells))
    return table


def _sources(comparisons: Sequence[Comparison]) -> list[str]:
    table = heading(
        "file", "environment", "side", "seeds", "episodes", "changes to the preset", "command", "versions", "machine"
    )
    for comparison in comparisons:
        for entry in comparison.entries:
            if not entry.runs:
                continue
            summary = dict(entry.summary)
            changes = ", ".join(f"`{change}`" for change in summary.get("changes", ()))
            table.append(
                row(
                    f"[{entry.path.name}]({SOURCES}/{entry.path.name})",
                    entry.env_id,
                    SIDE_NAMES[entry.side],
                    ", ".join(str(run["seed"]) for run in entry.runs),
                    span([run["eval_episodes"] for run in entry.runs]),
                    changes or "none",
                    f"`{repeat_command(summary)}`",
                    package_versions([summary], (*_VERSIONS_SHOWN, *simulators(entry.env_id))),
                    machine([summary]),
                )
            )
    return table


def _score(entry: Entry) -> str:
    return entry.estimate().text(score_text) if entry.runs else NOTHING


def _improvement(comparison: Comparison) -> str:
    found = comparison.improvement()
    if found is None:
        return "-"
    shown = found.text("{:.2f}".format)
    return f"{shown} **below {LEAST_PROBABILITY}**" if found.value < LEAST_PROBABILITY else shown


def _seed_count(entry: Entry) -> str:
    return str(len(entry.runs)) if entry.finished else f"{len(entry.runs)} of {entry.seeds_wanted}"


def _minutes(entry: Entry, key: str) -> str:
    found = entry.minutes(key)
    if found is None:
        return "-"
    minutes, seeds = found
    return f"{minutes:.1f}" if seeds == len(entry.runs) else f"{minutes:.1f} (of {seeds} seeds)"

"""The tables of docs/scaling.md: what is learned with a lag, measured times, the model's predictions and its check."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from learning_suites import LAGGED
from pages.result_tables import heading, machine, row, score_text, span, versions
from records import OURS
from rl_training.experiment.statistics import probability_of_improvement, probability_of_improvement_interval
from rl_training.zoo.leaderboard import SEEDS_FOR_INTERVAL

FILE = "workers.json"
PAGE = "scaling.md"
_FEW_LEARNERS = (1, 8)
_PEERS = {"sample-factory": "Sample Factory", "ray": "RLlib"}


def render_workers(results: Path) -> str:
    """Return the section on the model."""
    path = results / FILE
    if not path.exists():
        return "No results are stored yet."
    content = json.loads(path.read_text(encoding="utf-8"))
    tasks: Mapping[str, Any] = content["tasks"]
    blocks = [
        "Times per rollout, of one process and of a sampler that has all environments:",
        "\n".join(_times(tasks)),
        "Whole runs with samplers on this machine, as multiples of one process with one thread by the clock, and what\n"
        "the model says; threads are those of the run itself, which learns, and without samplers also collects:",
        "\n".join(_checks(tasks)),
        "Predicted environment steps per second with a core for every process, as multiples of one process:",
        "\n".join(_predictions(tasks)),
        f"Measured with {machine([content])}, by `python benchmarks/scaling.py --measure --check`.",
    ]
    if "peers" in content:
        blocks += _peers(content["peers"])
    blocks += _lag(results)
    return "\n\n".join(blocks)


def _peers(found: Mapping[str, Any]) -> list[str]:
    """Return what other packages' workers reach beside ours."""
    table = heading("package", "steps per second, median (smallest to largest)", "ours, as a multiple")
    ours = found["sides"][OURS]["median"]
    for name, side in found["sides"].items():
        speeds = side["steps_per_second"]
        spread = f"{side['median']:,.0f} ({min(speeds):,.0f} to {max(speeds):,.0f})"
        package = "ours" if name == OURS else f"{_PEERS[name]} {side['versions'][name]}"
        table.append(row(package, spread, f"{ours / side['median']:.2f}"))
    given = found["settings"]
    return [
        f"APPO on {given['env_id']}: {given['samplers']} workers, {given['num_envs']} environments, rollouts of\n"
        f"{given['num_steps']} steps, batches of one rollout, perceptrons of {given['hidden_sizes']}.\n"
        "Start-up is left out. The peers' workers never wait for the learner, ours lag by exactly one update:",
        "\n".join(table),
        "Repeat it with `python benchmarks/scaling.py --peers`.",
    ]


def _lag(results: Path) -> list[str]:
    """Return the table of trainings with a lag beside those without."""
    table = heading("preset", "steps", "seeds", "lag 0, mean (worst)", "lag 1, mean (worst)", "lag 1 is better")
    shown: list[dict[str, Any]] = []
    for without, cell in LAGGED:
        summaries = [results / f"{name}.json" for name in (without, cell.name)]
        if not all(path.exists() for path in summaries):
            continue
        pair = [json.loads(path.read_text(encoding="utf-8")) for path in summaries]
        shown += pair
        plain, lagged = ([run["eval_return_mean"] for run in one["runs"]] for one in pair)
        chance = "-"
        if min(len(plain), len(lagged)) >= SEEDS_FOR_INTERVAL:
            low, high = probability_of_improvement_interval(lagged, plain)
            chance = f"{probability_of_improvement(lagged, plain):.2f} [{low:.2f}, {high:.2f}]"
        scores = (f"{score_text(statistics.fmean(side))} ({score_text(min(side))})" for side in (plain, lagged))
        counts = str(len(lagged)) if len(plain) == len(lagged) else f"{len(plain)} and {len(lagged)}"
        name = ", ".join(filter(None, (f"`{cell.preset}`", cell.variant)))
        table.append(row(name, span([run["steps"] for run in pair[1]["runs"]]), counts, *scores, chance))
    if not shown:
        return []
    return [
        "What is learned with a lag, by final policies over 100 episodes; the last column is the probability that a\n"
        "run with a lag ends above one without, with its 95 % interval:",
        "\n".join(table),
        "\n".join([*versions(shown), "Repeat it with `python benchmarks/learning.py --suite workers`."]),
    ]


def _times(tasks: Mapping[str, Any]) -> list[str]:
    columns = ("collect alone, ms", "by a sampler", "of which fixed", "update, ms", "rollout, kB", "weights, kB")
    table = heading("preset", "steps", *columns)
    for name, entry in tasks.items():
        times = entry["times"]
        milliseconds = (f"{1000 * times[key]:.1f}" for key in ("alone_collect", "collect", "collect_fixed", "update"))
        sizes = (f"{times[key] / 1000:,.0f}" for key in ("rollout_bytes", "weight_bytes"))
        table.append(row(f"`{name}`", f"{times['transitions']:,}", *milliseconds, *sizes))
    return table


def _checks(tasks: Mapping[str, Any]) -> list[str]:
    layout = ("samplers", "lag", "threads")
    table = heading("preset", *layout, "measured (smallest to largest)", "model")
    for name, entry in tasks.items():
        for found in entry.get("checks", ()):
            measured = f"{found['median']:.2f} ({found['smallest']:.2f} to {found['largest']:.2f})"
            table.append(row(f"`{name}`", *(found[key] for key in layout), measured, f"{found['predicted']:.2f}"))
    return table


def _predictions(tasks: Mapping[str, Any]) -> list[str]:
    samplers = sorted({found["samplers"] for entry in tasks.values() for found in entry["predictions"]})
    table = heading("preset", "learners", "lag", *(f"{count:,} samplers" for count in samplers))
    for name, entry in tasks.items():
        for learners in _FEW_LEARNERS:
            for lag in (0, 1):
                of_row = {
                    found["samplers"]: found["steps_per_second"] / entry["one_process"]
                    for found in entry["predictions"]
                    if (found["learners"], found["lag"]) == (learners, lag)
                }
                table.append(row(f"`{name}`", learners, lag, *(f"{of_row[count]:.2f}" for count in samplers)))
    return table

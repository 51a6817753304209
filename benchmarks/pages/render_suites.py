"""ScaleZero's suites on its page: every task of every seed, variants side by side, and what intervals say of them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from pages.result_tables import heading, score_text
from rl_training.experiment.statistics import probability_of_improvement, probability_of_improvement_interval
from rl_training.zoo.leaderboard import SEEDS_FOR_TRUST

_WHAT_VARIANTS_ARE = {
    "preset": "experts and scaling (the preset)",
    "dense": "dense layers instead of experts",
    "no-scaling": "scaling off: every task to the end",
    "large-adapters": "adapters of rank 32 instead of 8",
    "long-first-stage": "stage 0 lasts at least two thirds of the run",
}


def suite_blocks(suites: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Return the blocks of all suites: every task of every seed, variants side by side, curves, commands."""
    if not suites:
        return []
    explanation = [
        "One set of weights per seed. Scores are mean returns of the final policy, with search, over fresh evaluation",
        "episodes of each task; steps are those of all tasks together. A run ends when one evaluation finds every task",
        "at its target. Minutes are of the clock on a shared machine, pauses of the process included.",
    ]
    blocks = [explanation, _suite_scores(suites)]
    for entry in suites:
        if len({cell["variant"] for cell in entry["cells"]}) > 1:
            blocks += _ablation(entry)
    commands = ["```text", *(entry["command"] for entry in suites), "```"]
    return [*blocks, _suite_curves(suites), ["To repeat them:"], commands]


def _targets(entry: dict[str, Any]) -> dict[str, float]:
    return {
        task.get("name") or task["env_id"]: task["target_return"] for task in entry["config"]["env_kwargs"]["tasks"]
    }


def _suite_scores(suites: Sequence[dict[str, Any]]) -> list[str]:
    table = heading("preset", "seed", "task", "target", "score", "episodes", "all targets at step", "steps", "minutes")
    for entry in suites:
        for cell in _cells(entry, "preset"):
            for task, target in _targets(entry).items():
                cells = (
                    f"`{entry['suite']}`",
                    cell["seed"],
                    task,
                    f"{target:g}",
                    score_text(cell["scores"][task]),
                    cell["episodes"],
                    _step(cell["all_targets_at"]),
                    f"{cell['steps']:,}",
                    f"{cell['seconds'] / 60:.1f}",
                )
                table.append(f"| {' | '.join(map(str, cells))} |")
    return table


def _ablation(entry: dict[str, Any]) -> list[list[str]]:
    """Return the variants of one suite side by side, over their seeds."""
    tasks, budget = list(_targets(entry)), entry["config"]["total_timesteps"]
    explanation = [
        f"Variants of `{entry['suite']}`, means over the seeds (smallest to largest). Single tasks get their share",
        f"of the budget of {budget:,} steps; saved is what of it comes after the first evaluation with all targets.",
    ]
    table = heading("variant", "seeds", *tasks, "seeds with all targets at once", "first at step", "steps", "saved")
    order = [*_WHAT_VARIANTS_ARE, *(f"single-{task}" for task in tasks)]
    for variant in order:
        cells = _cells(entry, variant)
        if not cells:
            continue
        reached = [cell["all_targets_at"] for cell in cells if cell["all_targets_at"] is not None]
        single = variant.startswith("single-")
        whole = budget // len(tasks) if single else budget
        row = (
            _WHAT_VARIANTS_ARE.get(variant, f"{variant.removeprefix('single-')} alone"),
            ", ".join(str(cell["seed"]) for cell in cells),
            *(_spread([cell["scores"][task] for cell in cells if task in cell["scores"]]) for task in tasks),
            f"{len(reached)} of {len(cells)}",
            _step(round(statistics.fmean(reached)) if reached else None),
            f"{round(statistics.fmean(cell['steps'] for cell in cells)):,}",
            f"{1 - statistics.fmean(cell['all_targets_at'] or whole for cell in cells) / whole:.0%}",
        )
        table.append(f"| {' | '.join(row)} |")
    return [explanation, table, *_verdict(entry, tasks)]


def _verdict(entry: dict[str, Any], tasks: Sequence[str]) -> list[list[str]]:
    """Return, in a sentence, where intervals tell the preset from its variants, of seeds enough to trust them."""
    preset = _cells(entry, "preset")
    parts = []
    for variant in list(_WHAT_VARIANTS_ARE)[1:]:
        others = _cells(entry, variant)
        for task in tasks:
            ours, theirs = ([cell["scores"][task] for cell in cells] for cells in (preset, others))
            if min(len(ours), len(theirs)) < SEEDS_FOR_TRUST:
                continue
            low, high = probability_of_improvement_interval(ours, theirs)
            known = "above" if low > 0.5 else "below" if high < 0.5 else "no difference shown"
            chance = probability_of_improvement(ours, theirs)
            parts.append(f"{task} against {variant} {chance:.2f} [{low:.2f}, {high:.2f}], {known}")
    if not parts:
        return []
    return [
        [
            "Probability that a seed of the preset scores above one of a variant, with 95 % intervals (0.5: no",
            f"difference): {'; '.join(parts)}.",
        ]
    ]


def _suite_curves(suites: Sequence[dict[str, Any]]) -> list[str]:
    table = heading("preset", "variant", "seed", "task", "mean returns of the evaluations during training")
    for entry in suites:
        for cell in entry["cells"]:
            for task, curve in cell["curves"].items():
                returns = ", ".join(score_text(score) for _, score in curve)
                cells = (f"`{entry['suite']}`", cell["variant"], str(cell["seed"]), task, returns)
                table.append(f"| {' | '.join(cells)} |")
    return table


def _cells(entry: dict[str, Any], variant: str) -> list[dict[str, Any]]:
    return [cell for cell in entry["cells"] if cell["variant"] == variant]


def _spread(scores: Sequence[float]) -> str:
    if not scores:
        return "-"
    return f"{score_text(statistics.fmean(scores))} ({score_text(min(scores))} to {score_text(max(scores))})"


def _step(step: int | None) -> str:
    return "never" if step is None else f"{step:,}"

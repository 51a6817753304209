"""Run directories of one model trained on several tasks, for tests of what reads them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

from fake_runs import fake_run
from rl_training.experiment.runs import METADATA, METRICS

CART, ACRO = "CartPole-v1", "Acrobot-v1"
TASKS: list[dict[str, Any]] = [
    {"env_id": CART, "random_return": 20.0, "target_return": 420.0},
    {"env_id": ACRO, "random_return": -500.0, "target_return": -100.0},
]
HORIZON = 1000
Returns = Mapping[str, float | None]


def suite_run(
    root: Path,
    seed: int,
    evaluations: Sequence[Returns],
    *,
    tasks: Sequence[Mapping[str, Any]] = TASKS,
    changes: Mapping[str, Any] | None = None,
    status: str = "completed",
) -> Path:
    """Write a run whose evaluations are spread evenly over its steps; each is the return by task."""
    about = {"algo": "scalezero", "env_id": "classic-suite", "env_kwargs.tasks": list(tasks), "preset": None}
    run_dir = fake_run(root, seed, preset="muzero-cartpole", changes={**about, **(changes or {})}, status=status)
    rows: list[dict[str, Any]] = []
    for number, returns in enumerate(evaluations, start=1):
        step = HORIZON * number // len(evaluations)
        training = {
            f"train_return_mean/{name}": None if value is None else value / 2 for name, value in returns.items()
        }
        seconds = {"time_collect": step / 100, "time_update": step / 50}
        rows.append({"event": "train", "global_step": step, **training, **seconds})
        rows.append({"event": "eval", "global_step": step, **evaluation_fields(returns, tasks)})
    (run_dir / METRICS).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    metadata = json.loads((run_dir / METADATA).read_text())
    metadata["latest_metrics"] = {"global_step": HORIZON}
    (run_dir / METADATA).write_text(json.dumps(metadata))
    return run_dir


def evaluation_fields(returns: Returns, tasks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what an evaluation of every task records."""
    known = [value for value in returns.values() if value is not None]
    fields: dict[str, Any] = {"eval_return_mean": mean(known), "eval_episodes": 8 * len(returns)}
    for name, value in returns.items():
        fields |= {f"eval_return_mean/{name}": value, f"eval_return_std/{name}": 1.0}
    if all(map(has_references, tasks)):
        scales = {task.get("name", task["env_id"]): task for task in tasks}
        shares = [_share(scales[name], value) for name, value in returns.items() if value is not None]
        fields |= {"eval_normalized_mean": mean(shares), "eval_normalized_median": median(shares)}
    return fields


def has_references(task: Mapping[str, Any]) -> bool:
    """Return whether a task has two returns that make a scale."""
    random, target = task.get("random_return"), task.get("target_return")
    return isinstance(random, float) and isinstance(target, float) and math.isfinite(target) and random != target


def _share(task: Mapping[str, Any], value: float) -> float:
    random, target = task["random_return"], task["target_return"]
    return float((value - random) / (target - random))


def suite_runs(root: Path, finals: Sequence[tuple[float | None, float | None]], **settings: Any) -> list[Path]:
    """Write one run per pair of final returns on CartPole and Acrobot, with seeds 1, 2, 3, ..."""
    start: Returns = {CART: 20.0, ACRO: -500.0}
    return [
        suite_run(root, seed, [start, {CART: cart, ACRO: acro}], **settings)
        for seed, (cart, acro) in enumerate(finals, start=1)
    ]

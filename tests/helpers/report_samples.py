"""Run directories with learning curves, for tests of what draws them."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fake_runs import fake_run
from rl_training.experiment.runs import METADATA, METRICS

HOSTILE_TAG = "<script>alert(1)</script>\"'&"


def write_curve(
    run_dir: Path,
    evaluations: Mapping[int, float | None],
    *,
    training: Mapping[int, float | None] | None = None,
    seconds_per_step: float = 0.001,
) -> None:
    """Replace a run's metrics by evaluations and training returns at given steps."""
    rows: list[tuple[int, int, dict[str, Any]]] = []
    for step, value in (training or {}).items():
        half = step * seconds_per_step / 2
        fields = {"train_return_mean": value, "time_collect": half, "time_update": half}
        rows.append((step, 0, {"event": "train", "global_step": step, **fields}))
    for step, value in evaluations.items():
        rows.append((step, 1, {"event": "eval", "global_step": step, "eval_return_mean": value, "eval_episodes": 10}))
    lines = (json.dumps(row) for *_, row in sorted(rows, key=lambda entry: entry[:2]))
    (run_dir / METRICS).write_text("".join(f"{line}\n" for line in lines))
    metadata = json.loads((run_dir / METADATA).read_text())
    metadata["latest_metrics"]["global_step"] = max(step for step, *_ in rows)
    (run_dir / METADATA).write_text(json.dumps(metadata, indent=2))


def sample_runs(root: Path) -> None:
    """Write what a few weeks leave behind: several algorithms, environments and seeds, and what went wrong."""
    _experiment(root / "ppo", "ppo-cartpole", range(1, 6), 22, 490, 0.25)
    _experiment(root / "ppo-slow", "ppo-cartpole", range(1, 4), 22, 300, 0.6, {"algo_kwargs.learning_rate": 1e-5})
    _experiment(root / "dqn", "dqn-cartpole", range(1, 4), 22, 450, 0.4)
    _experiment(root / "a2c", "a2c-cartpole", [1], 22, 380, 0.5)
    _experiment(root / "sac", "sac-pendulum", range(1, 6), -1300, -150, 0.2)
    _experiment(root / "td3", "td3-pendulum", range(1, 4), -1300, -170, 0.3)
    _experiment(root / "ppo-pendulum", "ppo-pendulum", range(1, 3), -1300, -400, 0.5)
    _experiment(root / "cheetah", "sac-halfcheetah", [1, 2], -250, 11_000, 0.5)
    _experiment(root / "ppo", "ppo-cartpole", [9], 22, 490, 0.25, {"tags": [HOSTILE_TAG]}, status="failed")
    _experiment(root / "td3", "td3-pendulum", [7], -1300, -170, 0.3, status="running")
    (fake_run(root / "damaged", 1) / METRICS).write_text("")


def _experiment(
    root: Path,
    preset: str,
    seeds: Sequence[int],
    first: float,
    last: float,
    middle: float,
    changes: Mapping[str, Any] | None = None,
    *,
    status: str = "completed",
) -> None:
    reach = 1.0 if status == "completed" else 0.5
    for seed in seeds:
        run_dir = fake_run(root, seed, preset=preset, changes=changes, status=status)
        horizon = json.loads((run_dir / METADATA).read_text())["latest_metrics"]["global_step"]
        noise = random.Random(f"{root.name} {preset} {seed}")
        ceiling = last - abs(noise.gauss(0, 0.06)) * (last - first)

        def learned(points: int, spread: float, ceiling: float = ceiling, noise: random.Random = noise) -> list[float]:
            progress = [1 / (1 + math.exp(-12 * (reach * point / points - middle))) for point in range(1, points + 1)]
            return [
                min(first + (ceiling - first) * share + noise.gauss(0, spread) * (last - first), last)
                for share in progress
            ]

        write_curve(
            run_dir,
            {horizon * (point + 1) // 20: value for point, value in enumerate(learned(20, 0.04))},
            training={horizon * (point + 1) // 60: value for point, value in enumerate(learned(60, 0.015))},
            seconds_per_step=0.0004 * noise.uniform(0.8, 1.2),
        )

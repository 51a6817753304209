"""Train ScaleZero's suites, and variants of them, and store what every task reached as one small JSON file per suite.

    python benchmarks/scalezero.py --preset scalezero-classic --seeds 1,2
    python benchmarks/scalezero.py --preset scalezero-pair --seeds 1,2,3 --variants all

Variants: `preset` as it is; `dense`, whose feed-forward layers have no experts; `no-scaling`, which trains every task
to the end; `large-adapters`, of four times the rank; `long-first-stage`, whose stage 0 lasts two thirds of the run at
the least; `single-<task>`, the same code with one task for its share of the steps. A cell that the file already holds
is not trained again. Scores are means over fresh evaluation episodes of the final policy, with search.
"""

from __future__ import annotations

import argparse
import json
import logging
from datetime import datetime
from pathlib import Path
from typing import Any

from records import RESULTS, machine
from rl_training.experiment.config import TrainConfig, config_to_dict, validate_config
from rl_training.experiment.configuration.config_files import load_config
from rl_training.experiment.runs import METADATA, METRICS, dependency_versions
from rl_training.experiment.storage.files import write_json_atomically
from rl_training.experiment.tasks import Task, tasks_of
from rl_training.runtime.run_utils import serialize_train_config
from rl_training.runtime.workflows import evaluate, train

EVALUATION_EPISODES = 50
WHOLE = ("preset", "dense", "no-scaling", "large-adapters", "long-first-stage")
SINGLE = "single-"


def variant_config(preset: str, variant: str, seed: int, output_dir: Path) -> TrainConfig:
    """Return the configuration of one cell."""
    raw = config_to_dict(load_config(preset=preset, overrides={"seed": seed, "output_dir": str(output_dir)}))
    if variant == "dense":
        raw["algo_kwargs"]["experts"] = 1
    elif variant == "no-scaling":
        raw["algo_kwargs"]["parameter_scaling"] = False
    elif variant == "large-adapters":
        raw["algo_kwargs"]["adapter_rank"] = 32
    elif variant == "long-first-stage":
        raw["algo_kwargs"]["first_stage_steps"] = raw["total_timesteps"] * 2 // 3
    elif variant.startswith(SINGLE):
        tasks = raw["env_kwargs"]["tasks"]
        share = len(tasks)
        raw["env_kwargs"]["tasks"] = [
            task for task in tasks if (task.get("name") or task["env_id"]) == variant.removeprefix(SINGLE)
        ]
        raw["algo_kwargs"] |= {
            "parameter_scaling": False,
            # The whole batch is its own, since it gets its share of the updates: as many windows as in the suite.
            "learning_starts": raw["algo_kwargs"]["learning_starts"] // share,
        }
        for key in ("total_timesteps", "eval_interval"):
            raw[key] //= share
    return validate_config(raw)


def variants_of(preset: str) -> list[str]:
    """Return every variant of a suite."""
    return [*WHOLE, *(f"{SINGLE}{task.name}" for task in tasks_of(load_config(preset=preset)))]


def describe_run(run_dir: Path, variant: str, tasks: tuple[Task, ...]) -> dict[str, Any]:
    """Return what is stored of a finished run, with a fresh evaluation of its final policy."""
    rows = [json.loads(line) for line in (run_dir / METRICS).read_text(encoding="utf-8").splitlines()]
    metadata = json.loads((run_dir / METADATA).read_text(encoding="utf-8"))
    evaluations = [row for row in rows if row["event"] == "eval"]
    last = [row for row in rows if row["event"] == "train"][-1]
    scores = evaluate(run_dir, num_episodes=EVALUATION_EPISODES).metrics
    began, ended = (datetime.fromisoformat(metadata[key]) for key in ("created_at_utc", "finished_at_utc"))
    return {
        "variant": variant,
        "seed": metadata["seed"],
        "steps": rows[-1]["global_step"],
        "seconds": round((ended - began).total_seconds(), 1),
        "updates": last["update_count"],
        "stage": last["stage"],
        "trainable_parameters": last["trainable_parameters"],
        "all_targets_at": first_step_with_all_targets(evaluations, tasks),
        "episodes": EVALUATION_EPISODES,
        "scores": {task.name: scores[f"eval_return_mean/{task.name}"] for task in tasks},
        "curves": {
            task.name: [[row["global_step"], round(row[f"eval_return_mean/{task.name}"], 2)] for row in evaluations]
            for task in tasks
        },
    }


def first_step_with_all_targets(evaluations: list[dict[str, Any]], tasks: tuple[Task, ...]) -> int | None:
    """Return the step of the first evaluation in which one set of weights reached every target, if there was one."""
    for row in evaluations:
        if all(row[f"eval_return_mean/{task.name}"] >= (task.target_return or 0.0) for task in tasks):
            return int(row["global_step"])
    return None


def store(preset: str, cell: dict[str, Any], config: TrainConfig) -> None:
    """Add a cell to the file of its suite."""
    path = RESULTS / f"{preset}.json"
    summary: dict[str, Any] = {"suite": preset, "cells": []}
    if path.exists():
        summary = json.loads(path.read_text(encoding="utf-8"))
    if cell["variant"] == WHOLE[0]:
        summary["config"] = {
            key: value for key, value in serialize_train_config(config).items() if key not in ("seed", "output_dir")
        }
    summary["cells"] = sorted([*summary["cells"], cell], key=lambda one: (one["variant"], one["seed"]))
    seeds = sorted({one["seed"] for one in summary["cells"]})
    trained = {one["variant"] for one in summary["cells"]}
    words = [f"--preset {preset}", f"--seeds {','.join(map(str, seeds))}"]
    if len(trained) > 1:
        words.append(f"--variants {','.join(one for one in variants_of(preset) if one in trained)}")
    summary["command"] = " ".join(["python benchmarks/scalezero.py", *words])
    summary["versions"] = dependency_versions()
    summary["machine"] = machine()
    write_json_atomically(path, summary)


def is_stored(preset: str, variant: str, seed: int) -> bool:
    """Whether a cell was trained before."""
    path = RESULTS / f"{preset}.json"
    if not path.exists():
        return False
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return any((cell["variant"], cell["seed"]) == (variant, seed) for cell in cells)


def main() -> None:
    """Parse arguments and run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", required=True, help="the suite to train")
    parser.add_argument("--seeds", default="1,2,3", help="comma-separated seeds")
    parser.add_argument("--variants", default="preset", help="comma-separated variants, or all")
    parser.add_argument("--output-dir", type=Path, default=Path("runs/scalezero"), help="where the run directories go")
    arguments = parser.parse_args()
    logging.getLogger("rl_training").setLevel(logging.ERROR)
    variants = variants_of(arguments.preset) if arguments.variants == "all" else arguments.variants.split(",")
    for seed in map(int, arguments.seeds.split(",")):
        for variant in variants:
            if is_stored(arguments.preset, variant, seed):
                continue
            config = variant_config(arguments.preset, variant, seed, arguments.output_dir)
            result = train(config)
            if result.status != "completed":
                raise SystemExit(f"{variant} seed {seed} was {result.status}: nothing is stored for it")
            cell = describe_run(result.run_dir, variant, tasks_of(config))
            store(arguments.preset, cell, config)
            print(
                f"{variant} seed {seed}: {cell['scores']} after {cell['steps']} steps, {cell['seconds']} s", flush=True
            )


if __name__ == "__main__":
    main()

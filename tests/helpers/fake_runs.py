"""Run directories as a training would leave them, made in no time: for tests of what reads them."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from rl_training.experiment.runs import CONFIG, METADATA, METRICS
from rl_training.zoo.preset_lock import locked_presets

LOSSES = (
    *("loss_policy", "loss_value", "loss_total", "entropy", "gradient_norm", "approx_kl", "clip_fraction"),
    *("explained_variance", "learning_rate", "clip_coef", "ent_coef", "steps_per_second", "time_collect"),
    *("time_update", "time_eval"),
)


def fake_run(
    root: Path,
    seed: int = 0,
    score: float | None = 100.0,
    *,
    preset: str = "ppo-cartpole",
    status: str = "completed",
    created: int = 0,
    changes: Mapping[str, Any] | None = None,
    rows: int = 0,
) -> Path:
    """Write the run directory of a preset with changed settings and return it.

    `score` is the final evaluation, None for a run that never evaluated; `changes` are dotted keys of the
    configuration; `created` the second of its start; `rows` how many rows to write at least.
    """
    config = fake_config(preset, changes)
    steps = config["total_timesteps"] if status == "completed" else config["total_timesteps"] // 2
    name = f"{config['algo']}__{config['env_id'].replace('/', '-')}__seed{seed}__20260101T{created:06d}Z"
    run_dir = root / name
    run_dir.mkdir(parents=True)
    latest = {"global_step": steps} | ({} if score is None else {"eval_return_mean": score})
    content = fake_metadata(config, seed=seed, status=status, created=created, latest=latest)
    (run_dir / METADATA).write_text(json.dumps(content, indent=2))
    (run_dir / CONFIG).write_text(f"seed: {seed}\noutput_dir: {json.dumps(str(root))}\n{_dump(json.dumps(config))}")
    (run_dir / METRICS).write_text(_metrics_text(steps, score, rows))
    return run_dir


def fake_runs(root: Path, scores: Iterable[float], **settings: Any) -> list[Path]:
    """Write one run per score, with seeds 1, 2, 3, ..."""
    return [fake_run(root, seed, score, **settings) for seed, score in enumerate(scores, start=1)]


def fake_config(preset: str, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the resolved configuration of a preset with some dotted keys changed, without what differs by run."""
    config = copy.deepcopy(dict(locked_presets()[preset]))
    for key, value in (changes or {}).items():
        *blocks, last = key.split(".")
        block = config
        for part in blocks:
            block = block.setdefault(part, {})
        block[last] = value
    return config


def fake_metadata(config: Mapping[str, Any], *, seed: int, status: str, created: int, latest: Any) -> dict[str, Any]:
    """Return metadata of schema version 1."""
    second = f"{created // 3600:02d}:{created // 60 % 60:02d}:{created % 60:02d}"
    return {
        "schema_version": 1,
        "algo": config["algo"],
        "env_id": config["env_id"],
        "seed": seed,
        "status": status,
        "error": "RuntimeError: the floor gave way" if status == "failed" else None,
        "created_at_utc": f"2026-01-01T{second}+00:00",
        "finished_at_utc": None if status == "running" else "2026-01-02T00:00:00+00:00",
        "command": "axiomrl",
        "argv": ["train"],
        "python": "3.11.7",
        "os": "Linux",
        "versions": dict.fromkeys(("axiomrl", "torch", "numpy", "gymnasium", "safetensors"), "1.0"),
        "git": None,
        "user_code": [],
        "hardware": {"machine": "x86_64", "cpu_count": 2, "memory_bytes": 1, "gpus": []},
        "resume_mode": "exact",
        "parent": None,
        "resumed_at_steps": [],
        "notices": [],
        "latest_metrics": latest,
        "latest_checkpoint": None,
        "best_checkpoint": None,
    }


@cache
def _metrics_text(steps: int, score: float | None, rows: int) -> str:
    return "".join(metric_lines(steps, score, rows))


def metric_lines(steps: int, score: float | None, rows: int) -> list[str]:
    """Return rows as the recorder writes them: training rows, an evaluation after every tenth, and at the end."""
    lines = []
    for number in range(1, rows):
        step = steps * number // rows
        lines.append(_training_line(step, number))
        if score is not None and number % 10 == 0:
            lines.append(_evaluation_line(step, score * number / rows))
    lines.append(_training_line(steps, rows))
    if score is not None:
        lines.append(_evaluation_line(steps, score))
    return lines


def _training_line(step: int, number: int) -> str:
    row = {"event": "train", "global_step": step, "update_count": number, "train_return_mean": number / 7}
    return json.dumps(row | dict.fromkeys(LOSSES, (number + 1) / 3)) + "\n"


def _evaluation_line(step: int, score: float) -> str:
    row = {"event": "eval", "global_step": step, "eval_return_mean": score, "eval_return_std": 1.0}
    return json.dumps(row | {"eval_length_mean": 9.0, "eval_episodes": 10, "time_eval": 0.5}) + "\n"


@cache
def _dump(config: str) -> str:
    return yaml.safe_dump(json.loads(config), sort_keys=False)

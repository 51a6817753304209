"""Run directories and `metadata.json`: what was run, where, with which versions, and how it ended."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib import metadata as distributions
from pathlib import Path
from typing import Any

from rl_training.errors import AxiomError
from rl_training.experiment.storage.files import storage_errors, write_json_atomically
from rl_training.experiment.storage.untrusted import read_json

METADATA_SCHEMA_VERSION = 1
METADATA = "metadata.json"
CONFIG = "config.yaml"
METRICS = "metrics.jsonl"
EVALUATIONS = "evaluations.jsonl"
LOCK = ".lock"
VIDEOS = "videos"
RUN_PARTS = (
    METADATA,
    CONFIG,
    METRICS,
    EVALUATIONS,
    LOCK,
    "checkpoints",
    "segments",
    "tensorboard",
    VIDEOS,
    "wandb",
)
"""All files and directories that training writes in a run directory."""
# The metric that scores an evaluation: of one task, and of a suite, whose returns have no common unit.
SCORE = "eval_return_mean"
SUITE_SCORE = "eval_normalized_mean"
KEY_DEPENDENCIES = (
    "axiomrl",
    "torch",
    "numpy",
    "gymnasium",
    "safetensors",
    "ale-py",
    "MinAtar",
    "mujoco",
    "Box2D",
)


def utc_now() -> str:
    """Return the time in UTC, to the second, as ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def sanitize(env_id: str) -> str:
    """Return an environment id in a form fit for a directory name; the path of a user's file is reduced to its name."""
    without_directories = re.sub(r"^.*[\\/](?=[^\\/]*\.py:)", "", env_id)
    return re.sub(r"[^A-Za-z0-9.-]+", "-", without_directories).strip("-.") or "env"


def algorithm_slug(algo: str) -> str:
    """Return an algorithm's name in a form fit for file names; that of a user's algorithm contains a colon."""
    return sanitize(algo) if ":" in algo else algo


def run_name(algo: str, env_id: str, seed: int) -> str:
    """Return the name of a run that starts now."""
    timestamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    return f"{algorithm_slug(algo)}__{sanitize(env_id)}__seed{seed}__{timestamp}"


def create_run_directory(output_dir: Path, algo: str, env_id: str, seed: int) -> Path:
    """Create and return a new run directory; runs that start in the same second get different names."""
    return claim_directory(output_dir, run_name(algo, env_id, seed))


def claim_directory(output_dir: Path, name: str) -> Path:
    """Create and return a new directory of this name, with a number appended if it exists."""
    with storage_errors("a run directory", output_dir):
        output_dir.mkdir(parents=True, exist_ok=True)
        attempt = 1
        while True:
            directory = output_dir / (name if attempt == 1 else f"{name}-{attempt}")
            try:
                directory.mkdir()
            except FileExistsError:
                attempt += 1
            else:
                return directory


def new_metadata(
    *,
    algo: str,
    env_id: str,
    seed: int,
    resume_mode: str,
    parent: Mapping[str, Any] | None,
    name: str | None = None,
    user_code: Sequence[Mapping[str, str]] = (),
) -> dict[str, Any]:
    """Return the metadata of a run that starts now."""
    return {
        "schema_version": METADATA_SCHEMA_VERSION,
        "algo": algo,
        "env_id": env_id,
        "seed": seed,
        "name": name,
        "status": "running",
        "error": None,
        "created_at_utc": utc_now(),
        "finished_at_utc": None,
        "command": Path(sys.argv[0]).name if sys.argv else "",
        "argv": list(sys.argv[1:]),
        "python": platform.python_version(),
        "os": platform.platform(),
        "versions": dict(dependency_versions()),
        "git": git_state(),
        "user_code": [dict(record) for record in user_code],
        "hardware": hardware(),
        "acceleration": {"kernel": None, "reason": None},
        "dataset": None,
        "resume_mode": resume_mode,
        "resumed_at_steps": [],
        "parent": None if parent is None else dict(parent),
        "notices": [],
        "trackers": {},
        "latest_metrics": {},
        "latest_checkpoint": None,
        "best_checkpoint": None,
    }


def read_metadata(run_dir: Path) -> dict[str, Any]:
    """Return a run's metadata."""
    try:
        content = read_json(run_dir / METADATA)
    except FileNotFoundError as error:
        raise AxiomError(f"{run_dir} is not a run directory: it has no {METADATA}") from error
    if not isinstance(content, dict):
        raise AxiomError(f"{run_dir / METADATA} does not hold a mapping")
    return content


def read_whole_metadata(run_dir: Path) -> dict[str, Any]:
    """Return a run's metadata, with all parts that are needed to continue the run."""
    from rl_training.experiment.storage.schemas import Metadata, mismatch

    content = read_metadata(run_dir)
    problem = mismatch(Metadata, content)
    if problem is not None:
        raise AxiomError(f"{run_dir / METADATA} is damaged ({problem}): add --fork to go on in a new run")
    return content


def refuse_links(run_dir: Path) -> None:
    """Raise an error if a part of a run is a symbolic link: continuing the run would change its target.

    The run directory itself may be reached through a link.
    """
    for name in RUN_PARTS:
        if (run_dir / name).is_symlink():
            raise AxiomError(
                f"{run_dir / name} is a symbolic link, and nothing outside of a run is changed: "
                "put what it leads to in its place, or add --fork to go on in a new run"
            )


def write_metadata(run_dir: Path, content: Mapping[str, Any]) -> None:
    """Replace a run's metadata atomically."""
    with storage_errors(METADATA, run_dir):
        write_json_atomically(run_dir / METADATA, content)


def give_up_run(run_dir: Path, notice: str) -> None:
    """Record that a run whose process was killed will not be continued; a run that ended by itself is not changed."""
    try:
        metadata = read_whole_metadata(run_dir)
    except AxiomError:  # missing or damaged: reports list it as unreadable
        return
    if metadata["status"] == "running":
        ended = {"status": "interrupted", "finished_at_utc": utc_now(), "notices": [*metadata["notices"], notice]}
        write_metadata(run_dir, {**metadata, **ended})


@cache
def dependency_versions() -> dict[str, str | None]:
    """Return the versions of the key dependencies without importing them; None for those not installed."""
    return {name: _version(name) for name in KEY_DEPENDENCIES}


def _version(name: str) -> str | None:
    try:
        return distributions.version(name)
    except distributions.PackageNotFoundError:
        return None


def git_state() -> dict[str, Any] | None:
    """Return commit and dirty flag of the working directory, or None without git or a repository."""
    commit = _git("rev-parse", "HEAD")
    if commit is None:
        return None
    return {"commit": commit, "dirty": bool(_git("status", "--porcelain", "--untracked-files=no"))}


def _git(*arguments: str) -> str | None:
    try:
        answer = subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()


def hardware() -> dict[str, Any]:
    """Return the processors, memory and GPUs of the machine."""
    return {
        "machine": platform.machine(),
        "cpu_count": os.cpu_count(),
        "memory_bytes": _memory_bytes(),
        "gpus": _gpu_names(),
    }


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def _gpu_names() -> list[str]:
    torch = sys.modules.get("torch")  # must not be imported just for this
    if torch is None or not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]

"""Weights & Biases."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl_training.experiment.configuration.config_blocks import WandbParams
from rl_training.experiment.storage.files import make_directory, open_to_append
from rl_training.runtime.recording.trackers.tracker import RowKey

SENT = "axiomrl-rows.jsonl"


class WandbTracker:
    """A run of Weights & Biases; what it was given is listed beside its files, as it cannot be asked offline."""

    def __init__(self, params: WandbParams, run_dir: Path, config: Mapping[str, Any], known: Mapping[str, str]) -> None:
        """Start a run, or continue the one with the same id."""
        import wandb

        self.identity = {"run_id": known.get("run_id", run_dir.name[-64:])}
        mode = params.mode if params.mode is not None else None if os.environ.get("WANDB_MODE") else "offline"
        self._run = wandb.init(
            project=params.project,
            entity=params.entity,
            group=params.group,
            name=params.name or run_dir.name,
            id=self.identity["run_id"],
            mode=mode,
            dir=str(run_dir),
            config=dict(config),
            resume="allow",
        )
        make_directory(run_dir / "wandb")
        self._path = run_dir / "wandb" / SENT
        self._sent = open_to_append(self._path)

    def held(self) -> set[RowKey]:
        """Return the rows that were handed over."""
        lines = self._path.read_text(encoding="utf-8").splitlines()
        return {(number, step) for number, step in map(json.loads, filter(_is_whole, lines))}

    def write(self, key: RowKey, numbers: Mapping[str, float]) -> None:
        """Log one row."""
        self._run.log({**numbers, "global_step": key[1]}, step=key[1])
        self._sent.write(json.dumps(key).encode() + b"\n")
        self._sent.flush()

    def close(self, status: str) -> None:
        """Finish the run."""
        self._sent.close()
        self._run.finish(exit_code=1 if status == "failed" else 0)


def _is_whole(line: str) -> bool:
    """Return whether a line was not cut off by a kill."""
    return line.startswith("[") and line.endswith("]")

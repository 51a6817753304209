"""The result of a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

EXACT, EPISODE_BOUNDARY = "exact", "episode-boundary"


@dataclass(frozen=True)
class TrainResult:
    """The result of a run."""

    run_dir: Path
    checkpoint_path: Path | None
    metrics: dict[str, Any] = field(default_factory=dict)
    benchmark_summary_path: Path | None = None
    best_checkpoint_path: Path | None = None
    status: str = "completed"
    stop_reason: str | None = None
    resume_mode: str = EXACT
    signal: int | None = None
    """The signal that interrupted the run."""

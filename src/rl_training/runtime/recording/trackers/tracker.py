"""What a dashboard must offer to follow a run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

Row = Mapping[str, Any]
RowKey = tuple[int, int]
"""Number of a row in `metrics.jsonl`, from 1, and its step: a run that is continued makes the same rows again."""

ROW_NUMBER = "row"
"""Name under which dashboards keep a row's number."""


class Tracker(Protocol):
    """One run in a dashboard; any method may raise anything."""

    @property
    def identity(self) -> dict[str, str]:
        """What is needed to continue this run of the dashboard, kept in `metadata.json`."""

    def held(self) -> set[RowKey]:
        """Return the rows that the dashboard holds."""

    def write(self, key: RowKey, numbers: Mapping[str, float]) -> None:
        """Add the numbers of one row."""

    def close(self, status: str) -> None:
        """Finish the run of the dashboard with the status of ours."""


def numbers_of(row: Row) -> dict[str, float]:
    """Return the finite numbers of a row, without its step."""
    return {
        name: value
        for name, value in row.items()
        if name != "global_step" and type(value) in (int, float) and math.isfinite(value)
    }


def cause(error: BaseException) -> str:
    """Return an error as text on one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:500]

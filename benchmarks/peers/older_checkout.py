"""This package at an earlier commit, as one side of a comparison with itself.

    git worktree add build/before c893a59

Its processes read the package from there (`PYTHONPATH`); what else they import is what is installed.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from records import PEERS

FOLDER = PEERS / "before"
COMMIT = "c893a59"
"""The last commit before updates were compiled as a whole."""


def why_missing(folder: Path) -> str | None:
    """Return how to get an older checkout where there is none."""
    if (folder / "src" / "rl_training").is_dir():
        return None
    return f"no older checkout is there: run `git worktree add build/before {COMMIT}`, or name one by --before"


def commit(folder: Path) -> str:
    """Return the short name of a checkout's commit, `unknown` where it has none."""
    asked = subprocess.run(
        ["git", "-C", str(folder), "rev-parse", "--short=7", "HEAD"], capture_output=True, text=True, check=False
    )
    return asked.stdout.strip() or "unknown"

"""The order of the tests for several processes: `--dist worksteal` gives each of them an equal stretch at first."""

from __future__ import annotations

import os

import pytest

from paths import HELPERS

TESTS = HELPERS.parent

# Folders and files whose functions numba compiles, which takes a minute: all that any other test needs is among them.
COMPILING = ("kernels/", "search/", "algorithms/planning/")
# What takes long, beginning with what needs nothing compiled.
LONG = (
    "experiment/storage/test_checkpoint_workflows.py",
    "experiment/storage/test_storage_faults.py",
    "runtime/test_signals.py",
    "runtime/sweep/",
    "learning/test_learning.py",
    "experiment/test_statistics.py",
    "runtime/resume/",
    "experiment/storage/",
    "learning/",
    "docs/",
    "zoo/test_presets.py",
)


def shared_order(items: list[pytest.Item], processes: int) -> list[pytest.Item]:
    """Return the tests so that little is compiled twice and no process is left alone with a long test at the end.

    The first process begins with what compiles. The second begins with the long tests, and comes to those that need
    compiled functions when these are in numba's cache.
    """
    groups: dict[str, list[pytest.Item]] = {place: [] for place in (*COMPILING, *LONG, "")}
    for item in items:
        path = os.path.relpath(item.path, TESTS)
        groups[next(place for place in groups if path.startswith(place))].append(item)
    compiling, long = ([item for place in places for item in groups[place]] for places in (COMPILING, LONG))
    before = max(0, len(items) // processes - len(compiling))
    return [*compiling, *groups[""][:before], *long, *groups[""][before:]]

"""Films of runs, as files in their directories that somebody else may have made."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rl_training.experiment.runs import VIDEOS, sanitize
from rl_training.zoo.entries import Entry
from rl_training.zoo.run_index import RunRecord

MOST_FILMS = 4
"""Films of one entry on a page: those at the beginning and at the end, and some between."""
MOST_ENTRIES = 6
_NAME = re.compile(r"step_([0-9]{1,18})__(?:([A-Za-z0-9.-]+)__)?seed([0-9]{1,20})\.mp4")


class Film(NamedTuple):
    """One episode on film."""

    step: int
    seed: int
    """Seed of the episode."""
    task: str | None
    """The task of a suite, as in the file's name."""
    path: Path


def films_of(run_dir: Path) -> list[Film]:
    """Return the films in a run directory, in the order of their steps; links and other files are left out."""
    found = []
    try:
        folder = run_dir / VIDEOS
        names = [] if folder.is_symlink() else sorted(os.listdir(folder))
    except OSError:
        return []
    for name in names:
        match = _NAME.fullmatch(name)
        if match is not None and _is_file(folder / name):
            found.append(Film(int(match[1]), int(match[3]), match[2], folder / name))
    return sorted(found)


def films_of_entry(entry: Entry) -> tuple[RunRecord, list[Film]] | None:
    """Return one run of an entry with one film for each step that it filmed; None if no run has films.

    A counted run is preferred, and among these the latest.
    """
    task = None if entry.task is None else sanitize(entry.task.name)
    counted = {run.path for run in entry.by_seed.values()}
    for run in sorted(entry.runs, key=lambda run: (run.path in counted, run.created_at), reverse=True):
        films = [film for film in films_of(run.path) if film.task == task]
        if films:
            return run, list({film.step: film for film in reversed(films)}.values())[::-1]
    return None


def chosen(films: Sequence[Film]) -> list[Film]:
    """Return some films that are spread over training, the first and the last among them."""
    if len(films) <= MOST_FILMS:
        return list(films)
    return [films[round(place * (len(films) - 1) / (MOST_FILMS - 1))] for place in range(MOST_FILMS)]


def _is_file(path: Path) -> bool:
    status = path.lstat()
    return stat.S_ISREG(status.st_mode) and status.st_size > 0

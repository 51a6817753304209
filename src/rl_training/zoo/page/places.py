"""Where a page finds the directories and films of runs: beside it on disk, or at the server that shows it."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Protocol
from urllib.parse import quote


class Places(Protocol):
    """The addresses that a page uses."""

    def run(self, path: Path) -> str | None:
        """Return the address of a run directory; None if it has none."""

    def film(self, path: Path) -> str:
        """Return the address of a film."""


class Beside:
    """Addresses relative to the folder of the page."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def run(self, path: Path) -> str:
        """Return the address of a run directory."""
        return f"{self.film(path)}/"

    def film(self, path: Path) -> str:
        """Return the address of a file, relative if possible."""
        try:
            return quote(os.fsencode(Path(os.path.relpath(path, self._folder)).as_posix()))
        except ValueError:  # another drive
            return Path(os.path.abspath(path)).as_uri()


class Served:
    """Addresses at a server; `films` are the only files that a page refers to."""

    def __init__(self) -> None:
        self.films: dict[str, Path] = {}

    def run(self, path: Path) -> None:
        """Return nothing: directories are not served."""

    def film(self, path: Path) -> str:
        """Return the address of a film, which stays the same as long as its path does."""
        address = f"/films/{hashlib.sha256(os.fsencode(os.path.abspath(path))).hexdigest()[:32]}.mp4"
        self.films[address] = path
        return address

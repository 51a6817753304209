"""The rows of a replay on disk: written once, and listed by every checkpoint that needs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rl_training.data.replay import Replay
from rl_training.errors import CheckpointError
from rl_training.experiment.storage.segments import read_segment, write_segment


class ReplayArchive:
    """Tracks which rows are saved, and in which segments."""

    def __init__(self, replay: Replay, number: int = 0) -> None:
        """`number` identifies a replay of the run."""
        self.replay = replay
        self.number = number
        self._entries: list[dict[str, Any]] = []
        self._marks = (0, 0)

    def save(self, run_dir: Path) -> list[dict[str, Any]]:
        """Write the rows added since the last call and return the entries of all segments that are still needed."""
        for ranges in self.replay.ranges_since(self._marks):
            first, last = ranges["observations"]
            name = f"replay_{first}_{last}" if self.number == 0 else f"replay{self.number}_{first}_{last}"
            entry = write_segment(run_dir, name, self.replay.rows(ranges))
            self._entries.append({**entry, **ranges, "replay": self.number, "raw": True})
        self._marks = self.replay.marks()
        self._entries = [entry for entry in self._entries if self.replay.needs(entry)]
        return list(self._entries)

    def restore(self, run_dir: Path, entries: Sequence[Mapping[str, Any]], *, fork: bool) -> None:
        """Restore the replay's rows of a checkpoint; a fork writes them again into its own run."""
        # Segments from before there could be several replays have no number.
        entries = [entry for entry in entries if entry.get("replay", 0) == self.number]
        if self.replay.normalizers and not all(entry.get("raw", False) for entry in entries):
            raise CheckpointError(
                f"the replay of {run_dir} was written by a version that kept observations and rewards as they were "
                "normalised at the time; normalising them again would be wrong. Resume it with the version that wrote "
                "it, or train anew (its policy can still be loaded and evaluated)"
            )
        for entry in entries:
            self.replay.restore_rows(entry, read_segment(run_dir, entry))
        if not fork:
            self._entries = [dict(entry) for entry in entries]
            self._marks = (
                max((entry["transitions"][1] for entry in entries), default=0),
                max((entry["observations"][1] for entry in entries), default=0),
            )

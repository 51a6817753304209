"""What a rank has that neither writes files nor gets signals."""

from __future__ import annotations

from typing import Any

from rl_training.runtime.recording.recorder import RunRecorder
from rl_training.runtime.signals import SignalGuard


class SilentRecorder(RunRecorder):
    """A recorder that writes nothing."""

    def __init__(self) -> None:
        self.metadata: dict[str, Any] = {"hardware": {}, "notices": []}

    def follow(self, config: Any) -> None:
        """Do nothing."""

    def row(self, row: Any) -> None:
        """Do nothing."""

    def notice(self, sentence: str) -> None:
        """Do nothing."""

    def update(self, **fields: Any) -> None:
        """Do nothing."""

    def finish(self, status: str, error: str | None) -> None:
        """Do nothing."""


class NoSignals(SignalGuard):
    """Leaves the process's signal handlers as they are."""

    def install(self) -> None:
        """Do nothing."""

"""Handling of SIGINT and SIGTERM: the run finishes its step, saves and ends; a second signal ends it immediately."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

STOPPING = (signal.SIGINT, signal.SIGTERM)
"""The signals that request the end of a run."""


class SignalGuard:
    """Catches the first signal between `install` and `restore`."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._previous: dict[int, Any] = {}

    def install(self) -> None:
        """Start catching signals; only possible in the main thread."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in STOPPING:
            self._previous[number] = signal.signal(number, self._catch)

    def restore(self) -> None:
        """Restore the previous handlers."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()

    def _catch(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        for caught in STOPPING:
            signal.signal(caught, signal.SIG_DFL)

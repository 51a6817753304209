"""How long a training took."""

from __future__ import annotations

import time
from collections.abc import Mapping

from rl_training.runtime.callbacks import Callback


class Clock:
    """Measures wall time, and the processor's time, which other load on the machine does not touch."""

    def __init__(self) -> None:
        self._wall, self._processor = time.perf_counter(), time.process_time()

    def read(self) -> dict[str, float]:
        """Return the seconds since the clock was made, as results store them."""
        return {
            "seconds": round(time.perf_counter() - self._wall, 1),
            "cpu_seconds": round(time.process_time() - self._processor, 1),
        }


class SavedClock(Callback):
    """A clock that checkpoints save: a resumed training's time includes that before its checkpoint."""

    def __init__(self) -> None:
        self._clock = Clock()
        self._before: Mapping[str, float] = {}

    def read(self) -> dict[str, float]:
        """Return the seconds of training, as results store them."""
        return {name: round(seconds + self._before.get(name, 0.0), 1) for name, seconds in self._clock.read().items()}

    def state_dict(self) -> dict[str, float]:
        """Return the seconds until now."""
        return self.read()

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Add the seconds before a checkpoint."""
        self._before = dict(state)

"""How long a training took."""

from __future__ import annotations

import time


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

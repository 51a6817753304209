"""Sends every row of a run to a dashboard once, through kills, resumes and failures of the dashboard."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from rl_training.runtime.recording.trackers.tracker import Row, RowKey, Tracker, cause, numbers_of

SECONDS_BETWEEN_ATTEMPTS = 30.0


class TrackerSink:
    """Follows `metrics.jsonl`, which is complete and which a resumed run cuts back to its checkpoint.

    A row is sent unless the dashboard holds it already: rows that a killed run had sent after its last checkpoint are
    made again, and rows that never arrived are still in the file. A dashboard that fails is reported once and gets what
    it lacks as soon as it works again; nothing that it raises reaches the run.
    """

    def __init__(
        self,
        name: str,
        make_tracker: Callable[[], Tracker],
        rows: Callable[[], Sequence[Row]],
        report: Callable[[str, str | None], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start following; `rows` returns all rows so far, and `report(name, error)` records a failure or its end."""
        self.name = name
        self._rows, self._report, self._clock = rows, report, clock
        self._tracker: Tracker | None = None
        self._held: set[RowKey] = set()
        self._count = 0
        self._retry_at: float | None = None  # when to try again; None if all rows so far have arrived
        try:
            self._tracker = make_tracker()
            self._catch_up()
        except Exception as error:
            self._fail(f"could not start ({cause(error)})")

    @property
    def identity(self) -> dict[str, str]:
        """What metadata keeps to continue the same run of the dashboard."""
        return {} if self._tracker is None else self._tracker.identity

    def write(self, row: Row) -> None:
        """Send the row that was just written to the file; after a failure, everything that is missing."""
        if self._tracker is None:
            return
        self._count += 1
        if self._retry_at is not None and self._clock() < self._retry_at:
            return
        try:
            if self._retry_at is None:
                self._send(self._tracker, self._count, row)
            else:
                self._catch_up()
        except Exception as error:
            self._fail(f"did not take the row of step {row['global_step']} ({cause(error)})")

    def close(self, status: str) -> None:
        """Send what is missing and finish the run of the dashboard."""
        if self._tracker is None:
            return
        try:
            if self._retry_at is not None:
                self._catch_up()
            self._tracker.close(status)
        except Exception as error:
            self._fail(f"did not finish its run ({cause(error)})")

    def _catch_up(self) -> None:
        """Ask the dashboard what it holds, and send the other rows."""
        assert self._tracker is not None
        self._held = self._tracker.held()
        rows = self._rows()
        for number, row in enumerate(rows, start=1):
            self._send(self._tracker, number, row)
        self._count = len(rows)
        if self._retry_at is not None:
            self._retry_at = None
            self._report(self.name, None)

    def _send(self, tracker: Tracker, number: int, row: Row) -> None:
        key = (number, int(row["global_step"]))
        if key not in self._held:
            tracker.write(key, numbers_of(row))
            self._held.add(key)

    def _fail(self, what: str) -> None:
        first, self._retry_at = self._retry_at is None, self._clock() + SECONDS_BETWEEN_ATTEMPTS
        if first:
            self._report(self.name, what)

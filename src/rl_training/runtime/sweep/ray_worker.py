"""The worker of `RayExecutor`: trains one seed on some machine and reports through a mailbox.

The worker trains in a temporary directory and sends every checkpoint as soon as it is written, so that the sweep can
continue from the last one if the machine is lost.
"""

from __future__ import annotations

import asyncio
import io
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from rl_training.experiment.sweeps import BenchmarkRunRecord
from rl_training.runtime.callbacks import Callback, TrainingEvent
from rl_training.runtime.sweep.executors import WatchableRunner, train_elsewhere
from rl_training.runtime.sweep.ray_cluster import check_versions
from rl_training.runtime.sweep.run_transfer import PartReader, RunPacker, unpack_run

PART, PACKED = "part", "packed"
"""Further messages to the sweep: a part of an archive of the run's changes, and its end with the names of all files."""

_MAILBOX_SIZE = 32  # messages; a fast worker waits for the sweep
_SECONDS_BETWEEN_SIGNAL_CHECKS = 0.5


@runtime_checkable
class MovableRunner(WatchableRunner, Protocol):
    """A runner that can be sent to another machine and train there."""

    @property
    def resume_from(self) -> Path | None:
        """The run directory to continue, if any."""

    def placed_in(self, output_dir: Path, resume_from: Path | None) -> MovableRunner:
        """Return the same training with another output directory."""


@dataclass(frozen=True)
class Assignment:
    """The instructions for a worker."""

    seed: int
    attempt: int
    runner: MovableRunner
    run_name: str | None
    """Name of the run to continue, whose archive is sent along; None starts a new run."""
    file_names: tuple[str, ...]
    """Its files."""
    argv: tuple[str, ...]
    versions: Mapping[str, str | None]
    log_level: int


class Mailbox:
    """A Ray actor beside the sweep: workers send messages through it, and query whether a signal was received."""

    def __init__(self) -> None:
        self._messages: asyncio.Queue[Any] = asyncio.Queue(_MAILBOX_SIZE)
        self._signal: int | None = None

    async def put(self, message: Any) -> None:
        """Add a message; wait while the mailbox is full."""
        await self._messages.put(message)

    async def take(self, seconds: float) -> list[Any]:
        """Return the messages that have arrived, after waiting up to `seconds` for the first."""
        for _ in range(max(1, round(seconds / 0.01))):
            if not self._messages.empty():
                break
            await asyncio.sleep(0.01)
        return [self._messages.get_nowait() for _ in range(self._messages.qsize())]

    async def stop(self, number: int) -> None:
        """Store a signal for all workers."""
        self._signal = number

    async def signal(self) -> int | None:
        """Return the signal that was received, if any."""
        return self._signal


def train_on_node(assignment: Assignment, mailbox: Any, archive: Sequence[Any]) -> BenchmarkRunRecord:
    """Train a seed on this machine and return its record; `archive` refers to the parts of the run so far."""
    import ray

    check_versions(assignment.versions)
    sys.argv[:] = assignment.argv  # recorded in the run's metadata

    def send(kind: str, content: Any) -> None:
        ray.get(mailbox.put.remote((assignment.seed, assignment.attempt, kind, content)))

    def signal_received() -> int | None:
        number: int | None = ray.get(mailbox.signal.remote())
        return number

    with tempfile.TemporaryDirectory(prefix="axiomrl-") as folder:
        run_dir = None
        if assignment.run_name is not None:
            run_dir = Path(folder) / assignment.run_name
            parts = PartReader(ray.get(part) for part in archive)
            unpack_run(io.BufferedReader(parts), run_dir, assignment.file_names)
        sender = _RunSender(send, signal_received, known=run_dir)
        runner = assignment.runner.placed_in(Path(folder), run_dir)
        record = train_elsewhere(assignment.seed, runner, send, assignment.log_level, [sender])
        sender.deliver()
        return record


class _RunSender(Callback):
    """Sends every checkpoint to the sweep, and forwards signals from the sweep to the run."""

    def __init__(
        self, send: Callable[[str, Any], None], signal_received: Callable[[], int | None], *, known: Path | None
    ) -> None:
        self._send, self._signal_received = send, signal_received
        self._packer = None if known is None else RunPacker(known, all_known=True)
        self._running = threading.Lock()  # held while the run must not receive a signal
        self._ended = threading.Event()

    def on_train_start(self, event: TrainingEvent) -> None:
        self._packer = self._packer or RunPacker(event.run_dir)
        threading.Thread(target=self._watch, daemon=True).start()

    def on_checkpoint(self, event: TrainingEvent) -> None:
        self.deliver()

    def on_train_end(self, event: TrainingEvent) -> None:
        with self._running:
            self._ended.set()

    def deliver(self) -> None:
        """Send the changes, if a run was started."""
        if self._packer is not None:
            names = self._packer.pack(lambda part: self._send(PART, part))
            self._send(PACKED, names)

    def _watch(self) -> None:
        while not self._ended.wait(_SECONDS_BETWEEN_SIGNAL_CHECKS):
            number = self._signal_received()
            if number is not None:
                with self._running:
                    if not self._ended.is_set():
                        os.kill(os.getpid(), number)
                return

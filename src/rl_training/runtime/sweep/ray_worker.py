"""The far side of `RayExecutor`: one seed on some machine, and the mailbox through which it reports.

The worker trains in a temporary directory and sends every checkpoint as it is written: whatever happens to the machine
then, the sweep can go on from the last one.
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

from rl_training.errors import AxiomError
from rl_training.experiment.runs import dependency_versions
from rl_training.experiment.sweeps import BenchmarkRunRecord
from rl_training.runtime.callbacks import Callback, TrainingEvent
from rl_training.runtime.sweep.executors import WatchableRunner, train_elsewhere
from rl_training.runtime.sweep.run_transfer import PartReader, RunPacker, unpack_run

PART, PACKED = "part", "packed"
"""Further messages to the sweep: a part of an archive of the run's changes, and its end with the names of all files."""

_MAILBOX_SIZE = 32  # messages; a fast worker waits for the sweep
_SECONDS_BETWEEN_LOOKS = 0.5


@runtime_checkable
class MovableRunner(WatchableRunner, Protocol):
    """A runner that can be sent elsewhere and train there."""

    @property
    def resume_from(self) -> Path | None:
        """The run directory that it goes on with."""

    def placed_in(self, output_dir: Path, resume_from: Path | None) -> MovableRunner:
        """Return the same training under another output directory."""


@dataclass(frozen=True)
class Assignment:
    """What a worker is told."""

    seed: int
    attempt: int
    runner: MovableRunner
    run_name: str | None
    """Name of the run to go on with, whose archive comes along; None starts a new one."""
    file_names: tuple[str, ...]
    """Its files."""
    argv: tuple[str, ...]
    versions: Mapping[str, str | None]
    log_level: int


class Mailbox:
    """An actor beside the sweep: workers leave messages, and ask whether a signal has come."""

    def __init__(self) -> None:
        self._messages: asyncio.Queue[Any] = asyncio.Queue(_MAILBOX_SIZE)
        self._signal: int | None = None

    async def put(self, message: Any) -> None:
        """Leave a message, as soon as there is room."""
        await self._messages.put(message)

    async def take(self, seconds: float) -> list[Any]:
        """Return what has arrived, after waiting up to `seconds` for something."""
        for _ in range(max(1, round(seconds / 0.01))):
            if not self._messages.empty():
                break
            await asyncio.sleep(0.01)
        return [self._messages.get_nowait() for _ in range(self._messages.qsize())]

    async def stop(self, number: int) -> None:
        """Let every worker know of a signal."""
        self._signal = number

    async def signal(self) -> int | None:
        """Return the signal that has come."""
        return self._signal


def train_on_node(assignment: Assignment, mailbox: Any, archive: Sequence[Any]) -> BenchmarkRunRecord:
    """Train a seed on this machine and return what became of it; `archive` refers to the parts of the run so far."""
    import ray

    _check_versions(assignment.versions)
    sys.argv[:] = assignment.argv  # what the run's metadata should say

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
        courier = _Courier(send, signal_received, known=run_dir)
        runner = assignment.runner.placed_in(Path(folder), run_dir)
        record = train_elsewhere(assignment.seed, runner, send, assignment.log_level, [courier])
        courier.deliver()
        return record


def _check_versions(expected: Mapping[str, str | None]) -> None:
    """Refuse to train where other versions would round differently."""
    here = dependency_versions()
    different = [
        f"{name} {here[name]} instead of {version}"
        for name, version in expected.items()
        if version is not None and here.get(name) not in (None, version)
    ]
    if different:
        raise AxiomError(f"node {os.uname().nodename} has {', '.join(different)}; install the same versions everywhere")


class _Courier(Callback):
    """Sends every checkpoint home, and hands a signal that came there to the run."""

    def __init__(
        self, send: Callable[[str, Any], None], signal_received: Callable[[], int | None], *, known: Path | None
    ) -> None:
        self._send, self._signal_received = send, signal_received
        self._packer = None if known is None else RunPacker(known, all_known=True)
        self._running = threading.Lock()  # held while the run must not be given a signal
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
        """Send what has changed, if a run was begun."""
        if self._packer is not None:
            names = self._packer.pack(lambda part: self._send(PART, part))
            self._send(PACKED, names)

    def _watch(self) -> None:
        while not self._ended.wait(_SECONDS_BETWEEN_LOOKS):
            number = self._signal_received()
            if number is not None:
                with self._running:
                    if not self._ended.is_set():
                        os.kill(os.getpid(), number)
                return

"""Trains seeds in processes on this machine."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from rl_training.envs.workers.serving import end_with_parent
from rl_training.experiment.manager import Runner
from rl_training.experiment.sweeps import FAILED, BenchmarkRunRecord
from rl_training.runtime.signals import STOPPING, SignalGuard
from rl_training.runtime.sweep.executors import ENDED, SAID, Begin, Report, Seeds, label_of, train_elsewhere
from rl_training.runtime.sweep.server import signals_held_back, sweep_processes

logger = logging.getLogger("rl_training")

_SECONDS_BETWEEN_SIGNAL_CHECKS = 0.1  # messages wake the sweep immediately


class ProcessExecutor:
    """Trains up to `jobs` seeds at the same time, each in a new process."""

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._children: list[_Child] = []

    def prepare(self) -> None:
        """Do nothing."""

    def execute(self, seeds: Seeds, begin: Begin, report: Report, signals: SignalGuard) -> None:
        """Train the seeds; a process that dies makes only its own seed fail."""
        waiting, told_to_stop = iter(seeds), False
        try:
            while True:
                if signals.received is not None and not told_to_stop:
                    told_to_stop = True
                    self._stop(signals.received)
                if not told_to_stop:
                    self._start(waiting, begin)
                if not self._children:
                    return
                wait([child.connection for child in self._children], timeout=_SECONDS_BETWEEN_SIGNAL_CHECKS)
                for child in list(self._children):
                    for record in child.receive():
                        report(record)
                    if child.ended:
                        self._children.remove(child)
        finally:
            for child in self._children:
                child.kill()
            self._children.clear()

    def _start(self, waiting: Iterator[int | None], begin: Begin) -> None:
        """Start what can begin now."""
        while len(self._children) < self._jobs and (seed := next(waiting, None)) is not None:
            self._children.append(_Child.start(seed, begin(seed)))

    def _stop(self, number: int) -> None:
        """Forward a signal to the runs; a process that has not started its run has nothing to save."""
        for child in list(self._children):
            if child.started is not None:
                child.send_signal(number)
            else:
                child.kill()
                self._children.remove(child)


@dataclass
class _Child:
    """A process that trains one seed."""

    seed: int
    label: str
    process: BaseProcess
    connection: Connection
    started: BenchmarkRunRecord | None = None
    ended: bool = False

    @classmethod
    def start(cls, seed: int, runner: Runner) -> _Child:
        context = sweep_processes()
        connection, theirs = context.Pipe(duplex=False)
        # Not a daemon: its environments may need processes.
        process = context.Process(target=_train, args=(seed, runner, theirs, logger.getEffectiveLevel()))
        with signals_held_back():
            process.start()
        theirs.close()
        return cls(seed, label_of(seed, runner), process, connection)

    def receive(self) -> list[BenchmarkRunRecord]:
        """Return the records that have arrived; a process that dies without its last one is a failed seed."""
        records: list[BenchmarkRunRecord] = []
        try:
            while not self.ended and self.connection.poll():
                kind, content = self.connection.recv()
                if kind == SAID:
                    level, text = content
                    logger.log(level, "%s: %s", self.label, text)
                    continue
                self.started = self.started or content
                self.ended = kind == ENDED
                records.append(content)
        except (EOFError, OSError):
            self.ended = True
            self.process.join()
            records.append(self._death_record())
        if self.ended:
            self.process.join()
            self.connection.close()
        return records

    def _death_record(self) -> BenchmarkRunRecord:
        code = self.process.exitcode or 0
        cause = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        return BenchmarkRunRecord(
            self.seed,
            None if self.started is None else self.started.run_dir,
            status=FAILED,
            error=f"its process ended without a result ({cause}): out of memory, or a fault in native code",
        )

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process is gone."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid or 0, number)

    def kill(self) -> None:
        """Kill the process."""
        self.process.kill()
        self.process.join()
        self.connection.close()


def _train(seed: int, runner: Runner, connection: Connection, level: int) -> None:
    """Train one seed in this process and send its records."""
    # Ctrl-C on a terminal must reach only the sweep, which forwards it: a second signal would end the run immediately.
    os.setpgrp()
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)  # ignored outside of the run, whose guard handles forwarded signals
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
    end_with_parent()
    turn = threading.Lock()

    def send(kind: str, content: Any) -> None:
        with turn:
            connection.send((kind, content))

    send(ENDED, train_elsewhere(seed, runner, send, level))

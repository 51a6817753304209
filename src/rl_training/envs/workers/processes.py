"""How other processes are started, told what to do, and ended."""

from __future__ import annotations

import multiprocessing
import signal
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

CLOSE_SECONDS = 5.0
"""How long a process that was told to end may take."""


@dataclass
class WorkerProcess:
    """A process that executes commands for the environments [start, stop) of a run."""

    process: BaseProcess
    connection: Connection
    start: int
    stop: int

    def send(self, command: str, argument: Any = None) -> bool:
        """Send a command; return False if the worker is gone."""
        try:
            self.connection.send((command, argument))
        except OSError:
            return False
        return True

    def cause_of_death(self) -> str:
        """Return how the process ended."""
        return cause_of_death(self.process)

    def end(self) -> None:
        """Kill the process and close the connection."""
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        self.process.close()
        self.connection.close()


def cause_of_death(process: BaseProcess) -> str:
    """Return how a process ended."""
    process.join(CLOSE_SECONDS)
    code = process.exitcode
    if code is None or code >= 0:
        return f"exited with status {code}"
    memory = ", often a sign of too little memory" if -code == signal.SIGKILL else ""
    return f"was killed by {signal.Signals(-code).name}{memory}"


AnyWorker = TypeVar("AnyWorker", bound=WorkerProcess)


def end_workers(workers: list[AnyWorker]) -> None:
    """Kill all workers, then wait for each and forget them."""
    for worker in workers:
        if worker.process.is_alive():
            worker.process.kill()
    for worker in workers:
        worker.end()
    workers.clear()


def fresh_processes(*imported: str) -> Any:
    """Return the multiprocessing context: processes are never forked from this one, whose threads could deadlock them.

    They are forked from a server that imports the named modules once for all of them; it starts with the first process,
    so the modules named by the first caller count.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(imported))
    return context


def start_server(*imported: str) -> None:
    """Start the server of `fresh_processes` now instead of with the first process, where there is one."""
    if fresh_processes(*imported).get_start_method() == "forkserver":
        forkserver.ensure_running()

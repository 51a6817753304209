"""What every worker process of a run does: execute commands, and end with the run."""

from __future__ import annotations

import os
import signal
import threading
import traceback
from collections.abc import Callable
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from typing import Any, Protocol

from rl_training.envs.families.sdl import silence_sdl
from rl_training.errors import AxiomError, EnvironmentFailure, NonFiniteError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


class Worker(Protocol):
    """An object whose other methods are the commands, each with one argument."""

    def close(self) -> None:
        """Close what the worker has opened."""


# A worker replies (True, result), or (False, error) for a failure, after which it exits.


def serve_commands(connection: Connection, make: Callable[[], Worker], failed: str) -> None:
    """Make the worker and execute its commands until told to close or until the run's process is gone.

    An unexpected error is reported with the text `failed` and its traceback.
    """
    # A terminal sends its signals to every process; only the run reacts to them.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    end_with_parent()
    silence_sdl()
    try:
        worker = make()
        connection.send((True, None))
        while True:
            command, argument = connection.recv()
            if command == "close":
                worker.close()
                return
            connection.send((True, getattr(worker, command)(argument)))
    except (EOFError, ConnectionError):
        return
    except Exception as error:
        connection.send((False, sendable(error, failed)))


def sendable(error: Exception, failed: str) -> AxiomError:
    """Return an error that can be sent to the run; an unexpected one has the text `failed` and its traceback."""
    if isinstance(error, NonFiniteError):
        return NonFiniteError(str(error))
    if isinstance(error, AxiomError):
        return EnvironmentFailure(str(error))
    written = "".join(traceback.format_exception(error)).rstrip()
    return EnvironmentFailure(f"{failed}:\n{written}")


def end_with_parent() -> None:
    """End this process when its parent has died, also in the middle of an endless step.

    A thread waits for the parent's end of a pipe to close. An endless step in native code may never let that thread
    run, so the system is asked to signal the same event where it can; nothing is ever written to that pipe.
    """
    parent = parent_process()
    if parent is None:
        return
    sentinel: Any = parent.sentinel
    if fcntl is not None and hasattr(os, "O_ASYNC"):
        signal.signal(signal.SIGIO, signal.SIG_DFL)  # ends the process
        fcntl.fcntl(sentinel, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(sentinel, fcntl.F_SETFL, fcntl.fcntl(sentinel, fcntl.F_GETFL) | os.O_ASYNC)
    threading.Thread(target=_exit_with, args=(parent,), daemon=True).start()


def _exit_with(parent: Any) -> None:
    parent.join()
    os._exit(1)

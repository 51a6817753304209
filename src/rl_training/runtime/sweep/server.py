"""The server from which the processes of a sweep or of several learners are forked; it imports next to nothing."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import Any

from rl_training.envs.workers.processes import fresh_processes, start_server
from rl_training.runtime.signals import STOPPING

IMPORTED = ("rl_training.runtime.sweep.preloaded",)
IMPORTED_BY_RANKS = ("rl_training.runtime.on_policy", "rl_training.runtime.off_policy")


def sweep_processes() -> Any:
    """Return the multiprocessing context of a sweep's processes."""
    return fresh_processes(*IMPORTED)


def start_sweep_server() -> None:
    """Start the server before it is needed, so that it imports while this process does."""
    with signals_held_back():
        start_server(*IMPORTED)


def start_rank_server() -> None:
    """Start the server of the ranks of a run before it is needed."""
    with signals_held_back():
        start_server(*IMPORTED_BY_RANKS)


@contextlib.contextmanager
def signals_held_back() -> Iterator[None]:
    """Block signals while a process starts, until it has installed its handlers."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

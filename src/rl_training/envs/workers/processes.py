"""How other processes are started."""

from __future__ import annotations

import multiprocessing
from multiprocessing import forkserver
from typing import Any


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

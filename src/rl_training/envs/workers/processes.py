"""How processes beside this one are started."""

from __future__ import annotations

import multiprocessing
from typing import Any


def fresh_processes(*imported: str) -> Any:
    """Return the context that starts processes: never by forking this one, whose threads could deadlock them.

    They come from a server that imports the named modules once, instead of every process; it starts with the first
    process, so what the first caller names is what it imports.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(imported))
    return context

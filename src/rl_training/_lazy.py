"""Exports that are imported on first use, so that importing the package costs nothing."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy_exports(module: str, sources: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a module; `sources` maps a name to the module that defines it."""

    def get_attribute(name: str) -> Any:
        if name not in sources:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(sources[name]), name)
        setattr(sys.modules[module], name, value)
        return value

    def directory() -> list[str]:
        return sorted({*vars(sys.modules[module]), *sources})

    return get_attribute, directory

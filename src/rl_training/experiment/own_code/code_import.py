"""Imports modules from exactly the files that were found and hashed."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import SourceLoader
from importlib.machinery import ModuleSpec
from pathlib import Path

from rl_training.experiment.own_code.code_search import Link, added_directories


def is_file_name(module: str) -> bool:
    """Return whether the part of a name before the colon is a Python file rather than a module."""
    return module.endswith(".py")


def digest_of(files: Sequence[str]) -> str:
    """Return the SHA-256 of the concatenated contents of files."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(Path(file).read_bytes())
    return digest.hexdigest()


def import_chain(chain: Sequence[Link], directory: str | None = None) -> None:
    """Import a module and the packages above it, unless they have been imported.

    `directory` is the directory of user code, so that it can import modules beside it; None for installed code.
    """
    with _on_path(directory):
        for link in chain:
            if link.spec is not None and link.name not in sys.modules:
                _execute(link.name, link.spec, from_source=directory is not None)


def import_file(name: str, path: str) -> None:
    """Import a file under a name, unless it has been imported."""
    if name in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, f"{path} is no Python file"
    with _on_path(str(Path(path).parent)):
        _execute(name, spec, from_source=True)


def _execute(name: str, spec: ModuleSpec, *, from_source: bool) -> None:
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        loader = spec.loader
        if from_source and isinstance(loader, SourceLoader) and spec.origin is not None:
            # The usual import may execute a compiled file beside the source that was not hashed.
            exec(loader.source_to_code(Path(spec.origin).read_bytes(), spec.origin), module.__dict__)
        elif loader is not None:
            loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    parent, _, child = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, sys.modules[name])


@contextlib.contextmanager
def _on_path(directory: str | None) -> Iterator[None]:
    """Put a directory first on the path during an import, and last afterwards, for later imports by that code.

    In the last place it cannot hide a package that this one imports.
    """
    if directory is None or directory in sys.path:
        yield
        return
    added_directories.add(directory)
    sys.path.insert(0, directory)
    try:
        yield
    finally:
        sys.path.remove(directory)
        sys.path.append(directory)

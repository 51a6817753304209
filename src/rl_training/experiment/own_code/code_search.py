"""Locates a module without executing anything, and decides whether it is installed.

A module counts as installed if the interpreter finds it without the working directory, the directory of the started
program, or a directory that this package added to the path: in the standard library, in site-packages, in the target
of an editable install, or in any other directory of the path outside of those three. A file beside a checkpoint is
therefore never installed.
"""

from __future__ import annotations

import os
import pkgutil
import site
import sys
import sysconfig
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

added_directories: set[str] = set()
"""Directories that this package added to `sys.path` for user code."""


@dataclass(frozen=True)
class Link:
    """A module in an import chain: a package above the requested module, or the module itself."""

    name: str
    spec: ModuleSpec | None
    """Its import spec; None if it has been imported."""
    file: str | None
    """Its file; None for a package without one and for a built-in module."""
    parts: tuple[str, ...] | None
    """Directories of its submodules; None if it can have none."""


def find_module(
    name: str, path: Sequence[str], accepts: Callable[[str], bool] = lambda directory: True
) -> tuple[Link, ...]:
    """Return the packages above a module and the module, in import order; an empty tuple if one is missing.

    `path` lists the directories to search for the first of them. Namespace packages are collected from every directory
    of `sys.path` that `accepts` permits.
    """
    chain: list[Link] = []
    where: Sequence[str] | None = path
    for number in range(1, name.count(".") + 2):
        full = ".".join(name.split(".")[:number])
        module = sys.modules.get(full)
        if module is not None:
            link = Link(full, None, _file_of(module), _search_places(module, accepts))
        else:
            find = _find_top if number == 1 else _find_below
            spec = None if where is None else find(full, where)
            if spec is None:
                return ()
            file = spec.origin if spec.has_location else None
            places = spec.submodule_search_locations
            link = Link(full, spec, file, None if places is None else _chosen(places, file, accepts))
            if link.file is None and link.parts == ():
                return ()  # all of its directories are refused
        chain.append(link)
        where = link.parts
    return tuple(chain)


def find_installed(name: str) -> tuple[Link, ...]:
    """Return the result of `find_module` for an installed module."""
    entries = [entry for entry in sys.path if is_installed_place(entry)]
    chain = find_module(name, entries, is_installed_place)
    directory = directory_of(chain) if chain and chain[0].spec is not None else None
    if directory is None or is_package_directory(directory) or _real(directory) not in map(_real, entries):
        return chain  # already imported, in site-packages, or found by an editable install
    # The working directory may be a package inside a directory of the path.
    files = [link.file for link in chain if link.file is not None]
    return chain if all(is_installed_place(os.path.dirname(file)) for file in files) else ()


def is_installed_place(directory: str) -> bool:
    """Return whether modules in this directory of the path count as installed."""
    place = _real(directory)
    roots = [root for root in _package_directories() if _within(place, root)]
    # If the working directory is inside site-packages or a checkout, its modules are not installed.
    return all(any(_within(root, near) for root in roots) for near in _near_directories() if _within(place, near))


def is_package_directory(directory: str) -> bool:
    """Return whether a directory belongs to the standard library, to site-packages or to an editable install."""
    return any(_within(_real(directory), root) for root in _package_directories())


def directory_of(chain: Sequence[Link]) -> str | None:
    """Return the directory of the path in which a module was found."""
    top = chain[0]
    if top.file is None:
        return None if not top.parts else os.path.dirname(top.parts[0])
    return os.path.dirname(os.path.dirname(top.file) if top.parts is not None else top.file)


def imported_from(file: str) -> str | None:
    """Return the module name under which a file has been imported, None if it has not."""
    sought = _real(file)
    for name, module in list(sys.modules.items()):
        known = _file_of(module)
        if name == "__main__" or known is None or os.path.basename(known) != os.path.basename(file):
            continue
        if _real(known) == sought:
            return name
    return None


def working_directory() -> str | None:
    """Return the working directory, None if it was deleted."""
    try:
        return os.getcwd()
    except OSError:
        return None


def _find_top(name: str, path: Sequence[str]) -> ModuleSpec | None:
    """Return a spec from the interpreter's finders; with a path given, they do not search `sys.path`."""
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        spec: ModuleSpec | None = None if find is None else find(name, list(path), None)
        if spec is not None:
            return spec
    return None


def _find_below(name: str, path: Sequence[str]) -> ModuleSpec | None:
    """Search the directories of a package; the interpreter's own search would import the package."""
    portions: list[str] = []
    for entry in path:
        importer: Any = pkgutil.get_importer(entry)
        spec: ModuleSpec | None = None if importer is None else importer.find_spec(name)
        if spec is not None and spec.loader is not None:
            return spec
        if spec is not None:
            portions += spec.submodule_search_locations or ()
    if not portions:
        return None
    gathered = ModuleSpec(name, None, is_package=True)
    gathered.submodule_search_locations = portions
    return gathered


def _file_of(module: ModuleType) -> str | None:
    file: Any = getattr(module, "__file__", None)
    return os.path.abspath(file) if isinstance(file, str) else None


def _search_places(module: ModuleType, accepts: Callable[[str], bool]) -> tuple[str, ...] | None:
    places = getattr(module, "__path__", None)
    return None if places is None else _chosen(places, _file_of(module), accepts)


def _chosen(places: Iterable[str], file: str | None, accepts: Callable[[str], bool]) -> tuple[str, ...]:
    return tuple(place for place in places if file is not None or accepts(place))


def _near_directories() -> set[str]:
    """Return the directories of the working directory, of the program, and those that this package added."""
    near = {_real(directory) for directory in added_directories}
    if (current := working_directory()) is not None:
        near.add(_real(current))
    program = getattr(sys.modules.get("__main__"), "__file__", None)
    if isinstance(program, str):
        near |= {_real(os.path.dirname(os.path.abspath(program))), os.path.dirname(_real(program))}
    return near


@cache
def _package_directories() -> frozenset[str]:
    named = sysconfig.get_paths()
    sites = {named["purelib"], named["platlib"], *site.getsitepackages()}
    if site.ENABLE_USER_SITE:
        sites.add(site.getusersitepackages())
    linked = {target for directory in sites for target in _path_files(Path(directory))}
    return frozenset(_real(path) for path in {named["stdlib"], named["platstdlib"], *sites, *linked})


def _path_files(directory: Path) -> list[str]:
    """Return the directories that `.pth` files add to the path, as editable installs do."""
    found = []
    try:
        for file in sorted(directory.glob("*.pth")):
            lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
            found += [str(directory / line.strip()) for line in lines if line.strip() and line[0] != "#"]
    except OSError:  # an unreadable directory adds nothing
        return []
    return [path for path in found if os.path.isdir(path)]


def _real(path: str) -> str:
    return os.path.realpath(path)


def _within(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip(os.sep) + os.sep)

"""User code by name: `package.module:Name` or `path/to/file.py:Name`.

The origin of a name decides what may be imported for it. A name that the user writes is imported from anywhere, the
working directory first. A name from a loaded file is imported from installed packages (`code_search`), and from any
other file only if a training of this user on this machine used the same file (`code_memory`), or if the user declares
the code as trusted. `admit` decides and imports; a name that was not admitted is treated as loaded.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import logging
import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rl_training.errors import AxiomError, ConfigError, UntrustedCodeError, did_you_mean
from rl_training.experiment.own_code import code_memory
from rl_training.experiment.own_code.code_import import digest_of, import_chain, import_file, is_file_name
from rl_training.experiment.own_code.code_search import (
    Link,
    directory_of,
    find_installed,
    find_module,
    imported_from,
    is_package_directory,
    working_directory,
)

logger = logging.getLogger("rl_training")

_OWN_PACKAGE = __name__.partition(".")[0]


@dataclass(frozen=True)
class LoadedFrom:
    """The origin of names in a file that somebody else may have made."""

    where: str = "a loaded file"
    """The file, as error messages name it."""
    recorded: Sequence[Mapping[str, str]] = ()
    """The file's records of the code that was used, with `name`, `file` and `sha256`."""
    trust_code: bool = False
    """Whether the user trusts the code that the names refer to."""


@dataclass(frozen=True)
class CodeUse:
    """A name and the code that it refers to; plain data that can be sent to another process."""

    name: str
    place: str
    """The key that contains the name."""
    module: str
    """The module's name in `sys.modules`."""
    file: str | None
    sha256: str | None
    directory: str | None
    """The directory that must be on the path to import it; None for an installed module."""
    trusted: bool
    """Whether the user wrote or trusts this very name, so that any object it refers to may be called."""

    def record(self) -> dict[str, str]:
        """Return the record for metadata, manifests and the user's state directory."""
        return {"name": self.name, "file": self.file or "", "sha256": self.sha256 or ""}


_uses: dict[str, CodeUse] = {}
_adopted: dict[str, CodeUse] = {}


def split_name(name: str) -> tuple[str, str]:
    """Return the module or file of a name (empty if there is none) and the name inside it."""
    module, _, attribute = name.rpartition(":")
    return module, attribute


def admit(name: str, *, place: str, loaded: LoadedFrom | None = None) -> CodeUse:
    """Import the module of a name and return its use; `loaded` says that the user did not write the name.

    Error messages begin with `place`, the key that contains the name.
    """
    importlib.invalidate_caches()  # the file may be newer than the interpreter's directory caches
    use = _adopted.get(name) or (_written(name, place) if loaded is None else _loaded(name, place, loaded))
    _uses[name] = use
    return use


def load_module(name: str, *, place: str) -> Any:
    """Return the module of a name that was admitted, or that any file may name."""
    use = _uses.get(name) or admit(name, place=place, loaded=LoadedFrom())
    return sys.modules[use.module]


def load_object(name: str, *, place: str, fits: Callable[[Any], bool], wanted: str) -> Any:
    """Return the object that `module:Name` or `path/to/file.py:Name` refers to.

    For a name from a loaded file, `fits` decides which objects are safe to call (`wanted` describes them); a name that
    the user wrote or trusts may refer to any object.
    """
    module, attribute = load_module(name, place=place), split_name(name)[1]
    if not hasattr(module, attribute):
        own = [key for key, value in vars(module).items() if not key.startswith("_") and not inspect.ismodule(value)]
        fitting = [key for key in own if fits(getattr(module, key))]
        hint = did_you_mean(attribute, fitting or own)
        raise ConfigError(f"{place}: `{split_name(name)[0]}` has no `{attribute}`{hint or _list(fitting, wanted)}")
    value = getattr(module, attribute)
    if not _uses[name].trusted and not fits(value):
        raise UntrustedCodeError(
            f"{place}: `{name}` is no {wanted}, and a name out of a loaded file may mean nothing else; "
            "if you trust it, say so by --trust-code (in Python: trust_code=True)"
        )
    return value


def uses_of(names: Iterable[str]) -> tuple[CodeUse, ...]:
    """Return the admitted uses of these names, each once; names without a module are skipped."""
    return tuple(_uses[name] for name in dict.fromkeys(names) if name in _uses)


def own_code(names: Iterable[str]) -> list[dict[str, str]]:
    """Return the records of the names whose code is neither installed nor part of this package."""
    return [use.record() for use in uses_of(names) if use.directory is not None]


def remember(names: Iterable[str]) -> None:
    """Record in the user's state directory which files a training uses."""
    records = own_code(names)
    try:
        if records:
            code_memory.remember(records)
    except AxiomError as error:
        logger.warning("%s; resuming or evaluating this run will need --trust-code", error)


@dataclass(frozen=True)
class AdoptedCode:
    """Code that is imported where this object is unpickled, as it was in the sending process."""

    uses: tuple[CodeUse, ...] = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (self.uses,)


NO_CODE = AdoptedCode()


def _unpickled(uses: tuple[CodeUse, ...]) -> AdoptedCode:
    _adopt(uses)
    return AdoptedCode(uses)


@contextlib.contextmanager
def adopted(uses: Sequence[CodeUse]) -> Iterator[None]:
    """Resolve names to the code that the sending process used, whatever the working directory is here."""
    _adopt(uses)
    try:
        yield
    finally:
        for use in uses:
            _adopted.pop(use.name, None)


def _adopt(uses: Sequence[CodeUse]) -> None:
    for use in uses:
        if use.module not in sys.modules:
            _import_same(use)
        _adopted[use.name] = _uses[use.name] = use


def _import_same(use: CodeUse) -> None:
    """Import the file that another process has imported; raise an error if it is missing or different here."""
    with _import_errors(use.name, use.place):
        if use.directory is None:
            import_chain(find_installed(use.module))
            if use.module in sys.modules:
                return
        elif use.file is not None and os.path.isfile(use.file):
            by_file = is_file_name(split_name(use.name)[0])
            chain = () if by_file else find_module(use.module, [use.directory])
            if digest_of([use.file] if by_file else _files(chain)) == use.sha256:
                if by_file:
                    import_file(use.module, use.file)
                else:
                    import_chain(chain, use.directory)
                return
    raise ConfigError(
        f"{use.place}: `{use.name}` means the code in {use.file}, and {platform.node()} has no such file or another "
        "one; put the same file there, or install the code as a package on every machine"
    )


def _written(name: str, place: str) -> CodeUse:
    """Import the code for a name that the user wrote."""
    found = _find(name, place)
    if found is None:
        raise ConfigError(_not_found(name, place, "a file elsewhere is named as path/to/file.py:NAME"))
    return _imported(name, place, found, trusted=True)


def _loaded(name: str, place: str, loaded: LoadedFrom) -> CodeUse:
    """Import the code for a name from a loaded file, if that is permitted."""
    module, attribute = split_name(name)
    if not is_file_name(module):
        chain = find_installed(module) if _is_dotted(module) else ()
        if chain:
            return _imported(name, place, _Found(chain), trusted=loaded.trust_code or _was_used(chain, attribute))
    candidates = [found for record in loaded.recorded if (found := _recorded(record, name)) is not None]
    here = _find(name, place)
    candidates += [] if here is None else [here]
    if not candidates:
        raise ConfigError(_not_found(name, place, "install it, or run the command in the directory that it is in"))
    for found in candidates:
        known = [record for record in _records_of(found) if record["sha256"] == found.sha256]
        imported = found.imported
        if known or imported:
            names = {split_name(record["name"])[1] for record in known}
            return _imported(name, place, found, trusted=loaded.trust_code or attribute in names)
    chosen = next((found for found in candidates if _records_of(found)), here or candidates[0])
    if loaded.trust_code:
        return _imported(name, place, chosen, trusted=True)
    reason = "has changed since a training of yours used it" if _records_of(chosen) else _UNUSED
    raise UntrustedCodeError(
        f"{place}: `{name}` comes out of {loaded.where} and means the code in {chosen.file}, which {reason}; read it, "
        "and if you trust it, say so by --trust-code (in Python: trust_code=True)"
    )


_UNUSED = "is not installed and was not used by a training of yours on this machine"


@dataclass(frozen=True)
class _Found:
    """Code that was found but not imported yet: a module with the packages above it, or a file."""

    chain: tuple[Link, ...] = ()
    path: str | None = None

    @property
    def file(self) -> str | None:
        return self.path if self.path is not None else self.chain[-1].file

    @property
    def sha256(self) -> str | None:
        files = [self.path] if self.path is not None else _files(self.chain)
        return digest_of(files) if files else None

    @property
    def imported(self) -> bool:
        """Whether it has been imported in this process, so that importing it executes nothing."""
        return imported_from(self.path) is not None if self.path is not None else self.chain[-1].spec is None


def _find(name: str, place: str) -> _Found | None:
    """Return the code that a name refers to if a user writes it in this working directory."""
    module, attribute = split_name(name)
    if not attribute:
        raise ConfigError(f"{place}: `{name}` names nothing in {module}; write {module}:NAME")
    if is_file_name(module):
        path = os.path.abspath(os.path.expanduser(module))
        return _Found(path=path) if os.path.isfile(path) else None
    if not _is_dotted(module):
        raise ConfigError(
            f"{place}: `{module}` of `{name}` is neither a module nor a Python file; write package.module:NAME or "
            "path/to/file.py:NAME"
        )
    here = working_directory()
    chain = find_module(module, [*([] if here is None else [here]), *sys.path])
    return _Found(chain) if chain else None


def _recorded(record: Mapping[str, str], name: str) -> _Found | None:
    """Return the file that a run recorded for a name, if a training of this user used it too."""
    file, (module, _) = record["file"], split_name(name)
    if split_name(record["name"])[0] != module or not code_memory.remembered(file):
        return None  # files known only from the loaded file are not opened
    if is_file_name(module):
        return _Found(path=file) if os.path.isfile(file) else None
    levels = module.count(".") + (2 if os.path.basename(file).startswith("__init__.") else 1)
    directory = file
    for _ in range(levels):
        directory = os.path.dirname(directory)
    chain = find_module(module, [directory])
    return _Found(chain) if chain and chain[-1].file == file else None


def _records_of(found: _Found) -> list[Mapping[str, str]]:
    return [] if found.file is None else code_memory.remembered(found.file)


def _was_used(chain: Sequence[Link], attribute: str) -> bool:
    """Return whether a training of this user called an object of this name in exactly this code."""
    found = _Found(tuple(chain))
    return any(
        record["sha256"] == found.sha256 and split_name(record["name"])[1] == attribute for record in _records_of(found)
    )


def _imported(name: str, place: str, found: _Found, *, trusted: bool) -> CodeUse:
    """Import the code that was found and return its use."""
    file, sha256 = found.file, found.sha256
    with _import_errors(name, place):
        if found.path is not None:
            module = imported_from(found.path) or _free_name(found.path)
            import_file(module, found.path)
            return CodeUse(name, place, module, file, sha256, os.path.dirname(found.path), trusted)
        directory = directory_of(found.chain)
        own = directory is not None and not is_package_directory(directory)
        own &= found.chain[0].name != _OWN_PACKAGE and file is not None
        import_chain(found.chain, directory if own else None)
    return CodeUse(name, place, found.chain[-1].name, file, sha256, directory if own else None, trusted)


def _free_name(path: str) -> str:
    """Return the module name for importing a file: its own, unless another module has it."""
    stem = os.path.splitext(os.path.basename(path))[0]
    if stem.isidentifier() and stem not in sys.modules and not find_installed(stem):
        return stem
    plain = "".join(letter if letter.isalnum() else "_" for letter in stem)
    return f"{plain}_{digest_of([path])[:8]}"


@contextlib.contextmanager
def _import_errors(name: str, place: str) -> Iterator[None]:
    """Turn errors inside a user's module into one that names it."""
    try:
        yield
    except AxiomError:
        raise
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{place}: cannot import `{split_name(name)[0]}` of `{name}`: it needs the missing module `{error.name}`"
        ) from error
    except Exception as error:
        raise ConfigError(
            f"{place}: importing `{split_name(name)[0]}` of `{name}` failed with {type(error).__name__}: {error}"
        ) from error


def _not_found(name: str, place: str, repair: str) -> str:
    module, _ = split_name(name)
    if is_file_name(module):
        return f"{place}: cannot import `{module}` of `{name}`: there is no file {os.path.abspath(module)}"
    return (
        f"{place}: cannot import `{module}` of `{name}`: it is not installed, and {module.replace('.', '/')}.py is not "
        f"in the working directory {working_directory()}; {repair}"
    )


def _files(chain: Sequence[Link]) -> list[str]:
    return [link.file for link in chain if link.file is not None]


def _is_dotted(module: str) -> bool:
    return all(part.isidentifier() for part in module.split("."))


def _list(names: Sequence[str], wanted: str) -> str:
    return f"; it has {', '.join(names)}" if names else f"; there is no {wanted} in it"

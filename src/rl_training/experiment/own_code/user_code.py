"""Code of the user's own by name: `package.module:Name` or `path/to/file.py:Name`.

Where a name comes from decides what may be imported for it. A name that the user writes is imported from anywhere, the
working directory first. A name that comes out of a loaded file is imported from installed packages (`code_search`),
and from any other file only if a training of this user on this machine used the same file (`code_memory`), or if the
user says that the code is trusted. `admit` decides and imports; whatever was not admitted before counts as loaded.
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
    """Says that names come out of a file that somebody else may have made."""

    where: str = "a loaded file"
    """The file, as errors call it."""
    recorded: Sequence[Mapping[str, str]] = ()
    """What the file says about the code that was used: records with `name`, `file` and `sha256`."""
    trust_code: bool = False
    """Whether the user trusts the code that the names mean here."""


@dataclass(frozen=True)
class CodeUse:
    """A name and the code that it meant; plain data that another process can be sent."""

    name: str
    place: str
    """The key that held it."""
    module: str
    """The module's name in `sys.modules`."""
    file: str | None
    sha256: str | None
    directory: str | None
    """What must be on the path to import it; None of an installed module."""
    vouched: bool
    """Whether the user stands behind this very name, so that whatever it means may be called."""

    def record(self) -> dict[str, str]:
        """Return what metadata, manifests and the user's state directory keep."""
        return {"name": self.name, "file": self.file or "", "sha256": self.sha256 or ""}


_uses: dict[str, CodeUse] = {}
_adopted: dict[str, CodeUse] = {}


def split_name(name: str) -> tuple[str, str]:
    """Return the module or file of a name, which is empty where it has none, and what is meant in it."""
    module, _, attribute = name.rpartition(":")
    return module, attribute


def admit(name: str, *, place: str, loaded: LoadedFrom | None = None) -> CodeUse:
    """Import the module of a name and return what was used; `loaded` says that the user did not write the name.

    Errors begin with `place`, the key that holds the name.
    """
    importlib.invalidate_caches()  # the file may be younger than the interpreter's lists of directories
    use = _adopted.get(name) or (_written(name, place) if loaded is None else _loaded(name, place, loaded))
    _uses[name] = use
    return use


def load_module(name: str, *, place: str) -> Any:
    """Return the module of a name that was admitted, or of one that any file may name."""
    use = _uses.get(name) or admit(name, place=place, loaded=LoadedFrom())
    return sys.modules[use.module]


def load_object(name: str, *, place: str, fits: Callable[[Any], bool], wanted: str) -> Any:
    """Return what `module:Name` or `path/to/file.py:Name` means.

    `fits` tells what is safe to call for a name out of a loaded file (`wanted` in words); a name that the user stands
    behind may mean any object.
    """
    module, attribute = load_module(name, place=place), split_name(name)[1]
    if not hasattr(module, attribute):
        own = [key for key, value in vars(module).items() if not key.startswith("_") and not inspect.ismodule(value)]
        fitting = [key for key in own if fits(getattr(module, key))]
        hint = did_you_mean(attribute, fitting or own)
        raise ConfigError(f"{place}: `{split_name(name)[0]}` has no `{attribute}`{hint or _list(fitting, wanted)}")
    value = getattr(module, attribute)
    if not _uses[name].vouched and not fits(value):
        raise UntrustedCodeError(
            f"{place}: `{name}` is no {wanted}, and a name out of a loaded file may mean nothing else; "
            "if you trust it, say so by --trust-code (in Python: trust_code=True)"
        )
    return value


def uses_of(names: Iterable[str]) -> tuple[CodeUse, ...]:
    """Return what these names meant when they were admitted, once each; names without a module mean nothing here."""
    return tuple(_uses[name] for name in dict.fromkeys(names) if name in _uses)


def own_code(names: Iterable[str]) -> list[dict[str, str]]:
    """Return the records of the names whose code is neither this package's nor installed."""
    return [use.record() for use in uses_of(names) if use.directory is not None]


def remember(names: Iterable[str]) -> None:
    """Keep in the user's state directory which files a training uses."""
    records = own_code(names)
    try:
        if records:
            code_memory.remember(records)
    except AxiomError as error:
        logger.warning("%s; resuming or evaluating this run will need --trust-code", error)


@dataclass(frozen=True)
class AdoptedCode:
    """Code that is imported wherever this object is unpickled, as it was in the process that it comes from."""

    uses: tuple[CodeUse, ...] = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (self.uses,)


NO_CODE = AdoptedCode()


def _unpickled(uses: tuple[CodeUse, ...]) -> AdoptedCode:
    _adopt(uses)
    return AdoptedCode(uses)


@contextlib.contextmanager
def adopted(uses: Sequence[CodeUse]) -> Iterator[None]:
    """Let names mean what they meant in the process that decided, whatever the working directory is here."""
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
    """Import the file that another process has imported, or say that it is not here."""
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
    """Import what a name of the user's own means here."""
    found = _find(name, place)
    if found is None:
        raise ConfigError(_not_found(name, place, "a file elsewhere is named as path/to/file.py:NAME"))
    return _imported(name, place, found, vouched=True)


def _loaded(name: str, place: str, loaded: LoadedFrom) -> CodeUse:
    """Import what a name out of a loaded file means, if that is allowed."""
    module, attribute = split_name(name)
    if not is_file_name(module):
        chain = find_installed(module) if _is_dotted(module) else ()
        if chain:
            return _imported(name, place, _Found(chain), vouched=loaded.trust_code or _knows(chain, attribute))
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
            return _imported(name, place, found, vouched=loaded.trust_code or attribute in names)
    chosen = next((found for found in candidates if _records_of(found)), here or candidates[0])
    if loaded.trust_code:
        return _imported(name, place, chosen, vouched=True)
    reason = "has changed since a training of yours used it" if _records_of(chosen) else _UNUSED
    raise UntrustedCodeError(
        f"{place}: `{name}` comes out of {loaded.where} and means the code in {chosen.file}, which {reason}; read it, "
        "and if you trust it, say so by --trust-code (in Python: trust_code=True)"
    )


_UNUSED = "is not installed and was not used by a training of yours on this machine"


@dataclass(frozen=True)
class _Found:
    """Code that was found and not imported yet: a module with the packages above it, or a file."""

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
        """Whether the process holds it already, so that importing it executes nothing."""
        return imported_from(self.path) is not None if self.path is not None else self.chain[-1].spec is None


def _find(name: str, place: str) -> _Found | None:
    """Return what a name means to a user who writes it in this working directory."""
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
    """Return the file that a run says it used for a name, if a training of this user used it too."""
    file, (module, _) = record["file"], split_name(name)
    if split_name(record["name"])[0] != module or not code_memory.remembered(file):
        return None  # nothing that only the loaded file tells of is looked at
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


def _knows(chain: Sequence[Link], attribute: str) -> bool:
    """Return whether a training of this user called an object of this name in this very code."""
    found = _Found(tuple(chain))
    return any(
        record["sha256"] == found.sha256 and split_name(record["name"])[1] == attribute for record in _records_of(found)
    )


def _imported(name: str, place: str, found: _Found, *, vouched: bool) -> CodeUse:
    """Import what was found and return the use of it."""
    file, sha256 = found.file, found.sha256
    with _import_errors(name, place):
        if found.path is not None:
            module = imported_from(found.path) or _free_name(found.path)
            import_file(module, found.path)
            return CodeUse(name, place, module, file, sha256, os.path.dirname(found.path), vouched)
        directory = directory_of(found.chain)
        own = directory is not None and not is_package_directory(directory)
        own &= found.chain[0].name != _OWN_PACKAGE and file is not None
        import_chain(found.chain, directory if own else None)
    return CodeUse(name, place, found.chain[-1].name, file, sha256, directory if own else None, vouched)


def _free_name(path: str) -> str:
    """Return the name under which to import a file: its own, where no other module has it."""
    stem = os.path.splitext(os.path.basename(path))[0]
    if stem.isidentifier() and stem not in sys.modules and not find_installed(stem):
        return stem
    plain = "".join(letter if letter.isalnum() else "_" for letter in stem)
    return f"{plain}_{digest_of([path])[:8]}"


@contextlib.contextmanager
def _import_errors(name: str, place: str) -> Iterator[None]:
    """Turn what goes wrong inside of a user's module into an error that names it."""
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

"""The command that installs an extra into this installation.

The name `axiomrl` on PyPI belongs to another project, so that a command must never ask an index for it. The working
command depends on where this package came from: its checkout, its wheel, or the packages of the extra themselves.
"""

from __future__ import annotations

import json
import shlex
import tomllib
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlparse
from urllib.request import url2pathname

if TYPE_CHECKING:
    from packaging.requirements import Requirement

_NAME = "axiomrl"
_CONSTRAINTS = "constraints.txt"
_PROJECT = "pyproject.toml"


class Installation:
    """The origin of the running package, and the requirements of its extras."""

    def __init__(self, package: Path, distribution: metadata.Distribution | None) -> None:
        root = package.parent.parent
        # Code that runs inside a checkout is editable, even if there is another installation of the same name.
        self.editable = (root / _PROJECT).is_file() and package.parent.name == "src"
        self._metadata = distribution if not self.editable else None
        self.source = root if self.editable else _source(distribution)

    def command(self, extra: str) -> str | None:
        """Return the command that installs an extra; None if neither a source nor the extra's packages are known."""
        if self.source is not None and self.source.is_dir():
            here = self.source == Path.cwd()
            constraints = self.source / _CONSTRAINTS
            words = ["-c", _CONSTRAINTS if here else str(constraints)] if constraints.is_file() else []
            words += ["-e"] if self.editable else []
            words.append(f"{'.' if here else self.source}[{extra}]")
        elif self.source is not None:
            words = [f"{self.source}[{extra}]"]
        else:
            words = [_without_marker(requirement) for requirement in self.requirements(extra)]
        return f"pip install {' '.join(map(shlex.quote, words))}" if words else None

    def requirements(self, extra: str) -> list[Requirement]:
        """Return the requirements of an extra, including those of extras that it includes, sorted by name."""
        found = {_without_marker(one): one for one in self._requirements(extra)}
        return [found[text] for text in sorted(found, key=str.lower)]

    def unmet(self, extra: str) -> list[str]:
        """Return which packages of an extra are installed in an incompatible version."""
        problems = []
        for requirement in self.requirements(extra):
            try:
                version = metadata.version(requirement.name)
            except metadata.PackageNotFoundError:
                continue
            if not requirement.specifier.contains(version, prereleases=True):
                problems.append(f"it needs {requirement.name}{requirement.specifier}, {version} is installed")
        return problems

    def _requirements(self, extra: str) -> Iterator[Requirement]:
        from packaging.requirements import Requirement
        from packaging.utils import canonicalize_name

        for text in self._declared(extra):
            requirement = Requirement(text)
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
                continue
            if canonicalize_name(requirement.name) == _NAME:
                for other in sorted(requirement.extras):
                    yield from self._requirements(other)
            else:
                yield requirement

    def _declared(self, extra: str) -> list[str]:
        """Return the requirements of an extra as text; of a checkout from its own file, since records may be old."""
        if self.editable and self.source is not None:
            project = tomllib.loads((self.source / _PROJECT).read_text(encoding="utf-8"))["project"]
            return list(project["optional-dependencies"].get(extra, ()))
        requires = None if self._metadata is None else self._metadata.requires
        return [text for text in requires or () if "extra ==" in text.partition(";")[2]]


def install_hint(extra: str) -> str:
    """Return how to install an extra, as text after a colon: the command if one is known."""
    command = _this_installation().command(extra)
    return f"run `{command}`" if command else f"install the packages that this project lists for the extra `{extra}`"


def unmet_requirements(extra: str) -> list[str]:
    """Return a sentence for each installed package whose version is incompatible with an extra."""
    return _this_installation().unmet(extra)


def find_installation(package: Path, recorded: Iterable[metadata.Distribution]) -> Installation:
    """Return the installation of a package's directory among those recorded, which may include the other project's."""
    for distribution in recorded:
        if Path(str(distribution.locate_file(package.name))).resolve() == package:
            return Installation(package, distribution)
    return Installation(package, None)


def _this_installation() -> Installation:
    return find_installation(Path(__file__).resolve().parent, metadata.distributions(name=_NAME))


def _source(distribution: metadata.Distribution | None) -> Path | None:
    """Return the directory or wheel that a distribution was installed from, if it still exists."""
    try:
        recorded = json.loads((distribution and distribution.read_text("direct_url.json")) or "null")
        url = urlparse(recorded["url"])
    except (ValueError, TypeError, KeyError):  # installed from an index, or without a record
        return None
    if url.scheme != "file":
        return None
    path = Path(url2pathname(url.path))
    return path if path.is_file() or (path / _PROJECT).is_file() else None


def _without_marker(requirement: Requirement) -> str:
    return str(requirement).partition(";")[0].strip()

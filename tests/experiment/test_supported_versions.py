"""Which versions of Python are supported is said in several places, and the tested packages exist for each of them."""

from __future__ import annotations

import os
import re
import tomllib
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from typing import NamedTuple

import pytest
from packaging import tags
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SUPPORTED = [
    found[1]
    for text in PROJECT["project"]["classifiers"]
    if (found := re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", text))
]
PINS = [
    Requirement(line)
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
]
SOURCE_ONLY = {"rliable"}  # pure Python, built on any version
INDEX = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple")


def test_every_place_names_the_same_oldest_python() -> None:
    oldest = SUPPORTED[0]
    assert PROJECT["project"]["requires-python"] == f">={oldest}"
    assert PROJECT["tool"]["ruff"]["target-version"] == f"py{oldest.replace('.', '')}"
    assert PROJECT["tool"]["mypy"]["python_version"] == oldest
    assert f"Python {oldest} or newer" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_versions_of_python_follow_each_other() -> None:
    minors = [int(version.partition(".")[2]) for version in SUPPORTED]
    assert minors == list(range(11, 11 + len(minors)))
    assert len(minors) >= 3


def test_every_requirement_has_a_tested_version_within_its_bounds() -> None:
    pins = {canonicalize_name(pin.name): pin for pin in PINS}
    assert len(pins) == len(PINS)
    extras = PROJECT["project"]["optional-dependencies"]
    for text in [*PROJECT["project"]["dependencies"], *(text for name in extras for text in extras[name])]:
        wanted = Requirement(text)
        pin = pins.get(canonicalize_name(wanted.name))
        if pin is None:
            assert wanted.name in {"axiomrl", "wandb"}, f"{text} has no tested version in constraints.txt"
            continue
        exact = [one.version for one in pin.specifier if one.operator == "=="]  # none: a range, of which extras choose
        assert all(map(wanted.specifier.contains, exact)), f"{text} is asked for, {pin} was tested"


class Wheel(NamedTuple):
    """A file of an index that installs without being built."""

    takers: frozenset[tags.Tag]
    requires_python: SpecifierSet

    def suits(self, python: str, known: frozenset[tags.Tag]) -> bool:
        return not self.takers.isdisjoint(known) and self.requires_python.contains(f"{python}.0")


class _Files(HTMLParser):
    """Collects what a page of an index offers within a constraint."""

    def __init__(self, pin: Requirement) -> None:
        super().__init__()
        self._pin = pin
        self.wheels: list[Wheel] = []
        self._requires: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._requires = dict(attrs).get("data-requires-python") or ""

    def handle_data(self, data: str) -> None:
        try:
            _, version, _, found = parse_wheel_filename(data.strip())
        except InvalidWheelFilename:
            return
        if self._pin.specifier.contains(version):
            self.wheels.append(Wheel(found, SpecifierSet(self._requires or "")))


def offered(pin: Requirement) -> list[Wheel]:
    with urllib.request.urlopen(f"{INDEX.rstrip('/')}/{canonicalize_name(pin.name)}/", timeout=60) as answer:
        page = _Files(pin)
        page.feed(answer.read().decode("utf-8"))
    return page.wheels


def known_tags(python: str) -> frozenset[tags.Tag]:
    """Return the tags of wheels that a version of Python takes on this machine."""
    number = (3, int(python.partition(".")[2]))
    platforms = list(tags.platform_tags())
    interpreter = f"cp{python.replace('.', '')}"
    return frozenset(
        [*tags.cpython_tags(number, platforms=platforms), *tags.compatible_tags(number, interpreter, platforms)]
    )


@pytest.fixture(scope="module")
def index() -> dict[str, list[Wheel]]:
    """Return what the index offers of every tested package."""
    try:
        offered(PINS[0])
    except (urllib.error.URLError, OSError) as error:
        pytest.skip(f"no package index can be reached: {error}")
    with ThreadPoolExecutor(8) as pool:
        return dict(zip([pin.name for pin in PINS], pool.map(offered, PINS), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("python", SUPPORTED)
def test_every_tested_package_has_a_wheel_for_every_supported_python(
    python: str, index: dict[str, list[Wheel]]
) -> None:
    known = known_tags(python)
    missing = [
        str(pin)
        for pin in PINS
        if (pin.marker is None or pin.marker.evaluate({"python_version": python}))
        and pin.name not in SOURCE_ONLY
        and not any(wheel.suits(python, known) for wheel in index[pin.name])
    ]
    assert missing == []

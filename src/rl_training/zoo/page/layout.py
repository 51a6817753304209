"""The layout of pages: sections of text, charts and tables in one HTML file without network, script or other files.

All text goes through the template or through `Markup.format`, which both escape it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
from markupsafe import Markup

from rl_training.experiment.storage.printing import printable
from rl_training.zoo.page.palette import DARK_PAPER, LIGHT_PAPER, STYLES
from rl_training.zoo.page.places import Places
from rl_training.zoo.tables import Table


class Figure(NamedTuple):
    """One chart of a section."""

    caption: str
    content: Markup | str
    classes: str = ""


class Section(NamedTuple):
    """One part of the page; empty parts are not shown."""

    anchor: str
    name: str
    about: str = ""
    """Text after the name in the heading."""
    sentences: Sequence[str] = ()
    legend: Sequence[tuple[Markup, str, str]] = ()
    """Sign, name and note of each curve."""
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    differences: Table | None = None
    """Settings by entry, collapsed if there are many."""
    small: bool = False
    """Whether its figures are small, with many of them beside each other."""
    films: Sequence[tuple[str, str]] = ()
    """Caption and address of each film."""


class Reloading(NamedTuple):
    """How a served page is kept up to date."""

    seconds: int | None
    """Time between reloads; None if it does not reload itself."""
    other: str
    """Address of the same page that does what this one does not."""


class Verdict(NamedTuple):
    """The answer that a page begins with."""

    sentence: str
    good: bool


def render_sections(
    title: str,
    summary: str,
    sections: Sequence[Section],
    *,
    metrics: Sequence[tuple[str, str, bool]] = (),
    verdict: Verdict | None = None,
    reloading: Reloading | None = None,
) -> str:
    """Return a page; `metrics` are the kinds of curves to choose from: id, words, and whether it is shown at first."""
    page = _template().render(
        title=title,
        summary=summary,
        style=_style(),
        metrics=metrics,
        sections=sections,
        verdict=verdict,
        reloading=reloading,
    )
    return page + "\n"


def status_word(status: str) -> Markup:
    """Return a status in its colour."""
    return Markup('<span class="status {0}">{0}</span>').format(status)


def link(path: Path, places: Places, name: str | None = None) -> Markup | str:
    """Return a link to a directory, by default with its name, or the name alone if it cannot be linked."""
    target = places.run(path)
    shown = printable(path.name if name is None else name)
    return shown if target is None else Markup('<a href="{}">{}</a>').format(target, shown)


@cache
def _template() -> jinja2.Template:
    # Unprintable characters, such as lone surrogates, could not be written to a file.
    def shown(value: Any) -> Any:
        return printable(value) if type(value) is str else value

    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, finalize=shown)
    return environment.from_string(_packaged("report.html.jinja"))


@cache
def _style() -> Markup:
    series = [f".series-{number} {{ --series: var(--series-{number}); }}" for number in range(len(STYLES))]
    light = [f"--series-{number}: {style.light};" for number, style in enumerate(STYLES)]
    dark = [f"--series-{number}: {style.dark};" for number, style in enumerate(STYLES)]
    return Markup(
        f":root {{ --paper: {LIGHT_PAPER}; {' '.join(light)} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{ --paper: {DARK_PAPER}; {' '.join(dark)} }} }}\n"
        + "\n".join(series)
        + "\n"
        + _packaged("report.css")
    )


def _packaged(name: str) -> str:
    return resources.files("rl_training.zoo").joinpath(name).read_text(encoding="utf-8")

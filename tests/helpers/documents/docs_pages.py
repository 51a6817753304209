"""The pages of the documentation as data: code blocks, links, tables between markers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from paths import ROOT as ROOT

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "zoo/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]

# Blocks below these comments are not executed as they stand, up to `<!-- end -->` or the end of the block.
INSTALLATION = ("<!-- train command -->", "<!-- test command -->")
RUN_BY_CI = "<!-- run by .ci/run -->"
EXECUTED = ("bash", "python", "console")
"""Languages of blocks that are executed; a `console` block also shows what its commands print."""
_FENCE = re.compile(r"^```(\w*)$")
_COMMENT = re.compile(r"^<!-- .* -->$")


class Block(NamedTuple):
    """One fenced block of code."""

    language: str
    code: str
    line: int
    """Number of its first line of code on the page, from 1."""
    marker: str
    """The comment right above the block, or nothing."""


def page_name(page: Path) -> str:
    """Return a page's path within the checkout."""
    return page.relative_to(ROOT).as_posix()


def read_page(page: Path) -> str:
    """Return a page's text."""
    return page.read_text(encoding="utf-8")


def blocks(text: str) -> Iterator[Block]:
    """Return the fenced blocks of a page in order."""
    language, start, marker = "", 0, ""
    code: list[str] | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        fence = _FENCE.match(line)
        if code is not None:
            if fence:
                yield Block(language, "\n".join(code) + "\n", start, marker)
                code, marker = None, ""
            else:
                code.append(line)
        elif fence:
            language, start, code = fence.group(1), number + 1, []
        elif line.strip():
            marker = line if _COMMENT.match(line) else ""


def executable_blocks(page: Path) -> list[Block]:
    """Return the blocks that readers are meant to run as they stand."""
    return [
        block
        for block in blocks(read_page(page))
        if block.language in EXECUTED and block.marker not in (*INSTALLATION, RUN_BY_CI)
    ]


def marked_block(page: Path, marker: str) -> str:
    """Return the code of the one block below a comment."""
    (block,) = (block for block in blocks(read_page(page)) if block.marker == marker)
    return block.code.strip()


def marked_section(page: Path, name: str) -> str:
    """Return what stands between `<!-- name: begin -->` and `<!-- name: end -->`."""
    text = read_page(page)
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    assert text.count(begin) == text.count(end) == 1, f"{page_name(page)} needs one section {begin} ... {end}"
    return text.split(begin)[1].split(end)[0].strip()


def marked_table(page: Path, name: str) -> list[list[str]]:
    """Return the cells of a marked table, without its heading and without code marks."""
    lines = marked_section(page, name).splitlines()[2:]
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines]


def links(text: str) -> list[str]:
    """Return the targets of a page's links."""
    return re.findall(r"\]\(([^)\s]+)\)", _without_fences(text))


def anchors(text: str) -> set[str]:
    """Return the anchors that a page's headings give, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", _without_fences(text), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def code_spans(text: str) -> list[str]:
    """Return the inline code of a page."""
    return re.findall(r"`([^`\n]+)`", _without_fences(text))


def _without_fences(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)

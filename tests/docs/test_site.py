"""The documentation site: every page is in its navigation, every link resolves, and it builds without warnings."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import yaml

import build_site
from browser import CHROMIUM, NO_CHROMIUM, Browser
from documents.docs_pages import PAGES, ROOT, anchors, links, page_name, read_page

API = ROOT / "docs" / "api.md"
REFERENCE = re.compile(r"^::: (\S+)$", flags=re.MULTILINE)
WIDTHS = {"desktop": 1280, "phone": 390}


def pages_in_navigation() -> list[str]:
    def below(entry: Any) -> Iterator[str]:
        if isinstance(entry, str):
            yield entry
        else:
            for part in entry.values() if isinstance(entry, dict) else entry:
                yield from below(part)

    return list(below(yaml.safe_load(build_site.CONFIG.read_text(encoding="utf-8"))["nav"]))


# -- pages before they are rendered ------------------------------------------------------------------


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages of the site as Markdown."""
    folder = tmp_path_factory.mktemp("pages")
    build_site.write_pages(folder)
    return folder


def test_the_navigation_holds_every_page_once() -> None:
    wanted = [build_site.page_of(page).as_posix() for page in PAGES]
    assert sorted(pages_in_navigation()) == sorted(wanted), "mkdocs.yml: nav must list every page of docs/"


def test_every_link_of_a_page_leads_to_a_page_of_the_site(written: Path) -> None:
    for page in written.rglob("*.md"):
        for link in links(read_page(page)):
            if re.match(r"https?://", link):
                continue
            target, _, anchor = link.partition("#")
            file = page.parent / target if target else page
            assert file.is_file(), f"{page.relative_to(written)} links to {link}, which is not in the site"
            assert file.resolve().is_relative_to(written.resolve()), link
            assert not anchor or anchor in anchors(read_page(file)), f"{page.relative_to(written)}: {link}"


def test_a_file_outside_of_the_documents_becomes_a_page_that_shows_it(written: Path) -> None:
    shown = read_page(written / "source" / "examples" / "corridor.py.md")
    assert (ROOT / "examples" / "corridor.py").read_text(encoding="utf-8").strip() in shown


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_lists_and_tables_are_what_every_renderer_takes_for_them(page: Path) -> None:
    """Python-Markdown wants an empty line before a list and a table; a merge must leave no marks."""
    before, fenced = "", False
    for number, line in enumerate(read_page(page).splitlines(), start=1):
        fenced ^= line.startswith("```")
        if not fenced and before.strip() and not before.startswith(("<!--", "```")):
            for start in (r"([-*]|\d+\.) ", r"\|"):
                begins = re.match(start, line) and not re.match(rf"{start}|\s", before)
                assert not begins, f"{page_name(page)}:{number} needs an empty line above"
        assert not re.match(r"(<{7}|={7}|>{7})( |$)", line), f"{page_name(page)}:{number}"
        before = line


def test_code_that_looks_like_a_link_stays_as_it_is(tmp_path: Path) -> None:
    text = "`[a](../src)` and\n```text\n[b](../src)\n```\nand [c](https://example.org), [d](#here), [e](../LICENSE)"
    found: set[Path] = set()
    changed = build_site.with_site_links(text, build_site.DOCS / "index.md", found)
    assert changed == text.replace("(../LICENSE)", "(source/LICENSE.md)")
    assert found == {ROOT / "LICENSE"}


def test_a_link_without_a_target_ends_the_build_with_its_place() -> None:
    with pytest.raises(build_site.MissingTargetError, match=r"docs/index\.md links to \.\./nowhere\.py"):
        build_site.with_site_links("[a](../nowhere.py)", build_site.DOCS / "index.md", set())


def test_only_pages_that_changed_are_written_again(tmp_path: Path) -> None:
    build_site.write_pages(tmp_path)
    (tmp_path / "gone.md").write_text("a page that was removed", encoding="utf-8")
    (tmp_path / "index.md").write_text("a page that has changed since", encoding="utf-8")
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.md")}
    build_site.write_pages(tmp_path)
    changed = {path.name for path, time in times.items() if not path.exists() or path.stat().st_mtime_ns != time}
    assert changed == {"gone.md", "index.md"}


@pytest.mark.parametrize("module", ["rl_training", "rl_training.core", "rl_training.extend"])
def test_the_reference_holds_every_exported_name(module: str) -> None:
    referenced = {name.rpartition(".")[2] for name in REFERENCE.findall(read_page(API))}
    assert set(import_module(module).__all__) - referenced <= {"__version__"}


# -- the site ----------------------------------------------------------------------------------------


class Html(HTMLParser):
    """What a page has that others can link to, what it links to, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        self.loaded += [given[name] for name in ("src",) if name in given]
        if tag == "link" and given.get("rel") in ("stylesheet", "icon", "preload"):
            self.loaded.append(given.get("href", ""))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built by the script without a network."""
    folder = tmp_path_factory.mktemp("documentation")
    nowhere = {f"{kind}_proxy": "http://127.0.0.1:9" for kind in ("http", "https", "HTTP", "HTTPS")}
    built = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "build_site.py"), "--output", str(folder)],
        env={**os.environ, **nowhere},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    output = built.stdout + built.stderr
    assert built.returncode == 0, output
    assert not re.search(r"warning|error", output, flags=re.IGNORECASE), output
    return folder / "site"


@pytest.fixture(scope="module")
def html(site: Path) -> dict[Path, Html]:
    return {page: Html(page.read_text(encoding="utf-8")) for page in site.rglob("*.html")}


def test_every_page_of_the_navigation_is_built(site: Path) -> None:
    for page in pages_in_navigation():
        assert (site / page).with_suffix(".html").is_file(), page


def test_every_link_and_anchor_within_the_site_resolves(site: Path, html: dict[Path, Html]) -> None:
    for page, content in html.items():
        if page.name == "404.html":  # its links are those of a server's root
            continue
        for link in content.links:
            if re.match(r"[a-z]+:", link):
                continue
            target, _, anchor = unquote(link).partition("#")
            file = Path(os.path.normpath(page.parent / target)) if target else page
            file = file / "index.html" if file.is_dir() else file
            assert file.is_file(), f"{page.relative_to(site)} links to {link}"
            if anchor and file.suffix == ".html":
                assert anchor in html[file].ids, f"{page.relative_to(site)} links to {link}: no such anchor"


def test_nothing_is_loaded_from_elsewhere(site: Path, html: dict[Path, Html]) -> None:
    for page, content in html.items():
        assert not [one for one in content.loaded if re.match(r"(https?:)?//", one)], page
        if page.name != "404.html":
            for one in filter(None, content.loaded):
                file = page.parent / unquote(one.partition("?")[0])
                assert one.startswith("data:") or file.is_file(), f"{page.relative_to(site)} loads {one}"


def test_every_name_of_the_reference_has_an_anchor_and_its_docstring(site: Path, html: dict[Path, Html]) -> None:
    names = REFERENCE.findall(read_page(API))
    assert set(names) <= html[site / "api.html"].ids
    text = re.sub(r"<[^>]+>", "", (site / "api.html").read_text(encoding="utf-8"))
    assert "Train as configured, or train the missing seeds of the sweep" in text


def test_the_search_finds_pages_and_leaves_out_files(site: Path) -> None:
    (index,) = (json.loads(path.read_text(encoding="utf-8")) for path in site.glob("search.json"))
    found = {item["location"].partition("#")[0] for item in index["items"]}
    wanted = {Path(page).with_suffix(".html").as_posix() for page in pages_in_navigation()}
    assert wanted <= found
    assert not [location for location in found if location.startswith("source/")]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip(NO_CHROMIUM)
    with Browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def wait_for(browser: Browser, condition: str) -> None:
    """Wait until a JavaScript expression is true; `roots` are the document and what is closed into its elements."""
    roots = "[document, ...[...document.querySelectorAll('*')].map((one) => one.shadowRoot).filter(Boolean)]"
    deadline = time.monotonic() + 30
    while not browser.evaluate(f"((roots) => {condition})({roots})"):
        assert time.monotonic() < deadline, condition
        time.sleep(0.05)


def test_the_search_answers_from_a_disk(site: Path, browser: Browser) -> None:
    browser.open(site / "zoo.html")
    wait_for(browser, "roots.length > 1")  # the search has been set up
    for kind in ("keyDown", "keyUp"):
        browser.call("Input.dispatchKeyEvent", type=kind, key="k", code="KeyK", modifiers=2, windowsVirtualKeyCode=75)
    wait_for(browser, "roots.some((root) => root.activeElement?.tagName === 'INPUT')")
    browser.call("Input.insertText", text="hindsight")
    wait_for(browser, "roots.some((root) => root.querySelector('a[href$=\"#learn-online-with-a-dataset\"]'))")
    assert browser.messages == []


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_page_is_wider_than_its_window(theme: str, site: Path, browser: Browser) -> None:
    for page in pages_in_navigation():
        for width in WIDTHS.values():
            browser.open((site / page).with_suffix(".html"), width=width, theme=theme)
            wide = browser.evaluate("document.scrollingElement.scrollWidth")
            assert wide <= width, f"{page} at {width}: {wide}"
    assert browser.messages == []
    assert not [request for request in browser.requests if not request.startswith(("file:", "data:", "blob:"))]

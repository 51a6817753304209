"""Build the documentation site from `mkdocs.yml` and `docs/`.

    python tools/build_site.py             # build/docs/site/index.html
    python tools/build_site.py --serve     # http://localhost:8000, built again when a page changes

Pages are plain Markdown whose links work in the checkout. A site has no files outside of its own folder, so the pages
are copied first and links that leave `docs/` are changed: other documents become pages, and any other file a page that
shows its text. Zensical builds the copy; every warning is an error.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
CONFIG = ROOT / "mkdocs.yml"
DOCUMENTS = {
    "README.md": "readme.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "zoo/README.md": "zoo.md",
}
"""Documents outside of `docs/` and their pages."""
SOURCES = "source"
"""The folder of pages that show files."""
PAGES, SITE = "pages", "site"
OFFLINE, WORKER = "offline", "worker.js"
"""The plugin for sites on a disk, and our script for the one that it would load from a network."""
SECONDS_BETWEEN_LOOKS = 0.5

# Fenced blocks and inline code are kept as they are; the group is the target of a link.
_LINK = re.compile(r"^```.*?^```$|(`+)(?!`).*?(?<!`)\1(?!`)|\]\((?P<target>[^)\s]+)\)", flags=re.MULTILINE | re.DOTALL)
_FOREIGN_SCRIPT = re.compile(r'<script src="https?://[^"]*iframe-worker[^"]*"[^>]*></script>')
_LANGUAGES = {".py": "python", ".json": "json", ".yaml": "yaml", ".toml": "toml"}


class MissingTargetError(Exception):
    """A link of a page has no target."""


def page_of(file: Path) -> PurePosixPath:
    """Return where a file or folder of the checkout is in the site."""
    path = PurePosixPath(file.relative_to(ROOT).as_posix())
    if path.is_relative_to("docs"):
        return path.relative_to("docs")
    if str(path) in DOCUMENTS:
        return PurePosixPath(DOCUMENTS[str(path)])
    return PurePosixPath(SOURCES, f"{path}.md")


def with_site_links(text: str, document: Path, found: set[Path]) -> str:
    """Return a document's text with links that work in the site, and add their targets to `found`."""

    def replaced(match: re.Match[str]) -> str:
        link = match["target"]
        if link is None or re.match(r"[a-z]+:|#", link):
            return match[0]
        name, mark, anchor = link.partition("#")
        target = Path(os.path.normpath(document.parent / name))
        if not target.exists() or not target.is_relative_to(ROOT):
            raise MissingTargetError(f"{document.relative_to(ROOT)} links to {link}, which is not in the checkout")
        found.add(target)
        to = os.path.relpath(page_of(target), page_of(document).parent)
        return f"]({PurePosixPath(to)}{mark}{anchor})"

    return _LINK.sub(replaced, text)


def source_page(file: Path) -> str:
    """Return a page that shows a file's text, or the names in a folder."""
    name = file.relative_to(ROOT).as_posix()
    if file.is_dir():
        shown = "\n".join(sorted(f"{path.name}/" if path.is_dir() else path.name for path in visible(file)))
        language = "text"
    else:
        shown, language = file.read_text(encoding="utf-8").rstrip("\n"), _LANGUAGES.get(file.suffix, "text")
    longest = max((len(run) for run in re.findall(r"`+", shown)), default=0)
    fence = "`" * max(3, longest + 1)
    head = f"---\ntitle: {file.name}\nsearch:\n  exclude: true\n---\n\n# `{name}`\n"
    return f"{head}\n{fence} {language}\n{shown}\n{fence}\n"


def visible(folder: Path) -> Iterator[Path]:
    """Yield what a folder holds, without caches."""
    return (path for path in folder.iterdir() if not path.name.startswith((".", "__pycache__")))


def write_pages(pages: Path) -> None:
    """Write the Markdown of the whole site, and only what has changed since the last time."""
    documents = [*DOCS.rglob("*.md"), *(ROOT / name for name in DOCUMENTS)]
    contents: dict[PurePosixPath, bytes] = {}
    found: set[Path] = set()
    for document in documents:
        text = with_site_links(document.read_text(encoding="utf-8"), document, found)
        contents[page_of(document)] = text.encode()
    for file in DOCS.rglob("*"):
        if file.is_file() and file.suffix != ".md":
            contents[page_of(file)] = file.read_bytes()
    for file in found - set(documents):
        if not file.is_relative_to(DOCS):
            contents[page_of(file)] = source_page(file).encode()
    for path in pages.rglob("*"):
        if path.is_file() and PurePosixPath(path.relative_to(pages).as_posix()) not in contents:
            path.unlink()
    for name, content in contents.items():
        path = pages / name
        if not path.exists() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def write_config(folder: Path, *, on_disk: bool) -> Path:
    """Write `mkdocs.yml` for pages that are in `folder`, and return its path."""
    config: dict[str, Any] = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
    config |= {"docs_dir": PAGES, "site_dir": SITE}
    if not on_disk:
        config["plugins"].remove(OFFLINE)
    for plugin in config["plugins"]:
        if "mkdocstrings" in plugin:
            python = plugin["mkdocstrings"]["handlers"]["python"]
            python["paths"] = [str(ROOT / path) for path in python["paths"]]
    path = folder / CONFIG.name
    path.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    return path


def build(folder: Path) -> int:
    """Build `folder/site` and return the exit status."""
    write_pages(folder / PAGES)
    shutil.rmtree(folder / SITE, ignore_errors=True)
    command = _zensical("build", write_config(folder, on_disk=True), "--clean", "--strict")
    status = subprocess.run(command, check=False).returncode
    for page in (folder / SITE).rglob("*.html"):
        script = f'<script src="{os.path.relpath(folder / SITE / WORKER, page.parent)}"></script>'
        page.write_text(_FOREIGN_SCRIPT.sub(script, page.read_text(encoding="utf-8")), encoding="utf-8")
    return status


def serve(folder: Path) -> int:
    """Serve the site on localhost until Ctrl-C, and build again what changes."""
    write_pages(folder / PAGES)
    server = subprocess.Popen(_zensical("serve", write_config(folder, on_disk=False)))
    try:
        while server.poll() is None:
            time.sleep(SECONDS_BETWEEN_LOOKS)
            try:
                write_pages(folder / PAGES)
            except (MissingTargetError, OSError) as error:  # a page that is being written
                print(error, file=sys.stderr)
    except KeyboardInterrupt:
        server.terminate()
    return server.wait()


def _zensical(command: str, config: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "zensical", command, "--config-file", str(config), *options]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", action="store_true", help="serve the site and follow changes")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "docs", help="folder for pages/ and site/")
    arguments = parser.parse_args(argv)
    arguments.output.mkdir(parents=True, exist_ok=True)
    try:
        return serve(arguments.output) if arguments.serve else build(arguments.output)
    except MissingTargetError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())

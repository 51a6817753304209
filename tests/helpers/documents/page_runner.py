"""Runs the code of a documentation page: commands, snippets, and commands whose output the page shows."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from documents.docs_pages import Block, page_name
from processes import process_environment

BLOCK_SECONDS = 120


class PageRunner:
    """Runs the blocks of one page: one shell, one Python namespace, one working directory."""

    def __init__(self, page: Path, directory: Path, path: str) -> None:
        self.page, self.directory = page, directory
        self.namespace: dict[str, Any] = {"__name__": "documentation"}
        self.log = directory.parent / "commands.log"
        status_read, status_write = os.pipe()
        self._status = open(status_read, encoding="utf-8")  # noqa: SIM115 - closed in close()
        with self.log.open("wb") as log:
            self._shell = subprocess.Popen(
                ["bash", "-euo", "pipefail"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=directory,
                env=process_environment(PATH=path, STATUS=str(status_write)),
                pass_fds=[status_write],
                text=True,
            )
        os.close(status_write)

    def run(self, number: int, block: Block) -> None:
        """Run one block; of a `console` block, compare what each command prints with what stands below it."""
        if block.language == "python":
            code = "\n" * (block.line - 1) + block.code  # so that a traceback names the page's own lines
            exec(compile(code, str(self.page), "exec"), self.namespace)
        elif block.language == "console":
            for part, (command, shown) in enumerate(_commands(block.code)):
                self._compare(f"{number}-{part}", block, command, shown)
        else:
            self._source(str(number), block, block.code)

    def _compare(self, name: str, block: Block, command: str, shown: str) -> None:
        output = self.directory.parent / f"output-{name}"
        self._source(name, block, f'{{ {command}; }} >"{output}" 2>&1 || true\n')
        given = output.read_text(encoding="utf-8")
        assert re.search(_pattern(shown), " ".join(given.split())), (
            f"{page_name(self.page)}, line {block.line} ff., shows other output than `{command}` gives:\n{given}"
        )

    def _source(self, name: str, block: Block, code: str) -> None:
        script = self.directory.parent / f"block-{name}.sh"
        script.write_text(code, encoding="utf-8")
        assert self._shell.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._shell.stdin.write(f'. "{script}" </dev/null\necho done >&"$STATUS"\n')
            self._shell.stdin.flush()
        assert self._status.readline() == "done\n", (
            f"a command on {page_name(self.page)}, line {block.line} ff., failed:\n{block.code}\n{self.log.read_text()}"
        )

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._shell.communicate(timeout=BLOCK_SECONDS)
        self._status.close()


def _commands(code: str) -> Iterator[tuple[str, str]]:
    """Yield the commands of a `console` block and what the page shows below each."""
    for part in re.split(r"^\$ ", code, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        yield command, shown


def _pattern(shown: str) -> str:
    """Return a pattern for what a page shows: lines may be wrapped, and `...` is anything."""
    return ".*".join(map(re.escape, " ".join(shown.split()).split("...")))

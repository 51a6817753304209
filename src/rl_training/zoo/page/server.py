"""Serves the page of a report on this machine, and builds it again when the runs have changed.

Only the page and the films on it are served. Addresses are looked up in a table, so that none leads to another file,
and requests under another host's name are refused, so that a website in the same browser cannot read the page.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rl_training.errors import AxiomError, ConfigError
from rl_training.experiment.runs import CONFIG, METADATA, METRICS, VIDEOS
from rl_training.experiment.tuning.study import CONFIRMATION, JOURNAL, STUDY
from rl_training.zoo.page.places import Served
from rl_training.zoo.run_index import run_directories

HOST = "127.0.0.1"
STILL = "still"
"""Query of the page that does not reload itself."""
_CHUNK = 1 << 18
_TIMEOUT = 30.0  # seconds that a connection may be idle
_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

Build = Callable[[Served, bool], str]
"""Makes the page for some places; the flag says that it does not reload itself."""


class LivePage:
    """A page that is built again when the files of its runs have changed."""

    def __init__(self, paths: Iterable[Path], build: Build) -> None:
        self._paths, self._build = list(paths), build
        self._lock = threading.Lock()
        self._pages: dict[bool, tuple[Any, str, dict[str, Path]]] = {}

    def page(self, *, still: bool) -> str:
        """Return the current page."""
        with self._lock:
            state = list(self._state())
            if still not in self._pages or self._pages[still][0] != state:
                places = Served()
                self._pages[still] = (state, self._build(places, still), places.films)
            return self._pages[still][1]

    def film(self, address: str) -> Path | None:
        """Return the file of an address on the page."""
        with self._lock:
            return next((films[address] for _, _, films in self._pages.values() if address in films), None)

    def _state(self) -> Iterator[tuple[str, int, int]]:
        """Yield what changes with the files that the page shows."""
        studies = [root / name for root in self._paths for name in (STUDY, JOURNAL, CONFIRMATION)]
        runs = [run for root in self._paths for run in run_directories(root, [])]
        for path in (*studies, *(run / name for run in runs for name in (METADATA, CONFIG, METRICS, VIDEOS))):
            with contextlib.suppress(OSError):
                status = path.stat()
                yield str(path), status.st_mtime_ns, status.st_size


class PageServer(ThreadingHTTPServer):
    """An HTTP server that only this machine can reach."""

    daemon_threads = True

    def __init__(self, live: LivePage, port: int) -> None:
        self.live = live
        try:
            super().__init__((HOST, port), _Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(
                f"--port {port}: cannot be listened at ({reason}); name another, or 0 for any that is free"
            ) from None

    @property
    def address(self) -> str:
        """The address of the page."""
        return f"http://{HOST}:{self.server_port}/"

    @property
    def names(self) -> set[str]:
        """What a browser on this machine calls the server."""
        return {f"{name}:{self.server_port}" for name in (HOST, "localhost")}

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore browsers that close a connection early."""


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    protocol_version = "HTTP/1.1"
    timeout = _TIMEOUT

    def do_GET(self) -> None:
        if self.headers.get("Host", "").lower() not in self.server.names:
            self._answer(HTTPStatus.FORBIDDEN, f"this server is {self.server.address}")
            return
        address = urlsplit(self.path)
        if address.path == "/":
            self._show_page(still=address.query == STILL)
            return
        film = self.server.live.film(address.path)
        if film is None:
            self._answer(HTTPStatus.NOT_FOUND, "there is only the page, and the films on it")
        else:
            self._show_film(film)

    do_HEAD = do_GET

    def _show_page(self, *, still: bool) -> None:
        try:
            text = self.server.live.page(still=still)
        except (AxiomError, OSError) as error:
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, f"the report cannot be built: {error}")
        else:
            self._answer(HTTPStatus.OK, text, kind="text/html")

    def _answer(self, status: HTTPStatus, text: str, *, kind: str = "text/plain") -> None:
        content = text.encode("utf-8", "replace")
        self._start(status, f"{kind}; charset=utf-8", len(content))
        if self.command != "HEAD":
            self.wfile.write(content)

    def _start(self, status: HTTPStatus, kind: str, length: int, **further: str) -> None:
        self.send_response(status)
        headers = {"Content-Type": kind, "Content-Length": str(length), **_HEADERS}
        for name, value in {**headers, **further}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def _show_film(self, path: Path) -> None:
        """Send a film, or the part of it that a browser asks for to move within it."""
        try:
            flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
            descriptor = os.open(path, flags)
        except OSError:
            self._answer(HTTPStatus.NOT_FOUND, "the film is gone")
            return
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                self._answer(HTTPStatus.NOT_FOUND, "the film is gone")
                return
            size = status.st_size
            part = _part(self.headers.get("Range"), size)
            if part is None:
                self._start(HTTPStatus.OK, "video/mp4", size, Accept_Ranges="bytes")
                part = (0, size)
            elif part[0] >= part[1]:
                self._start(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, "video/mp4", 0, Content_Range=f"bytes */{size}")
                return
            else:
                shown = f"bytes {part[0]}-{part[1] - 1}/{size}"
                self._start(HTTPStatus.PARTIAL_CONTENT, "video/mp4", part[1] - part[0], Content_Range=shown)
            if self.command != "HEAD":
                self._send(file, *part)

    def _send(self, file: Any, first: int, end: int) -> None:
        file.seek(first)
        while first < end and (content := file.read(min(_CHUNK, end - first))):
            self.wfile.write(content)
            first += len(content)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer a request that is not understood in one line."""
        self.close_connection = True
        self.command = getattr(self, "command", None) or "GET"
        self._answer(HTTPStatus(code), message or HTTPStatus(code).phrase)

    def version_string(self) -> str:
        """Return the name of the server, without versions."""
        return "axiomrl"

    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing: every film is dozens of requests."""


def _part(header: str | None, size: int) -> tuple[int, int] | None:
    """Return the bytes [first, end) of a Range header; None if there is none that is understood."""
    match = _RANGE.fullmatch(header or "")
    if match is None or match[0] == "bytes=-":
        return None
    if not match[1]:
        return max(0, size - int(match[2])), size
    first, end = int(match[1]), int(match[2]) + 1 if match[2] else size
    return None if match[2] and end <= first else (first, min(end, size))

"""Transfer of a run directory between machines without a shared disk: complete, or only the changes.

Files are sent as a tar archive in an order that keeps the receiving copy valid at every moment: rows and segments
before the checkpoints that need them, a checkpoint's manifest after its files, pointers after their targets.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any

import yaml

from rl_training.errors import StorageError
from rl_training.experiment.checkpoints import CHECKPOINTS, MANIFEST
from rl_training.experiment.runs import CONFIG, METADATA
from rl_training.experiment.storage.files import storage_errors, sync_file

PART_BYTES = 4 << 20


class RunPacker:
    """Packs the files of a run directory that changed since the last call."""

    def __init__(self, run_dir: Path, *, all_known: bool = False) -> None:
        """Start with all files unsent, or with `all_known` if the receiver has the directory as it is."""
        self.run_dir = run_dir
        self._sent = _fingerprints(run_dir) if all_known else {}

    def pack(self, send: Callable[[bytes], None]) -> list[str]:
        """Send the changes in parts, and return the names of all present files."""
        current = _fingerprints(self.run_dir)
        with tarfile.open(fileobj=_PartWriter(send), mode="w|", bufsize=PART_BYTES) as archive:
            for name, fingerprint in current.items():
                if self._sent.get(name) != fingerprint:
                    archive.add(self.run_dir / name, arcname=name, recursive=False)
        self._sent = current
        return list(current)


def unpack_run(parts: IO[bytes], run_dir: Path, names: Iterable[str], *, output_dir: Path | None = None) -> None:
    """Update a run directory from an archive of changes; afterwards it contains exactly the files `names`.

    `output_dir` replaces that of the run's configuration, which was another one on the other machine.
    """
    with storage_errors("a run that was trained elsewhere", run_dir):
        with tarfile.open(fileobj=parts, mode="r|") as archive:
            for member in archive:
                target = run_dir / _safe(member.name)
                target.parent.mkdir(parents=True, exist_ok=True)
                arriving = target.with_name(f".{target.name}.arriving")
                if member.issym():
                    arriving.unlink(missing_ok=True)
                    arriving.symlink_to(_safe(member.linkname))
                else:
                    file = archive.extractfile(member)
                    assert file is not None
                    _write(arriving, file, target.name, output_dir)
                os.replace(arriving, target)
        expected = set(names)
        for name in [name for name in _fingerprints(run_dir) if name not in expected]:
            (run_dir / name).unlink()
        for directory in sorted((path for path in run_dir.rglob("*") if path.is_dir()), reverse=True):
            if not directory.is_symlink() and not any(directory.iterdir()):
                directory.rmdir()


class PartReader(io.RawIOBase):
    """Reads the parts of an archive one after another, with one in memory at a time."""

    def __init__(self, parts: Iterator[bytes]) -> None:
        self._parts = parts
        self._rest = b""

    def readable(self) -> bool:
        """Return true."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer from the current part."""
        if not self._rest:
            self._rest = next(self._parts, b"")
        count = min(len(buffer), len(self._rest))
        buffer[:count], self._rest = self._rest[:count], self._rest[count:]
        return count


class _PartWriter(io.RawIOBase):
    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._send(bytes(data))
        return len(data)


def _fingerprints(run_dir: Path) -> dict[str, Any]:
    """Return a value for every file of a run that changes with the file, in the order of sending."""
    found = {}
    for folder, directories, files in os.walk(run_dir):
        links = [name for name in directories if (Path(folder) / name).is_symlink()]
        for path in (Path(folder) / name for name in [*files, *links]):
            if path.name.startswith("."):
                continue  # locks and unfinished files
            status = path.lstat()
            content = os.readlink(path) if path.is_symlink() else (status.st_mtime_ns, status.st_size)
            found[path.relative_to(run_dir).as_posix()] = content
        directories[:] = [name for name in directories if not name.startswith(".")]
    return dict(sorted(found.items(), key=_turn))


def _turn(entry: tuple[str, Any]) -> tuple[int, str]:
    name, content = entry
    if name == METADATA:
        return 4, name
    if not name.startswith(f"{CHECKPOINTS}/"):
        return 0, name
    if isinstance(content, str):
        return 3, name
    return (2 if name.endswith(f"/{MANIFEST}") else 1), name


def _safe(name: str) -> str:
    """Return the name of a file within a run directory; raise an error if it leads out of it."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise StorageError(f"a run that was trained elsewhere holds the file {name!r}, which leads out of it")
    return name


def _write(path: Path, content: IO[bytes], name: str, output_dir: Path | None) -> None:
    with path.open("wb") as file:
        if output_dir is not None and name == CONFIG:
            config = yaml.safe_load(content)
            text = yaml.safe_dump({**config, "output_dir": str(output_dir)}, sort_keys=False, allow_unicode=True)
            file.write(text.encode("utf-8"))
        elif output_dir is not None and name == MANIFEST:
            manifest = json.load(content)
            manifest["config"]["output_dir"] = str(output_dir)
            file.write((json.dumps(manifest, indent=2, allow_nan=False) + "\n").encode("utf-8"))
        else:
            while part := content.read(PART_BYTES):
                file.write(part)
    sync_file(path)

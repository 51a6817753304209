"""What this machine has left: memory that may still be used, and space on a disk."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import psutil

_PROC = Path("/proc/self/cgroup")
_CGROUPS = Path("/sys/fs/cgroup")
# Limit, use, and the part of the use that the kernel gives back first: the files of version 2 and of version 1.
_VERSION_2 = ("memory.max", "memory.current", "inactive_file")
_VERSION_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def available_memory() -> int:
    """Return the bytes that this process may still use without swapping: the machine's, or its control group's."""
    return min([psutil.virtual_memory().available, *cgroup_margins()])


def cgroup_margins(membership: Path = _PROC, mount: Path = _CGROUPS) -> list[int]:
    """Return what each control group around this process leaves of its memory limit; containers and clusters set them.

    Only Linux has them. A container sees its own group as the root of the mount, so that groups above it, which
    `membership` may name, are simply not there.
    """
    try:
        lines = membership.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    margins = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, names = mount, _VERSION_2
        elif "memory" in controllers.split(","):
            root, names = mount / "memory", _VERSION_1
        else:
            continue
        group = root / path.lstrip("/")
        for directory in (group, *group.parents):
            margins += _margin(directory, *names)
            if directory == root:
                break
    return margins


def _margin(directory: Path, limit: str, use: str, reclaimable: str) -> list[int]:
    """Return the one margin of a group, or nothing where it sets no limit."""
    try:
        allowed = int((directory / limit).read_text(encoding="utf-8"))
        used = int((directory / use).read_text(encoding="utf-8"))
        statistics = dict(line.split() for line in (directory / "memory.stat").read_text(encoding="utf-8").splitlines())
    except (OSError, ValueError):  # no such group or no controller for it; "max" is no number and no limit
        return []
    return [max(0, allowed - used + int(statistics.get(reclaimable, 0)))]


def free_disk(path: Path) -> int:
    """Return the bytes that may still be written below a path, whether it exists yet or not."""
    path = path.absolute()
    return shutil.disk_usage(next(place for place in (path, *path.parents) if os.path.isdir(place))).free


def in_words(size: int) -> str:
    """Return a number of bytes for people."""
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.1f} MB"

"""What this machine leaves to this process: memory, cores, and space on a disk."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
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
    """Return what each control group around this process leaves of its memory limit: containers set them."""
    margins = []
    for directory, version in _groups("memory", membership, mount):
        margins += _margin(directory, *(_VERSION_2 if version == 2 else _VERSION_1))
    return margins


def cgroup_cores(membership: Path = _PROC, mount: Path = _CGROUPS) -> list[float]:
    """Return how many cores' time each control group around this process allows, where it sets a quota."""
    quotas = []
    for directory, version in _groups("cpu", membership, mount):
        names = ("cpu.max",) if version == 2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        try:
            words = [word for name in names for word in (directory / name).read_text(encoding="utf-8").split()]
            quota, period = map(int, words)
        except (OSError, ValueError):  # no such group or no controller for it; "max" is no number and no limit
            continue
        quotas += [quota / period] if quota > 0 else []  # version 1 says -1 for no limit
    return quotas


@dataclass(frozen=True)
class CoreLimit:
    """How many threads something leaves room for, and the words that say what it is."""

    number: int
    words: str


def usable_cores() -> CoreLimit:
    """Return how many cores this process may keep busy: by the machine, its CPU affinity and its control groups."""
    cores = os.cpu_count() or 1
    limits = [CoreLimit(cores, f"this machine has {cores} core{'s' if cores > 1 else ''}")]
    if hasattr(os, "sched_getaffinity"):  # Linux
        allowed = len(os.sched_getaffinity(0))
        limits.append(CoreLimit(allowed, f"the CPU affinity of this process allows {allowed} of {cores} cores"))
    # Part of a core is not enough for a thread: the others would wait for the one that has used up its time.
    limits += [
        CoreLimit(max(1, int(quota)), f"the CPU quota of this process is {quota:.3g} of {cores} cores")
        for quota in cgroup_cores()
    ]
    return min(limits, key=lambda limit: limit.number)


def _groups(controller: str, membership: Path, mount: Path) -> Iterator[tuple[Path, int]]:
    """Yield the directory of each control group around this process that may limit something, and its version.

    Only Linux has them. A container sees its own group as the root of the mount, so that groups above it, which
    `membership` may name, are simply not there.
    """
    try:
        lines = membership.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, version = mount, 2
        elif controller in controllers.split(","):
            root, version = mount / controller, 1
        else:
            continue
        group = root / path.lstrip("/")
        for directory in (group, *group.parents):
            yield directory, version
            if directory == root:
                break


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

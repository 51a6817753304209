"""Resources available to this process: memory, cores and disk space."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

_PROC = Path("/proc/self/cgroup")
_CGROUPS = Path("/sys/fs/cgroup")
# Files of limit, use and reclaimable use of a control group, version 2 and version 1.
_VERSION_2 = ("memory.max", "memory.current", "inactive_file")
_VERSION_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def available_memory() -> int:
    """Return the bytes that this process may still use without swapping, limited by the machine and control groups."""
    return min([psutil.virtual_memory().available, *cgroup_margins()])


def cgroup_margins(membership: Path = _PROC, mount: Path = _CGROUPS) -> list[int]:
    """Return the remaining memory of each control group of this process that has a limit, as in containers."""
    margins = []
    for directory, version in _groups("memory", membership, mount):
        margins += _margin(directory, *(_VERSION_2 if version == 2 else _VERSION_1))
    return margins


def cgroup_cores(membership: Path = _PROC, mount: Path = _CGROUPS) -> list[float]:
    """Return the CPU quota, in cores, of each control group of this process that has one."""
    quotas = []
    for directory, version in _groups("cpu", membership, mount):
        names = ("cpu.max",) if version == 2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        try:
            words = [word for name in names for word in (directory / name).read_text(encoding="utf-8").split()]
            quota, period = map(int, words)
        except (OSError, ValueError):  # no such group or controller; "max" means no limit
            continue
        quotas += [quota / period] if quota > 0 else []  # -1 in version 1: no limit
    return quotas


@dataclass(frozen=True)
class CoreLimit:
    """A limit on the number of threads, and its reason in words."""

    number: int
    words: str


def usable_cores() -> CoreLimit:
    """Return the number of cores that this process may use, limited by the machine, CPU affinity and control groups."""
    cores = os.cpu_count() or 1
    limits = [CoreLimit(cores, f"this machine has {cores} core{'s' if cores > 1 else ''}")]
    if hasattr(os, "sched_getaffinity"):  # Linux
        allowed = len(os.sched_getaffinity(0))
        limits.append(CoreLimit(allowed, f"the CPU affinity of this process allows {allowed} of {cores} cores"))
    # Part of a core is not enough for a thread: the others would wait for it.
    limits += [
        CoreLimit(max(1, int(quota)), f"the CPU quota of this process is {quota:.3g} of {cores} cores")
        for quota in cgroup_cores()
    ]
    return min(limits, key=lambda limit: limit.number)


def thread_limit() -> CoreLimit:
    """Return the number of threads for computing: that of the usable cores, or OMP_NUM_THREADS if that is smaller."""
    limits = [usable_cores()]
    # Of a list only the first number applies: there are no nested loops.
    text = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if text.isdecimal() and int(text) > 0:
        limits.append(CoreLimit(int(text), f"OMP_NUM_THREADS is {int(text)}"))
    return min(limits, key=lambda limit: limit.number)


def _groups(controller: str, membership: Path, mount: Path) -> Iterator[tuple[Path, int]]:
    """Yield the directory of each control group of this process that may have a limit, and its version.

    Control groups exist only on Linux. A container sees its own group as the root of the mount, so that groups above
    it, which `membership` may name, do not exist there.
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
    """Return the remaining memory of a group as a list of one, empty if it has no limit."""
    try:
        allowed = int((directory / limit).read_text(encoding="utf-8"))
        used = int((directory / use).read_text(encoding="utf-8"))
        statistics = dict(line.split() for line in (directory / "memory.stat").read_text(encoding="utf-8").splitlines())
    except (OSError, ValueError):  # no such group or controller; "max" means no limit
        return []
    return [max(0, allowed - used + int(statistics.get(reclaimable, 0)))]


def free_disk(path: Path) -> int:
    """Return the bytes that may still be written below a path, which need not exist yet."""
    path = path.absolute()
    return shutil.disk_usage(next(place for place in (path, *path.parents) if os.path.isdir(place))).free


def in_words(size: int) -> str:
    """Return a number of bytes in readable form."""
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.1f} MB"

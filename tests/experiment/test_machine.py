"""What is left of memory and disk: the machine's, and the limits that containers and clusters set around a process."""

from __future__ import annotations

import shutil
from pathlib import Path

import psutil

from rl_training.experiment.machine import available_memory, cgroup_cores, cgroup_margins, free_disk, in_words

GB = 10**9


def group(directory: Path, *, limit: str, used: int, cached: int, version: int) -> None:
    """Write the files of a control group."""
    directory.mkdir(parents=True, exist_ok=True)
    names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    for name, value in zip(names, (limit, str(used)), strict=True):
        (directory / name).write_text(f"{value}\n", encoding="utf-8")
    own = f"inactive_file {cached}\n"
    statistics = own if version == 2 else f"inactive_file 0\ntotal_{own}"
    (directory / "memory.stat").write_text(f"cache 7\n{statistics}", encoding="utf-8")


def margins(root: Path, membership: str) -> list[int]:
    (root / "membership").write_text(membership, encoding="utf-8")
    return cgroup_margins(root / "membership", root)


def test_every_group_around_the_process_counts_and_reclaimable_pages_are_free(tmp_path: Path) -> None:
    group(tmp_path / "job" / "task", limit=str(8 * GB), used=3 * GB, cached=GB, version=2)
    group(tmp_path / "job", limit=str(6 * GB), used=4 * GB, cached=0, version=2)
    assert margins(tmp_path, "0::/job/task\n") == [6 * GB, 2 * GB]


def test_the_older_version_has_its_own_tree(tmp_path: Path) -> None:
    group(tmp_path / "memory" / "job", limit=str(4 * GB), used=GB, cached=GB // 2, version=1)
    assert margins(tmp_path, "3:cpu,cpuacct:/job\n4:memory:/job\n0::/\n") == [4 * GB - GB + GB // 2]


def test_a_container_finds_its_own_group_at_the_root(tmp_path: Path) -> None:
    group(tmp_path, limit=str(2 * GB), used=GB, cached=0, version=2)
    assert margins(tmp_path, "0::/docker/0123456789\n") == [GB]


def test_a_group_without_a_limit_or_a_system_without_groups_sets_none(tmp_path: Path) -> None:
    group(tmp_path, limit="max", used=GB, cached=0, version=2)
    assert margins(tmp_path, "0::/\n") == []
    assert cgroup_margins(tmp_path / "missing", tmp_path) == []


def test_a_group_that_is_over_its_limit_leaves_nothing(tmp_path: Path) -> None:
    group(tmp_path, limit=str(GB), used=2 * GB, cached=0, version=2)
    assert margins(tmp_path, "0::/\n") == [0]


def cores(root: Path, membership: str) -> list[float]:
    (root / "membership").write_text(membership, encoding="utf-8")
    return cgroup_cores(root / "membership", root)


def test_every_group_around_the_process_may_set_a_quota_of_cores(tmp_path: Path) -> None:
    (tmp_path / "job" / "task").mkdir(parents=True)
    (tmp_path / "job" / "task" / "cpu.max").write_text("max 100000\n", encoding="utf-8")
    (tmp_path / "job" / "cpu.max").write_text("150000 100000\n", encoding="utf-8")
    assert cores(tmp_path, "0::/job/task\n") == [1.5]


def test_the_older_version_keeps_quota_and_period_apart(tmp_path: Path) -> None:
    group = tmp_path / "cpu" / "job"
    group.mkdir(parents=True)
    for name, value in (("quota", "400000"), ("period", "200000")):
        (group / f"cpu.cfs_{name}_us").write_text(f"{value}\n", encoding="utf-8")
        (tmp_path / "cpu" / f"cpu.cfs_{name}_us").write_text("-1\n" if name == "quota" else value, encoding="utf-8")
    assert cores(tmp_path, "1:cpu,cpuacct:/job\n4:memory:/job\n0::/\n") == [2.0]


def test_a_system_without_groups_sets_no_quota(tmp_path: Path) -> None:
    assert cgroup_cores(tmp_path / "missing", tmp_path) == []


def test_available_memory_is_some_of_the_machines() -> None:
    assert 0 < available_memory() <= psutil.virtual_memory().total


def test_the_disk_of_a_directory_that_is_not_there_yet_is_its_parents(tmp_path: Path) -> None:
    nearby = shutil.disk_usage(tmp_path).free
    assert abs(free_disk(tmp_path / "runs" / "later") - nearby) < GB  # others write meanwhile
    (tmp_path / "file").touch()
    assert abs(free_disk(tmp_path / "file") - nearby) < GB


def test_sizes_in_words() -> None:
    assert in_words(12_345_678_901) == "12.3 GB"
    assert in_words(2_500_000) == "2.5 MB"

"""Disks that are full, limited or read-only: one clear sentence, and what was saved before stays sound."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path

import pytest

from harness import assert_same_run, only_run, tiny_config
from processes import Launcher, train_arguments, uninterrupted
from rl_training.errors import StorageError
from rl_training.experiment.checkpoints import CHECKPOINTS, list_checkpoints, verify_checkpoint
from rl_training.experiment.runs import read_metadata
from rl_training.runtime.workflows import evaluate, resume, train

# Checkpoints of about 100 kB, all kept.
HEAVY = {"keep_checkpoints": None, "checkpoint_interval": 32, "algo_kwargs": {"hidden_sizes": [64, 64]}}


class Disk:
    """A small file system in memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()

    def mount(self, options: str) -> None:
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", self.path], check=True, capture_output=True)

    def remount(self, options: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{options}", self.path], check=True, capture_output=True)

    def unmount(self) -> None:
        subprocess.run(["umount", "-l", self.path], check=True, capture_output=True)


@pytest.fixture
def disk(tmp_path):
    disk = Disk(tmp_path / "disk")
    try:
        disk.mount("size=700k")
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("file systems cannot be mounted here")
    yield disk
    disk.unmount()


def assert_sound(run_dir):
    """Every checkpoint that is visible is complete, and nothing half-written is left."""
    paths = list_checkpoints(run_dir)
    assert paths
    for path in paths:
        verify_checkpoint(path)
    assert not list((run_dir / CHECKPOINTS).glob(".writing-*"))


@pytest.mark.parametrize("tensorboard", [False, True])
def test_a_full_disk_ends_the_run_with_one_sentence_and_sound_checkpoints(disk, tmp_path, tensorboard):
    """With more space the run goes on as if nothing had happened."""
    config = tiny_config(disk.path / "runs", tracking={"tensorboard": tensorboard}, **HEAVY)
    with pytest.raises(StorageError) as caught:
        train(config)
    message = str(caught.value)
    assert "the disk is full; free some space or choose another output directory (--output-dir)" in message
    assert "\n" not in message
    run_dir = only_run(disk.path / "runs")
    assert_sound(run_dir)
    assert len(list_checkpoints(run_dir)) >= 2
    metadata = read_metadata(run_dir)
    assert (metadata["status"], metadata["error"]) == ("failed", f"StorageError: {message}")
    assert (run_dir / ".lock").stat().st_size == 0
    disk.remount("size=20m")
    assert resume(run_dir).status == "completed"
    assert_same_run(run_dir, uninterrupted(tiny_config(tmp_path / "straight", **HEAVY)))


def test_a_full_disk_ends_the_command_with_status_1(disk, tmp_path):
    config = tiny_config(disk.path / "runs", tracking={"tensorboard": True}, **HEAVY)
    child = Launcher(tmp_path / "processes").start(train_arguments(config, tmp_path))
    assert child.wait() == 1
    output = child.output.read_text()
    assert "the disk is full" in output
    assert "Traceback" not in output
    assert_sound(only_run(disk.path / "runs"))


def test_a_disk_without_room_for_metadata_is_said_too(disk):
    filler = disk.path / "filler"
    with contextlib.suppress(OSError):
        filler.write_bytes(bytes(10_000_000))
    with pytest.raises(StorageError, match="the disk is full"):
        train(tiny_config(disk.path / "runs"))


def test_a_read_only_disk_is_refused_and_still_readable(disk):
    run_dir = uninterrupted(tiny_config(disk.path / "runs", total_timesteps=64))
    disk.remount("ro")
    with pytest.raises(StorageError, match=r"cannot write .*: the file system is read-only; choose another"):
        train(tiny_config(disk.path / "runs"))
    with pytest.raises(StorageError, match="the file system is read-only"):
        resume(run_dir, total_timesteps=128)
    assert evaluate(run_dir, num_episodes=1).metrics["eval_episodes"] == 1
    disk.remount("rw")
    assert read_metadata(run_dir)["status"] == "completed"


@pytest.mark.parametrize("place", ["the directory", "its parent"])
def test_a_file_in_place_of_the_output_directory_is_named(tmp_path, place):
    (tmp_path / "runs").write_text("not a directory")
    output_dir = tmp_path / "runs" if place == "the directory" else tmp_path / "runs" / "deeper"
    with pytest.raises(StorageError, match="a file stands where a directory is needed; choose another") as caught:
        train(tiny_config(output_dir))
    assert str(output_dir) in str(caught.value)
    assert caught.value.exit_status == 1


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_without_permission_is_named(tmp_path):
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(StorageError, match="permission is denied"):
            train(tiny_config(tmp_path / "runs"))
    finally:
        tmp_path.chmod(0o700)


def test_a_file_size_limit_is_said_and_checkpoints_stay_sound(tmp_path):
    """Needs no mount: the learner's file passes the limit once some episodes and metrics have come together."""
    straight = uninterrupted(tiny_config(tmp_path / "straight", **HEAVY))
    sizes = [(path / "tensors.safetensors").stat().st_size for path in list_checkpoints(straight)]
    limit = (sizes[0] + sizes[-1]) // 2
    assert sizes[-1] < limit < sizes[0]
    arguments = train_arguments(tiny_config(tmp_path / "runs", **HEAVY), tmp_path)
    child = Launcher(tmp_path / "processes").start([str(limit), *arguments], module="limited_command")
    assert child.wait() == 1
    output = child.output.read_text()
    assert "the file size limit is reached" in output
    assert "Traceback" not in output
    run_dir = only_run(tmp_path / "runs")
    assert_sound(run_dir)
    metadata = read_metadata(run_dir)
    assert metadata["status"] == "failed"
    assert metadata["error"].startswith("StorageError: cannot write a checkpoint in")
    assert resume(run_dir).status == "completed"
    assert_same_run(run_dir, straight)

"""Ranks that die, fail or are killed with the whole run, in real processes."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from harness import assert_same_run, tiny_config, weights
from processes import Launcher, assert_survives_kills, newest_run, process_environment, train_arguments
from rl_training.experiment.checkpoints import list_checkpoints
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.runs import read_metadata
from rl_training.runtime.workflows import train
from short_runs import rank_config

pytestmark = pytest.mark.slow

FAULTY = """
import os

import gymnasium as gym
import numpy as np


class Faulty(gym.Env):
    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, fault="raise"):
        self.fault, self.steps = fault, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        reward = 1.0
        if self.steps > 40 and os.environ.get("RANK") == "1":
            if self.fault == "raise":
                raise ValueError("the motor is broken")
            reward = float("nan") if self.fault == "nan" else 3e38
        return np.zeros(2, np.float32), reward, False, self.steps % 20 == 0, {}
"""


def _ranks_of(pid: int) -> list[int]:
    """Return the processes that a run has started from a server, and the server, by their process group."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                status = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
                parents = (entry / "cmdline").read_bytes()
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
            if status != "Z" and b"forkserver" in parents and _group_of(int(entry.name)) == _group_of(pid):
                found.append(int(entry.name))
    return found


def _group_of(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return -1


def _started(config: TrainConfig, directory: Path) -> subprocess.Popen[str]:
    """Start a run in a process group of its own."""
    arguments = train_arguments(config, directory)
    return subprocess.Popen(
        [sys.executable, "-m", "rl_training.cli", *arguments],
        env=process_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _wait_for_checkpoints(output_dir: Path, count: int) -> Path:
    deadline = time.monotonic() + 120
    while (run_dir := newest_run(output_dir)) is None or len(list_checkpoints(run_dir)) < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return run_dir


def _youngest(pids: list[int]) -> int:
    return max(pids, key=lambda pid: int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19]))


def test_a_dead_rank_ends_the_whole_run_with_its_name(tmp_path: Path) -> None:
    config = rank_config("ppo", tmp_path / "run", total_timesteps=10**7, eval_interval=None, checkpoint_interval=192)
    run = _started(config, tmp_path)
    run_dir = _wait_for_checkpoints(tmp_path / "run", 3)
    started = _ranks_of(run.pid)
    os.kill(_youngest(started), signal.SIGKILL)
    begun = time.monotonic()
    _, error = run.communicate(timeout=60)
    assert time.monotonic() - begun < 10
    assert run.returncode == 1
    (sentence,) = [line for line in error.splitlines() if "error" in line]
    assert "rank 1 was killed by SIGKILL" in sentence
    assert "the last checkpoint is kept" in sentence
    assert "Traceback" not in error
    assert read_metadata(run_dir)["status"] == "failed"
    assert not _ranks_of(run.pid)


def test_no_rank_outlives_a_killed_run(tmp_path: Path) -> None:
    for number in range(3):
        config = rank_config("sac", tmp_path / str(number), total_timesteps=10**7, eval_interval=None)
        run = _started(config, tmp_path / f"config-{number}")
        _wait_for_checkpoints(tmp_path / str(number), number)
        started = _ranks_of(run.pid)
        run.kill()
        run.communicate()
        deadline = time.monotonic() + 20
        while any(_group_of(pid) != -1 and _is_running(pid) for pid in started):
            assert time.monotonic() < deadline
            time.sleep(0.02)


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("raise", "rank 1: "),
        ("nan", "rank 1: "),
        ("huge", "became NaN or infinite at step"),  # on both ranks, since the mean gradient is infinite
    ],
)
def test_what_fails_on_one_rank_stops_all_with_the_reason(tmp_path: Path, fault: str, sentence: str) -> None:
    (tmp_path / "faulty.py").write_text(FAULTY)
    config = tiny_config(
        tmp_path / "run",
        env_id=f"{tmp_path}/faulty.py:Faulty",
        env_kwargs={"fault": fault},
        devices=2,
        num_envs=4,
        total_timesteps=10**6,
        eval_episodes=0,
        eval_interval=None,
    )
    run = _started(config, tmp_path)
    _, error = run.communicate(timeout=120)
    assert run.returncode == 1
    assert sentence in error
    assert "the motor is broken" in error or "the last good checkpoint is kept" in error
    run_dir = newest_run(tmp_path / "run")
    assert run_dir is not None
    assert read_metadata(run_dir)["status"] == "failed"
    assert not _ranks_of(run.pid)


@pytest.mark.parametrize("algo", ["ppo", "sac"])
def test_a_run_of_two_ranks_survives_kills(tmp_path: Path, algo: str) -> None:
    settings: dict[str, Any] = {"total_timesteps": 1152, "log_interval": 48, "checkpoint_interval": 48}
    config = rank_config(algo, tmp_path / "killed", **settings)
    whole = train(dataclasses.replace(config, output_dir=tmp_path / "whole"))
    killed = assert_survives_kills(Launcher(tmp_path / "output"), config, whole.run_dir, kills=5, seed=1)
    assert killed.kills >= 3


def test_torchrun_trains_what_devices_trains(tmp_path: Path) -> None:
    here = train(rank_config("ppo", tmp_path / "here"))
    config = rank_config("ppo", tmp_path / "there", devices=None)
    arguments = train_arguments(config, tmp_path)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*torchrun, "-m", "rl_training.cli", *arguments], env=process_environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("run_dir=") == 1
    there = newest_run(tmp_path / "there")
    assert there is not None
    assert_same_run(here.run_dir, there)
    assert weights(there)


def test_torchrun_with_another_number_of_ranks_than_the_checkpoint_is_refused(tmp_path: Path) -> None:
    whole = train(rank_config("ppo", tmp_path / "run"))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
    resumed = subprocess.run(
        [*torchrun, "-m", "rl_training.cli", "resume", "--checkpoint", str(whole.run_dir)],
        env=process_environment(),
        capture_output=True,
        text=True,
    )
    assert "WORLD_SIZE: the checkpoint is that of 2 ranks, and 3 were started" in resumed.stderr
    assert resumed.stderr.count("axiomrl: error") == 1

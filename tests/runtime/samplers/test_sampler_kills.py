"""Real processes killed at random moments: the run or its samplers, with either lag."""

from __future__ import annotations

import dataclasses
import os
import random
import signal
import time
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from harness import assert_same_run, tiny_config
from processes import Launcher, assert_survives_kills, train_arguments, uninterrupted
from rl_training.runtime.samplers.pool import SamplerPool
from rl_training.runtime.workflows import train

pytestmark = pytest.mark.slow

KILLS_OF_SAMPLERS = 200


def _descendants(pid: int) -> set[int]:
    """Return the processes that a process has started, and those that they have."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if fields[0] != "Z":
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, waiting = set(), [pid]
    while waiting:
        for child in children.get(waiting.pop(), []):
            found.add(child)
            waiting.append(child)
    return found


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("lag", [0, 1])
def test_a_run_with_samplers_survives_ten_kills(tmp_path: Path, lag: int) -> None:
    config = tiny_config(
        tmp_path / "killed",
        samplers=2,
        policy_lag=lag,
        total_timesteps=6400,
        checkpoint_interval=160,
        log_interval=160,
        eval_interval=1600,
        env_kwargs={"normalize_observation": True},
    )
    reference = uninterrupted(dataclasses.replace(config, output_dir=tmp_path / "whole"))
    killed = assert_survives_kills(Launcher(tmp_path / "output"), config, reference, kills=10, seed=lag)
    assert killed.kills == 10


def test_no_sampler_outlives_a_killed_run(tmp_path: Path) -> None:
    moments, launcher = random.Random(3), Launcher(tmp_path / "output")
    for number in range(10):
        config = tiny_config(tmp_path / str(number), samplers=2, policy_lag=1, num_envs=2, total_timesteps=10**7)
        child = launcher.start(train_arguments(config, tmp_path / f"config-{number}"))
        started: set[int] = set()
        deadline = time.monotonic() + 300
        while len(started) < 4:  # the server, the tracker of its resources, and the samplers
            assert time.monotonic() < deadline, child.output.read_text()
            started |= _descendants(child.pid)
            time.sleep(0.01)
        time.sleep(moments.uniform(0.0, 2.0))
        started |= _descendants(child.pid)
        child.kill()
        while any(map(_alive, started)):
            assert time.monotonic() < deadline, [pid for pid in started if _alive(pid)]
            time.sleep(0.01)


def test_two_hundred_killed_samplers_are_replaced_and_change_no_bit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    settings: dict[str, Any] = {
        "samplers": 2,
        "policy_lag": 1,
        "total_timesteps": 32 * (KILLS_OF_SAMPLERS + 1),
        "checkpoint_interval": 3200,
        "eval_episodes": 0,
        "eval_interval": None,
    }
    whole = train(tiny_config(tmp_path / "whole", **settings))
    moments, begin = random.Random(5), SamplerPool.begin
    killed: list[int] = []

    def struck(pool: SamplerPool, *arguments: Any) -> None:
        begin(pool, *arguments)
        time.sleep(moments.uniform(0.0, 0.02))  # a rollout takes about as long
        alive = [worker.process.pid or 0 for worker in pool._workers if worker.process.pid not in killed]
        if len(killed) < KILLS_OF_SAMPLERS and alive:
            killed.append(moments.choice(alive))
            os.kill(killed[-1], signal.SIGKILL)

    with mock.patch.object(SamplerPool, "begin", struck):
        result = train(tiny_config(tmp_path / "struck", **settings))
    assert len(killed) == KILLS_OF_SAMPLERS
    # The last may have been killed when it had done its work.
    assert caplog.text.count("another one takes its place") >= KILLS_OF_SAMPLERS - 1
    assert "Traceback" not in capfd.readouterr().err
    assert_same_run(whole.run_dir, result.run_dir)
    assert not [pid for pid in _descendants(os.getpid()) if _is_sampler(pid)]


def _is_sampler(pid: int) -> bool:
    """Return whether a process is a worker, which the server of processes has started."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        parent = Path(f"/proc/{stat[1]}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return b"forkserver" in parent

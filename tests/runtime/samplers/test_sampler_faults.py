"""Samplers that die, hang or fail: named, replaced once, or the run stops with a checkpoint; none is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from harness import assert_same_run, only_run, tiny_config
from paths import HELPERS, ROOT
from rl_training.errors import EnvironmentFailure
from rl_training.experiment.runs import read_metadata
from rl_training.runtime.samplers.pool import SamplerPool
from rl_training.runtime.workflows import resume, train

SAMPLED: dict[str, Any] = {"samplers": 2, "policy_lag": 1, "env_kwargs": {"normalize_reward": True}}


def _struck(number: int, strike: Callable[[SamplerPool], None]) -> Any:
    """Do something to the samplers when they have begun the given rollout."""
    original, count = SamplerPool.begin, 0

    def counting(pool: SamplerPool, *arguments: Any) -> None:
        nonlocal count
        original(pool, *arguments)
        count += 1
        if count == number:
            strike(pool)

    return mock.patch.object(SamplerPool, "begin", counting)


def _signal_sampler(pool: SamplerPool, number: int, signum: int) -> None:
    os.kill(pool._workers[number].process.pid or 0, signum)


def test_a_killed_sampler_is_named_and_replaced_and_changes_no_bit(tmp_path: Path) -> None:
    whole = train(tiny_config(tmp_path / "whole", **SAMPLED))
    with _struck(3, lambda pool: _signal_sampler(pool, 1, signal.SIGKILL)):
        struck = train(tiny_config(tmp_path / "struck", **SAMPLED))
    assert_same_run(whole.run_dir, struck.run_dir)
    (notice,) = read_metadata(struck.run_dir)["notices"]
    assert "sampler 1 (environment 1; the last it entered was 1) was killed by SIGKILL" in str(notice)
    assert "another one takes its place" in str(notice)


def test_a_sampler_that_hangs_is_replaced(tmp_path: Path) -> None:
    def strike(pool: SamplerPool) -> None:
        _signal_sampler(pool, 0, signal.SIGSTOP)
        pool._timeout = 1.0

    with _struck(2, strike):
        result = train(tiny_config(tmp_path, samplers=1, total_timesteps=128, eval_episodes=0))
    assert result.status == "completed"
    assert "made no progress for 1 seconds" in str(read_metadata(result.run_dir)["notices"])


def test_a_sampler_lost_twice_in_a_rollout_stops_the_run_with_a_checkpoint(tmp_path: Path) -> None:
    whole = train(tiny_config(tmp_path / "whole", **SAMPLED))

    def strike(pool: SamplerPool) -> None:
        _signal_sampler(pool, 0, signal.SIGKILL)
        start = pool._start

        def killed(number: int) -> Any:
            worker = start(number)
            worker.process.kill()
            return worker

        pool._start = killed  # type: ignore[method-assign]

    config = tiny_config(tmp_path / "lost", **SAMPLED)
    with _struck(3, strike), pytest.raises(EnvironmentFailure, match=r"sampler 0 .* was killed by SIGKILL"):
        train(config)
    run_dir = only_run(tmp_path / "lost")
    assert read_metadata(run_dir)["status"] == "failed"
    resumed = resume(run_dir)
    assert resumed.resume_mode == "exact"
    assert_same_run(whole.run_dir, resumed.run_dir)


def test_an_environment_that_raises_in_a_sampler_is_named_with_the_step_of_the_run(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailure, match=r"at step \d+ of the run, environment [01] \(seed \d+\)") as raised:
        train(tiny_config(tmp_path, env_id="env_samples:Sample/Trouble-v0", samplers=2, eval_episodes=0))
    assert "the floor gave way" in str(raised.value)


STUCK = """
import ctypes, sys, time
from rl_training.envs.workers.processes import fresh_processes
from rl_training.envs.workers.serving import end_with_parent

def stuck(connection):
    end_with_parent()
    connection.send(None)
    ctypes.PyDLL(None).sleep(1000)  # native code that never lets another thread of this process run

if __name__ == "__main__":
    context = fresh_processes()
    ours, theirs = context.Pipe()
    process = context.Process(target=stuck, args=(theirs,))
    process.start()
    ours.recv()
    time.sleep(0.2)
    print(process.pid, flush=True)
    sys.stdin.read()
"""


def test_a_process_stuck_in_native_code_ends_with_its_killed_parent(tmp_path: Path) -> None:
    script = tmp_path / "stuck.py"
    script.write_text(STUCK)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(HELPERS)])}
    parent = subprocess.Popen(
        [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert _alive(pid)
    parent.kill()
    parent.communicate()
    deadline = time.monotonic() + 300
    while _alive(pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False

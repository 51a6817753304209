"""Workers that raise, die or hang: the cause is shown, nothing waits forever, nothing is left behind."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from paths import HELPERS, ROOT
from rl_training.envs.make import make_vector_env
from rl_training.envs.workers.async_vector import AsyncVectorEnv
from rl_training.errors import ConfigError, EnvironmentFailure

NUM_ENVS = 4
SEEDS = [100, 101, 102, 103]
SOURCE = ROOT / "src"
HANG_SECONDS: float = importlib.import_module("env_samples").HANG_SECONDS
PATIENCE = 300.0
"""Seconds that no healthy worker needs on the busiest machine."""


def _make(**env_kwargs: Any) -> AsyncVectorEnv:
    env_kwargs = {"num_workers": 2, "worker_timeout": PATIENCE, **env_kwargs}
    env = make_vector_env(
        "env_samples:Sample/Trouble-v0",
        env_kwargs,
        mode="training",
        num_envs=NUM_ENVS,
        backend="local_async",
    )
    assert isinstance(env, AsyncVectorEnv)
    return env


def _pids(env: AsyncVectorEnv) -> list[int]:
    return [worker.process.pid or 0 for worker in env._workers]


def _alive(pid: int) -> bool:
    try:
        # A process that nobody has waited for yet is dead all the same.
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _gone(pids: list[int], seconds: float = PATIENCE) -> bool:
    return _eventually(lambda: not any(_alive(pid) for pid in pids), seconds)


def _eventually(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _trouble_in(index: int) -> np.ndarray:
    return np.where(np.arange(NUM_ENVS) == index, 2, 0)


@pytest.mark.parametrize(
    ("kind", "timeout", "words"),
    [
        ("raise", PATIENCE, ["RuntimeError: the floor gave way", "env_samples.py", "_trouble"]),
        ("exit", PATIENCE, ["exited with status 7"]),
        ("kill", PATIENCE, ["SIGKILL", "memory"]),
        ("hang", 2.0, ["did not answer within 2 seconds", "worker_timeout"]),
    ],
)
def test_failure_in_a_step_names_cause_environment_and_seed(kind: str, timeout: float, words: list[str]) -> None:
    env = _make(kind=kind)
    pids = _pids(env)
    env.reset(SEEDS)
    env.step(np.zeros(NUM_ENVS, dtype=np.int64))
    env._timeout = timeout  # the steps above may take their time
    begin = time.monotonic()
    with pytest.raises(EnvironmentFailure) as failure:
        env.step(_trouble_in(3))
    for word in ["environment 3 (seed 103)", *words]:
        assert word in str(failure.value)
    env.close()
    env.close()
    assert time.monotonic() - begin < (HANG_SECONDS if kind == "hang" else timeout)
    assert _gone(pids)
    with pytest.raises(EnvironmentFailure, match="closed"):
        env.step(np.zeros(NUM_ENVS, dtype=np.int64))


@pytest.mark.parametrize(("kind", "word"), [("raise", "the floor gave way"), ("exit", "exited with status 7")])
def test_failure_in_a_reset_names_cause_environment_and_seed(kind: str, word: str) -> None:
    env = _make(kind=kind, when="reset")
    with pytest.raises(EnvironmentFailure, match=word) as failure:
        env.reset(SEEDS)
    assert "environment 0 (seed 100)" in str(failure.value)
    env.close()


def test_failure_after_a_restore_still_names_the_seed() -> None:
    first = _make()
    first.reset(SEEDS)
    state = first.state_dict()
    first.close()
    assert state is not None
    second = _make(kind="kill")
    second.load_state_dict(state)
    with pytest.raises(EnvironmentFailure, match=r"environment 1 \(seed 101\)"):
        second.step(_trouble_in(1))


def test_failure_in_one_process_is_told_the_same_way() -> None:
    env = make_vector_env("env_samples:Sample/Trouble-v0", {}, mode="training", num_envs=NUM_ENVS, backend="local_sync")
    env.reset(SEEDS)
    with pytest.raises(EnvironmentFailure) as failure:
        env.step(_trouble_in(2))
    for word in ["environment 2 (seed 102)", "RuntimeError: the floor gave way", "env_samples.py"]:
        assert word in str(failure.value)


def test_environment_that_dies_when_made_in_a_worker_stops_the_run() -> None:
    env = None
    with pytest.raises(EnvironmentFailure, match=r"exited with status 3.*__main__"):
        env = AsyncVectorEnv(_DiesInWorkers(os.getpid()), 2, num_workers=2)
    assert env is None


class _DiesInWorkers:
    def __init__(self, parent: int) -> None:
        self.parent = parent

    def __call__(self) -> gym.Env[Any, Any]:
        if os.getpid() != self.parent:
            os._exit(3)
        return gym.make("CartPole-v1")


def test_environment_that_cannot_be_sent_to_a_worker_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="local_sync"):
        AsyncVectorEnv(lambda: gym.make("CartPole-v1"), 2, num_workers=1)


def test_closing_in_the_middle_of_a_hang_does_not_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_training.envs.workers.async_vector.CLOSE_SECONDS", 0.5)
    env = _make(kind="hang")
    pids = _pids(env)
    env.reset(SEEDS)
    env._actions[:] = 2
    for worker in env._workers:
        assert worker.send("step")
    begin = time.monotonic()
    env.close()
    assert time.monotonic() - begin < HANG_SECONDS
    assert _gone(pids)


def test_workers_leave_signals_to_the_run() -> None:
    env = _make()
    env.reset(SEEDS)
    for pid in _pids(env):
        os.kill(pid, signal.SIGINT)
        os.kill(pid, signal.SIGTERM)
    env.step(np.zeros(NUM_ENVS, dtype=np.int64))
    env.close()


def test_forgotten_environments_stop_their_workers() -> None:
    env = _make()
    pids = _pids(env)
    del env
    assert _gone(pids)


SCRIPT = """
import sys
import numpy as np
from rl_training.envs.make import make_vector_env

if __name__ == "__main__":
    env = make_vector_env(
        "env_samples:Sample/Trouble-v0",
        {"kind": "hang", "num_workers": 2},
        mode="training",
        num_envs=4,
        backend="local_async",
    )
    env.reset([1, 2, 3, 4])
    print(*(worker.process.pid for worker in env._workers), flush=True)
    if "hang" in sys.argv:
        env.step(np.full(4, 2))
"""


def _start(tmp_path: Path, *arguments: str) -> subprocess.Popen[str]:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    return subprocess.Popen(
        [sys.executable, "-W", "error", str(script), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,  # a module below the working directory would not count as installed
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(SOURCE), str(HELPERS)])},
    )


def test_a_script_that_never_closes_ends_without_hanging_or_leaking(tmp_path: Path) -> None:
    shared_memory = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    with _start(tmp_path) as process:
        try:
            out, err = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
    assert process.returncode == 0, err
    assert "leak" not in err
    assert "Traceback" not in err
    assert _gone([int(pid) for pid in out.split()])
    if os.path.isdir("/dev/shm"):
        assert not {name for name in set(os.listdir("/dev/shm")) - shared_memory if "pym" in name}


def test_workers_start_without_torch() -> None:
    program = "import sys, rl_training.envs.workers.async_worker, rl_training.envs.make; print('torch' in sys.modules)"
    answer = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )
    assert answer.stdout.strip() == "False"


def test_workers_vanish_when_the_run_is_killed_even_in_an_endless_step(tmp_path: Path) -> None:
    with _start(tmp_path, "hang") as process:
        assert process.stdout is not None
        pids = [int(pid) for pid in process.stdout.readline().split()]
        assert pids
        time.sleep(0.2)
        process.kill()
    assert _gone(pids)

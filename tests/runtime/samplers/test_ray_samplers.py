"""Samplers on a Ray cluster of two nodes: the bits of processes on this machine, whatever is lost on the way.

The nodes are processes of this machine; the head has no room for samplers.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from harness import assert_same_run, only_run, tiny_config
from planning_runs import planning_config
from processes import Launcher, assert_survives_kills, command, process_environment, train_arguments, uninterrupted
from replays import assert_same_run_and_replay, off_policy_config
from rl_training.errors import ConfigError, EnvironmentFailure
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.runs import read_metadata
from rl_training.install_hint import install_hint
from rl_training.runtime.samplers.pool import SamplerPool
from rl_training.runtime.workflows import resume, train
from sweep_runs import only_summary, run_dirs, sweep_config

cluster_utils = pytest.importorskip("ray.cluster_utils", reason=f"Ray is not installed: {install_hint('ray')}")
pytestmark = pytest.mark.slow

NORMALIZED = {"normalize_observation": True, "normalize_reward": True}


def _nodes(directory: Path) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in process_environment(TMPDIR=str(directory), RAY_TMPDIR="/tmp").items():
            patch.setenv(name, value)
        cluster = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
        for _ in range(2):
            cluster.add_node(num_cpus=2)
        yield cluster
        cluster.shutdown()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Two nodes with room for two samplers each."""
    yield from _nodes(tmp_path_factory.mktemp("nodes"))


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[Any]:
    """The same for a test that removes a node."""
    yield from _nodes(tmp_path)


def _on(cluster: Any, output_dir: Path, **changes: Any) -> TrainConfig:
    settings = {"samplers": 2, "num_envs": 4, **changes}
    return tiny_config(output_dir, sampler_backend="ray", ray_address=cluster.address, **settings)


def _train(config: TrainConfig) -> Path:
    result = train(config)
    assert result.status == "completed"
    return result.run_dir


def _struck(number: int, strike: Callable[[SamplerPool], None]) -> Any:
    """Do something when samplers have begun the given rollout."""
    original, count = SamplerPool.begin, 0

    def counting(pool: SamplerPool, *arguments: Any) -> None:
        nonlocal count
        original(pool, *arguments)
        count += 1
        if count == number:
            strike(pool)

    return mock.patch.object(SamplerPool, "begin", counting)


def _processes() -> dict[int, tuple[int, str]]:
    """Return all living processes with their parents and command lines."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if fields[0] != "Z":
                found[int(entry.name)] = int(fields[1]), line
    return found


def _samplers() -> list[int]:
    """Return the processes of the samplers, which Ray names by their class."""
    return [pid for pid, (_, line) in _processes().items() if line.startswith("ray::RaySampler")]


def _descendants(pid: int) -> set[int]:
    parents = {child: parent for child, (parent, _) in _processes().items()}
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def _wait_until(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


@pytest.mark.parametrize("lag", [0, 1])
def test_any_number_of_samplers_on_two_nodes_gives_the_bits_of_processes(
    cluster: Any, tmp_path: Path, lag: int
) -> None:
    settings: dict[str, Any] = {"policy_lag": lag, "num_envs": 4, "env_kwargs": NORMALIZED}
    nodes: list[set[str]] = []
    reference = _train(tiny_config(tmp_path / "process-1", samplers=1, **settings))
    for samplers in (2, 4):
        assert_same_run(_train(tiny_config(tmp_path / f"process-{samplers}", samplers=samplers, **settings)), reference)
    for samplers in (1, 2, 4):
        with _struck(2, lambda pool: nodes.append({worker._node for worker in pool._workers})):
            there = _train(_on(cluster, tmp_path / f"ray-{samplers}", samplers=samplers, **settings))
        assert_same_run(there, reference)
    assert [len(places) for places in nodes] == [1, 2, 2]
    _wait_until(lambda: not _samplers())


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize(
    ("make", "task"),
    [(off_policy_config, "dqn_lstm"), (off_policy_config, "td3"), (planning_config, "efficientzero")],
    ids=["dqn", "td3", "planning"],
)
def test_samplers_of_replays_and_searches_on_two_nodes_give_the_bits_of_processes(
    cluster: Any, tmp_path: Path, make: Callable[..., TrainConfig], task: str, lag: int
) -> None:
    settings: dict[str, Any] = {"samplers": 2, "num_envs": 3, "total_timesteps": 120, "policy_lag": lag}
    here = _train(make(task, tmp_path / "here", **settings))
    cluster_keys = {"sampler_backend": "ray", "ray_address": cluster.address}
    assert_same_run_and_replay(_train(make(task, tmp_path / "there", **settings, **cluster_keys)), here)


def test_a_killed_actor_is_named_and_replaced_and_changes_no_bit(cluster: Any, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"policy_lag": 1, "env_kwargs": NORMALIZED}
    whole = _train(tiny_config(tmp_path / "whole", samplers=2, num_envs=4, **settings))
    with _struck(3, lambda pool: os.kill(_samplers()[0], signal.SIGKILL)):
        struck = _train(_on(cluster, tmp_path / "struck", **settings))
    assert_same_run(struck, whole)
    (notice,) = read_metadata(struck)["notices"]
    assert "sampler " in str(notice)
    assert "died on node " in str(notice)
    assert "another one takes its place from the start of the rollout" in str(notice)


def test_an_actor_that_hangs_is_ended_and_replaced(cluster: Any, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"env_kwargs": {"worker_timeout": 4.0}}
    whole = _train(tiny_config(tmp_path / "whole", samplers=2, num_envs=4, **settings))
    stopped: list[int] = []

    def strike(pool: SamplerPool) -> None:
        stopped.extend(_samplers()[:1])
        os.kill(stopped[0], signal.SIGSTOP)

    with _struck(3, strike):
        struck = _train(_on(cluster, tmp_path / "struck", **settings))
    assert_same_run(struck, whole)
    assert "made no progress for 4 seconds and was ended" in str(read_metadata(struck)["notices"])
    _wait_until(lambda: stopped[0] not in _processes())


def test_a_node_that_is_removed_takes_its_sampler_along_and_changes_no_bit(own_cluster: Any, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"policy_lag": 1, "env_kwargs": NORMALIZED}
    whole = _train(tiny_config(tmp_path / "whole", samplers=2, num_envs=4, **settings))

    def strike(pool: SamplerPool) -> None:
        (node,) = [node for node in own_cluster.worker_nodes if node.node_id == pool._workers[1]._node]
        own_cluster.remove_node(node, allow_graceful=False)

    with _struck(3, strike):
        struck = _train(_on(own_cluster, tmp_path / "struck", **settings))
    assert_same_run(struck, whole)
    notices = str(read_metadata(struck)["notices"])
    assert re.search("sampler 1 .* (was lost with|can no longer be reached on) node ", notices)


def test_an_actor_lost_twice_in_a_rollout_stops_the_run_with_a_checkpoint(cluster: Any, tmp_path: Path) -> None:
    import ray

    settings: dict[str, Any] = {"policy_lag": 1, "env_kwargs": NORMALIZED}
    whole = _train(tiny_config(tmp_path / "whole", samplers=2, num_envs=4, **settings))

    def strike(pool: SamplerPool) -> None:
        start = pool._start

        def doomed(number: int) -> Any:
            worker = start(number)
            send = worker.send

            def struck(command: str, argument: Any = None) -> None:
                send(command, argument)
                if command == "collect":
                    ray.kill(worker._actor)

            worker.send = struck
            return worker

        pool._start = doomed  # type: ignore[method-assign]
        ray.kill(pool._workers[0]._actor)

    sentence = r"sampler 0 .* died on node .*, as did the one before it in the same rollout"
    with _struck(3, strike), pytest.raises(EnvironmentFailure, match=sentence):
        train(_on(cluster, tmp_path / "lost", **settings))
    run_dir = only_run(tmp_path / "lost")
    assert read_metadata(run_dir)["status"] == "failed"
    resumed = resume(run_dir)
    assert resumed.resume_mode == "exact"
    assert_same_run(resumed.run_dir, whole)


def test_a_replacement_that_ends_before_it_is_ready_is_placed_again(cluster: Any, tmp_path: Path) -> None:
    import ray

    whole = _train(tiny_config(tmp_path / "whole", samplers=2, num_envs=4))

    def strike(pool: SamplerPool) -> None:
        start = pool._start

        def unlucky(number: int) -> Any:
            worker = start(number)
            ray.kill(worker._actor)
            return worker

        pool._start = unlucky  # type: ignore[method-assign]
        ray.kill(pool._workers[1]._actor)

    with _struck(3, strike):
        struck = _train(_on(cluster, tmp_path / "struck"))
    assert_same_run(struck, whole)
    assert len(read_metadata(struck)["notices"]) == 1


def test_a_stopped_run_saves_at_once_although_ray_has_a_handler_of_its_own(cluster: Any, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"policy_lag": 1, "env_kwargs": NORMALIZED}
    whole = _train(tiny_config(tmp_path / "whole", samplers=2, num_envs=4, **settings))
    with _struck(4, lambda pool: signal.raise_signal(signal.SIGTERM)):
        stopped = train(_on(cluster, tmp_path / "stopped", **settings))
    assert stopped.status == "interrupted"
    resumed = resume(stopped.run_dir)
    assert resumed.status == "completed"
    assert_same_run(resumed.run_dir, whole)


@pytest.mark.parametrize("lag", [0, 1])
def test_a_run_with_samplers_on_a_cluster_survives_ten_kills(cluster: Any, tmp_path: Path, lag: int) -> None:
    settings: dict[str, Any] = {
        "samplers": 2,
        "policy_lag": lag,
        "num_envs": 4,
        "total_timesteps": 6400,
        "checkpoint_interval": 160,
        "log_interval": 160,
        "eval_interval": 1600,
        "env_kwargs": {"normalize_observation": True},
    }
    reference = uninterrupted(tiny_config(tmp_path / "whole", **settings))
    config = _on(cluster, tmp_path / "killed", **settings)
    killed = assert_survives_kills(Launcher(tmp_path / "output"), config, reference, kills=10, seed=lag)
    assert killed.kills == 10
    _wait_until(lambda: not _samplers())


def test_nothing_outlives_a_killed_run_that_has_started_ray_itself(tmp_path: Path) -> None:
    config = tiny_config(tmp_path, samplers=2, policy_lag=1, sampler_backend="ray", total_timesteps=10**7)
    output = tmp_path / "output.txt"
    with output.open("w") as file:
        child = subprocess.Popen(
            command(*train_arguments(config, tmp_path / "config")),
            stdout=file,
            stderr=file,
            env=process_environment(RAY_TMPDIR="/tmp", RAY_ADDRESS=""),
        )
    _wait_until(lambda: child.poll() is not None or any(tmp_path.glob("*/checkpoints/step_*")))
    assert child.poll() is None, output.read_text()
    started = _descendants(child.pid)
    assert len([pid for pid in _samplers() if pid in started]) == 2
    child.kill()
    child.wait()
    _wait_until(lambda: not started & set(_samplers()), 30)
    _wait_until(lambda: not started & _processes().keys())  # agents of Ray try for a minute to tell of the end


OWN_ENVIRONMENT = """
import gymnasium
import numpy as np

class Drift(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-10.0, 10.0, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = self.np_random.normal(size=3).astype(np.float32)
        return self.place.copy(), {}

    def step(self, action):
        self.place = self.place + (action - 0.5) * self.np_random.normal(size=3).astype(np.float32)
        end = bool(abs(self.place[0]) > 3)
        return self.place.copy(), float(-abs(self.place[0])), end, False, {}
"""
OWN_ENCODER = """
import torch

class Wide(torch.nn.Module):
    def __init__(self, observation_space, width=5):
        super().__init__()
        self.width = width
        self.layer = torch.nn.Linear(observation_space.shape[0], width)

    def forward(self, observation):
        return torch.tanh(self.layer(observation))
"""


def test_code_of_ones_own_reaches_the_actors(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_drift.py").write_text(OWN_ENVIRONMENT)
    (tmp_path / "own_wide.py").write_text(OWN_ENCODER)
    monkeypatch.chdir(tmp_path)
    settings: dict[str, Any] = {
        "env_id": "own_drift.py:Drift",
        "algo_kwargs": {"encoder": "own_wide.py:Wide", "encoder_kwargs": {"width": 6}},
        "env_kwargs": {"max_episode_steps": 20},
    }
    here = _train(tiny_config(tmp_path / "here", samplers=2, num_envs=4, **settings))
    assert_same_run(_train(_on(cluster, tmp_path / "there", **settings)), here)


def test_seeds_on_a_cluster_have_their_samplers_there(cluster: Any, tmp_path: Path) -> None:
    here = train(sweep_config(tmp_path / "here", 11, 13, samplers=1))
    config = sweep_config(tmp_path / "there", 11, 13, samplers=1, sampler_backend="ray")
    subprocess.run(
        command(*train_arguments(config, tmp_path), "--executor", "ray", "--ray-address", cluster.address),
        check=True,
        timeout=300,
        env=process_environment(),
    )
    assert here.benchmark_summary_path is not None
    ours, theirs = (run_dirs(path) for path in (only_summary(tmp_path / "there"), here.benchmark_summary_path))
    for seed in (11, 13):
        assert_same_run(ours[seed], theirs[seed])


def test_an_environment_that_raises_in_an_actor_is_named_with_the_step_of_the_run(cluster: Any, tmp_path: Path) -> None:
    config = _on(cluster, tmp_path, env_id="env_samples:Sample/Trouble-v0", eval_episodes=0)
    with pytest.raises(EnvironmentFailure, match=r"at step \d+ of the run, environment \d \(seed \d+\)") as raised:
        train(config)
    assert "the floor gave way" in str(raised.value)
    assert read_metadata(only_run(tmp_path))["status"] == "failed"


def test_a_cluster_that_is_too_small_is_refused(cluster: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="samplers: 5 samplers need a CPU each, and the Ray cluster has 4; add nodes"):
        train(_on(cluster, tmp_path, samplers=5, num_envs=5))
    assert not list(tmp_path.iterdir())


def test_a_dead_address_ends_the_command_within_seconds(tmp_path: Path) -> None:
    config = tiny_config(tmp_path / "runs", samplers=2, sampler_backend="ray")
    started = time.monotonic()
    done = subprocess.run(
        command(*train_arguments(config, tmp_path), "--ray-address", "127.0.0.1:1"),
        capture_output=True,
        text=True,
        check=False,
        env=process_environment(),
    )
    assert done.returncode == 2
    assert "ray_address: no Ray cluster answers at 127.0.0.1:1" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert time.monotonic() - started < 30
    assert not (tmp_path / "runs").exists()

"""Sweeps on a Ray cluster: the same bits as serial ones, also when a node is lost on the way.

The cluster's nodes are processes of this machine. A worker trains in a temporary directory of its own and never sees
the output directory.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from processes import command, process_environment, train_arguments
from rl_training.errors import ConfigError
from rl_training.experiment.checkpoints import list_checkpoints
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.runs import read_metadata
from rl_training.experiment.tuning.journal import read_trials
from rl_training.install_hint import install_hint
from rl_training.runtime.workflows import train
from sweep_runs import assert_same_sweep, only_summary, read_json, run_dirs, sweep_config

cluster_utils = pytest.importorskip("ray.cluster_utils", reason=f"Ray is not installed: {install_hint('ray')}")
pytestmark = pytest.mark.slow

SEEDS = (11, 13)
LONG = {"total_timesteps": 9600, "checkpoint_interval": 320, "log_interval": 1600}


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A head that trains nothing and two nodes with room for one seed each."""
    environment = process_environment(TMPDIR=str(tmp_path / "nodes"), RAY_TMPDIR="/tmp")
    (tmp_path / "nodes").mkdir()
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    for _ in range(2):
        cluster.add_node(num_cpus=1)
    yield cluster
    cluster.shutdown()


class Sweep:
    """A sweep on the cluster, as a command of its own."""

    def __init__(self, config: TrainConfig, directory: Path, cluster: Any, *more: str) -> None:
        self.output_dir = config.output_dir
        address = ["--executor", "ray", "--ray-address", cluster.address]
        self._stderr = directory / "stderr.txt"
        with self._stderr.open("w") as stderr:
            self.process = subprocess.Popen(
                command(*train_arguments(config, directory), *address, *more),
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=process_environment(TMPDIR="/tmp"),
            )

    def end(self) -> tuple[int, str]:
        """Wait for the end and return the exit status and what was said."""
        self.process.communicate(timeout=600)
        return self.process.returncode, self._stderr.read_text()

    def wait_for_checkpoints(self, count: int, *seeds: int) -> None:
        wait_until(lambda: all(checkpoints_of(self.output_dir, seed) >= count for seed in seeds))


def wait_until(condition: Callable[[], bool], seconds: float = 300.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


def checkpoints_of(output_dir: Path, seed: int) -> int:
    """Return how many checkpoints of a seed have been brought back."""
    return max((len(list_checkpoints(run)) for run in output_dir.glob(f"*__seed{seed}__*")), default=0)


def leftovers(directory: Path) -> list[str]:
    return [path.name for path in directory.rglob("*") if path.name.endswith((".arriving", ".tmp"))]


def test_a_cluster_of_two_nodes_gives_the_same_bits_as_serial(cluster: Any, tmp_path: Path) -> None:
    straight = train(sweep_config(tmp_path / "straight", *SEEDS, 17))
    output_dir = tmp_path / "runs"
    status, said = Sweep(sweep_config(output_dir, *SEEDS, 17), tmp_path, cluster).end()
    assert status == 0, said
    summary = only_summary(output_dir)
    assert straight.benchmark_summary_path is not None
    assert_same_sweep(summary, straight.benchmark_summary_path)
    for run_dir in run_dirs(summary).values():
        assert run_dir.parent == output_dir
        assert str(output_dir) in (run_dir / "config.yaml").read_text()
        assert "axiomrl-" not in (run_dir / "checkpoints" / "latest" / "manifest.json").read_text()
        assert read_metadata(run_dir)["argv"][:1] == ["train"]
    assert leftovers(tmp_path) == []
    assert list((tmp_path / "nodes").glob("axiomrl-*")) == [], "workers leave nothing behind"
    assert all(line.startswith("seed ") for line in said.splitlines()), said


def test_a_seed_whose_node_is_removed_goes_on_elsewhere_to_the_same_bits(cluster: Any, tmp_path: Path) -> None:
    straight = train(sweep_config(tmp_path / "straight", *SEEDS, **LONG))
    output_dir = tmp_path / "runs"
    sweep = Sweep(sweep_config(output_dir, *SEEDS, **LONG), tmp_path, cluster)
    sweep.wait_for_checkpoints(2, *SEEDS)
    cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
    status, said = sweep.end()
    assert status == 0, said
    assert said.count("its node was lost") == 1, said
    assert "it goes on elsewhere from step" in said
    assert straight.benchmark_summary_path is not None
    assert_same_sweep(only_summary(output_dir), straight.benchmark_summary_path)


def test_an_interrupted_sweep_is_saved_and_continued(cluster: Any, tmp_path: Path) -> None:
    straight = train(sweep_config(tmp_path / "straight", *SEEDS, 17, **LONG))
    output_dir = tmp_path / "runs"
    config = sweep_config(output_dir, *SEEDS, 17, **LONG)
    sweep = Sweep(config, tmp_path, cluster)
    sweep.wait_for_checkpoints(2, *SEEDS)
    os.kill(sweep.process.pid, signal.SIGTERM)
    status, said = sweep.end()
    assert status == 128 + signal.SIGTERM, said
    summary = only_summary(output_dir)
    assert [run["status"] for run in read_json(summary)["runs"]] == ["interrupted", "interrupted", "pending"]
    status, said = Sweep(config, tmp_path, cluster, "--continue", str(summary)).end()
    assert status == 0, said
    assert said.count("going on at step") == 2
    assert straight.benchmark_summary_path is not None
    assert_same_sweep(summary, straight.benchmark_summary_path)


def test_a_seed_that_kills_its_worker_every_time_fails_and_the_others_go_on(cluster: Any, tmp_path: Path) -> None:
    fault = {"fault": "die", "at": 3}
    config = sweep_config(tmp_path / "runs", 1, env_id="run_samples:Run/Faulty-v0", env_kwargs={"training": fault})
    status, said = Sweep(config, tmp_path, cluster).end()
    assert status == 1, said
    (run,) = read_json(only_summary(tmp_path / "runs"))["runs"]
    assert run["status"] == "failed"
    assert run["error"].startswith("its node was lost 3 times without a newer checkpoint")


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nonsense"])
def test_a_cluster_that_is_not_there_is_one_sentence(address: str, tmp_path: Path) -> None:
    config = sweep_config(tmp_path / "runs", 1, benchmark={"executor": "ray", "ray_address": address})
    with pytest.raises(ConfigError, match=f"no Ray cluster answers at {address}; start one with `ray start --head`"):
        train(config)
    assert not (tmp_path / "runs").exists()


def test_a_search_on_a_cluster_that_loses_a_node_has_the_trials_of_one_on_this_machine(
    cluster: Any, tmp_path: Path
) -> None:
    (tmp_path / "space.yaml").write_text("gamma: {choice: [0.9, 0.95, 0.99]}\n")
    words = ["--algo", "ppo", "--env", "CartPole-v1", "--num-envs", "4", "--total-timesteps", "9600"]
    words += ["--set", "algo_kwargs.num_steps=20", "--set", "algo_kwargs.minibatch_size=40", "--eval-episodes", "2"]
    words += ["--set", "checkpoint_interval=320", "--set", "torch_threads=1", "--space", str(tmp_path / "space.yaml")]
    words += [
        "--sampler",
        "grid",
        "--trials",
        "4",
        "--seeds-per-trial",
        "1",
        "--finalists",
        "1",
        "--confirm-seeds",
        "0",
    ]
    found = []
    for name, where in (("here", ["--jobs", "1"]), ("there", ["--executor", "ray", "--ray-address", cluster.address])):
        output = tmp_path / name
        process = subprocess.Popen(
            command("tune", *words, *where, "--output-dir", str(output)),
            stdout=subprocess.DEVNULL,
            env=process_environment(TMPDIR="/tmp"),
        )
        if name == "there":
            wait_until(lambda output=output: any(output.glob("*/runs/*/checkpoints/step_*")))  # type: ignore[misc]
            cluster.remove_node(next(iter(cluster.worker_nodes)))
        assert process.wait(600) == 0
        (study,) = output.iterdir()
        trials = read_trials(study)
        assert {trial.status for trial in trials} == {"completed"}
        found.append(sorted((str(dict(trial.settings)), trial.value) for trial in trials))
    assert found[0] == found[1]

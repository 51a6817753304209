"""How many threads PyTorch gets: chosen by the network and by what the process may use, said and recorded."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from cli_parts import CARTPOLE, Command
from harness import only_run
from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment import machine
from rl_training.experiment.checkpoints import Checkpoint
from rl_training.experiment.config import TrainConfig, validate_config
from rl_training.experiment.runs import read_metadata
from rl_training.runtime.setup.threads import Threads, choose_threads, threads_of
from rl_training.runtime.setup.torch_setup import TorchSetup

LARGE: dict[str, Any] = {"large_images": True, "hidden_sizes": None}
SMALL: dict[str, Any] = {"large_images": False, "hidden_sizes": (64, 64)}


def config(torch_threads: int | None = None) -> TrainConfig:
    required = {"algo": "ppo", "env_id": "CartPole-v1", "seed": 0, "total_timesteps": 1, "output_dir": "runs"}
    return validate_config({**required, "torch_threads": torch_threads})


@pytest.fixture
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Let the machine have eight cores that nothing limits."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    monkeypatch.setattr(machine, "cgroup_cores", list)
    return monkeypatch


def test_a_small_network_gets_one_thread_and_a_large_one_every_core(eight_cores: pytest.MonkeyPatch) -> None:
    assert choose_threads(config(), **SMALL) == Threads(1, "a small network is fastest on one")
    expected = Threads(8, "a large network, and this machine has 8 cores", by_machine=True)
    assert choose_threads(config(), **LARGE) == expected
    assert choose_threads(config(), large_images=False, hidden_sizes=(64, 1024)) == expected


def test_the_affinity_of_the_process_limits_the_threads(eight_cores: pytest.MonkeyPatch) -> None:
    eight_cores.setattr(os, "sched_getaffinity", lambda process: {1, 5, 6})
    chosen = choose_threads(config(), **LARGE)
    assert (chosen.number, chosen.reason) == (
        3,
        "a large network, and the CPU affinity of this process allows 3 of 8 cores",
    )


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs the CPU affinity of Linux")
def test_a_process_that_is_held_on_one_core_gets_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert choose_threads(config(), **LARGE).number == 1
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.parametrize(("quotas", "number", "words"), [([2.5, 6.0], 2, "2.5"), ([0.25], 1, "0.25")])
def test_the_quota_of_a_container_limits_the_threads(
    quotas: list[float], number: int, words: str, eight_cores: pytest.MonkeyPatch
) -> None:
    eight_cores.setattr(machine, "cgroup_cores", lambda: quotas)
    chosen = choose_threads(config(), **LARGE)
    assert (chosen.number, chosen.reason) == (
        number,
        f"a large network, and the CPU quota of this process is {words} of 8 cores",
    )


@pytest.mark.parametrize(
    ("text", "number"), [("3", 3), ("2,4", 2), ("64", 8), ("", 8), ("many", 8), ("0", 8), ("-1", 8)]
)
def test_omp_num_threads_is_an_upper_bound(text: str, number: int, eight_cores: pytest.MonkeyPatch) -> None:
    eight_cores.setenv("OMP_NUM_THREADS", text)
    chosen = choose_threads(config(), **LARGE)
    assert chosen.number == number
    assert ("OMP_NUM_THREADS is" in chosen.reason) == (number < 8)
    assert choose_threads(config(), **SMALL).number == 1


def test_a_number_that_is_set_is_taken_and_more_than_cores_is_said(
    eight_cores: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    eight_cores.setattr(torch, "set_num_threads", lambda number: None)
    eight_cores.setenv("OMP_NUM_THREADS", "1")
    with caplog.at_level(logging.INFO, logger="rl_training"):
        for number in (8, 9):
            chosen = choose_threads(config(number), **SMALL)
            assert chosen == Threads(number, "torch_threads is set")
            TorchSetup(threads=chosen, deterministic=False, device=torch.device("cpu")).apply()
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("INFO", "8 torch threads: torch_threads is set"),
        ("WARNING", "9 torch threads: torch_threads is set; they are slow here, where this machine has 8 cores"),
    ]


def test_an_absurd_number_is_refused_with_that_of_the_machine(eight_cores: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ConfigError, match="torch_threads: 1,000,000 threads are asked for and this machine has 8 cores"
    ):
        choose_threads(config(1_000_000), **SMALL)


def test_a_checkpoint_of_a_larger_machine_keeps_its_number(eight_cores: pytest.MonkeyPatch) -> None:
    kept = threads_of(Checkpoint(Path("run/checkpoints/step_1"), {"torch_threads": 64}))
    assert kept == Threads(64, "as the checkpoint was trained with")
    assert kept.sentence().endswith("; they are slow here, where this machine has 8 cores")
    eight_cores.setattr(os, "cpu_count", lambda: 4096)
    assert threads_of(Checkpoint(Path("step_1"), {"torch_threads": 4096})).number == 4096


@pytest.mark.parametrize("number", [None, "2", 0, 1.5, True, 1_000_000])
def test_a_checkpoint_with_a_number_that_cannot_be_is_refused(number: Any) -> None:
    with pytest.raises(CheckpointError, match=r"step_1/manifest\.json: torch_threads: "):
        threads_of(Checkpoint(Path("step_1"), {"torch_threads": number}))


def test_a_run_says_and_records_its_threads(axiomrl: Command) -> None:
    answer = axiomrl("train", *CARTPOLE, "--total-timesteps", "32", "--eval-episodes", "0")
    assert "1 torch thread: a small network is fastest on one" in answer.err
    hardware = read_metadata(only_run(Path("runs")))["hardware"]
    assert hardware["torch_threads"] == 1
    assert hardware["torch_threads_reason"] == "a small network is fastest on one"


def test_an_absurd_number_leaves_no_run_behind(axiomrl: Command) -> None:
    answer = axiomrl("train", *CARTPOLE, "--set", "torch_threads=1000000")
    assert answer.status == 2
    assert f"this machine has {os.cpu_count()} cores" in answer.err
    assert not Path("runs").exists()

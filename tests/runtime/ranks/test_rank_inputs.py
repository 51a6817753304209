"""Settings and environment variables of several learners that do not fit."""

from __future__ import annotations

import multiprocessing
import socket
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from harness import tiny_config
from rl_training.cli import main
from rl_training.errors import ConfigError, MeetingError
from rl_training.experiment.checkpoints import Checkpoint, ResumePoint
from rl_training.runtime.ranks import launching
from rl_training.runtime.ranks.placement import placed_config, placement
from rl_training.runtime.ranks.share import Share
from rl_training.runtime.setup.threads import Threads
from rl_training.runtime.workflows import train

REPLAY = {"batch_size": 8, "buffer_size": 96, "learning_starts": 16}


@pytest.fixture
def free_port() -> int:
    """Return a port at which nobody listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _place(monkeypatch: pytest.MonkeyPatch, rank: int, count: int, **variables: str) -> None:
    given = {"RANK": str(rank), "WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", **variables}
    for name, value in given.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"devices": 0}, "devices: "),
        (
            {"devices": 2, "num_envs": 3},
            "num_envs: 3 cannot be shared equally by 2 devices; set it to a multiple of 2, such as 4, or change "
            "devices",
        ),
        (
            {"devices": 3, "num_envs": 6},
            "algo_kwargs.minibatch_size: 16 cannot be shared equally by 3 devices; set it to a multiple of 3, such as "
            "18, or change devices",
        ),
        (
            {"devices": 2, "algo": "sac", "env_id": "Pendulum-v1", "algo_kwargs": {**REPLAY, "batch_size": 9}},
            "algo_kwargs.batch_size: 9 cannot be shared equally by 2 devices",
        ),
        ({"devices": 2, "samplers": 2}, "samplers: every device collects in its own share of the environments"),
        ({"devices": 2, "algo": "muzero"}, "devices: muzero learns on one device; leave devices out"),
        ({"devices": 2, "device": "cuda:1"}, "device: cuda:1 is a single device; set it to auto, cpu or cuda"),
        (
            {"devices": 2, "env_id": "pettingzoo:mpe2.simple_spread_v3"},
            "devices: the agents of pettingzoo:mpe2.simple_spread_v3 step together",
        ),
        (
            {"devices": 2, "algo_kwargs": {"recurrent": {"size": 8}}},
            "algo_kwargs.recurrent: sequences cannot be shared equally",
        ),
        (
            {"devices": 2, "algo": "crossq", "env_id": "Pendulum-v1", "algo_kwargs": REPLAY},
            "algo_kwargs.batch_norm: the statistics of a batch are not shared",
        ),
    ],
)
def test_a_setting_that_several_learners_cannot_have_is_refused(
    tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        tiny_config(tmp_path, **changes)
    assert sentence in str(raised.value)


def test_a_mistake_ends_the_command_before_any_process_is_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["train", "--algo", "ppo", "--env", "CartPole-v1", "--devices", "2", "--output-dir", str(tmp_path)]
    assert main(arguments) == 2
    assert "num_envs: 1 cannot be shared equally by 2 devices" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_more_learners_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    cuda = torch.device("cuda")
    assert Share(1, 2, 1).of_device(cuda) == torch.device("cuda", 1)
    assert Share(3, 4, 1).of_device(cuda) == torch.device("cuda", 1)  # on a second machine
    with pytest.raises(ConfigError, match="devices: 3 learners need as many GPUs, and 2 are there; set devices to at"):
        Share(0, 3, 0).of_device(cuda)


def test_learners_share_the_threads_of_a_machine() -> None:
    assert Share(0, 3).of_threads(Threads(8, "large", by_machine=True)).number == 2
    assert Share(0, 3).of_threads(Threads(8, "torch_threads is set")).number == 8


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({"RANK": "2"}, "RANK: 2 is none of 2 ranks"),
        ({"RANK": "one"}, "RANK: must be an integer >= 0, got 'one'"),
        ({"MASTER_ADDR": ""}, "MASTER_ADDR: is missing beside RANK and WORLD_SIZE"),
        ({"MASTER_PORT": "-1"}, "MASTER_PORT: must be an integer >= 0, got '-1'"),
    ],
)
def test_variables_that_place_no_rank_are_refused(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], sentence: str
) -> None:
    _place(monkeypatch, 0, 2, **variables)
    with pytest.raises(ConfigError, match=sentence):
        placement()


def test_a_single_process_of_torchrun_is_an_ordinary_run(monkeypatch: pytest.MonkeyPatch) -> None:
    _place(monkeypatch, 0, 1)
    assert placement() is None


def test_ranks_started_from_outside_decide_how_many_devices_there_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _place(monkeypatch, 1, 2)
    config = tiny_config(tmp_path)
    assert placed_config(config, None).devices == 2
    with pytest.raises(ConfigError, match=r"devices: the configuration has 4, and 2 ranks were started \(WORLD_SIZE\)"):
        placed_config(replace(config, devices=4), None)
    with pytest.raises(ConfigError, match="devices: muzero learns on one device"):
        placed_config(tiny_config(tmp_path, algo="muzero", total_timesteps=5000), None)
    point = ResumePoint(Checkpoint(tmp_path, {}))
    with pytest.raises(ConfigError, match="WORLD_SIZE: the checkpoint is that of 4 ranks, and 2 were started"):
        placed_config(replace(config, devices=4), point)
    with pytest.raises(ConfigError, match="WORLD_SIZE: the checkpoint is that of 1 ranks, and 2 were started"):
        placed_config(config, point)


def test_ranks_started_from_outside_train_no_sweep(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _place(monkeypatch, 0, 2)
    with pytest.raises(ConfigError, match=r"benchmark\.seeds: WORLD_SIZE says that this process is one rank"):
        train(tiny_config(tmp_path, benchmark={"seeds": [1, 2]}))


@pytest.mark.parametrize("address", ["127.0.0.1", "no-such-host.invalid"])
def test_an_address_where_nobody_answers_ends_the_command_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], free_port: int, address: str
) -> None:
    agent = {"TORCHELASTIC_USE_AGENT_STORE": "True"}
    _place(monkeypatch, 1, 2, MASTER_ADDR=address, MASTER_PORT=str(free_port), **agent)
    begun = time.monotonic()
    arguments = ["train", "--algo", "ppo", "--env", "CartPole-v1", "--num-envs", "2", "--output-dir", str(tmp_path)]
    assert main(arguments) == 2
    assert time.monotonic() - begun < 10
    error = capsys.readouterr().err
    assert f"axiomrl: error: MASTER_ADDR: nobody answers at {address}, port {free_port}" in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_an_address_of_another_machine_cannot_be_kept_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        _place(monkeypatch, 0, 2, MASTER_PORT=str(taken.getsockname()[1]))
        with pytest.raises(MeetingError, match="MASTER_ADDR: the ranks cannot meet at "):
            train(tiny_config(tmp_path))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("noticed", [True, False])
def test_rank_0_leaves_if_it_does_not_notice_that_another_has_ended(
    monkeypatch: pytest.MonkeyPatch, noticed: bool
) -> None:
    monkeypatch.setattr(launching, "_SECONDS_TO_NOTICE", 0.01)
    process = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(0,))
    process.start()
    closing, left = threading.Event(), list[int]()
    if noticed:
        closing.set()
    launching._leave_with([process.sentinel], closing, lambda: {1: "was killed"}, left.append)
    assert left == ([] if noticed else [1])
    process.join()
    process.close()

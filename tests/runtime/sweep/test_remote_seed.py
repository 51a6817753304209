"""The sweep's side of a seed that is trained elsewhere: its copy of the run, and what a lost node means."""

from __future__ import annotations

import dataclasses
import io
import logging
import shutil
from pathlib import Path

import pytest

from harness import assert_same_run, tiny_config
from light_runners import LightRunner
from rl_training import DefaultExperimentManager
from rl_training.errors import RunFailure
from rl_training.experiment.checkpoints import CHECKPOINTS
from rl_training.experiment.sweeps import BenchmarkRunRecord
from rl_training.runtime.sweep.executors import SAID, STARTED
from rl_training.runtime.sweep.ray_executor import FRUITLESS_ATTEMPTS, RemoteSeed
from rl_training.runtime.sweep.ray_worker import PACKED, PART
from rl_training.runtime.sweep.run_transfer import PartReader, RunPacker, unpack_run
from rl_training.runtime.sweep.sweep_setup import SeedRunner
from rl_training.runtime.workflows import train


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on some node."""
    return train(tiny_config(tmp_path_factory.mktemp("node"), total_timesteps=96, checkpoint_interval=32)).run_dir


@pytest.fixture
def reports() -> list[BenchmarkRunRecord]:
    return []


@pytest.fixture
def seed(tmp_path: Path, reports: list[BenchmarkRunRecord]) -> RemoteSeed:
    home = tmp_path / "home"
    home.mkdir()
    return RemoteSeed(7, SeedRunner(DefaultExperimentManager(), tiny_config(home)), home, reports.append)


def deliver(seed: RemoteSeed, run_dir: Path) -> None:
    """Send what a worker sends when it starts and when it has saved."""
    seed.receive(STARTED, BenchmarkRunRecord(7, run_dir))
    names = RunPacker(run_dir).pack(lambda part: seed.receive(PART, part))
    seed.receive(PACKED, names)


def test_what_arrives_is_a_run_of_this_place(
    seed: RemoteSeed, reports: list[BenchmarkRunRecord], finished: Path, tmp_path: Path
) -> None:
    seed.next_attempt(bytes)
    assert not seed.in_training
    deliver(seed, finished)
    assert seed.in_training
    copy = tmp_path / "home" / finished.name
    assert_same_run(copy, finished)
    assert (reports[-1].status, reports[-1].run_dir) == ("running", copy)
    elsewhere = BenchmarkRunRecord(7, finished, finished / CHECKPOINTS / "step_96", {"x": 1.0})
    seed.end(elsewhere)
    assert reports[-1] == dataclasses.replace(elsewhere, run_dir=copy, checkpoint_path=copy / CHECKPOINTS / "step_96")


def test_a_name_that_is_taken_here_gets_a_number(
    seed: RemoteSeed, reports: list[BenchmarkRunRecord], finished: Path, tmp_path: Path
) -> None:
    (tmp_path / "home" / finished.name).mkdir()
    seed.next_attempt(bytes)
    deliver(seed, finished)
    assert reports[-1].run_dir == tmp_path / "home" / f"{finished.name}-2"


def test_a_lost_seed_is_sent_on_with_its_last_checkpoint(
    seed: RemoteSeed, finished: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, archive = seed.next_attempt(bytes)
    assert (first.attempt, first.run_name, archive) == (1, None, [])
    deliver(seed, finished)
    assert seed.may_try_again("NodeDiedError")
    assert "seed 7: its node was lost (NodeDiedError); it goes on elsewhere from step 96" in caplog.messages
    second, archive = seed.next_attempt(bytes)
    assert (second.attempt, second.run_name) == (2, finished.name)
    unpack_run(io.BufferedReader(PartReader(iter(archive))), tmp_path / "next", second.file_names)
    assert_same_run(tmp_path / "next", finished)


def test_a_lost_seed_of_which_nothing_sound_arrived_starts_anew(
    seed: RemoteSeed, finished: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seed.next_attempt(bytes)
    assert seed.may_try_again("NodeDiedError")
    assert "it starts anew elsewhere" in caplog.text
    assert seed.next_attempt(bytes)[0].run_name is None
    deliver(seed, finished)
    for checkpoint in (tmp_path / "home" / finished.name / CHECKPOINTS).glob("step_*"):
        (checkpoint / "state.json").write_text("{}")
    assert seed.next_attempt(bytes)[0].run_name is None


def test_half_a_delivery_changes_nothing(seed: RemoteSeed, finished: Path, tmp_path: Path) -> None:
    seed.next_attempt(bytes)
    deliver(seed, finished)
    seed.receive(PART, b"the beginning of an archive whose node died")
    seed.next_attempt(bytes)
    assert_same_run(tmp_path / "home" / finished.name, finished)
    deliver(seed, finished)
    assert_same_run(tmp_path / "home" / finished.name, finished)


def test_losses_count_only_while_no_newer_checkpoint_arrives(
    seed: RemoteSeed, reports: list[BenchmarkRunRecord], finished: Path
) -> None:
    for _ in range(FRUITLESS_ATTEMPTS - 1):
        seed.next_attempt(bytes)
        assert seed.may_try_again("WorkerCrashedError")
    seed.next_attempt(bytes)
    deliver(seed, finished)
    assert seed.may_try_again("WorkerCrashedError"), "it got further this time"
    for chance_left in [True] * (FRUITLESS_ATTEMPTS - 1) + [False]:
        seed.next_attempt(bytes)
        assert seed.may_try_again("WorkerCrashedError") is chance_left
    assert reports[-1].status == "failed"
    assert reports[-1].error == "its node was lost 3 times without a newer checkpoint (WorkerCrashedError)"


def test_a_continued_seed_takes_its_run_along(
    finished: Path, reports: list[BenchmarkRunRecord], tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(finished, tmp_path / finished.name, symlinks=True))
    runner = SeedRunner(DefaultExperimentManager(), tiny_config(tmp_path), resume_from=copy)
    seed = RemoteSeed(7, runner, tmp_path, reports.append)
    assert seed.next_attempt(bytes)[0].run_name == copy.name
    seed.receive(STARTED, BenchmarkRunRecord(7, Path("/elsewhere") / copy.name))
    assert (reports[-1].run_dir, reports[-1].status) == (copy, "running")


def test_what_is_said_elsewhere_is_said_here(seed: RemoteSeed, caplog: pytest.LogCaptureFixture) -> None:
    seed.receive(SAID, (logging.WARNING, "the floor creaks"))
    assert caplog.messages == ["seed 7: the floor creaks"]


def test_a_runner_that_cannot_move_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFailure, match="a LightRunner cannot be sent to a Ray cluster"):
        RemoteSeed(1, LightRunner(1, tmp_path), tmp_path, lambda record: None)

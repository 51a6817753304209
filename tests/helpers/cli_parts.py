"""The command line as tests call it: in an empty directory, with its status and texts."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from harness import only_run
from rl_training.cli import main

SMALL = ["--num-envs", "2", "--total-timesteps", "256", "--eval-episodes", "2", "--set", "log_interval=64"]
SMALL += ["--set", "algo_kwargs.num_steps=16", "--set", "algo_kwargs.minibatch_size=16"]
SMALL += ["--set", "algo_kwargs.hidden_sizes=[8]", "--set", "tracking.tensorboard=false"]
CARTPOLE = ["--algo", "ppo", "--env", "CartPole-v1", *SMALL]
COMPLETE = "algo: ppo\nenv_id: CartPole-v1\nseed: 0\ntotal_timesteps: 100\noutput_dir: runs\n"


class Answer(NamedTuple):
    """What a command left: its exit status and the texts it printed."""

    status: int
    out: str
    err: str

    def values(self) -> dict[str, str]:
        return dict(line.split("=", 1) for line in self.out.splitlines())


Command = Callable[..., Answer]


@pytest.fixture
def axiomrl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run commands in an empty directory."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> Answer:
        capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Answer(status, captured.out, captured.err)

    return run


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    assert main(["train", *CARTPOLE, "--seed", "3", "--output-dir", str(folder), "--quiet"]) == 0
    return only_run(folder)


@pytest.fixture
def own_run(finished_run: Path, tmp_path: Path) -> Path:
    """A copy of the finished run that a test may change."""
    copy = tmp_path / "own" / finished_run.name
    shutil.copytree(finished_run, copy, symlinks=True)
    return copy


def assert_refused(answer: Answer, repair: str) -> None:
    """Assert that a mistake was answered by exit status 2 and one sentence."""
    assert answer.status == 2, answer.err
    assert answer.out == ""
    errors = [line for line in answer.err.splitlines() if line.startswith("axiomrl: error: ")]
    assert len(errors) == 1
    assert repair in errors[0]
    assert "Traceback" not in answer.err
    assert not Path("runs").exists(), "a run directory was left behind"

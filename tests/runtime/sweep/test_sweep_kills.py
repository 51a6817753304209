"""Sweeps in real processes: killed and continued, interrupted and continued, and the same whoever executes them."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from processes import Launcher, command, process_environment, train_arguments
from rl_training.experiment.checkpoints import LATEST, pointed
from rl_training.runtime.workflows import train
from sweep_runs import assert_same_sweep, only_summary, read_json, run_dirs, sweep_config

SEEDS = (11, 13)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The summary of a sweep that nothing disturbed."""
    output_dir = tmp_path_factory.mktemp("straight")
    assert train(sweep_config(output_dir, *SEEDS)).status == "completed"
    return only_summary(output_dir)


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Launcher:
    return Launcher(tmp_path_factory.mktemp("processes"))


def wait_until(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.001)


def has_saved(output_dir: Path, seed: int) -> bool:
    """Whether the seed's run would go on from a checkpoint after its first: where a slow disk holds the pointer back,
    one that is listed does not count yet."""
    latest = (pointed(run, LATEST) for run in output_dir.glob(f"*__seed{seed}__*"))
    return any(checkpoint is not None and checkpoint.name != "step_0" for checkpoint in latest)


def test_two_jobs_give_the_same_bits_as_one(straight: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    result = train(sweep_config(tmp_path, *SEEDS, benchmark={"jobs": 2}))
    assert result.status == "completed"
    assert_same_sweep(only_summary(tmp_path), straight)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("moment", ["first seed", "second seed", "start"])
def test_a_killed_sweep_that_is_continued_ends_like_one_that_was_not(
    moment: str, straight: Path, launcher: Launcher, tmp_path: Path
) -> None:
    output_dir = tmp_path / "runs"
    arguments = train_arguments(sweep_config(output_dir, *SEEDS), tmp_path)
    child = launcher.start(arguments)
    if moment == "start":
        wait_until(lambda: output_dir.is_dir() and any(output_dir.glob("benchmark_summary__*.json")))
    else:
        wait_until(lambda: has_saved(output_dir, SEEDS[moment == "second seed"]))
    child.kill()
    assert child.returncode == -signal.SIGKILL
    summary = only_summary(output_dir)
    before = read_json(summary)
    assert before["status"] == "running"
    kept = [run for run in before["runs"] if run["status"] == "completed"]
    assert len(kept) == (moment == "second seed")
    started = {run["seed"]: run["run_dir"] for run in before["runs"] if run["run_dir"] is not None}
    child = launcher.start(["train", "--continue", str(summary)])
    assert child.wait() == 0, child.output.read_text()
    assert_same_sweep(summary, straight)
    said = child.output.read_text()
    for run in kept:
        assert f"seed {run['seed']} (" not in said, "it is not trained again"
        assert run in read_json(summary)["runs"], "nor touched"
    if moment != "start":
        assert "going on at step" in said
        assert {seed: str(path) for seed, path in run_dirs(summary).items() if seed in started} == started


LONG = {"total_timesteps": 9600, "checkpoint_interval": 320, "log_interval": 1600}


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_parallel_sweep_is_stopped_and_continued(number: signal.Signals, tmp_path: Path) -> None:
    """A terminal's Ctrl-C goes to every process of its group: the children must not take it for a second one."""
    straight = train(sweep_config(tmp_path / "straight", *SEEDS, **LONG))
    output_dir = tmp_path / "runs"
    config = sweep_config(output_dir, *SEEDS, **LONG, benchmark={"jobs": 2})
    process = subprocess.Popen(
        command(*train_arguments(config, tmp_path)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=process_environment(),
        start_new_session=True,
    )
    wait_until(lambda: all(has_saved(output_dir, seed) for seed in SEEDS))
    os.killpg(process.pid, number)
    _, stderr = process.communicate(timeout=120)
    summary = only_summary(output_dir)
    content = read_json(summary)
    assert "Traceback" not in stderr
    if number == signal.SIGKILL:
        assert process.returncode == -number
        assert content["status"] == "running"
    else:
        assert process.returncode == 128 + number, stderr
        assert f"axiomrl train --continue {summary}" in stderr
        assert (content["status"], {run["status"] for run in content["runs"]}) == ("interrupted", {"interrupted"})
    answer = subprocess.run(
        command("train", "--continue", summary), capture_output=True, text=True, env=process_environment(), check=False
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stderr.count("going on at step") == 2
    assert all(line.startswith("seed ") for line in answer.stderr.splitlines()), "no line is garbled"
    assert straight.benchmark_summary_path is not None
    assert_same_sweep(summary, straight.benchmark_summary_path)

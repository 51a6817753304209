"""Runs in processes of their own: started, killed at any moment, resumed, and compared with one that was not.

Parametrised by configuration alone: `assert_survives_kills(config, ...)` serves every algorithm.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

import rl_training
from harness import assert_same_run
from paths import HELPERS
from rl_training.experiment.checkpoints import CHECKPOINTS, checkpoint_step, list_checkpoints
from rl_training.experiment.config import TrainConfig, config_to_dict
from rl_training.experiment.runs import read_metadata
from rl_training.runtime.workflows import train

CLI = "rl_training.cli"
SOURCE = Path(rl_training.__file__).parent.parent


def process_environment(**changes: str) -> dict[str, str]:
    """Return an environment in which a child process finds the package and the tests' own environments."""
    paths = [str(SOURCE), str(HELPERS), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **changes}


def command(*arguments: str | Path) -> list[str]:
    """Return the command line `axiomrl <arguments>` of this checkout."""
    return [sys.executable, "-m", CLI, *map(str, arguments)]


def train_arguments(config: TrainConfig, directory: Path) -> list[str]:
    """Write a configuration file and return the arguments that train it."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "train.yaml"
    path.write_text(yaml.safe_dump(config_to_dict(config)), encoding="utf-8")
    return ["train", "--config", str(path)]


@dataclass
class Child:
    """A command that the fork server started."""

    pid: int
    output: Path
    launcher: Launcher
    returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal, or None while it runs."""
        if self.returncode is None:
            self.returncode = self.launcher.ask(action="poll", pid=self.pid)
        return self.returncode

    def kill(self) -> None:
        """End it without giving it a chance to do anything."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
            self.wait()

    def wait(self, timeout: float = 120.0) -> int:
        """Return the exit status."""
        deadline = time.monotonic() + timeout
        while (status := self.poll()) is None:
            if time.monotonic() > deadline:
                os.kill(self.pid, signal.SIGKILL)
                raise AssertionError(f"process {self.pid} did not end:\n{self.output.read_text()}")
            time.sleep(0.002)
        return status


class Launcher:
    """Starts programs in real processes within milliseconds: a server that has imported the package forks them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._count = 0

    def start(self, arguments: list[str], module: str = CLI) -> Child:
        """Start `axiomrl <arguments>`, or another module's `main`, here and in this environment."""
        self._count += 1
        output = self.directory / f"output-{self._count}.txt"
        place = {"directory": os.getcwd(), "environment": process_environment()}
        pid = self.ask(action="start", module=module, arguments=arguments, output=str(output), **place)
        return Child(int(pid), output, self)

    def ask(self, **request: Any) -> Any:
        """Send a request to the server and return its answer."""
        server = _fork_server()
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        return json.loads(server.stdout.readline())


@functools.cache
def _fork_server() -> subprocess.Popen[str]:
    """Start the server that all launchers of this process share: its imports take seconds."""
    server = subprocess.Popen(
        [sys.executable, str(HELPERS / "fork_server.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=process_environment(),
    )
    atexit.register(server.communicate, timeout=120)
    return server


def newest_run(output_dir: Path) -> Path | None:
    """Return the run directory that was created last."""
    runs = [path for path in output_dir.iterdir() if path.is_dir()] if output_dir.is_dir() else []
    return max(runs, key=lambda path: path.stat().st_ctime_ns, default=None)


def newest_step(output_dir: Path) -> int:
    """Return the step of the newest checkpoint, 0 where there is none."""
    run_dir = newest_run(output_dir)
    paths = [] if run_dir is None else list_checkpoints(run_dir)
    return (checkpoint_step(paths[0]) or 0) if paths else 0


def is_saving(output_dir: Path) -> bool:
    """Whether a checkpoint is being written."""
    run_dir = newest_run(output_dir)
    return run_dir is not None and any((run_dir / CHECKPOINTS).glob(".writing-*"))


@dataclass
class KilledRun:
    """What became of a run that was killed again and again."""

    run_dir: Path
    kills: int
    kills_while_saving: int


def kill_and_resume(
    launcher: Launcher,
    config: TrainConfig,
    *,
    kills: int,
    seed: int,
    only_while_saving: bool = False,
    steps_at_last: int | None = None,
    after_kill: Callable[[Path], None] = lambda run_dir: None,
) -> KilledRun:
    """Train, kill the process up to `kills` times at seeded random moments, resume each time, and finish.

    Half of the kills (or all) strike while a checkpoint is being written. `steps_at_last` ends the run that many
    steps after the last kill instead of at its own horizon.
    """
    moments = random.Random(seed)
    output_dir = config.output_dir
    arguments = train_arguments(config, launcher.directory)
    done = while_saving = 0
    while True:
        if done == kills and steps_at_last is not None:
            arguments = [*arguments, "--total-timesteps", str(newest_step(output_dir) + steps_at_last)]
        child = launcher.start(arguments)
        if done == kills:
            break
        if only_while_saving:
            seen_saving = all(_wait_for_saving(child, output_dir) for _ in range(moments.randrange(1, 5)))
        else:
            _wait_for_moment(child, moments, output_dir, (config.total_timesteps, kills - done))
            seen_saving = moments.random() < 0.5 and _wait_for_saving(child, output_dir)
        if seen_saving:
            time.sleep(moments.uniform(0.0, 0.002))
        child.kill()
        if child.returncode != -signal.SIGKILL:
            break  # it was done before the moment came
        done += 1
        while_saving += seen_saving
        run_dir = newest_run(output_dir)
        if run_dir is not None and list_checkpoints(run_dir):
            after_kill(run_dir)
            arguments = ["resume", "--checkpoint", str(run_dir)]
        # Without a first checkpoint nothing was lost: the run starts anew.
    assert child.wait() == 0, child.output.read_text()
    finished = newest_run(output_dir)
    assert finished is not None
    assert read_metadata(finished)["status"] == "completed"
    return KilledRun(finished, done, while_saving)


def _wait_for_moment(child: Child, moments: random.Random, output_dir: Path, ahead: tuple[int, int]) -> None:
    """Let the process run for a while, at most until its share of the steps that so many kills are to divide."""
    total_timesteps, kills_left = ahead
    begun = newest_step(output_dir)
    share = (total_timesteps - begun) // (kills_left + 1)
    deadline = time.monotonic() + moments.uniform(0.0, 0.6)
    while time.monotonic() < deadline and child.poll() is None and newest_step(output_dir) < begun + share:
        time.sleep(0.001)


def _wait_for_saving(child: Child, output_dir: Path) -> bool:
    """Wait until the process begins to write a checkpoint; returns whether it did so in time."""
    deadline = time.monotonic() + 60.0
    was_saving = True  # one that is being written already has begun before
    while time.monotonic() < deadline and child.poll() is None:
        saving = is_saving(output_dir)
        if saving and not was_saving:
            return True
        was_saving = saving
        time.sleep(0.0002)  # the process may need this core
    return False


def assert_survives_kills(
    launcher: Launcher, config: TrainConfig, reference: Path, *, kills: int, seed: int = 0
) -> KilledRun:
    """Assert that a run killed and resumed ends as the uninterrupted run in `reference`."""
    killed = kill_and_resume(launcher, config, kills=kills, seed=seed)
    assert_same_run(killed.run_dir, reference)
    leftovers = [path.name for path in killed.run_dir.rglob(".*") if path.name != ".lock"]
    assert leftovers == []
    return killed


def uninterrupted(config: TrainConfig) -> Path:
    """Train in this process and return the run directory."""
    result = train(config)
    assert result.status == "completed"
    return result.run_dir

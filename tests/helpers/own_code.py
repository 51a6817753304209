"""Code of a user's own for tests: an environment in a file, and a process that has not imported it."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from rl_training.experiment.checkpoints import LATEST, MANIFEST, pointed
from rl_training.experiment.own_code import code_search, user_code

ENVIRONMENT = """
import gymnasium as gym
import numpy as np
from beside_it import LENGTH


class MyEnv(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, length=LENGTH):
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.moves = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.moves += 1
        return np.zeros(2, np.float32), 1.0, self.moves >= self.length, False, {}


def make_env(length=4):
    return MyEnv(length)


NUMBER = 3


class Other:
    pass


gym.register("Mine/Own-v2", entry_point=MyEnv, kwargs={"length": 2})
"""
SMALL = ["--num-envs", "2", "--total-timesteps", "32", "--eval-episodes", "1", "--set", "algo_kwargs.num_steps=16"]
SMALL += ["--set", "algo_kwargs.minibatch_size=16", "--set", "algo_kwargs.hidden_sizes=[8]"]
SMALL += ["--set", "tracking.tensorboard=false", "--output-dir", "runs"]


PROGRAM = """
import sys
from rl_training.cli import main

if __name__ == "__main__":
    sys.exit(main())
"""


def write_environment(path: Path) -> Path:
    """Write the environment and the module beside it that it needs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(ENVIRONMENT)
    (path.parent / "beside_it.py").write_text("LENGTH = 5\n")
    return path


def write_trap(path: Path) -> Path:
    """Write a module that leaves a file `<name>.sprung` where it is executed, and return that file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sprung = path.with_suffix(".sprung")
    path.write_text(f"open({str(sprung)!r}, 'w').close()\n{ENVIRONMENT}")
    (path.parent / "beside_it.py").write_text("LENGTH = 5\n")
    return sprung


def rename_environment(run_dir: Path, env_id: str, **more: Any) -> None:
    """Let the newest checkpoint of a run name another environment, as somebody else may have made it."""
    checkpoint = pointed(run_dir, LATEST)
    assert checkpoint is not None
    manifest = json.loads((checkpoint / MANIFEST).read_text())
    manifest["config"] |= {"env_id": env_id, **more}
    (checkpoint / MANIFEST).write_text(json.dumps(manifest))


@pytest.fixture
def new_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Give the test its own state directory, and a function that forgets what was imported below it."""
    monkeypatch.setenv("AXIOMRL_STATE_DIR", str(tmp_path / "state"))
    path, registered = list(sys.path), dict(gym.registry)

    def forget() -> None:
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", [])), "")
            if name != "__main__" and str(file).startswith(str(tmp_path)):
                del sys.modules[name]
        sys.path[:] = path
        for env_id in gym.registry.keys() - registered.keys():
            del gym.registry[env_id]
        for memory in (user_code._uses, user_code._adopted, code_search.added_directories):
            memory.clear()

    forget()
    yield forget
    forget()


def copy_run(run_dir: Path, target: Path) -> Path:
    """Return a copy of a run that may be changed."""
    shutil.copytree(run_dir, target, symlinks=True)
    return target

"""Messages of a command appear once, whatever libraries do with the root logger."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_LOUD = """
import logging, sys
import gymnasium
from gymnasium.envs.classic_control.cartpole import CartPoleEnv


class Loud(CartPoleEnv):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        logging.info("as absl does")  # adds a handler to the root logger
"""


def test_a_library_that_logs_to_the_root_logger_does_not_repeat_our_lines(tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text(_LOUD, encoding="utf-8")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "rl_training.cli", "train", "--algo", "ppo", "--env", "loud.py:Loud"),
            *("--total-timesteps", "64", "--eval-episodes", "0", "--set", "algo_kwargs.num_steps=64"),
            *("--set", "env_kwargs.max_episode_steps=8", "--output-dir", str(tmp_path / "runs")),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line for line in done.stderr.splitlines() if "on backend" in line]
    assert len(lines) == 1, done.stderr

"""Algorithms of a user's own for tests: the examples, and a module that says how they are wrong."""

from __future__ import annotations

import shutil
from pathlib import Path

from paths import EXAMPLES as EXAMPLES

SMALL = ["--num-envs", "2", "--total-timesteps", "64", "--eval-episodes", "1", "--set", "algo_kwargs.num_steps=16"]
SMALL += ["--set", "algo_kwargs.hidden_sizes=[8]", "--set", "log_interval=16", "--set", "checkpoint_interval=32"]
SMALL += ["--set", "tracking.tensorboard=false", "--output-dir", "runs", "--env", "CartPole-v1"]
SMALL_PPO = [*SMALL, "--set", "algo_kwargs.minibatch_size=16", "--set", "algo_kwargs.update_epochs=2"]

WRONG = """
from dataclasses import dataclass, replace
from typing import Annotated
from annotated_types import Ge
from reinforce import SPEC, Reinforce, ReinforceParams
from rl_training.extend import OnPolicyParams


@dataclass(frozen=True)
class Strict(ReinforceParams):
    unruled: Annotated[int, Ge(1)] = 1
    '''A field without a rule for forks.'''

    def problems(self, *, num_envs, total_timesteps):
        return ["unruled: 13 brings bad luck; take 12"] if self.unruled == 13 else []


class Forgotten(OnPolicyParams):
    extra: int = 3


@dataclass
class Lone:
    extra: int = 3


class Plain:
    extra: int = 3


class Vector(Reinforce):
    def update(self, batch, controls, generator):
        return {**super().update(batch, controls, generator), "reward": batch.reward}


class Numbers(Reinforce):
    def update(self, batch, controls, generator):
        return {**super().update(batch, controls, generator), "reward": batch.reward.mean().item()}


class Reserved(Reinforce):
    def update(self, batch, controls, generator):
        return {**super().update(batch, controls, generator), "event": batch.reward.mean()}


STRICT = replace(SPEC, params=Strict)
NUMBER = 3
NO_LOOP = replace(SPEC, loop="on_polcy")
SOME_LOOP = replace(SPEC, loop="xyz")
FORGOTTEN = replace(SPEC, params=Forgotten)
LONE = replace(SPEC, params=Lone)
PLAIN = replace(SPEC, params=Plain)
OTHER_LOOP = replace(SPEC, loop="off_policy")
OTHER_BASE = replace(SPEC, algorithm=Plain)
AN_INSTANCE = replace(SPEC, algorithm=3)
MISSING = replace(SPEC, params="reinforce:Nothing")
NO_MODULE = replace(SPEC, algorithm="no_such_module:Nothing")
SPACES = replace(SPEC, action_spaces=("Discret",))
TEXT = replace(SPEC, action_spaces="Discrete")
NUMBERS = replace(SPEC, algorithm=Numbers)
VECTOR = replace(SPEC, algorithm=Vector)
RESERVED = replace(SPEC, algorithm=Reserved)
"""


def write_algorithms(directory: Path) -> None:
    """Write the examples and the wrong specifications beside them."""
    for name in ("reinforce.py", "ppo_with_penalty.py"):
        shutil.copy(EXAMPLES / name, directory / name)
    (directory / "wrong.py").write_text(WRONG)

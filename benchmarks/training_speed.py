"""Training by this package, by stable-baselines3 and by CleanRL's scripts: the same work and settings in turn.

Ours trains as a user's would: files, metrics and checkpoints included. Start-up, the random warm-up of a replay, the
first iteration (which imports and compiles) and evaluation are left out. Times are of the processor, so that other
programs on the machine disturb less; the clock's are stored beside them. Evaluations afterwards show whether both
learned the same.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import cleanrl_scripts
from peers import make_peer
from records import OURS, SB3, why_missing
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.configuration.config_files import load_config
from rl_training.runtime.callbacks import Callback, TrainingEvent
from rl_training.runtime.workflows import evaluate, train
from speed_parts import Effort, Outcome, alternate

_CLEANRL = "cleanrl"


@dataclass(frozen=True)
class Side:
    """Who trains, and what is set beyond the case's settings."""

    who: str
    changes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Case:
    """The same work for several sides."""

    words: str
    preset: str
    settings: tuple[str, ...]
    """As `--set` writes them."""
    sides: dict[str, Side]
    ratios: dict[str, tuple[str, str]]
    """Which two sides each ratio compares."""
    steps: int
    """Environment steps of one training."""
    quick_steps: int
    warm_up: int = 0
    """Environment steps without updates."""

    def config(self, seed: int, effort: Effort, directory: str, changes: tuple[str, ...] = ()) -> TrainConfig:
        """Return the configuration of one training."""
        fixed = {
            "seed": seed,
            "total_timesteps": effort.choose(self.steps, self.quick_steps),
            "eval_episodes": 0,
            "torch_threads": 1,
            "output_dir": directory,
        }
        return load_config(preset=self.preset, overrides=fixed, set_values=(*self.settings, *changes))


# CleanRL's network and loss are written down in its script.
_AS_CLEANRL = ("algo_kwargs.hidden_sizes=[120,84]", "algo_kwargs.loss=squared", "algo_kwargs.max_grad_norm=null")
CASES = {
    "ppo": Case(
        words="CartPole-v1, 8 envs, 32 steps, 20 epochs, minibatch 256, 64x64",
        preset="ppo-cartpole",
        settings=(),
        sides={
            "ours": Side(OURS),
            "ours_compiled": Side(OURS, ("algo_kwargs.compile=true",)),
            "stable_baselines3": Side(SB3),
            "cleanrl": Side(_CLEANRL),
        },
        ratios={
            "stable-baselines3": ("ours", "stable_baselines3"),
            "stable-baselines3, compiled": ("ours_compiled", "stable_baselines3"),
            "CleanRL": ("ours", "cleanrl"),
            "CleanRL, compiled": ("ours_compiled", "cleanrl"),
        },
        steps=100_000,
        quick_steps=8_000,
    ),
    "dqn": Case(
        words="CartPole-v1, 64x64 (against CleanRL 120x84), batch 64, one gradient step per environment step",
        preset="dqn-cartpole",
        settings=(
            "algo_kwargs.learning_rate=5e-4",
            "algo_kwargs.learning_rate_schedule=null",
            "algo_kwargs.n_step=1",
            "algo_kwargs.batch_size=64",
            "algo_kwargs.buffer_size=50_000",
            "algo_kwargs.train_interval=1",
            "algo_kwargs.gradient_steps=1",
            "algo_kwargs.target_update_interval=250",
            "algo_kwargs.epsilon_schedule={type: linear, end: 0.05, duration: 0.5}",
            "algo_kwargs.hidden_sizes=[64,64]",
        ),
        sides={
            "ours": Side(OURS),
            "stable_baselines3": Side(SB3),
            "ours_as_cleanrl": Side(OURS, _AS_CLEANRL),
            "cleanrl": Side(_CLEANRL, _AS_CLEANRL),
        },
        ratios={
            "stable-baselines3": ("ours", "stable_baselines3"),
            "CleanRL": ("ours_as_cleanrl", "cleanrl"),
        },
        steps=20_000,
        quick_steps=3_000,
        warm_up=1_000,
    ),
    "sac": Case(
        words="Pendulum-v1, 256x256, batch 256, one gradient step per environment step",
        preset="sac-pendulum",
        settings=("algo_kwargs.buffer_size=1_000_000",),
        sides={"ours": Side(OURS), "stable_baselines3": Side(SB3), "cleanrl": Side(_CLEANRL)},
        ratios={"stable-baselines3": ("ours", "stable_baselines3"), "CleanRL": ("ours", "cleanrl")},
        steps=5_000,
        quick_steps=1_400,
        warm_up=1_000,
    ),
}


@dataclass
class Marks:
    """How far a training was, and when."""

    steps: list[int] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    clock: list[float] = field(default_factory=list)

    def note(self, step: int) -> None:
        """Take the time at a step."""
        self.steps.append(step)
        self.processor.append(time.process_time())
        self.clock.append(time.perf_counter())

    def rates(self, warm_up: int) -> tuple[float, float]:
        """Return steps per second of the processor's and of the clock's time, from the end of the first update on."""
        first = next(index for index, step in enumerate(self.steps) if step > warm_up)
        steps = self.steps[-1] - self.steps[first]
        return steps / (self.processor[-1] - self.processor[first]), steps / (self.clock[-1] - self.clock[first])


class MarkUpdates(Callback):
    """Notes when each iteration of ours ends."""

    def __init__(self) -> None:
        self.marks = Marks()

    def on_update_end(self, event: TrainingEvent) -> None:
        """Note the end of an iteration."""
        self.marks.note(event.step)


def settings(name: str, effort: Effort) -> str:
    """Return what is measured in a case, in words."""
    case = CASES[name]
    return f"{case.words}, {effort.choose(case.steps, case.quick_steps):,} steps, one torch thread"


def measure(name: str, effort: Effort) -> Outcome:
    """Let the sides of a case train in turn, one seed per round."""
    case, missing = CASES[name], []
    steps = effort.choose(case.steps, case.quick_steps)
    sides = dict(case.sides)
    for who, reason in ((SB3, why_missing(SB3)), (_CLEANRL, cleanrl_scripts.why_missing(name))):
        if reason is not None:
            missing.append(reason)
            sides = {key: side for key, side in sides.items() if side.who != who}
    ratios = {ratio: pair for ratio, pair in case.ratios.items() if set(pair) <= set(sides)}
    # Without its peer there is nothing to compare a side with.
    sides = {key: side for key, side in sides.items() if any(key in pair for pair in ratios.values())}
    rows = alternate({key: partial(_train, case, side, effort) for key, side in sides.items()}, effort.rounds)
    return Outcome(
        ratios={
            ratio: [row[ours]["steps_per_second"] / row[peer]["steps_per_second"] for row in rows]
            for ratio, (ours, peer) in ratios.items()
        },
        missing=missing,
        details={
            "algo": name,
            "total_timesteps": steps,
            "sides": {ratio: list(pair) for ratio, pair in ratios.items()},
            "rounds": [{"seed": seed, **row} for seed, row in enumerate(rows, start=1)],
        },
    )


def _train(case: Case, side: Side, effort: Effort, seed: int) -> dict[str, float]:
    """Train one side and return what is stored of it."""
    with tempfile.TemporaryDirectory() as directory:
        config = case.config(seed, effort, directory, side.changes)
        if side.who == _CLEANRL:
            processor, clock = cleanrl_scripts.run(config, Path(directory))
            score: dict[str, float] = {}
        else:
            train_side = train_ours if side.who == OURS else train_sb3
            marks, eval_return = train_side(config, episodes=effort.choose(20, 1))
            processor, clock = marks.rates(case.warm_up)
            score = {"eval_return": eval_return}
    return {"steps_per_second": processor, "steps_per_second_of_the_clock": clock, **score}


def train_ours(config: TrainConfig, *, episodes: int = 0) -> tuple[Marks, float]:
    """Train with this package and return its marks and the mean return of an evaluation."""
    callback = MarkUpdates()
    result = train(config, callbacks=[callback])
    score = evaluate(result.run_dir, num_episodes=episodes).metrics["eval_return_mean"] if episodes else 0.0
    return callback.marks, score


def train_sb3(config: TrainConfig, *, episodes: int = 0, model: Any = None) -> tuple[Marks, float]:
    """Train with stable-baselines3, by default with the model of the configuration; returns as `train_ours`."""
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.evaluation import evaluate_policy

    torch.set_num_threads(1)
    marks = Marks()

    class MarkRollouts(BaseCallback):
        def _on_step(self) -> bool:
            return True

        def _on_rollout_start(self) -> None:
            marks.note(self.num_timesteps)

    model = make_peer(config) if model is None else model
    model.learn(config.total_timesteps, callback=MarkRollouts())
    marks.note(model.num_timesteps)
    if not episodes:
        return marks, 0.0
    returns, _ = evaluate_policy(model, model.get_env(), n_eval_episodes=episodes, return_episode_rewards=True)
    return marks, float(np.mean(returns))

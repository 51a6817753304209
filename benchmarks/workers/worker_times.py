"""The times of collecting and learning that the model of workers needs, measured by training one process."""

from __future__ import annotations

import math
import tempfile
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from safetensors.numpy import load_file

from rl_training.experiment.config import TrainConfig, algorithm_params
from rl_training.experiment.configuration.config_files import load_config
from rl_training.runtime.acting.policy import load_policy
from rl_training.runtime.workflows import train
from workers.worker_model import Task


class Layout(NamedTuple):
    """How a run is shared out."""

    samplers: int
    """0: one process collects and learns."""
    lag: int
    threads: int = 1
    """Of the run itself, which learns; a sampler has one."""

    def settings(self) -> tuple[str, ...]:
        """Return what `--set` gets."""
        return f"samplers={self.samplers or 'null'}", f"policy_lag={self.lag}", f"torch_threads={self.threads}"


LAYOUTS = (Layout(1, 1), Layout(2, 0), Layout(2, 1))
WITH_THREADS = (Layout(1, 1), Layout(0, 0, threads=2), Layout(1, 1, threads=2))


@dataclass(frozen=True)
class Case:
    """A preset, and how long it is trained to be measured."""

    preset: str
    steps: int
    changes: tuple[str, ...] = ()
    round_steps: int | None = None
    """Environment steps of a round for algorithms with a replay, whose rounds are single steps otherwise."""
    layouts: tuple[Layout, ...] = LAYOUTS
    """How whole runs are trained that the model is checked by."""


_SCALARS = 32
"""Bytes of action, reward, flags and the like of one transition."""
TENSORS = "tensors.safetensors"
_AS_SAMPLERS = ("execution_backend=local_sync",)
"""How samplers step their environments."""
CASES = (
    Case("ppo-cartpole", 204_800),
    Case("ppo-lunarlander", 393_216),
    # The updates of these take longer than collecting: samplers alone leave the learner as the bottleneck.
    Case("ppo-pong", 12_288, layouts=WITH_THREADS),
    Case(
        "sac-halfcheetah",
        8_000,
        ("num_envs=4", "algo_kwargs.learning_starts=1000"),
        round_steps=4,
        layouts=WITH_THREADS,
    ),
)


def config_of(case: Case, output_dir: str, *changes: str) -> TrainConfig:
    """Return the configuration that is trained, without evaluations but the last."""
    fixed = (f"total_timesteps={case.steps}", "eval_interval=null", "eval_episodes=1", "torch_threads=1")
    place = {"output_dir": output_dir}
    return load_config(preset=case.preset, overrides=place, set_values=(*fixed, *case.changes, *changes))


def measure(case: Case) -> Task:
    """Return the task with its times; collecting is also measured with half of the environments."""
    config = config_of(case, "runs")
    params = algorithm_params(config)
    rollout = case.round_steps or params.num_steps * config.num_envs
    rounds = case.steps / rollout
    alone, times = _times(case), _times(case, *_AS_SAMPLERS)
    fixed = 0.0
    if config.num_envs > 1:
        # Half of the rows per call in as many steps need twice as many calls: what calls cost whatever their rows is
        # the difference.
        longer = () if case.round_steps else (f"algo_kwargs.num_steps={2 * params.num_steps}",)
        slower = _times(case, f"num_envs={config.num_envs // 2}", *longer, *_AS_SAMPLERS).collect
        fixed = min(max(slower - times.collect, 0.0), times.collect)
    overhead = 1.0
    if any(layout.threads > 1 for layout in case.layouts):
        overhead = 2 * _times(case, "torch_threads=2").update / alone.update
    return Task(
        name=case.preset,
        transitions=rollout,
        collect=times.collect / rounds,
        update=alone.update / rounds,
        rollout_bytes=rollout * times.row_bytes,
        weight_bytes=times.weight_bytes,
        gradient_steps=_gradient_steps(case, config, rollout),
        collect_fixed=fixed / rounds,
        alone_collect=alone.collect / rounds,
        thread_overhead=overhead,
    )


class Times(NamedTuple):
    """Seconds of a whole training, and the sizes of what workers send."""

    collect: float
    update: float
    weight_bytes: int
    row_bytes: int


def _times(case: Case, *changes: str) -> Times:
    with tempfile.TemporaryDirectory() as folder:
        result = train(config_of(case, folder, *changes))
        assert result.checkpoint_path is not None
        weights = load_file(result.checkpoint_path / TENSORS)
        sent = sum(value.nbytes for name, value in weights.items() if _is_sent(name))
        space = load_policy(result.run_dir).observation_space
        assert space.shape is not None
        row = int(np.prod(space.shape)) * np.dtype(space.dtype).itemsize + _SCALARS
        return Times(result.metrics["time_collect"], result.metrics["time_update"], sent, row)


def _is_sent(name: str) -> bool:
    """Return whether a tensor of a checkpoint belongs to the networks that act or learn, not to their optimizers."""
    return name.startswith("algorithm/") and "optimizer" not in name and "target" not in name


def _gradient_steps(case: Case, config: TrainConfig, rollout: int) -> int:
    params = algorithm_params(config)
    if case.round_steps is not None:
        return int(params.gradient_steps) * max(1, rollout // params.train_interval)
    return int(params.update_epochs) * math.ceil(rollout / (params.minibatch_size or rollout))

"""Refuses a replay that does not fit into memory or on disk, with an estimate, before a run directory exists.

Memory is used as rows are filled, so the estimate counts the rows that the run can fill: 20,000 steps use only that
part of a replay of a million transitions.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rl_training.algorithms.params.replay_params import ExperienceParams
from rl_training.data.replay_size import ReplaySize
from rl_training.data.sequence_replay import memory_bytes
from rl_training.data.trajectory_replay import search_bytes
from rl_training.envs.normalize import normalizers_of
from rl_training.envs.vector import VectorEnv
from rl_training.errors import ConfigError
from rl_training.experiment.checkpoints import ResumePoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.configuration.env_params import env_params
from rl_training.experiment.machine import available_memory, free_disk, in_words
from rl_training.experiment.storage.segments import SEGMENTS
from rl_training.runtime.collector import AnyReplay
from rl_training.runtime.session import TrainingSession


@dataclass(frozen=True)
class ReplayDemand:
    """The memory and disk that a run needs for a replay of any capacity."""

    size: ReplaySize
    steps: int  # environment steps of the whole run
    memory_map: bool
    checkpoint_interval: int
    kept_checkpoints: int

    @classmethod
    def of(
        cls,
        config: TrainConfig,
        params: ExperienceParams,
        env: VectorEnv,
        action: np.ndarray,
        mask: np.ndarray | None = None,
        *,
        stack: int | None = None,
    ) -> ReplayDemand:
        """Estimate for the whole horizon; `action` and `mask` are examples of one step, [num_envs, ...].

        `stack` is the number of stacked frames, by default that of the configuration.
        """
        interval = config.checkpoint_interval or max(1, config.total_timesteps // 10)
        return cls(
            size=ReplaySize.of(
                env.observation_space,
                action,
                num_envs=env.num_envs,
                n_step=params.stored_steps,
                stack=env_params(config, "training").frame_stack if stack is None else stack,
                prioritized=params.by_priority,
                hindsight=getattr(params, "hindsight", "none") != "none",
                mask_width=0 if mask is None else mask.shape[1],
                more_width=_more_bytes(params, env),
                normalizers=normalizers_of(env),
            ),
            steps=-(-config.total_timesteps // env.num_envs) * env.num_envs,
            memory_map=params.memory_map,
            checkpoint_interval=interval,
            kept_checkpoints=config.keep_checkpoints or config.total_timesteps // interval,
        )

    def rows(self, capacity: int) -> int:
        """Return the number of transitions that the run can fill."""
        return min(capacity, self.steps)

    def memory(self, capacity: int) -> int:
        """Return the bytes of memory that the run uses."""
        return (0 if self.memory_map else self.size.columns(self.rows(capacity))) + self.size.index(capacity)

    def disk(self, capacity: int) -> int:
        """Return the bytes on disk: the segments of all checkpoints, and the replay itself if it is memory-mapped.

        A checkpoint needs the whole replay, an older one also the rows overwritten since. The oldest is removed when
        the next one is complete, so that for a moment there is one more than are kept.
        """
        rows = self.rows(capacity)
        listed = min(self.steps, rows + self.kept_checkpoints * min(self.checkpoint_interval, rows))
        return self.size.columns(listed) + (self.size.columns(rows) if self.memory_map else 0)


def _more_bytes(params: ExperienceParams, env: VectorEnv) -> int:
    """Return the bytes of a step in addition to those of a plain replay: search results or memories."""
    recurrent = getattr(params, "recurrent", None)
    searched = search_bytes(int(env.action_space.n)) if params.with_search else 0  # type: ignore[attr-defined]
    return searched + (0 if recurrent is None else memory_bytes(recurrent.memory_size))


def fitting_replay(session: TrainingSession, demand: ReplayDemand, make_replay: Callable[[], AnyReplay]) -> AnyReplay:
    """Make a replay if memory and disk suffice for the rows that the run will fill, else say what would fit.

    The replays that a session made before count too, since they are filled at the same time.
    """
    params: ExperienceParams = session.params
    resumed = session.setup.resume_point
    continued = resumed if resumed is not None and not resumed.fork else None
    place = session.setup.place
    promised = session.setup.replay_demands
    memory = available_memory() - sum(other.memory(params.buffer_size) for other in promised)
    free = free_disk(place) + (0 if continued is None else _written(continued))
    free -= sum(other.disk(params.buffer_size) for other in promised)
    problems = [
        _memory_problem(demand, params, max(0, memory), max(0, free), fixed=resumed is not None),
        _disk_problem(demand, params, place, max(0, free), fixed=resumed is not None),
    ]
    if any(problems):
        raise ConfigError([problem for problem in problems if problem])
    reserved = demand.size.columns(params.buffer_size) + demand.size.index(params.buffer_size)
    try:
        if reserved > sys.maxsize:
            raise MemoryError
        replay = make_replay()
    except MemoryError as error:
        raise ConfigError(
            f"algo_kwargs.buffer_size: the system does not reserve {in_words(reserved)} for {params.buffer_size} "
            f"transitions; set it to {demand.rows(params.buffer_size)}, all that this run fills, or less"
        ) from error
    promised.append(demand)
    return replay


def _memory_problem(demand: ReplayDemand, params: ExperienceParams, available: int, free: int, *, fixed: bool) -> str:
    """Return the error message for a replay that exceeds the available memory, or an empty string."""
    capacity, needed = params.buffer_size, demand.memory(params.buffer_size)
    if needed <= available:
        return ""
    repairs = []
    if not fixed:
        repairs += _smaller(params, lambda smaller: demand.memory(smaller) <= available)
        on_disk = dataclasses.replace(demand, memory_map=True)
        if on_disk.memory(capacity) <= available and on_disk.disk(capacity) <= free:
            repairs.append("keep it on disk by memory_map: true")
    return (
        f"algo_kwargs.buffer_size: the {demand.rows(capacity)} transitions that this run keeps need {in_words(needed)} "
        f"of memory, and {in_words(available)} are available; {', or '.join([*repairs, 'free some memory'])}"
    )


def _disk_problem(demand: ReplayDemand, params: ExperienceParams, place: Path, free: int, *, fixed: bool) -> str:
    """Return the error message for a replay whose files and checkpoints exceed the free disk, or an empty string."""
    capacity, needed = params.buffer_size, demand.disk(params.buffer_size)
    if needed <= free:
        return ""
    repairs = []
    if not fixed:
        repairs += _smaller(params, lambda smaller: demand.disk(smaller) <= free)
        if dataclasses.replace(demand, kept_checkpoints=1).disk(capacity) < needed:
            repairs.append("keep fewer checkpoints (keep_checkpoints)")
        repairs.append("choose another output directory (--output-dir)")
    what = "the replay's files and checkpoints" if params.memory_map else "checkpoints of the replay"
    return (
        f"algo_kwargs.buffer_size: {what} need {in_words(needed)} of disk, and {place} has {in_words(free)} for them; "
        f"{', or '.join([*repairs, 'free some space'])}"
    )


def _smaller(params: ExperienceParams, fits: Callable[[int], bool]) -> list[str]:
    """Return the repair by a smaller replay: the largest that fits, rounded down to two digits."""
    low, high = 0, params.buffer_size
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    unit = 10 ** max(0, len(str(low)) - 2)
    largest = low // unit * unit
    return [f"set it to at most {largest}"] if largest >= max(params.batch_size, params.stored_steps) else []


def _written(resumed: ResumePoint) -> int:
    """Return the bytes of the replay that the run already has on disk."""
    segments = resumed.checkpoint.run_dir / SEGMENTS
    return sum(path.lstat().st_size for path in segments.iterdir()) if segments.is_dir() else 0

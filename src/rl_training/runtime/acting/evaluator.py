"""Evaluation: own environments, own seeds, real rewards and complete episodes, without any effect on training."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from rl_training.envs.make import make_players
from rl_training.envs.multi_agent.world import World
from rl_training.envs.slot import EnvSlot
from rl_training.envs.spaces import same_form
from rl_training.errors import AxiomError, NonFiniteError
from rl_training.experiment.tasks import Task
from rl_training.runtime.acting.episodes import Episode, SlotEpisode, WorldEpisode, act_in_slots, act_in_worlds
from rl_training.runtime.acting.policy import Policy
from rl_training.runtime.recording.env_metrics import PREFIX, EnvironmentMetrics
from rl_training.runtime.setup.streams import derive_seeds

logger = logging.getLogger("rl_training")

MAX_PARALLEL_EPISODES = 16
PER_TASK = ("eval_return_mean", "eval_return_std", "eval_length_mean")  # reported for each task of a suite
STEP_CAP = 100_000  # cuts off episodes that would never end


class EvaluationInterrupted(Exception):
    """An evaluation was stopped before its last episode ended."""


@dataclass(frozen=True)
class EpisodeResult:
    """One complete evaluation episode."""

    episode_return: float
    length: int
    seed: int
    capped: bool = False
    """Whether the step cap, not the environment, ended the episode."""
    task: str | None = None
    """The task's name in a suite."""
    given: EnvironmentMetrics | None = None
    """The contents of `info["metrics"]`."""

    def as_row(self) -> dict[str, Any]:
        """Return the episode as a row of `evaluations.jsonl`."""
        return {
            **({} if self.task is None else {"task": self.task}),
            "return": self.episode_return,
            "length": self.length,
            "seed": self.seed,
            "capped": self.capped,
        }


def evaluation_seeds(seed: int, step: int, count: int) -> list[int]:
    """Return the seeds of an evaluation's episodes; they never coincide with those of training."""
    return derive_seeds(seed, "evaluation", step, count=count)


class EnvironmentSettings(Protocol):
    """The id and arguments of an environment: a task, or the configuration of a run with a single task."""

    @property
    def env_id(self) -> str:
        """Id of the environment."""

    @property
    def env_kwargs(self) -> Mapping[str, Any]:
        """Its arguments and wrapper settings."""


def evaluate_policy(
    policy: Policy,
    task: EnvironmentSettings,
    seeds: Sequence[int],
    *,
    generator: torch.Generator | None = None,
    step_cap: int = STEP_CAP,
    interrupted: Callable[[], bool] = lambda: False,
) -> list[EpisodeResult]:
    """Play one complete episode per seed and return the results in the order of the seeds.

    Every episode is played to its end, so that short episodes are not over-represented.
    """
    if not seeds:
        return []
    count = min(len(seeds), MAX_PARALLEL_EPISODES)
    slots = make_players(task.env_id, task.env_kwargs, mode="evaluation", count=count)
    try:
        check_fit(policy, slots[0], task.env_id)
        episodes = play_episodes(policy, slots, seeds, generator=generator, step_cap=step_cap, interrupted=interrupted)
    finally:
        for slot in slots:
            slot.close()
    capped = sum(episode.capped for episode in episodes)
    if capped:
        logger.warning(
            "%d of %d evaluation episodes did not end and were cut off after %d steps; "
            "env_kwargs.max_episode_steps sets a time limit",
            capped,
            len(episodes),
            step_cap,
        )
    return episodes


def check_fit(policy: Policy, slot: EnvSlot | World, env_id: str) -> None:
    """Raise an error if the spaces are not those of training, for example because user code has changed."""
    for kind in ("observation", "action"):
        learned, there = (getattr(one, f"{kind}_space") for one in (policy, slot))
        if not same_form(learned, there):
            raise AxiomError(
                f"the {kind} space of {env_id} is {there}, and the policy has learned with {learned}; evaluate it with "
                "the environment as it was then"
            )


def play_episodes(
    policy: Policy,
    slots: Sequence[EnvSlot | World],
    seeds: Sequence[int],
    *,
    generator: torch.Generator | None = None,
    step_cap: int = STEP_CAP,
    on_step: Callable[[Any], None] = lambda slot: None,
    interrupted: Callable[[], bool] = lambda: False,
) -> list[EpisodeResult]:
    """Play the seeds' episodes in the given environments; an environment whose episode ended takes the next seed.

    Raises `EvaluationInterrupted` as soon as `interrupted()` is true: a partial evaluation would be biased. In a world
    of several agents an episode lasts until all have left, and its return is the mean of theirs.
    """
    worlds = isinstance(slots[0], World)
    begin: Any = WorldEpisode if worlds else SlotEpisode
    act: Any = act_in_worlds if worlds else act_in_slots
    results: dict[int, EpisodeResult] = {}
    waiting = list(enumerate(seeds))[::-1]

    def start(slot: EnvSlot | World) -> Episode:
        episode: Episode = begin(slot, *waiting.pop(), policy.memory_size)
        on_step(slot)
        return episode

    running = [start(slot) for slot in slots[: len(seeds)]]
    while running:
        if interrupted():
            raise EvaluationInterrupted
        act(policy, running, generator)
        unfinished: list[Episode] = []
        for episode in running:
            on_step(episode.place)
            if not episode.over and episode.length < step_cap:
                unfinished.append(episode)
                continue
            results[episode.index] = _result(episode)
            if waiting:
                unfinished.append(start(episode.place))
        running = unfinished
    return [results[index] for index in range(len(seeds))]


def _result(episode: Episode) -> EpisodeResult:
    """Return a played episode; one that is not over was cut off."""
    total, given = episode.finish()
    if not math.isfinite(total):
        raise NonFiniteError(
            f"the evaluation episode of seed {episode.seed} has a return that is NaN or infinite; the last good "
            "checkpoint is kept. Repair the environment's reward"
        )
    return EpisodeResult(total, episode.length, episode.seed, capped=not episode.over, given=given)


def summarize(episodes: Sequence[EpisodeResult]) -> dict[str, float]:
    """Return the metrics of an evaluation."""
    if not episodes:
        return {}
    returns = np.array([episode.episode_return for episode in episodes])
    given = EnvironmentMetrics()
    for episode in episodes:
        if episode.given is not None:
            given.join(episode.given, episode.task)
    return {
        "eval_return_mean": float(returns.mean()),
        "eval_return_std": float(returns.std()),
        "eval_return_min": float(returns.min()),
        "eval_return_max": float(returns.max()),
        "eval_length_mean": float(np.mean([episode.length for episode in episodes])),
        "eval_episodes": len(episodes),
        **given.means(f"eval_{PREFIX}"),
    }


def evaluate_tasks(
    policies: Mapping[Task, Policy],
    seeds: Sequence[int],
    *,
    suite: bool,
    generators: Mapping[Task, torch.Generator] | None = None,
    interrupted: Callable[[], bool] = lambda: False,
) -> tuple[list[EpisodeResult], dict[str, float]]:
    """Play the seeds' episodes of every task and return them with their metrics, which are named by task in a suite.

    Actions are sampled if generators are given.
    """
    drawn = generators or {}
    by_task = {
        task: evaluate_policy(policy, task, seeds, generator=drawn.get(task), interrupted=interrupted)
        for task, policy in policies.items()
    }
    if not suite:
        (episodes,) = by_task.values()
        return episodes, summarize(episodes)
    named = [dataclasses.replace(episode, task=task.name) for task, played in by_task.items() for episode in played]
    return named, {**summarize(named), **_task_metrics(by_task)}


def _task_metrics(by_task: Mapping[Task, Sequence[EpisodeResult]]) -> dict[str, float]:
    """Return the metrics of each task, and the mean normalised score if all tasks have one."""
    metrics: dict[str, float] = {}
    scores = []
    for task, episodes in by_task.items():
        own = summarize(episodes)
        metrics.update({f"{key}/{task.name}": own[key] for key in PER_TASK})
        scores.append(task.normalized(own["eval_return_mean"]))
    known = [score for score in scores if score is not None]
    if len(known) == len(scores):
        metrics.update(eval_normalized_mean=float(np.mean(known)), eval_normalized_median=float(np.median(known)))
    return metrics

"""Evaluation: own environments, own seeds, real rewards, complete episodes, nothing left behind in training."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from rl_training.data.observations import NumpyObservation, map_observation
from rl_training.envs.checks import non_finite_row
from rl_training.envs.make import make_slots
from rl_training.envs.slot import EnvSlot
from rl_training.envs.spaces import same_form
from rl_training.errors import AxiomError, NonFiniteError
from rl_training.experiment.tasks import Task
from rl_training.runtime.acting.policy import Policy
from rl_training.runtime.recording.env_metrics import PREFIX, EnvironmentMetrics
from rl_training.runtime.setup.streams import derive_seeds

logger = logging.getLogger("rl_training")

MAX_PARALLEL_EPISODES = 16
PER_TASK = ("eval_return_mean", "eval_return_std", "eval_length_mean")  # what is told of each task of a suite
STEP_CAP = 100_000  # ends an episode that would never end by itself


class EvaluationInterrupted(Exception):
    """An evaluation was asked to end before its last episode had."""


@dataclass(frozen=True)
class EpisodeResult:
    """One complete evaluation episode."""

    episode_return: float
    length: int
    seed: int
    capped: bool = False
    """Cut off by the step cap rather than by the environment."""
    task: str | None = None
    """The task's name in a suite."""
    given: EnvironmentMetrics | None = None
    """What the environment gave in `info["metrics"]`."""

    def as_row(self) -> dict[str, Any]:
        """Return the episode as `evaluations.jsonl` holds it."""
        return {
            **({} if self.task is None else {"task": self.task}),
            "return": self.episode_return,
            "length": self.length,
            "seed": self.seed,
            "capped": self.capped,
        }


def evaluation_seeds(seed: int, step: int, count: int) -> list[int]:
    """Return the seeds of an evaluation's episodes; they never coincide with a training stream's."""
    return derive_seeds(seed, "evaluation", step, count=count)


class Playground(Protocol):
    """What names an environment: a task, or the configuration of a run with a single one."""

    @property
    def env_id(self) -> str:
        """The environment."""

    @property
    def env_kwargs(self) -> Mapping[str, Any]:
        """Its arguments and wrappers."""


def evaluate_policy(
    policy: Policy,
    task: Playground,
    seeds: Sequence[int],
    *,
    generator: torch.Generator | None = None,
    step_cap: int = STEP_CAP,
    interrupted: Callable[[], bool] = lambda: False,
) -> list[EpisodeResult]:
    """Play one complete episode per seed and return them in the order of the seeds.

    Every seed's episode is played to its end, so short episodes are not favoured.
    """
    if not seeds:
        return []
    count = min(len(seeds), MAX_PARALLEL_EPISODES)
    slots = make_slots(task.env_id, task.env_kwargs, mode="evaluation", count=count)
    try:
        _check_fit(policy, slots[0], task.env_id)
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


def _check_fit(policy: Policy, slot: EnvSlot, env_id: str) -> None:
    """Refuse an environment that is not the one the policy has learned, as code that changed since may be."""
    for kind in ("observation", "action"):
        learned, there = (getattr(one, f"{kind}_space") for one in (policy, slot))
        if not same_form(learned, there):
            raise AxiomError(
                f"the {kind} space of {env_id} is {there}, and the policy has learned with {learned}; evaluate it with "
                "the environment as it was then"
            )


@dataclass
class _Game:
    """An episode in progress."""

    slot: EnvSlot
    index: int
    seed: int
    observation: Any
    mask: np.ndarray | None
    episode_return: float = 0.0
    length: int = 0
    given: EnvironmentMetrics | None = None


def _check_finite(games: Sequence[_Game], batch: NumpyObservation) -> None:
    """Refuse NaN and infinity in what the games show."""
    found = non_finite_row(batch)
    if found is not None:
        row, key = found
        place = None if games[row].length else "in reset"
        error = games[row].slot.non_finite(f"observation{key}", place=place)
        raise NonFiniteError(f"in the evaluation, {error}; the last good checkpoint is kept")


def play_episodes(
    policy: Policy,
    slots: Sequence[EnvSlot],
    seeds: Sequence[int],
    *,
    generator: torch.Generator | None = None,
    step_cap: int = STEP_CAP,
    on_step: Callable[[EnvSlot], None] = lambda slot: None,
    interrupted: Callable[[], bool] = lambda: False,
) -> list[EpisodeResult]:
    """Play the seeds' episodes on the given environments; a free one takes the next seed.

    Raises `EvaluationInterrupted` as soon as `interrupted()` says so: a part of an evaluation would be biased.
    """
    results: dict[int, EpisodeResult] = {}
    waiting = list(enumerate(seeds))[::-1]

    def start(slot: EnvSlot) -> _Game:
        index, seed = waiting.pop()
        observation, mask = slot.reset(seed)
        on_step(slot)
        return _Game(slot, index, seed, observation, mask)

    games = [start(slot) for slot in slots[: len(seeds)]]
    while games:
        if interrupted():
            raise EvaluationInterrupted
        batch = map_observation(lambda *arrays: np.stack(arrays), *(game.observation for game in games))
        _check_finite(games, batch)
        masks = None
        if any(game.mask is not None for game in games):
            width = next(len(game.mask) for game in games if game.mask is not None)
            masks = np.stack([np.ones(width, bool) if game.mask is None else game.mask for game in games])
        actions = policy.actions(batch, masks, generator, policy.num_simulations)
        going: list[_Game] = []
        for game, action in zip(games, actions, strict=True):
            step = game.slot.step(action)
            on_step(game.slot)
            game.observation, game.mask = step.obs, step.action_mask
            game.episode_return += float(step.reward)
            game.length += 1
            if step.metrics is not None:
                game.given = game.given or EnvironmentMetrics()
                game.given.add(step.metrics)
            ended = step.terminated or step.truncated
            if not ended and game.length < step_cap:
                going.append(game)
                continue
            if not math.isfinite(game.episode_return):
                raise NonFiniteError(
                    f"the evaluation episode of seed {game.seed} has a return that is NaN or infinite; the last good "
                    "checkpoint is kept. Repair the environment's reward"
                )
            results[game.index] = EpisodeResult(
                game.episode_return, game.length, game.seed, capped=not ended, given=game.given
            )
            if waiting:
                going.append(start(game.slot))
        games = going
    return [results[index] for index in range(len(seeds))]


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
    """Play the seeds' episodes of every task and return them with their metrics, told apart by task in a suite.

    Actions are sampled where there are generators.
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
    """Return the metrics of each task, and the tasks' normalised scores where all of them have one."""
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

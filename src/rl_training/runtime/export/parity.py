"""The proof that an exported file acts like the policy: the same actions, and the same returns in episodes."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor
from torch.overrides import TorchFunctionMode

from rl_training.data.observations import NumpyObservation, map_observation
from rl_training.deploy import ExportedPolicy
from rl_training.envs.spaces import mask_width
from rl_training.experiment.tasks import Task
from rl_training.runtime.acting.evaluator import EpisodeResult, evaluate_policy
from rl_training.runtime.acting.policy import Policy

BATCHES = (1, 2, 17)
RANDOM_BATCHES = 20
ACTION_TOLERANCE = 1e-4  # relative to the largest action; rounding in single precision gives about 1e-6
MEMORY_TOLERANCE = 1e-4  # of what a policy remembers, numbers between -1 and 1 for the most part
RETURN_TOLERANCE = 1e-3  # relative, of continuous actions; discrete ones must give the same return
MAX_RECORDED_ROWS = 2_000
MAX_RECORDED_BYTES = 64 << 20
ROUNDING = 1e-6  # relative size of the rounding errors that `Rounded` adds
ROUNDED_TRIES = 32


class PlayedPolicy(Policy):
    """A policy that records the observations it acts on; a planning policy acts without a search."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy.actor, policy.observation_space, policy.action_space, policy.normalizer)
        self.observations: list[Any] = []
        self.masks: list[np.ndarray | None] = []
        self.memories: list[np.ndarray | None] = []
        self.masked = False
        self._room = MAX_RECORDED_BYTES

    def act(
        self,
        observation: NumpyObservation,
        mask: np.ndarray | None,
        generator: torch.Generator | None,
        memory: np.ndarray | None,
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Return actions [B, ...] and memories, and keep what they were chosen from while there is room."""
        self.masked |= mask is not None
        rows = len(next(iter(observation.values()))) if isinstance(observation, dict) else len(observation)
        for row in range(rows):
            if len(self.observations) < MAX_RECORDED_ROWS and self._room > 0:
                kept = map_observation(lambda array, row=row: np.array(array[row]), observation)
                self._room -= sum(np.asarray(part).nbytes for part in _parts(kept))
                self.observations.append(kept)
                self.masks.append(None if mask is None else np.array(mask[row]))
                self.memories.append(None if memory is None else np.array(memory[row]))
        return super().act(observation, mask, generator, memory)


class ExportedActor(Policy):
    """An exported policy in the place of the policy that it was made from."""

    def __init__(self, exported: ExportedPolicy, observation_space: Space[Any], action_space: Space[Any]) -> None:
        self.exported = exported
        self.observation_space = observation_space
        self.action_space = action_space
        self.normalizer = None
        self.num_simulations = None

    @property
    def plans(self) -> bool:
        """Whether the policy can search before it acts: an exported one never does."""
        return False

    @property
    def memory_size(self) -> int:
        """Numbers that the policy remembers from step to step of an episode; 0: nothing."""
        return self.exported.memory_size

    def act(
        self,
        observation: NumpyObservation,
        mask: np.ndarray | None,
        generator: torch.Generator | None,
        memory: np.ndarray | None,
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the best actions [B, ...] for raw observations [B, ...], and what the policy remembers after them."""
        return self.exported.act(observation, mask if self.exported.takes_mask else None, memory)


class Batch(NamedTuple):
    """What a policy acts on."""

    observation: Any  # [B, ...]
    mask: np.ndarray | None  # [B, choices]
    memory: np.ndarray | None  # [B, memory size]


def measure_parity(
    policy: PlayedPolicy, exported: ExportedPolicy, task: Task, episodes: Sequence[EpisodeResult]
) -> dict[str, Any]:
    """Return the parity report: differences of actions and returns, and whether both are within their tolerance.

    `policy` has played `episodes` in the task.
    """
    recorded = _compare(policy, exported, list(_recorded_batches(policy)))
    random = _compare(policy, exported, list(_random_batches(policy)))
    report: dict[str, Any] = {
        "batches": list(BATCHES),
        "action_tolerance": 0.0 if _is_exact(policy.action_space) else ACTION_TOLERANCE,
        "recorded": recorded,
        "random": random,
    }
    same_actions = recorded["passed"] and random["passed"]
    report["returns"] = _compare_returns(policy, exported, task, episodes) if same_actions else None
    report["passed"] = same_actions and report["returns"]["passed"]
    return report


def describe(report: dict[str, Any]) -> str:
    """Return in words where a report fails."""
    for place in ("recorded", "random"):
        part = report[place]
        if not part["passed"] and not part["different"]:
            return (
                f"what it remembers differs by up to {part['largest_state_difference']:.3g} from the policy's on "
                f"{place} observations"
            )
        if not part["passed"]:
            return (
                f"its actions differ by up to {part['largest_difference']:.3g} from the policy's on {place} "
                f"observations ({part['different']} of {part['observations']})"
            )
    returns = report["returns"]
    return f"its episodes' returns differ by up to {returns['largest_difference']:.3g} from those of the policy"


def _compare(policy: Policy, exported: ExportedPolicy, batches: list[Batch]) -> dict[str, Any]:
    """Return the largest difference between the policy's actions and the exported file's, and likewise of memories."""
    largest, different, ties, rows = 0.0, 0, 0, 0
    exact = _is_exact(policy.action_space)
    memories = 0.0
    for batch in batches:
        expected, remembered = policy.act(batch.observation, batch.mask, None, batch.memory)
        found, kept = exported.act(batch.observation, batch.mask if exported.takes_mask else None, batch.memory)
        rows += len(expected)
        if remembered is not None and kept is not None:
            memories = max(memories, float(np.nan_to_num(np.abs(kept - remembered), nan=np.inf).max(initial=0.0)))
        if found.shape != expected.shape or found.dtype != expected.dtype:
            return {"observations": rows, "largest_difference": float("inf"), "different": rows, "passed": False}
        gap = np.abs(found.astype(np.float64) - expected).reshape(len(expected), -1).max(axis=1, initial=0.0)
        allowed = 0.0 if exact else ACTION_TOLERANCE * max(1.0, float(np.abs(expected).max(initial=0.0)))
        beyond = np.flatnonzero(~(gap <= allowed))
        if exact and len(beyond):
            tied = _ties(policy, batch, found, beyond)
            ties += len(tied)
            gap[list(tied)] = 0.0
            beyond = np.array([row for row in beyond if row not in tied], int)
        different += len(beyond)
        largest = max(largest, float(np.nan_to_num(gap, nan=np.inf).max(initial=0.0)))
    same = different == 0 and memories <= MEMORY_TOLERANCE
    report = {"observations": rows, "largest_difference": largest, "different": different, "passed": same}
    if policy.memory_size:
        report["largest_state_difference"] = memories
    return {**report, "ties": ties} if ties else report


class Rounded(TorchFunctionMode):
    """While it is active, products of matrices have other rounding errors than usual."""

    _PRODUCTS = (
        torch.nn.functional.linear,
        torch.nn.functional.conv2d,
        torch.conv2d,
        torch.addmm,
        torch.baddbmm,
        torch.matmul,
        torch.Tensor.matmul,
        torch.Tensor.__matmul__,
    )
    _RECURRENT = ("lstm", "gru")  # which return outputs and states

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._generator = torch.Generator().manual_seed(seed)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", None) in self._RECURRENT and isinstance(result, tuple):
            return tuple(map(self._rounded, result))
        return self._rounded(result) if func in self._PRODUCTS else result

    def _rounded(self, result: Tensor) -> Tensor:
        return result * (1 + ROUNDING * torch.randn(result.shape, generator=self._generator))


def _ties(policy: Policy, batch: Batch, found: np.ndarray, rows: np.ndarray) -> set[int]:
    """Return the rows where the policy itself takes the exported file's action if its products are rounded otherwise.

    There two actions are equally good, and which one is taken depends on the order of additions.
    """
    some = map_observation(lambda array: array[rows], batch.observation)
    some_mask, some_memory = (None if part is None else part[rows] for part in (batch.mask, batch.memory))
    tied: set[int] = set()
    for seed in range(ROUNDED_TRIES):
        with Rounded(seed):
            actions, _ = policy.act(some, some_mask, None, some_memory)
        same = (actions == found[rows]).reshape(len(rows), -1).all(axis=1)
        tied |= {int(row) for row in rows[same]}
    return tied


def _compare_returns(
    policy: Policy, exported: ExportedPolicy, task: Task, episodes: Sequence[EpisodeResult]
) -> dict[str, Any]:
    """Play the same episodes with the exported file and compare their returns."""
    seeds = [episode.seed for episode in episodes]
    actor = ExportedActor(exported, policy.observation_space, policy.action_space)
    played = evaluate_policy(actor, task, seeds)
    tolerance = 0.0 if _is_exact(policy.action_space) else RETURN_TOLERANCE
    difference = _largest_difference(episodes, played)
    report: dict[str, Any] = {
        "episodes": len(seeds),
        "tolerance": tolerance,
        "largest_difference": difference,
        "policy": [episode.episode_return for episode in episodes],
        "exported": [episode.episode_return for episode in played],
        "seeds": seeds,
        "passed": difference <= tolerance,
    }
    if not report["passed"]:
        # In chaotic environments rounding errors grow until the returns differ: so do the policy's own.
        with Rounded(0):
            control = _largest_difference(episodes, evaluate_policy(policy, task, seeds))
        report["largest_difference_by_rounding"] = control
        report["passed"] = control > tolerance
    return report


def _largest_difference(expected: Sequence[EpisodeResult], found: Sequence[EpisodeResult]) -> float:
    """Return the largest difference of returns, relative to returns above 1."""
    pairs = zip(expected, found, strict=True)
    return max(abs(a.episode_return - b.episode_return) / max(1.0, abs(a.episode_return)) for a, b in pairs)


def _is_exact(space: Space[Any]) -> bool:
    """Return whether actions are integers, which agree or do not."""
    return np.dtype(space.dtype).kind != "f"


def _parts(observation: Any) -> list[Any]:
    return list(observation.values()) if isinstance(observation, dict) else [observation]


def _stack(rows: Sequence[Any]) -> Any:
    return map_observation(lambda *arrays: np.stack(arrays), *rows)


def _recorded_batches(policy: PlayedPolicy) -> Iterator[Batch]:
    """Return the recorded observations in batches of every size, with the memories that they were seen with."""
    rows = policy.observations
    for size in BATCHES:
        # Single rows take longest: some of them, from the whole of the episodes.
        stride = max(1, len(rows) // (size * 200))
        for start in range(0, len(rows) - size + 1, size * stride):
            mask = None
            if policy.masked:
                width = mask_width(policy.action_space)
                found = policy.masks[start : start + size]
                mask = np.stack([np.ones(width, bool) if one is None else one for one in found])
            memory = _stack(policy.memories[start : start + size]) if policy.memory_size else None
            yield Batch(_stack(rows[start : start + size]), mask, memory)


def _random_batches(policy: PlayedPolicy) -> Iterator[Batch]:
    """Return random observations in batches of every size, with random masks and memories if the policy takes them."""
    generator = np.random.default_rng(0)
    recorded = _stack(policy.observations)
    remembered = _stack(policy.memories) if policy.memory_size else None
    space = copy.deepcopy(policy.observation_space)  # leaves the space's own generator unchanged
    space.seed(0)
    for size in BATCHES:
        for _ in range(RANDOM_BATCHES):
            sampled = _stack([space.sample() for _ in range(size)])
            if isinstance(space, spaces.Dict):
                observation: Any = {
                    key: _near(recorded[key], sampled[key], part, generator) for key, part in space.spaces.items()
                }
            else:
                observation = _near(recorded, sampled, space, generator)
            mask = None
            if policy.masked:
                mask = generator.random((size, mask_width(policy.action_space))) < 0.5
                mask[:, _first_choices(policy.action_space)] = True
            memory = None
            if remembered is not None:
                memory = _spread_wider(remembered, (size, policy.memory_size), generator).astype(np.float32)
            yield Batch(observation, mask, memory)


def _near(recorded: np.ndarray, sampled: np.ndarray, space: Space[Any], generator: np.random.Generator) -> np.ndarray:
    """Return random numbers like the recorded ones, spread wider; integers are sampled from the space.

    A space of unbounded numbers would give values that no environment has.
    """
    if not isinstance(space, spaces.Box) or space.dtype.kind != "f":
        return sampled
    drawn = _spread_wider(recorded, sampled.shape, generator)
    return np.clip(drawn, space.low, space.high).astype(space.dtype)


def _spread_wider(recorded: np.ndarray, shape: tuple[int, ...], generator: np.random.Generator) -> np.ndarray:
    """Return random numbers of three times the recorded ones' deviation, or of 1 where they are all the same."""
    mean, spread = recorded.mean(axis=0, dtype=np.float64), recorded.std(axis=0, dtype=np.float64)
    spread = np.where(spread > 0, 3 * spread, 1.0)
    drawn: np.ndarray = mean + spread * generator.standard_normal(shape)
    return drawn


def _first_choices(space: Space[Any]) -> list[int]:
    """Return an entry of the mask for each variable, so that every variable has a legal choice."""
    if isinstance(space, spaces.MultiDiscrete):
        return [0, *np.cumsum(space.nvec.flatten())[:-1].tolist()]
    return [0]

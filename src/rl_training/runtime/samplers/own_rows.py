"""Acting for some environments of a run exactly as the run would act for all of them.

Rounding in a product of matrices depends on their shapes, and random numbers on how many are drawn. So a sampler calls
the policy with as many rows as the run has environments, of which only its own count: its actions are those of a run
without samplers, bit for bit, however the environments are split.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import Space
from torch import Tensor

from rl_training.algorithms.base import ActingAlgorithm, HostAction, OffPolicyAlgorithm, OnPolicyAlgorithm
from rl_training.data.observations import NumpyObservation, Observation, map_observation, sample_batch, to_tensor
from rl_training.errors import ConfigError
from rl_training.models.encoders import image_encoders


class AmongAll:
    """An algorithm, and arrays of all rows of a run in which only the own ones count."""

    def __init__(self, algorithm: Any, num_envs: int, rows: slice) -> None:
        self.algorithm = algorithm
        self.rows = rows
        self._num_envs = num_envs
        self._whole: dict[str, Any] = {}  # arrays of all rows, by what they contain

    @property
    def memory_size(self) -> int:
        """Numbers that an environment's memory consists of."""
        return self.algorithm.memory_size

    def _among_all(self, name: str, own: Any, *, fill: Any = 0) -> Any:
        """Return arrays of all rows that contain the own ones."""

        def place(array: np.ndarray, whole: np.ndarray) -> np.ndarray:
            whole[self.rows] = array
            return whole

        if name not in self._whole:
            self._whole[name] = map_observation(lambda array: _filled(array, self._num_envs, fill), own)
        return map_observation(place, own, self._whole[name])


class OwnRows(AmongAll):
    """Stands for an on-policy algorithm in the collector of a sampler."""

    algorithm: OnPolicyAlgorithm

    def start_rollout(self) -> None:
        """Begin a new rollout."""
        self.algorithm.start_rollout()

    def act_on_host(
        self,
        observation: NumpyObservation,
        mask: np.ndarray | None,
        controls: Mapping[str, float],
        generator: torch.Generator,
        **remembered: np.ndarray,
    ) -> HostAction:
        """Return the actions for the own rows."""
        chosen = self.algorithm.act_on_host(
            self._among_all("observation", observation),
            None if mask is None else self._among_all("mask", mask, fill=True),
            controls,
            generator,
            **{name: self._among_all(name, array) for name, array in remembered.items()},
        )
        return HostAction(*(None if part is None else part[self.rows] for part in chosen))  # type: ignore[arg-type]


class OwnActions(AmongAll):
    """Stands for an algorithm with a replay in the collector of a sampler."""

    algorithm: OffPolicyAlgorithm

    def random_actions(self, count: int, mask: Tensor | None, generator: torch.Generator) -> Tensor:
        """Return random actions for the own rows."""
        return self.algorithm.random_actions(self._num_envs, self._masks(mask), generator)[self.rows]

    def act(
        self,
        observation: Observation,
        mask: Tensor | None,
        controls: Mapping[str, float],
        generator: torch.Generator,
    ) -> Tensor:
        """Return the actions for the own rows."""
        whole = self._among_all("observation", observation)
        return self.algorithm.act(whole, self._masks(mask), controls, generator)[self.rows]

    def act_with_memory(
        self,
        observation: Observation,
        mask: Tensor | None,
        controls: Mapping[str, float],
        generator: torch.Generator,
        memory: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return the actions for the own rows, and the memories after them."""
        actor: Any = self.algorithm
        whole, remembered = self._among_all("observation", observation), self._among_all("memory", memory)
        action, after = actor.act_with_memory(whole, self._masks(mask), controls, generator, remembered)
        return action[self.rows], after[self.rows]

    def env_action(self, action: Tensor) -> np.ndarray:
        """Return the own actions in the format of the environment's action space."""
        return self.algorithm.env_action(action)

    def end_episodes(self, ended: np.ndarray) -> None:
        """Tell the algorithm which of the own episodes have ended."""
        whole = np.zeros(self._num_envs, np.bool_)
        whole[self.rows] = ended
        self.algorithm.end_episodes(whole)

    def _masks(self, own: Tensor | None) -> Tensor | None:
        return None if own is None else self._among_all("mask", own, fill=True)


def _filled(like: Any, rows: int, fill: Any) -> Any:
    """Return an array or a tensor of as many rows, each of the form of those given."""
    shape = (rows, *like.shape[1:])
    return (
        np.full(shape, fill, like.dtype) if isinstance(like, np.ndarray) else torch.full(shape, fill, dtype=like.dtype)
    )


def example_action(algorithm: OnPolicyAlgorithm, space: Space[Any], rows: int, controls: Mapping[str, float]) -> Any:
    """Return what acting returns for `rows` random observations; it leaves no trace."""
    return _act(algorithm, algorithm, _sample(space, rows), rows, controls)


def check_rows_alone(actor: AmongAll, space: Space[Any], num_envs: int, controls: Mapping[str, float]) -> None:
    """Raise an error if the actions for the own rows depend on what the other rows contain."""
    algorithm: Any = actor.algorithm
    observation = _sample(space, num_envs)
    whole = _act(algorithm, algorithm, observation, num_envs, controls)
    own = map_observation(lambda array: array[actor.rows], observation)
    alone = _act(actor, algorithm, own, len(whole[0][actor.rows]), controls)
    for expected, found in zip(whole, alone, strict=True):
        if expected is not None and not np.array_equal(expected[actor.rows], found):
            raise ConfigError(
                f"samplers: the network of {type(algorithm).__qualname__} mixes the rows of a batch, so that an "
                "environment's actions depend on the others; leave samplers out, or use a network that does not"
            )


def convolve_own_rows(actor: AmongAll, space: Space[Any], num_envs: int) -> None:
    """Let convolutions, which cost most of acting, compute the own rows only, where that changes no bit.

    They are tried on random images: the order in which they sum depends on shapes, never on what an image shows.
    """
    algorithm: Any = actor.algorithm
    encoder: Any = getattr(getattr(algorithm, "model", getattr(algorithm, "actor", None)), "encoder", None)
    images, own = image_encoders(encoder), actor.rows
    start = max(0, min(own.start, num_envs - 2))
    rows = slice(start, max(own.stop, start + 2))  # a single image is convolved in another order
    if not images or rows.stop - rows.start >= num_envs:
        return
    observation = sample_batch(space, num_envs, actor.algorithm.device)
    with torch.inference_mode():
        expected = encoder(observation)[own]
        for image in images:
            image.only_rows = rows
        if not torch.equal(encoder(observation)[own], expected):
            for image in images:
                image.only_rows = None


def _sample(space: Space[Any], rows: int) -> NumpyObservation:
    observation: NumpyObservation = map_observation(
        lambda tensor: tensor.numpy(), sample_batch(space, rows, torch.device("cpu"))
    )
    return observation


def _act(actor: Any, algorithm: ActingAlgorithm, observation: Any, rows: int, controls: Mapping[str, float]) -> Any:
    """Return actions for observations, drawn from a generator of their own; the state of acting is restored."""
    size, generator = algorithm.memory_size, torch.Generator(algorithm.device)
    remembered: Any = {"memory": np.zeros((rows, size), np.float32)} if size else {}
    before = algorithm.acting_state()
    try:
        if isinstance(algorithm, OnPolicyAlgorithm):
            algorithm.start_rollout()
            return actor.act_on_host(observation, None, controls, generator, **remembered)
        seen = to_tensor(observation, algorithm.device)
        if size:
            memory = torch.zeros((rows, size), device=algorithm.device)
            return [part.numpy() for part in actor.act_with_memory(seen, None, controls, generator, memory)]
        return [actor.act(seen, None, controls, generator).numpy()]
    finally:
        algorithm.load_acting_state(before)

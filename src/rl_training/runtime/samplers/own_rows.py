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

from rl_training.algorithms.base import HostAction, OnPolicyAlgorithm
from rl_training.data.observations import NumpyObservation, map_observation, sample_batch
from rl_training.errors import ConfigError
from rl_training.models.encoders import image_encoders


class OwnRows:
    """Stands for an algorithm in the collector of a sampler."""

    def __init__(self, algorithm: OnPolicyAlgorithm, num_envs: int, rows: slice) -> None:
        self.algorithm = algorithm
        self.rows = rows
        self._num_envs = num_envs
        self._whole: dict[str, Any] = {}  # arrays of all rows, by what they contain

    @property
    def memory_size(self) -> int:
        """Numbers that an environment's memory consists of."""
        return self.algorithm.memory_size

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

    def _among_all(self, name: str, own: Any, *, fill: Any = 0) -> Any:
        """Return arrays of all rows that contain the own ones."""

        def place(array: np.ndarray, whole: np.ndarray) -> np.ndarray:
            whole[self.rows] = array
            return whole

        if name not in self._whole:
            self._whole[name] = map_observation(
                lambda array: np.full((self._num_envs, *array.shape[1:]), fill, array.dtype), own
            )
        return map_observation(place, own, self._whole[name])


def example_action(algorithm: OnPolicyAlgorithm, space: Space[Any], rows: int, controls: Mapping[str, float]) -> Any:
    """Return what acting returns for `rows` random observations; it leaves no trace."""
    return _act(algorithm, algorithm, _sample(space, rows), rows, controls)


def check_rows_alone(actor: OwnRows, space: Space[Any], num_envs: int, controls: Mapping[str, float]) -> None:
    """Raise an error if the actions for the own rows depend on what the other rows contain."""
    algorithm, observation = actor.algorithm, _sample(space, num_envs)
    whole = _act(algorithm, algorithm, observation, num_envs, controls)
    own = map_observation(lambda array: array[actor.rows], observation)
    alone = _act(actor, algorithm, own, len(whole.action[actor.rows]), controls)
    for expected, found in zip(whole, alone, strict=True):
        if expected is not None and not np.array_equal(expected[actor.rows], found):
            raise ConfigError(
                f"samplers: the network of {type(algorithm).__qualname__} mixes the rows of a batch, so that an "
                "environment's actions depend on the others; leave samplers out, or use a network that does not"
            )


def convolve_own_rows(actor: OwnRows, space: Space[Any], num_envs: int) -> None:
    """Let convolutions, which cost most of acting, compute the own rows only, where that changes no bit.

    They are tried on random images: the order in which they sum depends on shapes, never on what an image shows.
    """
    encoder: Any = getattr(getattr(actor.algorithm, "model", None), "encoder", None)
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


def _act(actor: Any, algorithm: OnPolicyAlgorithm, observation: Any, rows: int, controls: Mapping[str, float]) -> Any:
    """Return actions for observations, drawn from a generator of their own; the state of acting is restored."""
    size = algorithm.memory_size
    remembered: Any = {"memory": np.zeros((rows, size), np.float32)} if size else {}
    before = algorithm.acting_state()
    try:
        algorithm.start_rollout()
        generator = torch.Generator(algorithm.device)
        return actor.act_on_host(observation, None, controls, generator, **remembered)
    finally:
        algorithm.load_acting_state(before)

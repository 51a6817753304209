"""A trained policy as one module from raw observations to the environment's actions."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from rl_training.data.observations import map_observation, sample_batch
from rl_training.deploy import EPISODE_START, MASK, NEUTRAL, OBSERVATION, STATE, Input
from rl_training.envs.spaces import mask_width
from rl_training.runtime.acting.policy import Policy
from rl_training.runtime.export.noise import Draw, NoiseInputs
from rl_training.runtime.export.numpy_tracing import NumpyTracing, TracedArray, torch_dtype

CPU = torch.device("cpu")


class PolicyModule(nn.Module):
    """Calls the policy's own code: its normaliser, the algorithm's `choose` or `choose_with_memory`, and `env_action`.

    Everything that the code does to arrays is recorded when the module is traced, so that nothing is written twice.
    Planning policies act by their policy network, without a search.
    """

    def __init__(self, policy: Policy, *, masked: bool = False, stochastic: bool = False) -> None:
        """`masked` adds an input for the action mask, `stochastic` one for each draw of random numbers."""
        super().__init__()
        self.policy = policy
        self.generator = torch.Generator() if stochastic else None
        self.inputs = [*_observation_inputs(policy.observation_space)]
        self.observed = len(self.inputs)
        self.masked = masked
        if masked:
            self.inputs.append(Input(MASK, "action_mask", (mask_width(policy.action_space),), np.dtype(bool)))
        self.remembers = policy.memory_size > 0
        if self.remembers:
            self.inputs.append(Input(STATE, "state", (policy.memory_size,), np.dtype(np.float32)))
            self.inputs.append(Input(EPISODE_START, "episode_start", (), np.dtype(bool)))
        for number, draw in enumerate(self._draws() if stochastic else ()):
            name = f"noise_{number}"
            self.inputs.append(Input(name, "noise", draw.shape, np.dtype(np.float32), distribution=draw.distribution))

    def forward(self, *arrays: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Return the actions [B, ...] for the arrays [B, ...] of all inputs, with a memory also the next states."""
        given = list(arrays)
        observed = [given.pop(0) for _ in range(self.observed)]
        mask = given.pop(0) if self.masked else None
        memory = None
        if self.remembers:
            state, starts = given.pop(0), given.pop(0)
            memory = torch.where(starts.unsqueeze(1), torch.zeros_like(state), state)
        observation: Any = (
            dict(zip(self.policy.observation_space.spaces, observed, strict=True))
            if isinstance(self.policy.observation_space, spaces.Dict)
            else observed[0]
        )
        return self._act(observation, mask, memory, given)

    def _act(
        self, observation: Any, mask: Tensor | None, memory: Tensor | None, noise: list[Tensor] | None
    ) -> Tensor | tuple[Tensor, Tensor]:
        if self.policy.normalizer is not None:
            scaled = self.policy.normalizer(map_observation(TracedArray, observation))
            observation = map_observation(lambda array: array.tensor, scaled)
        actor: Any = self.policy.actor
        after = None
        with NumpyTracing(), self._drawing(noise):
            seen = map_observation(_as_networks_get_it, observation)
            if memory is None:
                action = actor.choose(seen, mask, self.generator)
            else:
                action, after = actor.choose_with_memory(seen, mask, self.generator, memory)
            taken: Any = actor.env_action(action)
        made = taken.tensor if isinstance(taken, TracedArray) else torch.as_tensor(taken)
        return made if after is None else (made, after)

    @contextlib.contextmanager
    def _drawing(self, noise: list[Tensor] | None) -> Iterator[NoiseInputs | None]:
        if self.generator is None:
            yield None
            return
        with NoiseInputs(self.generator, noise) as mode:
            yield mode
        if noise is None:
            self.found = mode.draws

    def _draws(self) -> list[Draw]:
        """Return the random numbers that sampling an action takes."""
        observation = sample_batch(self.policy.observation_space, 2, CPU)
        mask = torch.ones(2, mask_width(self.policy.action_space), dtype=torch.bool) if self.masked else None
        memory = torch.zeros(2, self.policy.memory_size) if self.remembers else None
        with torch.no_grad():
            self._act(observation, mask, memory, None)
        return self.found

    def example(self, rows: int = 2) -> tuple[Tensor, ...]:
        """Return arrays with which the module can be traced."""
        # Tracing with a single row would make the batch size a constant.
        observation = sample_batch(self.policy.observation_space, rows, CPU)
        parts = list(observation.values()) if isinstance(observation, dict) else [observation]
        arrays = [
            part.to(torch_dtype(one.dtype)) for part, one in zip(parts, self.inputs[: self.observed], strict=True)
        ]
        for one in self.inputs[self.observed :]:
            value = one.kind == "action_mask" if one.distribution is None else NEUTRAL[one.distribution]
            arrays.append(torch.full((rows, *one.shape), value, dtype=torch_dtype(one.dtype)))
        return tuple(arrays)


def _as_networks_get_it(tensor: Tensor) -> Tensor:
    """Return doubles in single precision, as `to_tensor` does."""
    return tensor.to(torch.float32) if tensor.dtype == torch.float64 else tensor


def _observation_inputs(space: Space[Any]) -> list[Input]:
    if isinstance(space, spaces.Dict):
        return [_input(part, f"{OBSERVATION}.{key}", key) for key, part in space.spaces.items()]
    return [_input(space, OBSERVATION, None)]


def _input(space: Space[Any], name: str, key: str | None) -> Input:
    low = high = None
    if isinstance(space, spaces.Discrete):
        low, high = np.array(space.start), np.array(space.start + space.n - 1)
    elif isinstance(space, spaces.MultiDiscrete):
        low, high = space.start, space.start + space.nvec - 1
    return Input(name, "observation", tuple(space.shape or ()), np.dtype(space.dtype), key, low, high)


def input_record(one: Input) -> dict[str, Any]:
    """Return an input as the record of an exported policy describes it."""
    record: dict[str, Any] = {"name": one.name, "kind": one.kind, "shape": list(one.shape), "dtype": str(one.dtype)}
    for field in ("key", "distribution"):
        if getattr(one, field) is not None:
            record[field] = getattr(one, field)
    for field in ("low", "high"):
        bound = getattr(one, field)
        if bound is not None:
            record[field] = bound.tolist()
    return record

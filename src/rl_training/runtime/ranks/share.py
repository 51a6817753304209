"""The share of a run that one rank has: environments, rows of batches, a device, random streams, saved state."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.checkpoints import Checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.workers.device_checks import SHARED
from rl_training.runtime.setup.streams import derive_seeds
from rl_training.runtime.setup.threads import Threads

_DIVIDED = (*SHARED, "buffer_size")
RANKS = "ranks"
"""Key of a checkpoint's state for what each rank has of its own."""


@dataclass(frozen=True)
class Share:
    """One of `count` equal shares of a run."""

    rank: int = 0
    count: int = 1
    local_rank: int = 0
    """Number of the rank among those of its machine."""

    def of_config(self, config: TrainConfig) -> TrainConfig:
        """Return the configuration with the number of this rank's environments."""
        return config if self.count == 1 else replace(config, num_envs=config.num_envs // self.count)

    def of_params(self, params: Any) -> Any:
        """Return the algorithm's parameters with this rank's part of each batch and of the replay."""
        if self.count == 1:
            return params
        names = {field.name for field in dataclasses.fields(params)} & set(_DIVIDED)
        sizes = {name: size for name in names if (size := getattr(params, name)) is not None}
        return replace(params, **{name: max(1, size // self.count) for name, size in sizes.items()})

    def of_device(self, device: torch.device) -> torch.device:
        """Return the device of this rank; raise an error if there are fewer GPUs than ranks."""
        if self.count == 1 or device.type != "cuda":
            return device
        available = torch.cuda.device_count()
        if self.local_rank >= available or (self.local_rank == self.rank and self.count > available):
            raise ConfigError(
                f"devices: {self.count} learners need as many GPUs, and {available} are there; set devices to at most "
                f"{available}, or device to cpu"
            )
        return torch.device("cuda", self.local_rank)

    def of_threads(self, threads: Threads) -> Threads:
        """Return the threads of this rank: ranks share the cores that one process would use alone."""
        if self.count == 1 or not threads.by_machine:
            return threads
        return replace(
            threads, number=max(1, threads.number // self.count), reason=f"{threads.reason}, for {self.count} learners"
        )

    def seed(self, seed: int) -> int:
        """Return the seed of this rank's environments and of its random streams."""
        return seed if self.rank == 0 else derive_seeds(seed, "rank", self.rank)[0]

    def of_state(self, state: dict[str, Any], checkpoint: Checkpoint) -> dict[str, Any]:
        """Return a checkpoint's state as this rank saved it; raise an error if it has another number of ranks."""
        saved: list[Mapping[str, Any]] = state.get(RANKS, [])
        ranks = len(saved) or 1
        if ranks != self.count:
            raise CheckpointError(
                f"checkpoint {checkpoint.path} is damaged: devices in its configuration is {self.count}, and its state "
                f"is that of {ranks}"
            )
        if self.rank == 0:
            return state
        own = saved[self.rank]
        session = {**state["session"], "counters": own["counters"], "streams": own["streams"]}
        return {
            **state,
            "algorithm": {**state["algorithm"], **own["acting"]},
            "normalizers": own["normalizers"],
            "collector": own["collector"],
            "session": session,
        }


WHOLE = Share()

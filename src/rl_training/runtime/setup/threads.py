"""The number of PyTorch's threads, and its reason: the network, the resources of this process, or a checkpoint."""

from __future__ import annotations

import os
from dataclasses import dataclass

from rl_training.errors import AxiomError, CheckpointError, ConfigError
from rl_training.experiment.checkpoints import Checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.machine import thread_limit, usable_cores

WIDEST_FOR_ONE_THREAD = 512
# More threads than cores are slow but not an error: a run from a larger machine is repeated bit for bit only with its
# number. A number that no machine has is an error; starting them would fail or use up all memory.
_MOST = 1024


@dataclass(frozen=True)
class Threads:
    """A number of threads with its reason."""

    number: int
    reason: str
    by_machine: bool = False
    """Whether another machine would choose another number."""

    @property
    def crowded(self) -> bool:
        """Whether there are more threads than usable cores."""
        return self.number > usable_cores().number

    def sentence(self) -> str:
        """Return the number and its reason for the log."""
        words = f"{self.number} torch thread{'s' if self.number > 1 else ''}: {self.reason}"
        if not self.crowded:
            return words
        return f"{words}; they are slow here, where {usable_cores().words}"


def choose_threads(config: TrainConfig, *, large_images: bool, hidden_sizes: tuple[int, ...] | None) -> Threads:
    """Return the number of threads for the network: one for small ones, all usable cores for large ones."""
    if config.torch_threads is not None:
        _refuse_absurd(config.torch_threads, "torch_threads:", ConfigError)
        return Threads(config.torch_threads, "torch_threads is set")
    if not large_images and max(hidden_sizes or (0,)) <= WIDEST_FOR_ONE_THREAD:
        return Threads(1, "a small network is fastest on one")
    limit = thread_limit()
    return Threads(limit.number, f"a large network, and {limit.words}", by_machine=True)


def threads_of(checkpoint: Checkpoint) -> Threads:
    """Return the threads that a checkpoint was trained with: another number would round differently."""
    number, place = checkpoint.manifest.get("torch_threads"), f"{checkpoint.path}/manifest.json: torch_threads:"
    if type(number) is not int or number < 1:
        raise CheckpointError(f"{place} must be an integer >= 1, got {number!r}; the checkpoint is damaged")
    _refuse_absurd(number, place, CheckpointError)
    return Threads(number, "as the checkpoint was trained with")


def _refuse_absurd(number: int, place: str, error: type[AxiomError]) -> None:
    cores = os.cpu_count() or 1
    if number > max(_MOST, cores):
        raise error(
            f"{place} {number:,} threads are asked for and this machine has {cores} cores; set torch_threads to null, "
            f"which chooses, or to at most {cores}"
        )

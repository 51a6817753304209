"""The actor that a sampler is on a Ray cluster."""

from __future__ import annotations

import pickle
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rl_training.envs.families.sdl import silence_sdl
from rl_training.envs.workers.serving import sendable
from rl_training.runtime.samplers.sampler import SamplerSetup, failure_of
from rl_training.runtime.samplers.transport.mirrored_memory import snapshot, write
from rl_training.runtime.sweep.ray_cluster import check_versions

COLLECT = "collect"


class Answer(NamedTuple):
    """What an actor returns for a command."""

    succeeded: bool
    result: bytes
    """The command's result, or the error, pickled: arrays that Ray itself had stored could not be written to."""
    incoming: list[np.ndarray]
    """What a rollout has filled, in the order of `SamplerSetup.incoming`."""
    clock: float
    """The time on the machine's monotonic clock."""


class RaySampler:
    """Executes the commands of a sampler one after the other in one thread; `progress` is answered in another."""

    _setup: SamplerSetup | None = None
    _number = 0

    def make(self, setup: bytes, number: int, rows: slice, versions: Mapping[str, str | None]) -> Answer:
        """Make the sampler from a pickled setup and return the name of the machine."""
        self._number, self._rows = number, rows

        def made() -> str:
            check_versions(versions)
            silence_sdl()
            # Unpickled here and not by Ray, so that an error in user code is returned like any other.
            loaded: SamplerSetup = pickle.loads(setup)
            self._sampler = loaded.make(loaded, number, rows)
            self._setup = loaded
            return platform.node()

        return self._answer(made)

    def node(self) -> str:
        """Return the cluster's name of the machine."""
        import ray

        return str(ray.get_runtime_context().get_node_id())

    def execute(self, command: str, pickled: bytes, outgoing: Sequence[np.ndarray] | None = None) -> Answer:
        """Execute a command with its argument, and with what the run shows its samplers if it is sent along."""
        setup, argument = self._setup, pickle.loads(pickled)
        assert setup is not None
        if outgoing is not None:
            write(setup.outgoing(), outgoing)
        answer = self._answer(lambda: getattr(self._sampler, command)(argument))
        if command != COLLECT or not answer.succeeded:
            return answer
        return answer._replace(incoming=snapshot(setup.incoming(argument, self._rows)))

    def progress(self) -> tuple[list[int], float]:
        """Return the own row of `SamplerSetup.progress`, and the time on the machine's monotonic clock."""
        assert self._setup is not None
        return self._setup.progress.view()[self._number].tolist(), time.monotonic()

    def close(self) -> None:
        """Close the environments."""
        self._sampler.close()

    def _answer(self, call: Callable[[], Any]) -> Answer:
        try:
            succeeded, result = True, pickle.dumps(call())
        except Exception as error:  # sent to the run, which raises it
            succeeded, result = False, pickle.dumps(sendable(error, failure_of(self._number)))
        return Answer(succeeded, result, [], time.monotonic())

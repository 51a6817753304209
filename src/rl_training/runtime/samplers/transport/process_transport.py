"""Samplers as processes on this machine, which share memory with the run."""

from __future__ import annotations

import pickle
import time
from collections.abc import Sequence
from multiprocessing.connection import wait
from typing import Any

from rl_training.envs.workers.processes import CLOSE_SECONDS, WorkerProcess, end_workers, fresh_processes
from rl_training.errors import ConfigError
from rl_training.runtime.samplers.sampler import SamplerSetup, run_sampler
from rl_training.runtime.samplers.transport.protocol import SamplerLost

IMPORTED = ("rl_training.runtime.samplers.sampler",)


def sampler_context() -> Any:
    """Return the multiprocessing context of samplers."""
    return fresh_processes(*IMPORTED)


class SamplerProcess(WorkerProcess):
    """A sampler and the pipe to it."""

    def receive(self, seconds: float | None = None) -> tuple[bool, Any] | None:
        """Return the reply to the last command, None if there was none within `seconds`."""
        try:
            if seconds is not None and not self.connection.poll(seconds):
                return None
            succeeded, result = self.connection.recv()
        except (EOFError, OSError) as error:
            raise SamplerLost(self.cause_of_death()) from error
        return succeeded, result


class ProcessTransport:
    """Starts processes; what they exchange with the run is in shared memory."""

    def __init__(self) -> None:
        self.memory = sampler_context()

    def start(self, setup: SamplerSetup, number: int, rows: slice) -> SamplerProcess:
        """Start a process; its first reply says that it is ready."""
        context = self.memory
        ours, theirs = context.Pipe()
        process = context.Process(
            target=run_sampler, args=(theirs, setup, number, rows), name=f"sampler-{number}", daemon=True
        )
        try:
            process.start()
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            ours.close()
            raise not_movable(error) from error
        finally:
            theirs.close()
        return SamplerProcess(process, ours, rows.start, rows.stop)

    def publish(self, setup: SamplerSetup) -> None:
        """Do nothing: samplers see what the run writes."""

    def ready(self, links: Sequence[SamplerProcess], seconds: float) -> list[int]:
        """Return the indices of processes that have replied or ended."""
        places = {link.connection: place for place, link in enumerate(links)}
        return [places[connection] for connection in wait(list(places), timeout=seconds)]  # type: ignore[index]

    def close(self, links: Sequence[SamplerProcess]) -> None:
        """Let idle processes close their environments and exit."""
        for link in links:
            link.send("close")
        deadline = time.monotonic() + CLOSE_SECONDS
        for link in links:
            link.process.join(max(0.0, deadline - time.monotonic()))

    def end(self, links: list[SamplerProcess]) -> None:
        """Kill all processes and forget them."""
        end_workers(links)


def not_movable(error: Exception) -> ConfigError:
    """Return the error for an environment that another process cannot be given."""
    return ConfigError(
        f"samplers: the environment cannot be sent to another process ({error}); register it with an importable entry "
        "point such as `package.module:Class`, or leave samplers out"
    )

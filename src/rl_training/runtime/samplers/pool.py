"""The sampler processes of a run: starting them, waiting for them, and replacing one that is lost."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Sequence
from multiprocessing import util
from multiprocessing.connection import wait
from typing import Any

import numpy as np

from rl_training.envs.workers.processes import CLOSE_SECONDS, WorkerProcess, end_workers, fresh_processes
from rl_training.errors import ConfigError, EnvironmentFailure
from rl_training.runtime.samplers.sampler import Collected, GroupState, Order, SamplerSetup, run_sampler

# Packages are imported, environments made and kernels compiled before a sampler's first reply.
_STARTUP_SECONDS = 300.0
_SECONDS_BETWEEN_CHECKS = 0.05  # replies wake the run immediately

IMPORTED = ("rl_training.runtime.samplers.sampler",)


def sampler_context() -> Any:
    """Return the multiprocessing context of samplers."""
    return fresh_processes(*IMPORTED)


def split_rows(num_envs: int, samplers: int) -> list[slice]:
    """Return the environments of each sampler, in order."""
    parts = np.array_split(np.arange(num_envs), samplers)
    return [slice(int(part[0]), int(part[-1]) + 1) for part in parts]


class SamplerPool:
    """Processes that execute orders.

    A sampler that dies or makes no progress for `timeout` seconds is replaced once in a rollout, and its replacement
    begins the rollout again from the state that the environments had then; `report` is told so.
    """

    def __init__(
        self, setup: SamplerSetup, rows: Sequence[slice], *, timeout: float, report: Callable[[str], None]
    ) -> None:
        self._setup, self._rows, self._timeout, self._report = setup, list(rows), timeout, report
        self._progress = setup.progress.view()
        self._workers: list[WorkerProcess] = []
        # Also runs when the object is deleted or the interpreter exits: samplers ignore SIGTERM.
        self._stop = util.Finalize(self, end_workers, args=(self._workers,), exitpriority=100)
        self._order: Order | None = None
        self._states: Sequence[GroupState] = ()
        self._done: dict[int, Collected] = {}
        self._replaced: set[int] = set()
        self._moved: list[tuple[int, float]] = []  # progress of each sampler, and when it was seen to change
        for number in range(len(self._rows)):
            self._workers.append(self._start(number))
        for number in range(len(self._rows)):
            self._reply(number, _STARTUP_SECONDS)

    def command(self, command: str, arguments: Sequence[Any]) -> list[Any]:
        """Send every sampler a command outside of a rollout and return their results in order."""
        for number, argument in enumerate(arguments):
            self._workers[number].send(command, argument)
        return [self._reply(number, self._timeout) for number in range(len(self._workers))]

    def begin(self, order: Order, states: Sequence[GroupState]) -> None:
        """Let all samplers begin a rollout; `states` are those of their environments now."""
        self._order, self._states = order, states
        self._done.clear()
        self._replaced.clear()
        self._moved = [(int(count), time.monotonic()) for count in self._progress[:, 0]]
        for worker in self._workers:
            worker.send("collect", order)  # one that is gone is noticed by `wait`

    @property
    def collecting(self) -> bool:
        """Whether a rollout was begun and not yet taken."""
        return self._order is not None

    def wait(self, interrupted: Callable[[], bool]) -> list[Collected] | None:
        """Return what all samplers have collected, or None if `interrupted()` becomes true; the next call continues."""
        while len(self._done) < len(self._workers):
            if interrupted():
                return None
            waiting = {
                worker.connection: number for number, worker in enumerate(self._workers) if number not in self._done
            }
            for connection in wait(list(waiting), timeout=_SECONDS_BETWEEN_CHECKS):
                self._take(waiting[connection])  # type: ignore[index]
            self._find_stuck()
        self._order = None
        return [self._done[number] for number in range(len(self._workers))]

    def close(self) -> None:
        """End all samplers; may be called twice and after a failure."""
        idle = [worker for number, worker in enumerate(self._workers) if not self.collecting or number in self._done]
        for worker in idle:
            worker.send("close")
        deadline = time.monotonic() + CLOSE_SECONDS
        for worker in idle:
            worker.process.join(max(0.0, deadline - time.monotonic()))
        self._stop()

    def _start(self, number: int) -> WorkerProcess:
        context, rows = sampler_context(), self._rows[number]
        ours, theirs = context.Pipe()
        process = context.Process(
            target=run_sampler, args=(theirs, self._setup, number, rows), name=f"sampler-{number}", daemon=True
        )
        try:
            process.start()
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            ours.close()
            self._stop()
            raise ConfigError(
                f"samplers: the environment cannot be sent to another process ({error}); register it with an "
                "importable entry point such as `package.module:Class`, or leave samplers out"
            ) from error
        finally:
            theirs.close()
        return WorkerProcess(process, ours, rows.start, rows.stop)

    def _reply(self, number: int, seconds: float) -> Any:
        """Return a sampler's reply to a command; an error ends all samplers."""
        connection = self._workers[number].connection
        try:
            if not connection.poll(seconds):
                self._fail(number, f"did not answer within {seconds:g} seconds")
            succeeded, result = connection.recv()
        except (EOFError, OSError):
            self._fail(number, self._workers[number].cause_of_death())
        if not succeeded:
            self._stop()
            raise result
        return result

    def _take(self, number: int) -> None:
        """Receive a sampler's rollout; if it is lost, replace it."""
        try:
            succeeded, result = self._workers[number].connection.recv()
        except (EOFError, OSError):
            self._replace(number, self._workers[number].cause_of_death())
            return
        if not succeeded:
            self._stop()
            raise result
        self._done[number] = result

    def _find_stuck(self) -> None:
        """Replace samplers that have not entered an environment for too long."""
        now = time.monotonic()
        for number in range(len(self._workers)):
            count, since = int(self._progress[number, 0]), self._moved[number][1]
            if number in self._done or count != self._moved[number][0]:
                self._moved[number] = (count, now)
            elif now - since > self._timeout:
                self._replace(number, f"made no progress for {self._timeout:g} seconds and was ended")

    def _replace(self, number: int, cause: str) -> None:
        """Start a lost sampler again where its rollout began; stop the run if that is not possible."""
        state = self._states[number]
        if number in self._replaced:
            self._fail(number, f"{cause}, as did the one before it in the same rollout")
        if state.env is None:
            self._fail(number, f"{cause}, and its environments cannot be restored")
        self._replaced.add(number)
        sentence = f"{self._name(number)} {cause}; another one takes its place from the start of the rollout"
        self._workers[number].end()
        self._workers[number] = self._start(number)
        self._reply(number, _STARTUP_SECONDS)
        self._workers[number].send("restore", state)
        self._reply(number, self._timeout)
        self._workers[number].send("collect", self._order)
        self._moved[number] = (int(self._progress[number, 0]), time.monotonic())
        self._report(sentence)

    def _fail(self, number: int, cause: str) -> None:
        name = self._name(number)
        self._stop()
        raise EnvironmentFailure(f"{name} {cause}")

    def _name(self, number: int) -> str:
        rows, last = self._rows[number], int(self._progress[number, 1])
        several = f"environments {rows.start} to {rows.stop - 1}"
        own = several if rows.stop - rows.start > 1 else f"environment {rows.start}"
        return f"sampler {number} ({own}; the last it entered was {last})"

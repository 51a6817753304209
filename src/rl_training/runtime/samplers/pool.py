"""The samplers of a run: starting them, waiting for them, and replacing one that is lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from multiprocessing import util
from typing import Any, NoReturn

import numpy as np

from rl_training.errors import ConfigError, EnvironmentFailure
from rl_training.runtime.samplers.sampler import Collected, GroupState, Order, SamplerSetup
from rl_training.runtime.samplers.transport.process_transport import ProcessTransport
from rl_training.runtime.samplers.transport.protocol import SamplerLost, Transport

# Packages are imported, environments made and kernels compiled before a sampler's first reply.
_STARTUP_SECONDS = 300.0
_SECONDS_BETWEEN_CHECKS = 0.05  # replies wake the run immediately


def split_rows(num_envs: int, samplers: int) -> list[slice]:
    """Return the environments of each sampler, in order."""
    parts = np.array_split(np.arange(num_envs), samplers)
    return [slice(int(part[0]), int(part[-1]) + 1) for part in parts]


class SamplerPool:
    """Samplers that execute orders, in processes or wherever `transport` starts them.

    A sampler that dies or makes no progress for `timeout` seconds is replaced once in a rollout, and its replacement
    begins the rollout again from the state that the environments had then; `report` is told so.
    """

    def __init__(
        self,
        setup: SamplerSetup,
        rows: Sequence[slice],
        *,
        timeout: float,
        report: Callable[[str], None],
        transport: Transport[Any] | None = None,
    ) -> None:
        self._transport = transport or ProcessTransport()
        self._setup, self._rows, self._timeout, self._report = setup, list(rows), timeout, report
        self._progress = setup.progress.view()
        self._workers: list[Any] = []
        # Also runs when the object is deleted or the interpreter exits: samplers ignore SIGTERM.
        self._stop = util.Finalize(self, self._transport.end, args=(self._workers,), exitpriority=100)
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
        self._transport.publish(self._setup)
        for worker in self._workers:
            worker.send("collect", order)  # one that is gone is noticed by `wait`

    @property
    def collecting(self) -> bool:
        """Whether a rollout was begun and not yet taken."""
        return self._order is not None

    def wait(self, interrupted: Callable[[], bool]) -> list[Collected] | None:
        """Return what all samplers have collected, or None if `interrupted()` becomes true; the next call continues."""
        self._watch()
        while len(self._done) < len(self._workers):
            if interrupted():
                return None
            waiting = [number for number in range(len(self._workers)) if number not in self._done]
            for place in self._transport.ready([self._workers[number] for number in waiting], _SECONDS_BETWEEN_CHECKS):
                self._take(waiting[place])
            self._find_stuck()
        self._order = None
        return [self._done[number] for number in range(len(self._workers))]

    def close(self) -> None:
        """End all samplers; may be called twice and after a failure."""
        idle = [worker for number, worker in enumerate(self._workers) if not self.collecting or number in self._done]
        self._transport.close(idle)
        self._stop()

    def _start(self, number: int) -> Any:
        try:
            return self._transport.start(self._setup, number, self._rows[number])
        except ConfigError:
            self._stop()
            raise

    def _reply(self, number: int, seconds: float) -> Any:
        """Return a sampler's reply to a command; an error ends all samplers."""
        try:
            reply = self._workers[number].receive(seconds)
        except SamplerLost as lost:
            self._fail(number, str(lost))
        if reply is None:
            self._fail(number, f"did not answer within {seconds:g} seconds")
        succeeded, result = reply
        if not succeeded:
            self._stop()
            raise result
        return result

    def _take(self, number: int) -> None:
        """Receive a sampler's rollout; if it is lost, replace it."""
        try:
            succeeded, result = self._workers[number].receive()
        except SamplerLost as lost:
            self._replace(number, str(lost))
            return
        if not succeeded:
            self._stop()
            raise result
        self._done[number] = result

    def _watch(self) -> None:
        """Judge samplers by their progress from now on: that of actors is seen only while they are waited for."""
        self._moved = [(int(count), time.monotonic()) for count in self._progress[:, 0]]

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

    def _fail(self, number: int, cause: str) -> NoReturn:
        name = self._name(number)
        self._stop()
        raise EnvironmentFailure(f"{name} {cause}")

    def _name(self, number: int) -> str:
        rows, last = self._rows[number], int(self._progress[number, 1])
        several = f"environments {rows.start} to {rows.stop - 1}"
        own = several if rows.stop - rows.start > 1 else f"environment {rows.start}"
        return f"sampler {number} ({own}; the last it entered was {last})"

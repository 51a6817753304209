"""What the ranks of a run exchange, and what happens when one of them is lost."""

from __future__ import annotations

import contextlib
import datetime
import json
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import Store

from rl_training.errors import (
    AxiomError,
    CheckpointError,
    ConfigError,
    EnvironmentFailure,
    NonFiniteError,
    RunFailure,
    StorageError,
)
from rl_training.runtime.ranks.share import Share

_STARTUP_SECONDS = 300.0  # packages are imported and environments made before a rank arrives
_SECONDS_BETWEEN_CHECKS = 0.02
# A rank that dies closes its connections, which the others notice at once. So nobody waits this long for a dead one,
# and rank 0 may take its time to evaluate.
_PATIENCE = datetime.timedelta(days=7)
_SECONDS_TO_REPORT = 5.0  # for a rank that is about to end, or for those that live on
_RAISED = {
    kind.__name__: kind
    for kind in (AxiomError, ConfigError, CheckpointError, RunFailure, StorageError, EnvironmentFailure, NonFiniteError)
}


class RankLost(RunFailure):
    """Another rank has ended before the run did."""


def _ends_the_run(rank: int, cause: str) -> RankLost:
    error = RankLost(f"rank {rank} {cause}, which ends the whole run; the last checkpoint is kept")
    error.of_every_rank = rank == 0
    return error


class Ranks:
    """The ranks of a run as one of them sees them; all call the same methods in the same order."""

    def __init__(
        self, share: Share, store: Store, *, ended: Callable[[], dict[int, str]] = dict, close: Any = None
    ) -> None:
        """`ended` returns how ranks that this process has started have ended; `close` ends them."""
        self.rank, self.count = share.rank, share.count
        self.leads = share.rank == 0
        self._store, self._ended, self._close = store, ended, close
        self._connected = False

    def connect(self, device: torch.device) -> None:
        """Wait for all ranks; raise an error if one of them does not come."""
        self._store.set(f"here/{self.rank}", "")
        deadline = time.monotonic() + _STARTUP_SECONDS
        while self.leads and (missing := [r for r in range(self.count) if not self._store.check([f"here/{r}"])]):
            self._raise_failure()
            for rank, cause in self._ended().items():
                raise RankLost(f"rank {rank} {cause} before the run began")
            if time.monotonic() > deadline:
                raise RankLost(f"rank {missing[0]} did not come within {_STARTUP_SECONDS:g} seconds")
            time.sleep(_SECONDS_BETWEEN_CHECKS)
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        if device.type == "cuda":
            torch.cuda.set_device(device)
        with self._exchange():
            dist.init_process_group(
                backend, store=self._store, rank=self.rank, world_size=self.count, timeout=_PATIENCE
            )
        self._connected = True

    def average(self, tensor: Tensor) -> Tensor:
        """Replace a tensor by its mean over all ranks and return it."""
        return self.add(tensor).div_(self.count)

    def add(self, tensor: Tensor) -> Tensor:
        """Replace a tensor by its sum over all ranks and return it."""
        with self._exchange():
            dist.all_reduce(tensor)
        return tensor

    def largest(self, *numbers: int) -> list[int]:
        """Return the largest of each number over all ranks."""
        tensor = torch.tensor(numbers)
        with self._exchange():
            dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return tensor.tolist()

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks on rank 0, and an empty list on others."""
        values: list[Any] | None = [None] * self.count if self.leads else None
        with self._exchange():
            dist.gather_object(value, values)
        return values or []

    def broadcast(self, value: Any) -> Any:
        """Return the value of rank 0."""
        values = [value]
        with self._exchange():
            dist.broadcast_object_list(values)
        return values[0]

    def fail(self, error: BaseException) -> None:
        """Tell the others why this rank ends."""
        if isinstance(error, RankLost):
            return
        known = isinstance(error, AxiomError)
        sentence = str(error) if known else "".join(traceback.format_exception(error)).rstrip()
        kind = type(error).__name__ if type(error).__name__ in _RAISED else "RunFailure"
        with contextlib.suppress(RuntimeError):  # the store may be gone with the process that keeps it
            self._store.set(f"failed/{self.rank}", json.dumps([kind, sentence, known]))

    def close(self, *, failed: bool) -> None:
        """Leave the others: after the last exchange, or immediately if this rank has failed."""
        try:
            if self._connected and not failed:
                self.broadcast(None)
        finally:
            if self._connected:
                self._connected = False
                with contextlib.suppress(RuntimeError):
                    dist.destroy_process_group()
            if self._close is not None:
                self._close(failed)

    @contextlib.contextmanager
    def _exchange(self) -> Iterator[None]:
        """Turn the failure of an exchange into an error that names the rank that is lost, and why."""
        try:
            yield
        except RuntimeError as error:
            raise self._lost(error) from error

    def _lost(self, error: RuntimeError) -> RunFailure:
        """Return the error about the rank that is lost; other ranks than the first look for that one alone."""
        deadline = time.monotonic() + _SECONDS_TO_REPORT
        try:
            self._store.set(f"alive/{self.rank}", "")
            while time.monotonic() < deadline:
                if self.leads:
                    self._raise_failure()
                    if ended := self._ended():
                        return _ends_the_run(*next(iter(ended.items())))
                elif self._store.check(["alive/0"]) or self._store.check(["failed/0"]):
                    return RankLost("another rank has ended, which rank 0 reports")
                time.sleep(_SECONDS_BETWEEN_CHECKS)
            gone = [rank for rank in range(self.count) if not self._store.check([f"alive/{rank}"])]
        except RuntimeError:  # the store is gone with the process that keeps it
            gone = [] if self.leads else [0]
        if gone:
            return _ends_the_run(gone[0], "has ended without a word")
        return RankLost(f"the ranks of the run have lost each other ({str(error).splitlines()[0]})")

    def _raise_failure(self) -> None:
        """Raise the error that another rank has reported, if there is one."""
        for rank in range(self.count):
            if rank != self.rank and self._store.check([f"failed/{rank}"]):
                kind, sentence, known = json.loads(self._store.get(f"failed/{rank}"))
                raise _RAISED[kind](f"rank {rank}: {sentence}" if known else f"rank {rank} failed:\n{sentence}")

"""Which rank of a run this process is, as `torchrun` or the process of rank 0 says in environment variables."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from rl_training.errors import ConfigError, MeetingError
from rl_training.experiment.checkpoints import ResumePoint
from rl_training.experiment.config import TrainConfig, check_config
from rl_training.runtime.ranks.share import Share

_RANK, _COUNT, _LOCAL, _ADDRESS, _PORT = "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"
_STARTED_BY = "AXIOMRL_RANK_STARTED_BY"  # the process id of rank 0, if that has started this process
_AGENT = "TORCHELASTIC_USE_AGENT_STORE"  # torchrun itself listens at the address
_CONNECT_SECONDS = 5.0
_SECONDS_FOR_RANK_0 = 30.0  # without torchrun, rank 0 may be the last to start


@dataclass(frozen=True)
class Placement:
    """The share of this process, and the address where the ranks find each other."""

    share: Share
    address: str
    port: int
    hosts: bool
    """Whether this process listens at the address."""
    started_by_rank_0: bool = False

    def variables(self) -> dict[str, str]:
        """Return the environment variables that place a process which rank 0 starts."""
        share = self.share
        numbers = {_RANK: share.rank, _COUNT: share.count, _LOCAL: share.local_rank, _PORT: self.port}
        return {name: str(number) for name, number in numbers.items()} | {
            _ADDRESS: self.address,
            _STARTED_BY: str(os.getpid()),
        }

    def check_address(self) -> None:
        """Raise an error if nobody answers at the address."""
        if self.hosts:
            return
        deadline = time.monotonic() + (0.0 if os.environ.get(_AGENT) else _SECONDS_FOR_RANK_0)
        while True:
            try:
                socket.create_connection((self.address, self.port), timeout=_CONNECT_SECONDS).close()
                return
            except OSError as error:
                if time.monotonic() < deadline and isinstance(error, ConnectionRefusedError):
                    time.sleep(0.1)
                    continue
                raise MeetingError(
                    f"{_ADDRESS}: nobody answers at {self.address}, port {self.port} ({error}); start rank 0 there, or "
                    "let torchrun set it"
                ) from error


def placement(environment: Mapping[str, str] = os.environ) -> Placement | None:
    """Return which rank this process is, or None if the run is all its own."""
    if _RANK not in environment or _COUNT not in environment:
        return None
    rank, count = _number(environment, _RANK), _number(environment, _COUNT)
    if count <= 1:
        return None
    if rank >= count:
        raise ConfigError(f"{_RANK}: {rank} is none of {count} ranks (WORLD_SIZE); ranks are numbered from 0")
    for name in (_ADDRESS, _PORT):
        if not environment.get(name):
            raise ConfigError(
                f"{name}: is missing beside RANK and WORLD_SIZE; start the run by torchrun, or unset them"
            )
    local = _number(environment, _LOCAL) if _LOCAL in environment else rank
    return Placement(
        Share(rank, count, local),
        environment[_ADDRESS],
        _number(environment, _PORT),
        hosts=rank == 0 and environment.get(_AGENT) != "True",
        started_by_rank_0=_STARTED_BY in environment,
    )


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment[name]
    if not text.isdecimal():
        raise ConfigError(f"{name}: must be an integer >= 0, got {text!r}; start the run by torchrun, or unset it")
    return int(text)


def placed_config(config: TrainConfig, resume_point: ResumePoint | None) -> TrainConfig:
    """Return the configuration with as many `devices` as there are ranks; raise an error if it has another number."""
    place = placement()
    if place is None:
        return config
    count = place.share.count
    if resume_point is not None and (config.devices or 1) != count:
        raise ConfigError(
            f"{_COUNT}: the checkpoint is that of {config.devices or 1} ranks, and {count} were started; start "
            f"{config.devices or 1} (torchrun --nproc-per-node), or `axiomrl resume` without torchrun"
        )
    if config.devices not in (None, count):
        raise ConfigError(
            f"devices: the configuration has {config.devices}, and {count} ranks were started ({_COUNT}); start as "
            "many, or leave devices out"
        )
    return check_config(replace(config, devices=count))


def refuse_ranks_of_sweeps() -> None:
    """Raise an error if this process is one of several ranks, which would all run the same sweep."""
    if placement() is not None:
        raise ConfigError(
            f"benchmark.seeds: {_COUNT} says that this process is one rank of a single run; leave torchrun out and set "
            "devices, or name one --seed"
        )

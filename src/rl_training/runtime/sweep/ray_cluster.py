"""Connections to a Ray cluster (extra `ray`), for sweeps whose seeds and runs whose samplers are on its machines."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any

from rl_training.errors import AxiomError, ConfigError, MissingExtraError
from rl_training.experiment.runs import dependency_versions

_SECONDS_TO_ANSWER = 10.0
_QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}


def check_installed(what: str) -> None:
    """Raise an error that begins with `what` if Ray is not installed."""
    if find_spec("ray") is None:
        raise MissingExtraError(what, "ray")


def is_connected() -> bool:
    """Return whether this process has a cluster, as a task or an actor has from its beginning."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


def check_address(address: str, *, place: str) -> None:
    """Raise an error if nothing listens at an address: Ray itself would try for many minutes."""
    if address == "auto":
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_SECONDS_TO_ANSWER).close()
    except (OSError, ValueError) as error:
        raise _no_answer(address, place) from error


def connect(address: str, *, place: str) -> None:
    """Connect to the cluster at an address; `place` is the key that error messages name."""
    import ray

    check_address(address, place=place)
    try:
        with _own_signals():
            ray.init(address=address, **_QUIET)
    except (OSError, RuntimeError, ValueError) as error:
        raise _no_answer(address, place) from error


def start_here(cpus: int) -> None:
    """Start a cluster of this machine alone, which ends with this process or by `disconnect`."""
    import ray

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nobody asked for reports over the network
    with _own_signals():
        ray.init(address="local", num_cpus=cpus, include_dashboard=False, **_QUIET)


def disconnect() -> None:
    """Leave the cluster; one that `start_here` has started ends."""
    import ray

    with _own_signals():
        ray.shutdown()


def check_versions(expected: Mapping[str, str | None]) -> None:
    """Raise an error if package versions differ here, since results could be rounded differently."""
    here = dependency_versions()
    different = [
        f"{name} {here[name]} instead of {version}"
        for name, version in expected.items()
        if version is not None and here.get(name) not in (None, version)
    ]
    if different:
        raise AxiomError(f"node {os.uname().nodename} has {', '.join(different)}; install the same versions everywhere")


def _no_answer(address: str, place: str) -> ConfigError:
    return ConfigError(
        f"{place}: no Ray cluster answers at {address}; start one with `ray start --head`, or give the address "
        "HOST:PORT of another one"
    )


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Keep the handler of SIGTERM, which Ray replaces: a run saves before it ends."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)

"""The place of a run's samplers, as `sampler_backend` says."""

from __future__ import annotations

import os
from typing import Any

from rl_training.experiment.config import TrainConfig
from rl_training.runtime.samplers.transport.process_transport import ProcessTransport
from rl_training.runtime.samplers.transport.protocol import Transport
from rl_training.runtime.samplers.transport.ray_transport import RayTransport
from rl_training.runtime.sweep.ray_cluster import check_address, check_installed, is_connected


def check_backend(config: TrainConfig) -> None:
    """Raise an error if samplers could not be started where they are wanted."""
    if config.samplers is None or config.sampler_backend != "ray":
        return
    check_installed("sampler_backend: ray")
    address = _address(config)
    if address is not None and not is_connected():
        check_address(address, place="ray_address")


def make_transport(config: TrainConfig, *, timeout: float) -> Transport[Any]:
    """Return the transport of a run's samplers; one that makes no progress for `timeout` seconds counts as stuck."""
    if config.sampler_backend == "process":
        return ProcessTransport()
    assert config.samplers is not None
    return RayTransport(config.samplers, address=_address(config), timeout=timeout)


def _address(config: TrainConfig) -> str | None:
    return config.ray_address or os.environ.get("RAY_ADDRESS") or None

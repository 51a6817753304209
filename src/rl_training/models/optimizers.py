"""Optimizers by name, and their state in plain form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer


def make_optimizer(parameters: Sequence[nn.Parameter], name: str, *, learning_rate: float, eps: float) -> Optimizer:
    """Return the named optimizer in its fastest form for the parameters' device."""
    if name == "adam":
        return torch.optim.Adam(parameters, lr=learning_rate, eps=eps, fused=True)
    if name == "rmsprop":
        return torch.optim.RMSprop(parameters, lr=learning_rate, alpha=0.99, eps=eps, foreach=True)
    raise ValueError(f"unknown optimizer {name!r}")


def optimizer_state(optimizer: Optimizer) -> dict[str, Any]:
    """Return the running statistics; rates and epsilons come from the configuration."""
    return {str(index): dict(slots) for index, slots in optimizer.state_dict()["state"].items()}


def load_optimizer_state(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Put back what `optimizer_state` gave."""
    current = optimizer.state_dict()
    current["state"] = {int(index): dict(slots) for index, slots in state.items()}
    optimizer.load_state_dict(current)

"""The weight of the entropy term in soft actor-critic, fixed or learned."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rl_training.models.optimizers import FlatOptimizer


class Temperature:
    """A temperature, fixed or learned to reach a target entropy (Haarnoja et al. 2018, arXiv 1812.05905, section 5)."""

    def __init__(self, value: float | str, *, initial: float, eps: float, device: torch.device) -> None:
        """`value` is a fixed number, or `auto` for a temperature learned from `initial` on."""
        self.learned = value == "auto"
        start = initial if isinstance(value, str) else value
        self.log = nn.Parameter(torch.tensor([math.log(start)], device=device))
        self.optimizer = FlatOptimizer([self.log], "adam", eps=eps)

    @property
    def value(self) -> Tensor:
        """The temperature [1], without gradient."""
        return self.log.detach().exp()

    def update(self, entropy: Tensor, target_entropy: float | Tensor, *, learning_rate: float) -> None:
        """Raise the temperature if the policy's mean entropy is below its target, and lower it if above."""
        if self.learned:
            # The gradient of the loss log_temperature * (entropy - target_entropy).
            self.optimizer.gradient.copy_(entropy.detach().mean() - target_entropy)
            self.optimizer.descend(learning_rate=learning_rate, max_grad_norm=None)

    def share(self, average: Callable[[Tensor], Tensor]) -> None:
        """Learn from the mean gradient of several learners from now on."""
        self.optimizer.share(average)

    def state_dict(self) -> dict[str, Any]:
        """Return the temperature and its optimizer's statistics."""
        return {"log": self.log.detach(), "optimizer": self.optimizer.state_dict()}

    def load_weights(self, state: Mapping[str, Any]) -> None:
        """Load a saved temperature, unless the parameters fix it."""
        if self.learned:
            with torch.no_grad():
                self.log.copy_(state["log"])

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved temperature and its optimizer's statistics."""
        self.load_weights(state)
        self.optimizer.load_state_dict(state["optimizer"])

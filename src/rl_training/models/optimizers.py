"""Optimizers over one flat buffer of parameters."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.optim.rmsprop import rmsprop

ADAM_BETA1, ADAM_BETA2 = 0.9, 0.999
RMSPROP_DECAY = 0.99
# Statistics of weights whose gradient has vanished decay into subnormal numbers, with which processors calculate up to
# twenty times slower. Below this they move no weight, with any epsilon in use; from here to there Adam's usual mean,
# which keeps nine tenths per step, takes longer than from one sweep to the next.
NEGLIGIBLE = 1e-30
STEPS_BETWEEN_SWEEPS = 128


def flatten_parameters(parameters: Iterable[nn.Parameter]) -> Tensor:
    """Move parameters of one dtype and device into one buffer, of which they become views, and return it."""
    owners = list(parameters)
    values = torch.cat([owner.detach().flatten() for owner in owners])
    for owner, part in zip(owners, values.split([owner.numel() for owner in owners]), strict=True):
        owner.data = part.view_as(owner)
    return values


class FlatOptimizer:
    """Steps all parameters of a model as one tensor.

    Small networks are bound by the number of operations: clipping, stepping and zeroing one flat buffer costs a
    fraction of doing so for every layer. The model's parameters become views of the buffer, their gradients views of
    the buffer's gradient; element-wise rules such as Adam's do not see the difference. torch's kernels
    are called because its optimizer classes spend more time on bookkeeping than on a small network's arithmetic.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], rule: str = "adam", *, eps: float = 1e-5, beta1: float = ADAM_BETA1
    ) -> None:
        """Take over the parameters, which must be of one dtype and on their final device."""
        self.rule = rule
        self.eps = eps
        self.beta1 = beta1  # of Adam
        owners = list(parameters)
        self.values = flatten_parameters(owners)
        self.gradient = torch.zeros_like(self.values)
        sizes = [owner.numel() for owner in owners]
        for owner, part in zip(owners, self.gradient.split(sizes), strict=True):
            owner.grad = part.view_as(owner)
        ends = list(itertools.accumulate(sizes))
        self._places = {owner: slice(end - size, end) for owner, size, end in zip(owners, sizes, ends, strict=True)}
        moments = {"adam": ("exp_avg", "exp_avg_sq"), "rmsprop": ("square_avg",)}[rule]
        self.state = {name: torch.zeros_like(self.values) for name in moments}
        # The fused kernel keeps its count beside the parameters, the plain one on the host.
        count_device = self.values.device if rule == "adam" else torch.device("cpu")
        self.state["step"] = torch.zeros((), device=count_device)
        self._steps = 0  # the count itself, known without waiting for the device; the tensor is set where it is used

    def step(self, loss: Tensor, *, learning_rate: float, max_grad_norm: float | None) -> Tensor:
        """Descend along the gradient of `loss` and return the gradient's norm before clipping."""
        self.backward(loss)
        return self.descend(learning_rate=learning_rate, max_grad_norm=max_grad_norm)

    def backward(self, loss: Tensor) -> None:
        """Overwrite the gradient by that of `loss`."""
        self.gradient.zero_()
        loss.backward()

    @torch.no_grad()
    def descend(self, *, learning_rate: float, max_grad_norm: float | None) -> Tensor:
        """Descend along the gradient as it is and return its norm before clipping."""
        norm = torch.linalg.vector_norm(self.gradient)
        if max_grad_norm is not None:
            self.gradient.mul_((max_grad_norm / (norm + 1e-6)).clamp(max=1.0))
        self._apply(learning_rate)
        torch.autograd.graph.increment_version(self.values)  # which the fused kernel leaves out
        self._steps += 1
        if self._steps % STEPS_BETWEEN_SWEEPS == 0:
            self._sweep()
        return norm

    def count_steps(self, steps: int) -> None:
        """Take note of steps that compiled code has taken with the same values and statistics."""
        self._steps += steps
        torch.autograd.graph.increment_version(self.values)

    @property
    def steps(self) -> int:
        """How many steps were taken."""
        return self._steps

    def _sweep(self) -> None:
        for statistics in self.state.values():
            if statistics.dim():
                statistics.mul_(statistics.abs() >= NEGLIGIBLE)

    def _apply(self, learning_rate: float) -> None:
        values, gradient, step = [self.values], [self.gradient], [self.state["step"]]
        if self.rule == "adam":
            step[0].fill_(self._steps + 1)
            torch._fused_adam_(
                values,
                gradient,
                [self.state["exp_avg"]],
                [self.state["exp_avg_sq"]],
                [],
                step,
                lr=learning_rate,
                beta1=self.beta1,
                beta2=ADAM_BETA2,
                weight_decay=0.0,
                eps=self.eps,
                amsgrad=False,
                maximize=False,
            )
        else:
            step[0].fill_(self._steps)
            rmsprop(
                values,
                gradient,
                [self.state["square_avg"]],
                [],
                [],
                step,
                foreach=False,
                lr=learning_rate,
                alpha=RMSPROP_DECAY,
                eps=self.eps,
                weight_decay=0.0,
                momentum=0.0,
                centered=False,
            )

    def restart(self, parameters: Iterable[nn.Parameter] | None = None) -> None:
        """Forget all steps, or those of some parameters: one that gets no gradient from now on stays where it is."""
        if parameters is None:
            for tensor in self.state.values():
                tensor.zero_()
            self._steps = 0
            return
        for place in [self._places[parameter] for parameter in parameters]:
            for tensor in self.state.values():
                if tensor.dim():  # the count of steps is everybody's
                    tensor[place] = 0

    def state_dict(self) -> dict[str, Tensor]:
        """Return the running statistics; rates and epsilons come from the configuration."""
        self.state["step"].fill_(self._steps)
        return dict(self.state)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Put the running statistics back."""
        for name, tensor in self.state.items():
            tensor.copy_(state[name])
        self._steps = int(state["step"])

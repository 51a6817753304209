"""Optimizers over one flat buffer of parameters."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.optim.radam import radam
from torch.optim.rmsprop import rmsprop

ADAM_BETA1, ADAM_BETA2 = 0.9, 0.999
RMSPROP_DECAY = 0.99
# Statistics of weights whose gradient has vanished decay into subnormal numbers, which make arithmetic up to twenty
# times slower. Below this value they no longer change any weight. Adam's usual mean, which keeps nine tenths per step,
# takes longer from here to the subnormal range than the interval between two calls of `_flush_subnormals`.
NEGLIGIBLE = 1e-30
STEPS_BETWEEN_FLUSHES = 128


def flatten_parameters(parameters: Iterable[nn.Parameter]) -> Tensor:
    """Move parameters of one dtype and device into one flat buffer, make them views of it, and return it."""
    owners = list(parameters)
    values = torch.cat([owner.detach().flatten() for owner in owners])
    for owner, part in zip(owners, values.split([owner.numel() for owner in owners]), strict=True):
        owner.data = part.view_as(owner)
    return values


class FlatOptimizer:
    """Updates all parameters of a model as one flat tensor.

    The cost of small networks is the number of operations: clipping, stepping and zeroing one flat buffer costs a
    fraction of doing so for every layer. The model's parameters become views of the buffer, and their gradients views
    of the buffer's gradient; for element-wise rules such as Adam's this makes no difference. It calls torch's kernels
    directly, because torch's optimizer classes spend more time on bookkeeping than on a small network's arithmetic.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], rule: str = "adam", *, eps: float = 1e-5, beta1: float = ADAM_BETA1
    ) -> None:
        """Make the parameters, which must be of one dtype and on their final device, views of one buffer."""
        self.rule = rule
        self.eps = eps
        self.beta1 = beta1  # Adam and RAdam only
        owners = list(parameters)
        self.values = flatten_parameters(owners)
        self.gradient = torch.zeros_like(self.values)
        sizes = [owner.numel() for owner in owners]
        for owner, part in zip(owners, self.gradient.split(sizes), strict=True):
            owner.grad = part.view_as(owner)
        ends = list(itertools.accumulate(sizes))
        self._places = {owner: slice(end - size, end) for owner, size, end in zip(owners, sizes, ends, strict=True)}
        averages = ("exp_avg", "exp_avg_sq")
        moments = {"adam": averages, "radam": averages, "rmsprop": ("square_avg",)}[rule]
        self.state = {name: torch.zeros_like(self.values) for name in moments}
        # The fused kernel keeps its step count on the device of the parameters, the plain one on the host.
        count_device = self.values.device if rule == "adam" else torch.device("cpu")
        self.state["step"] = torch.zeros((), device=count_device)
        # The count itself, available without a device synchronisation; the tensor is set before it is read.
        self._steps = 0
        self._average: Callable[[Tensor], Tensor] | None = None

    def share(self, average: Callable[[Tensor], Tensor]) -> None:
        """Step along the mean gradient of several learners from now on; `average` replaces a tensor by its mean."""
        self._average = average

    def step(self, loss: Tensor, *, learning_rate: float, max_grad_norm: float | None) -> Tensor:
        """Make one step along the gradient of `loss` and return the gradient's norm before clipping."""
        self.backward(loss)
        return self.descend(learning_rate=learning_rate, max_grad_norm=max_grad_norm)

    def backward(self, loss: Tensor) -> None:
        """Overwrite the stored gradient by that of `loss`."""
        self.gradient.zero_()
        loss.backward()

    @torch.no_grad()
    def descend(self, *, learning_rate: float, max_grad_norm: float | None) -> Tensor:
        """Make one step along the stored gradient and return its norm before clipping."""
        if self._average is not None:
            self._average(self.gradient)
        norm = torch.linalg.vector_norm(self.gradient)
        if max_grad_norm is not None:
            self.gradient.mul_((max_grad_norm / (norm + 1e-6)).clamp(max=1.0))
        self._apply(learning_rate)
        torch.autograd.graph.increment_version(self.values)  # the fused kernel does not do this
        self._steps += 1
        if self._steps % STEPS_BETWEEN_FLUSHES == 0:
            self._flush_subnormals()
        return norm

    def count_steps(self, steps: int) -> None:
        """Count steps that compiled code has taken with the same values and statistics."""
        self._steps += steps
        torch.autograd.graph.increment_version(self.values)

    @property
    def steps(self) -> int:
        """How many steps were taken."""
        return self._steps

    def _flush_subnormals(self) -> None:
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
        elif self.rule == "radam":
            step[0].fill_(self._steps)
            radam(
                values,
                gradient,
                [self.state["exp_avg"]],
                [self.state["exp_avg_sq"]],
                step,
                foreach=False,
                lr=learning_rate,
                beta1=self.beta1,
                beta2=ADAM_BETA2,
                weight_decay=0.0,
                eps=self.eps,
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
        """Reset the running statistics, of all or of some parameters: without a new gradient, these no longer move."""
        if parameters is None:
            for tensor in self.state.values():
                tensor.zero_()
            self._steps = 0
            return
        for place in [self._places[parameter] for parameter in parameters]:
            for tensor in self.state.values():
                if tensor.dim():  # the step count is shared by all parameters
                    tensor[place] = 0

    def state_dict(self) -> dict[str, Tensor]:
        """Return the running statistics; learning rates and epsilons belong to the configuration."""
        self.state["step"].fill_(self._steps)
        return dict(self.state)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore the running statistics."""
        for name, tensor in self.state.items():
            tensor.copy_(state[name])
        self._steps = int(state["step"])

"""Random numbers as inputs: the draws of an algorithm's sampling become arrays that the caller of a policy gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_IN_PLACE: dict[Any, str] = {
    torch.Tensor.normal_: "normal",
    torch.Tensor.exponential_: "exponential",
    torch.Tensor.uniform_: "uniform",
}
_SHAPED: dict[Any, str] = {torch.randn: "normal", torch.rand: "uniform"}


@dataclass(frozen=True)
class Draw:
    """Independent random numbers [batch, *shape] of a standard distribution."""

    distribution: str
    shape: tuple[int, ...]


class NoiseInputs(TorchFunctionMode):
    """While it is active, draws from a generator return the next of the given arrays.

    Without arrays the draws are made as usual; in both cases `draws` lists them.
    """

    def __init__(self, generator: torch.Generator, noise: Sequence[Tensor] | None = None) -> None:
        super().__init__()
        self.generator = generator
        self.draws: list[Draw] = []
        self._noise = noise

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        if options.get("generator") is not self.generator:
            return func(*args, **options)
        if func in _IN_PLACE and len(args) == 1 and len(options) == 1:
            return self._next(_IN_PLACE[func], args[0].shape)
        if func in _SHAPED and args:
            return self._next(_SHAPED[func], args[0] if isinstance(args[0], tuple | list | torch.Size) else args)
        if func is torch.multinomial and args[1] == 1:
            # The exponential race: argmax of p / Exp(1) has the distribution p.
            return (args[0] / self._next("exponential", args[0].shape)).argmax(dim=-1, keepdim=True)
        raise TypeError(f"torch.{getattr(func, '__name__', func)} draws random numbers in a way that has no input")

    def _next(self, distribution: str, shape: Sequence[Any]) -> Tensor:
        self.draws.append(Draw(distribution, tuple(int(size) for size in shape[1:])))
        if self._noise is None:
            empty = torch.empty(tuple(shape))
            drawn: Tensor = getattr(empty, f"{distribution}_")(generator=self.generator)
            return drawn
        return self._noise[len(self.draws) - 1]

"""NumPy code recorded as tensor operations, so that the code that acts in training is the code that is exported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.lib.mixins import NDArrayOperatorsMixin
from torch import Tensor
from torch.overrides import TorchFunctionMode


class UntraceableError(TypeError):
    """NumPy code does something that has no counterpart here."""


_UFUNCS: dict[np.ufunc, Callable[..., Tensor]] = {
    np.absolute: torch.abs,
    np.add: torch.add,
    np.bitwise_and: torch.bitwise_and,
    np.bitwise_or: torch.bitwise_or,
    np.ceil: torch.ceil,
    np.cos: torch.cos,
    np.divide: torch.div,
    np.equal: torch.eq,
    np.exp: torch.exp,
    np.floor: torch.floor,
    np.greater: torch.gt,
    np.greater_equal: torch.ge,
    np.invert: torch.bitwise_not,
    np.less: torch.lt,
    np.less_equal: torch.le,
    np.log: torch.log,
    np.logical_and: torch.logical_and,
    np.logical_not: torch.logical_not,
    np.logical_or: torch.logical_or,
    np.maximum: torch.maximum,
    np.minimum: torch.minimum,
    np.multiply: torch.mul,
    np.negative: torch.neg,
    np.not_equal: torch.ne,
    np.power: torch.pow,
    np.rint: torch.round,
    np.sign: torch.sign,
    np.sin: torch.sin,
    np.sqrt: torch.sqrt,
    np.square: torch.square,
    np.subtract: torch.sub,
    np.tanh: torch.tanh,
}


class TracedArray(NDArrayOperatorsMixin):
    """Stands for an array in NumPy code; every operation is done on the tensor behind it.

    Types follow NumPy's rules of promotion, so that the same numbers come out.
    """

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    @property
    def shape(self) -> tuple[Any, ...]:
        return tuple(self.tensor.shape)

    @property
    def ndim(self) -> int:
        return self.tensor.ndim

    @property
    def dtype(self) -> np.dtype[Any]:
        return numpy_dtype(self.tensor.dtype)

    def __len__(self) -> int:
        return self.tensor.shape[0]

    def __getitem__(self, index: Any) -> TracedArray:
        return TracedArray(self.tensor[index.tensor if isinstance(index, TracedArray) else index])

    def reshape(self, *shape: Any) -> TracedArray:
        """Return the same numbers in another shape."""
        return TracedArray(self.tensor.reshape(*shape))

    def astype(self, dtype: Any, copy: bool = True) -> TracedArray:
        """Return the numbers converted to another type."""
        return TracedArray(converted(self.tensor, dtype))

    def clip(self, low: Any = None, high: Any = None) -> TracedArray:
        """Return the numbers limited to both sides."""
        return _clip(self, low, high)

    def copy(self) -> TracedArray:
        """Return a copy."""
        return TracedArray(self.tensor.clone())

    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray:
        raise UntraceableError("the values of an array are needed, which are not known when a policy is exported")

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = None, **options: Any) -> Any:
        function = _UFUNCS.get(ufunc)
        if function is None or method != "__call__" or options:
            called = f"np.{ufunc.__name__}" if method == "__call__" else f"np.{ufunc.__name__}.{method}"
            raise UntraceableError(f"{called} has no counterpart in an exported policy")
        types = [type(one) if isinstance(one, bool | int | float) else _dtype(one) for one in inputs]
        resolved = ufunc.resolve_dtypes((*types, None))
        operands = [_as_tensor(one, dtype) for one, dtype in zip(inputs, resolved, strict=False)]
        result = converted(function(*operands), resolved[-1])
        if out is None:
            return TracedArray(result)
        (target,) = out
        target.tensor = converted(result, target.dtype)
        return target

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        traced = _FUNCTIONS.get(function)
        if traced is None:
            raise UntraceableError(f"np.{function.__name__} has no counterpart in an exported policy")
        return traced(*args, **kwargs)


def _clip(values: Any, low: Any = None, high: Any = None) -> Any:
    if low is not None:
        values = np.maximum(values, low)
    return values if high is None else np.minimum(values, high)


def _tensors(arrays: Any) -> list[Tensor]:
    dtype = np.result_type(*map(_dtype, arrays))
    return [_as_tensor(one, dtype) for one in arrays]


def _where(condition: Any, one: Any, other: Any) -> TracedArray:
    dtype = np.result_type(*(x if isinstance(x, bool | int | float) else _dtype(x) for x in (one, other)))
    return TracedArray(
        torch.where(_as_tensor(condition, np.dtype(bool)), _as_tensor(one, dtype), _as_tensor(other, dtype))
    )


_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    np.argmax: lambda array, axis=None: TracedArray(array.tensor.argmax(dim=axis)),
    np.clip: _clip,
    np.concatenate: lambda arrays, axis=0: TracedArray(torch.cat(_tensors(arrays), dim=axis)),
    np.reshape: lambda array, shape: array.reshape(shape),
    np.round: lambda array: np.rint(array),
    np.squeeze: lambda array, axis: TracedArray(array.tensor.squeeze(axis)),
    np.stack: lambda arrays, axis=0: TracedArray(torch.stack(_tensors(arrays), dim=axis)),
    np.where: _where,
}


class NumpyTracing(TorchFunctionMode):
    """While it is active, `tensor.numpy()` returns a `TracedArray`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return TracedArray(args[0]) if func is torch.Tensor.numpy else func(*args, **(kwargs or {}))


def converted(tensor: Tensor, dtype: Any) -> Tensor:
    """Return the tensor itself if it is of a NumPy type, else its numbers converted to it."""
    wanted = torch_dtype(dtype)
    return tensor if tensor.dtype == wanted else tensor.to(wanted)


def torch_dtype(dtype: Any) -> torch.dtype:
    """Return torch's name of a NumPy type."""
    return torch.from_numpy(np.empty(0, np.dtype(dtype))).dtype


def numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """Return NumPy's name of a torch type."""
    return np.dtype(str(dtype).removeprefix("torch."))


def _dtype(value: Any) -> np.dtype[Any]:
    return value.dtype if isinstance(value, TracedArray) else np.asarray(value).dtype


def _as_tensor(value: Any, dtype: np.dtype[Any]) -> Tensor:
    if isinstance(value, TracedArray):
        return converted(value.tensor, dtype)
    return torch.from_numpy(np.array(value, dtype))

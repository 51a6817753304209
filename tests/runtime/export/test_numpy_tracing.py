"""NumPy code over traced arrays gives the numbers and types of NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from rl_training.runtime.export.numpy_tracing import NumpyTracing, TracedArray, UntraceableError

FLOATS = np.array([[1.5, -2.5, 0.5], [3.0, -0.25, 2.0]], np.float32)
WHOLE = np.array([[1, -2, 0], [3, 4, 5]], np.int64)


@pytest.mark.parametrize(
    "code",
    [
        lambda x, n: x + 1,
        lambda x, n: 0.5 * (x + 1.0) * np.array([1.0, 2.0, 3.0], np.float32),
        lambda x, n: x - np.array([1.0, 2.0, 3.0]),  # doubles
        lambda x, n: n / 2,
        lambda x, n: n + np.int64(3),
        lambda x, n: np.clip(x, -1.0, np.float32(2.0)),
        lambda x, n: np.minimum(np.maximum(x, np.array(-1.0)), np.array(1.0)),
        lambda x, n: np.rint(x).astype(np.int8),
        lambda x, n: np.floor(-x),
        lambda x, n: x.reshape(-1, 3, 1).astype(np.float64, copy=False),
        lambda x, n: np.where(x > 0, x, 0.0),
        lambda x, n: np.where(n == 1, 7, n),
        lambda x, n: np.concatenate([x, n], axis=1),
        lambda x, n: np.stack([n, n], axis=1)[:, 0],
        lambda x, n: np.argmax(x, axis=1),
        lambda x, n: np.sqrt(np.abs(x)) ** 2,
        lambda x, n: np.divide(np.subtract(x, np.array([1.0, 0.0, 2.0])), 3.0),
        lambda x, n: (x > 1) & (n < 4),
        lambda x, n: ~(n <= 2),
        lambda x, n: np.round(x).clip(-2, 2),
    ],
)
def test_traced_code_gives_numpys_numbers_and_types(code: Callable[..., Any]) -> None:
    expected = code(FLOATS, WHOLE)
    traced = code(TracedArray(torch.from_numpy(FLOATS)), TracedArray(torch.from_numpy(WHOLE)))
    found = traced.tensor.numpy()
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == expected.dtype


def test_results_can_be_written_in_place() -> None:
    traced: Any = TracedArray(torch.from_numpy(FLOATS) + 0.0)
    np.multiply(traced, 2.0, out=traced)
    np.testing.assert_array_equal(traced.tensor.numpy(), FLOATS * 2)


@pytest.mark.parametrize("code", [np.linalg.norm, np.arctan, np.add.reduce, np.asarray, lambda x: np.sort(x)])
def test_what_has_no_counterpart_is_an_error(code: Callable[..., Any]) -> None:
    with pytest.raises(UntraceableError):
        code(TracedArray(torch.from_numpy(FLOATS)))


def test_tensors_become_traced_arrays_only_while_tracing() -> None:
    tensor = torch.ones(2)
    with NumpyTracing():
        assert isinstance(tensor.cpu().numpy(), TracedArray)
    assert isinstance(tensor.numpy(), np.ndarray)

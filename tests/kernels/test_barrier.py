"""Threads of compiled code wait at a barrier: none goes on before all have arrived, whoever is first."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from rl_training.kernels.compiled.barrier import barrier
from rl_training.search.compilation import compiled

ROUNDS = 2_000


@compiled
def take_turns(index: int, parts: int, arrived: np.ndarray, written: np.ndarray, stale: np.ndarray) -> None:
    """Write the number of each round and count what others had not written yet."""
    for number in range(1, ROUNDS + 1):
        written[index] = number
        barrier(arrived, parts)
        for other in range(parts):
            stale[index] += written[other] != number
        barrier(arrived, parts)


@pytest.mark.parametrize("parts", [1, 2, 3])  # also more than this machine may have cores
def test_no_thread_goes_on_before_all_have_arrived(parts: int) -> None:
    arrived, written, stale = (np.zeros(size, np.int64) for size in (1, parts, parts))
    with ThreadPoolExecutor(parts) as threads:
        for part in [threads.submit(take_turns, index, parts, arrived, written, stale) for index in range(parts)]:
            part.result(60)
    assert written.tolist() == [ROUNDS] * parts
    assert stale.tolist() == [0] * parts
    assert arrived[0] == (2 * ROUNDS * parts if parts > 1 else 0)

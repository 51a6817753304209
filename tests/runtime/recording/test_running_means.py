"""Means of metrics between two rows: summed on the host as tensors would sum, saved and checked."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from rl_training.errors import NonFiniteError
from rl_training.runtime.recording.metrics import RunningMeans


def reports(count: int, dtype: torch.dtype = torch.float32) -> list[dict[str, Tensor]]:
    values = torch.randn(count, 2, generator=torch.Generator().manual_seed(0), dtype=dtype) * 1e3
    return [{"loss": loss, "norm": norm} for loss, norm in values]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_are_rounded_like_those_of_tensors(dtype: torch.dtype) -> None:
    means, expected = RunningMeans(), torch.zeros(2, dtype=dtype)
    for report in reports(500, dtype):
        means.add(report)
        expected = expected + torch.stack([report["loss"], report["norm"]])
    sums = means.state_dict()["sums"]
    assert torch.equal(torch.stack([sums["loss"], sums["norm"]]), expected)
    assert means.means() == {"loss": expected[0].float().item() / 500, "norm": expected[1].float().item() / 500}


def test_a_saved_sum_goes_on_alike() -> None:
    whole, parts = RunningMeans(), RunningMeans()
    for number, report in enumerate(reports(40)):
        whole.add(report)
        if number == 17:
            state = copy.deepcopy(parts.state_dict())
            parts = RunningMeans()
            parts.load_state_dict(state)
        parts.add(report)
    assert parts.means() == whole.means()


def test_a_metric_that_the_algorithm_changes_later_counts_as_it_was() -> None:
    means, temperature = RunningMeans(), torch.zeros(())
    for value in (1.0, 2.0, 6.0):
        means.add({"temperature": temperature.fill_(value)})
    assert means.means() == {"temperature": 3.0}


def test_a_metric_that_is_no_number_is_named() -> None:
    means = RunningMeans()
    means.add({"loss": torch.tensor(1.0), "norm": torch.tensor(torch.nan)})
    means.add({"loss": torch.tensor(1.0), "norm": torch.tensor(1.0)})
    with pytest.raises(NonFiniteError, match=r"^norm became NaN or infinite at step 7"):
        means.check_finite(7)

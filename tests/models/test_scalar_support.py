"""Numbers as distributions over integers: the transform and its inverse, the loss by hand, what is clipped."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rl_training.models.planning.scalar_support import clipped, expected_scalar, scalar_loss, squash, unsquash


def number(x: float) -> torch.Tensor:
    return torch.tensor(x, dtype=torch.float64)


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (0.0, 0.0),
        (3.0, 1.003),  # sqrt(4) - 1 + 0.003
        (-3.0, -1.003),
        (8.0, 2.008),
        (500.0, math.sqrt(501) - 1 + 0.5),
        (-99.0, -9.099),
    ],
)
def test_known_numbers(x: float, y: float) -> None:
    assert squash(number(x)).item() == pytest.approx(y, abs=1e-12)
    assert unsquash(number(y)).item() == pytest.approx(x, abs=1e-9)


def test_500_becomes_about_22_and_50_stands_for_about_2400() -> None:
    assert squash(number(500.0)).item() == pytest.approx(21.883, abs=1e-3)
    assert unsquash(number(50.0)).item() == pytest.approx(2400, abs=60)


@given(st.floats(-1e6, 1e6))
def test_the_inverse_undoes_the_transform(x: float) -> None:
    assert unsquash(squash(number(x))).item() == pytest.approx(x, rel=1e-9, abs=1e-9)


@given(st.floats(-3000, 3000))
def test_the_inverse_is_good_in_single_precision_too(x: float) -> None:
    assert unsquash(squash(torch.tensor(x))).item() == pytest.approx(x, rel=1e-4, abs=1e-5)


@given(st.floats(-1e4, 1e4), st.floats(-1e4, 1e4))
def test_the_transform_keeps_the_order_and_the_sign(one: float, other: float) -> None:
    first, second = squash(number(one)).item(), squash(number(other)).item()
    assert (first <= second) == (one <= other) or math.isclose(one, other, abs_tol=1e-9)
    assert abs(first) <= abs(one)


# -- reading and learning ------------------------------------------------------------------------


def test_uniform_logits_stand_for_0() -> None:
    assert expected_scalar(torch.full((4, 11), 2.5)).tolist() == pytest.approx([0.0] * 4, abs=1e-6)


def test_a_sure_integer_stands_for_what_is_transformed_to_it() -> None:
    logits = torch.full((7,), -100.0)
    logits[3 + 2] = 100.0  # the integer 2 of -3..3
    assert expected_scalar(logits).item() == pytest.approx(unsquash(number(2.0)).item(), rel=1e-5)


def test_logits_are_read_by_their_mean_before_the_inverse() -> None:
    logits = torch.full((5,), -100.0)
    logits[2], logits[4] = math.log(0.25), math.log(0.75)  # 0 with 1/4 and 2 with 3/4: mean 1.5
    assert expected_scalar(logits).item() == pytest.approx(unsquash(number(1.5)).item(), rel=1e-5)


LOGITS = torch.tensor([0.3, -1.0, 0.7, 2.0, -0.2])  # over -2..2


@pytest.mark.parametrize(
    ("squashed", "shares"),
    [
        (0.0, {2: 1.0}),
        (0.25, {2: 0.75, 3: 0.25}),
        (-0.5, {1: 0.5, 2: 0.5}),
        (-1.75, {0: 0.75, 1: 0.25}),
        (2.0, {4: 1.0}),  # the ends of the support
        (-2.0, {0: 1.0}),
        (7.5, {4: 1.0}),  # clipped to them
        (-30.0, {0: 1.0}),
    ],
)
def test_the_loss_is_the_cross_entropy_with_the_two_neighbours(squashed: float, shares: dict[int, float]) -> None:
    target = unsquash(torch.tensor(squashed))
    total = math.log(sum(math.exp(logit) for logit in LOGITS.tolist()))
    expected = sum(share * (total - LOGITS[index].item()) for index, share in shares.items())
    assert scalar_loss(LOGITS, target).item() == pytest.approx(expected, abs=1e-4)


def test_the_loss_keeps_leading_dimensions() -> None:
    logits = torch.randn(3, 4, 9, generator=torch.Generator().manual_seed(0))
    target = torch.linspace(-40, 40, 12).view(3, 4)
    losses = scalar_loss(logits, target)
    assert losses.shape == (3, 4)
    for row in range(3):
        for column in range(4):
            single = scalar_loss(logits[row, column], target[row, column])
            assert losses[row, column].item() == pytest.approx(single.item(), rel=1e-6)


def test_what_is_learned_is_what_is_read() -> None:
    """The loss is least for logits whose expectation is the target."""
    targets = torch.linspace(-15, 15, 41)
    logits = torch.zeros(41, 13, requires_grad=True)
    optimizer = torch.optim.Adam([logits], lr=0.5)
    for _ in range(60):
        optimizer.zero_grad()
        scalar_loss(logits, targets).sum().backward()
        optimizer.step()
    learned = squash(expected_scalar(logits.detach()))
    torch.testing.assert_close(learned, squash(targets), rtol=0, atol=0.05)


def test_what_lies_beyond_the_support_is_clipped() -> None:
    at_the_end = unsquash(torch.tensor(5.0)).item()
    targets = torch.tensor([0.0, at_the_end - 0.1, at_the_end + 0.1, -at_the_end - 0.1, -3.0])
    assert clipped(targets, 5).tolist() == [0, 0, 1, 1, 0]
    assert not clipped(targets, 6).any()

"""Squashed Gaussian policies: their density, also where the squashing saturates, and their samples."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from replay_parts import OBSERVATION, generator
from rl_training.models.continuous import SquashedActor, squashed_log_prob
from rl_training.models.encoders import VectorEncoder
from rl_training.models.exploration import draw_matrices


def _by_autograd(raw: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """Return the density of tanh(raw) by the change of variables, with the slope that autograd finds."""
    raw = raw.clone().requires_grad_()
    (slope,) = torch.autograd.grad(torch.tanh(raw).sum(), raw)
    normal = torch.distributions.Normal(mean, log_std.exp()).log_prob(raw.detach())
    return (normal - slope.log()).sum(dim=-1)


def test_squashed_log_prob_equals_the_change_of_variables() -> None:
    draws = torch.randn(3, 50, 4, generator=generator(0), dtype=torch.float64)
    mean, log_std, noise = draws[0], 0.5 * draws[1] - 0.5, draws[2]
    raw = mean + log_std.exp() * noise
    torch.testing.assert_close(squashed_log_prob(raw, noise, log_std), _by_autograd(raw, mean, log_std))


@pytest.mark.parametrize("centre", [-9.0, 9.0])
def test_squashed_log_prob_is_exact_where_tanh_saturates(centre: float) -> None:
    # In single precision 1 - tanh(9)^2 is lost to rounding; in double precision it is not.
    noise = torch.linspace(-1, 1, 5).unsqueeze(1)
    log_std = torch.full((5, 1), -1.0)
    raw = centre + log_std.exp() * noise
    single = squashed_log_prob(raw, noise, log_std)
    double = _by_autograd(raw.double(), torch.full((5, 1), centre, dtype=torch.float64), log_std.double())
    torch.testing.assert_close(single.double(), double, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("raw_value", [-60.0, 60.0])
def test_squashed_log_prob_far_out_is_the_asymptote_with_a_finite_slope(raw_value: float) -> None:
    raw = torch.tensor([[raw_value]], requires_grad=True)
    zero = torch.zeros(1, 1)
    log_prob = squashed_log_prob(raw, zero, zero)
    # log(1 - tanh(x)^2) tends to log 4 - 2|x|.
    assert log_prob.item() == pytest.approx(-0.5 * math.log(2 * math.pi) - math.log(4) + 2 * abs(raw_value), rel=1e-6)
    log_prob.sum().backward()
    assert raw.grad is not None
    assert raw.grad.item() == pytest.approx(2 * math.copysign(1, raw_value))


def test_squashed_density_integrates_to_one() -> None:
    mean, log_std = 0.4, -0.3
    action = torch.linspace(-1 + 1e-6, 1 - 1e-6, 200_001, dtype=torch.float64)
    raw = torch.atanh(action).unsqueeze(1)
    noise = (raw - mean) / math.exp(log_std)
    density = squashed_log_prob(raw, noise, torch.full_like(raw, log_std)).exp()
    assert torch.trapezoid(density, action).item() == pytest.approx(1.0, abs=1e-4)


def _actor(*, use_sde: bool = False, log_std_init: float = -3.0) -> SquashedActor:
    return SquashedActor(
        VectorEncoder(OBSERVATION),
        2,
        hidden_sizes=(16,),
        activation="tanh",
        use_sde=use_sde,
        log_std_init=log_std_init,
        generator=generator(0),
    )


@pytest.mark.parametrize("use_sde", [False, True])
def test_samples_come_with_their_own_log_probability(use_sde: bool) -> None:
    actor = _actor(use_sde=use_sde, log_std_init=-1.0)
    observation = torch.randn(8, 3, generator=generator(1))
    noise = torch.randn(8, 2, generator=generator(2))
    action, log_prob = actor.sample(observation, noise)
    mean, log_std = actor(observation)
    raw = mean + log_std.exp() * noise
    torch.testing.assert_close(action, torch.tanh(raw))
    torch.testing.assert_close(log_prob, _by_autograd(raw.detach(), mean, log_std), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(actor.mode(observation), torch.tanh(mean))


def test_state_dependent_noise_has_the_deviation_that_its_density_says() -> None:
    actor = _actor(use_sde=True, log_std_init=-1.0)
    observation = torch.randn(1, 3, generator=generator(1)).expand(20_000, 3)
    with torch.no_grad():
        assert actor.log_std is not None
        explored = actor.explore(actor.latent(observation), draw_matrices(actor.log_std, 20_000, generator(2)))
        mean, log_std = actor(observation[:1])
    raw = torch.atanh(explored)
    torch.testing.assert_close(raw.mean(dim=0), mean[0], rtol=0, atol=0.05)
    torch.testing.assert_close(raw.std(dim=0), log_std[0].exp(), rtol=0.05, atol=0)

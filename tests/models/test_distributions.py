"""Action distributions against torch.distributions, and the heads that make them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import Space, spaces
from torch import Tensor, distributions

from rl_training.algorithms.params.ppo_params import PPOParams
from rl_training.algorithms.ppo import PPO
from rl_training.errors import ConfigError
from rl_training.models.distributions import (
    Bernoulli,
    Categorical,
    DiagonalGaussian,
    Distribution,
    MultiCategorical,
    mask_logits,
)
from rl_training.models.exploration import draw_matrices
from rl_training.models.heads import StateDependentNoiseHead, make_action_head

DRAWS = 40_000
TORQUE = spaces.Box(-1.0, 1.0, (2,), np.float32)


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=_generator(seed))


class _Joint:
    """Independent distributions of torch as one, over the columns of an action."""

    def __init__(self, parts: list[distributions.Distribution]) -> None:
        self.parts = parts

    def log_prob(self, action: Tensor) -> Tensor:
        return sum((part.log_prob(action[:, i]) for i, part in enumerate(self.parts)), torch.tensor(0.0))

    def entropy(self) -> Tensor:
        return sum((part.entropy() for part in self.parts), torch.tensor(0.0))


def _pairs() -> dict[str, tuple[Distribution, Any]]:
    """Return each distribution over five rows with torch's own form of it."""
    logits, switches, mean, log_std = _normal(5, 7), 2 * _normal(5, 3), _normal(5, 2), _normal(2, seed=1)
    columns: list[distributions.Distribution] = [
        distributions.Categorical(logits=logits[:, :3]),
        distributions.Categorical(logits=logits[:, 3:]),
    ]
    per_row = _normal(5, 2, seed=2)
    return {
        "categorical": (Categorical(logits), distributions.Categorical(logits=logits)),
        "multi_categorical": (MultiCategorical(logits, (3, 4)), _Joint(columns)),
        "bernoulli": (
            Bernoulli(switches),
            distributions.Independent(distributions.Bernoulli(logits=switches), 1),
        ),
        "gaussian": (
            DiagonalGaussian(mean, log_std),
            distributions.Independent(distributions.Normal(mean, log_std.exp()), 1),
        ),
        "gaussian_per_row": (
            DiagonalGaussian(mean, per_row),
            distributions.Independent(distributions.Normal(mean, per_row.exp()), 1),
        ),
    }


@pytest.mark.parametrize("name", _pairs())
def test_log_probabilities_and_entropies_equal_those_of_torch(name: str) -> None:
    ours, reference = _pairs()[name]
    for seed in range(3):
        action = ours.sample(_generator(seed))
        expected = reference.log_prob(action.float() if name == "bernoulli" else action)
        torch.testing.assert_close(ours.log_prob(action), expected)
    torch.testing.assert_close(ours.entropy(), reference.entropy())


@pytest.mark.parametrize("name", _pairs())
def test_the_mode_is_at_least_as_likely_as_any_sample(name: str) -> None:
    ours, _ = _pairs()[name]
    best = ours.log_prob(ours.mode())
    for seed in range(20):
        assert (ours.log_prob(ours.sample(_generator(seed))) <= best + 1e-6).all()


@pytest.mark.parametrize("name", _pairs())
def test_equal_generators_give_equal_samples_and_the_global_one_is_left_alone(name: str) -> None:
    ours, _ = _pairs()[name]
    before = torch.get_rng_state()
    assert ours.sample(_generator(3)).equal(ours.sample(_generator(3)))
    assert torch.get_rng_state().equal(before)


def _assert_frequencies(counts: Tensor, probabilities: Tensor) -> None:
    """Assert that counts of `DRAWS` lie within five standard errors."""
    error = (probabilities * (1 - probabilities) / DRAWS).sqrt()
    assert ((counts / DRAWS - probabilities).abs() <= 5 * error).all()


def test_choices_are_drawn_with_their_probabilities() -> None:
    probabilities = torch.tensor([0.5, 0.3, 0.15, 0.05, 0.0])
    sample = Categorical(probabilities.log().clamp_min(-1e8).expand(DRAWS, 5)).sample(_generator())
    _assert_frequencies(sample.bincount(minlength=5), probabilities)


def test_several_choices_are_drawn_independently_with_their_probabilities() -> None:
    first, second = torch.tensor([0.7, 0.3]), torch.tensor([0.2, 0.2, 0.6])
    logits = torch.cat((first, second)).log().expand(DRAWS, 5)
    sample = MultiCategorical(logits, (2, 3)).sample(_generator())
    assert sample.shape == (DRAWS, 2)
    _assert_frequencies((sample[:, 0] * 3 + sample[:, 1]).bincount(minlength=6), torch.outer(first, second).flatten())


def test_switches_are_drawn_with_their_probabilities() -> None:
    probabilities = torch.tensor([0.1, 0.5, 0.9])
    sample = Bernoulli(torch.logit(probabilities).expand(DRAWS, 3)).sample(_generator())
    _assert_frequencies(sample.sum(dim=0), probabilities)


def test_normal_samples_have_their_mean_and_deviation() -> None:
    mean, log_std = torch.tensor([3.0, -1.0]), torch.tensor([0.0, -1.0])
    sample = DiagonalGaussian(mean.expand(DRAWS, 2), log_std).sample(_generator())
    error = log_std.exp() / math.sqrt(DRAWS)
    assert ((sample.mean(dim=0) - mean).abs() <= 5 * error).all()
    assert ((sample.std(dim=0) - log_std.exp()).abs() <= 5 * error).all()


# -- masks ---------------------------------------------------------------------------------------


def test_a_mask_renormalises_the_legal_choices() -> None:
    logits = _normal(4, 5)
    mask = torch.tensor([True, False, True, True, False]).expand(4, 5)
    masked = Categorical(mask_logits(logits, mask))
    legal = distributions.Categorical(logits=logits[:, [0, 2, 3]])
    for column, action in enumerate((0, 2, 3)):
        chosen = torch.full((4,), action)
        torch.testing.assert_close(masked.log_prob(chosen), legal.log_prob(torch.full((4,), column)))
    assert masked.log_probs[:, [1, 4]].exp().max() == 0
    torch.testing.assert_close(masked.entropy(), legal.entropy())


def test_a_single_legal_choice_has_no_entropy_and_a_finite_gradient() -> None:
    logits = _normal(2, 3).requires_grad_()
    masked = Categorical(mask_logits(logits, torch.tensor([[False, True, False]] * 2)))
    assert masked.sample(_generator()).tolist() == [1, 1]
    assert masked.entropy().tolist() == [0, 0]
    (masked.entropy() + masked.log_prob(torch.tensor([1, 1]))).sum().backward()
    assert logits.grad is not None
    assert logits.grad.abs().max() == 0


def test_a_masked_switch_stays_off() -> None:
    logits = torch.full((200, 2), 3.0, requires_grad=True)
    masked = Bernoulli(mask_logits(logits, torch.tensor([[False, True]] * 200)))
    sample = masked.sample(_generator())
    assert sample[:, 0].max() == 0
    assert masked.mode()[0].tolist() == [0, 1]
    alone = distributions.Bernoulli(logits=torch.full((200,), 3.0))
    torch.testing.assert_close(masked.log_prob(sample), alone.log_prob(sample[:, 1].float()))
    torch.testing.assert_close(masked.entropy(), alone.entropy())
    masked.entropy().sum().backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


# -- heads ---------------------------------------------------------------------------------------


def _head(space: Space[Any], latent: int = 4, **settings: Any) -> Any:
    defaults: dict[str, Any] = {"log_std": "state_independent", "log_std_init": 0.0, "use_sde": False}
    return make_action_head(space, latent, orthogonal=True, generator=_generator(), **{**defaults, **settings})


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(3, start=5),
        spaces.MultiDiscrete(np.array([[2, 3], [4, 5]]), start=np.array([[0, 1], [2, -3]])),
        spaces.MultiBinary([2, 3]),
        spaces.Box(np.array([[-0.1], [2.0]], np.float32), np.array([[0.1], [2.5]], np.float32)),
    ],
    ids=lambda space: type(space).__name__,
)
def test_actions_for_the_environment_are_members_of_its_space(space: Space[Any]) -> None:
    head = _head(space).requires_grad_(False)
    policy: Distribution = head(_normal(30, 4), None)
    for action in (policy.sample(_generator()), policy.mode()):
        assert policy.log_prob(action).shape == policy.entropy().shape == (30,)
        for row in head.env_action(action):
            assert space.contains(row), row


def test_continuous_actions_are_clipped_outside_and_unbounded_inside() -> None:
    head = _head(TORQUE, log_std_init=1.0).requires_grad_(False)
    action = head(_normal(200, 4), None).sample(_generator())
    assert action.abs().max() > 1
    np.testing.assert_array_equal(head.env_action(action), action.clamp(-1, 1).numpy())


def test_one_log_std_is_shared_by_all_states() -> None:
    head = _head(TORQUE, log_std_init=-0.5)
    policy: Any = head(_normal(5, 4), None)
    assert policy.log_std.equal(torch.full((5, 2), -0.5))
    policy.entropy().sum().backward()
    assert head.log_std.grad is not None
    assert head.log_std.grad.tolist() == [5.0, 5.0]


def test_a_state_dependent_log_std_differs_by_state_and_starts_near_its_initial_value() -> None:
    head = _head(TORQUE, log_std="state_dependent", log_std_init=-0.5)
    latent = _normal(5, 4)
    policy: Any = head(latent, None)
    assert (policy.log_std + 0.5).abs().max() < 0.1
    assert (policy.log_std[0] - policy.log_std[1]).abs().min() > 0
    reference = distributions.Independent(distributions.Normal(policy.mean, policy.log_std.exp()), 1)
    action = policy.sample(_generator())
    torch.testing.assert_close(policy.log_prob(action), reference.log_prob(action))
    policy.entropy().sum().backward()
    gradient = head.linear.weight.grad
    assert gradient is not None
    torch.testing.assert_close(gradient[2:], latent.sum(dim=0).expand(2, 4))  # the rows of the deviations
    assert gradient[:2].abs().max() == 0  # those of the means


def test_a_state_dependent_log_std_stays_in_a_sane_range() -> None:
    head = _head(TORQUE, log_std="state_dependent", log_std_init=50.0)
    assert head(_normal(3, 4), None).log_std.max() == 2.0


# -- generalised state-dependent exploration -----------------------------------------------------


def _noise_head() -> Any:
    """Return a head of four features whose deviations all differ."""
    head = _head(TORQUE, use_sde=True, log_std_init=-0.5)
    assert isinstance(head, StateDependentNoiseHead)
    with torch.no_grad():
        head.log_std.add_(0.3 * _normal(4, 2, seed=4))
    return head


def test_gsde_marginal_is_a_normal_with_the_variance_of_its_noise() -> None:
    head, latent = _noise_head(), _normal(6, 4)
    policy: Any = head(latent, None)
    variance = latent.square() @ head.log_std.exp().square()
    reference = distributions.Independent(distributions.Normal(head.linear(latent), variance.sqrt()), 1)
    action = _normal(6, 2, seed=9)
    torch.testing.assert_close(policy.log_prob(action), reference.log_prob(action), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(policy.entropy(), reference.entropy(), rtol=1e-4, atol=1e-4)


def test_gsde_actions_really_have_the_marginal_variance() -> None:
    head = _noise_head()
    latent = _normal(1, 4)
    with torch.no_grad():
        matrices = draw_matrices(head.log_std, DRAWS, _generator())
        actions = head.explore(latent.expand(DRAWS, 4), matrices)
        expected = (latent.square() @ head.log_std.exp().square()).squeeze(0)
        error = actions.mean(dim=0) - head.linear(latent).squeeze(0)
    assert (error.abs() <= 5 * (expected / DRAWS).sqrt()).all()
    # The variance of a sample variance is 2 sigma^4 / n.
    assert ((actions.var(dim=0) - expected).abs() <= 5 * expected * math.sqrt(2 / DRAWS)).all()


def test_gsde_noise_does_not_shape_the_features() -> None:
    head = _noise_head()
    latent = _normal(3, 4).requires_grad_()
    head(latent, None).entropy().sum().backward()
    assert latent.grad is None or latent.grad.abs().max() == 0
    assert head.log_std.grad is not None
    assert head.log_std.grad.abs().min() > 0


def _noise_of_steps(sde_sample_freq: int, steps: int, rollouts: int = 1) -> list[Tensor]:
    """Return the noise of each step, with one observation throughout."""
    params = PPOParams(use_sde=True, sde_sample_freq=sde_sample_freq, hidden_sizes=(8,))
    observation_space = spaces.Box(-1, 1, (3,), np.float32)
    algorithm = PPO(params, observation_space, TORQUE, device=torch.device("cpu"), generator=_generator())
    observation, generator = _normal(1, 3).expand(2, 3), _generator(1)
    mean = algorithm.choose(observation, None, None)
    noise = []
    for _ in range(rollouts):
        algorithm.start_rollout()
        noise += [algorithm.act(observation, None, {}, generator) - mean for _ in range(steps)]
    return noise


def test_gsde_noise_is_kept_for_the_given_number_of_steps() -> None:
    noise = _noise_of_steps(sde_sample_freq=4, steps=10)
    assert all(noise[step].equal(noise[step - step % 4]) for step in range(10))
    assert not noise[0].equal(noise[4])
    assert not noise[4].equal(noise[8])
    assert not noise[0][0].equal(noise[0][1])  # each environment explores its own way


def test_gsde_noise_is_renewed_by_every_rollout_and_by_nothing_else_where_no_interval_is_set() -> None:
    noise = _noise_of_steps(sde_sample_freq=-1, steps=10, rollouts=2)
    assert all(step.equal(noise[0]) for step in noise[:10])
    assert all(step.equal(noise[10]) for step in noise[10:])
    assert not noise[0].equal(noise[10])


def test_gsde_needs_continuous_actions() -> None:
    with pytest.raises(ConfigError, match=r"use_sde.*Box actions.*Discrete"):
        _head(spaces.Discrete(2), use_sde=True)

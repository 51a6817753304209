"""REDQ's and DroQ's critics: targets of drawn critics, mean values for the actor, dropout from the given generator."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from replay_parts import (
    CONTROLS,
    CPU,
    OBSERVATION,
    TORQUE,
    Untouched,
    assert_goes_on_alike,
    batch_of,
    generator,
    parameters_of,
    random_batch,
)
from rl_training.algorithms.params.sac_params import DroQParams, REDQParams, SACParams
from rl_training.algorithms.sac import SAC, CriticDraws, actor_loss, critic_loss
from rl_training.kernels.door import attach
from rl_training.models import layer_norm as layer_norm_module
from rl_training.models.layer_norm import DropoutMLP, LayerNormMLP, dropout_factors
from rl_training.models.layers import StackedMLP


class Actor:
    """Gives the same action and the same log-probabilities wherever it is asked."""

    def sample(self, observation: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        return torch.zeros(2, 1), torch.tensor([-2.0, 1.0])


class Critics:
    """Gives values [critics, B, 1], of all critics or of those asked for."""

    outputs = 1

    def __init__(self, values: Any) -> None:
        self.values = torch.tensor(values).unsqueeze(2).requires_grad_()

    def __call__(self, observation: Tensor, action: Tensor, networks: Tensor | None = None) -> Tensor:
        return self.values if networks is None else self.values[networks]


def make_sac(params: SACParams, seed: int = 0) -> SAC:
    return SAC(params, OBSERVATION, TORQUE, device=CPU, generator=generator(seed))


def small(kind: type[SACParams], **changes: Any) -> SACParams:
    return kind(**{"hidden_sizes": (16, 16), "policy_delay": 1, **changes})


def test_the_target_is_the_smallest_value_of_the_critics_that_were_drawn() -> None:
    predicted: Any = Critics([[1.0, 2.0], [3.0, 0.0], [5.0, 4.0]])
    successor: Any = Critics([[0.0, 1.0], [4.0, 6.0], [5.0, 5.0]])  # the first, smallest of all, is not drawn
    actor: Any = Actor()
    batch = batch_of([1.0, 1.0], [0.5, 1.0], action=[[0.1], [0.2]])
    draws = CriticDraws(torch.tensor([2, 1]))
    params, temperature, noise = SACParams(num_critics=3, target_critics=2), torch.tensor([0.1]), torch.zeros(2, 1)
    loss, _ = critic_loss(predicted, successor, actor, batch, temperature, noise, params, draws)
    targets = torch.tensor([1 + 0.5 * (4 + 0.1 * 2), 1 + 1.0 * (5 - 0.1 * 1)])
    errors = predicted.values.detach().squeeze(2) - targets
    assert loss.item() == pytest.approx(0.5 * errors.square().mean(dim=1).sum().item())
    loss.backward()
    torch.testing.assert_close(predicted.values.grad.squeeze(2), errors / 2)  # all critics learn


def test_without_target_networks_the_target_is_drawn_from_the_critics_themselves() -> None:
    algorithm = make_sac(small(SACParams, num_critics=3, target_critics=1, target_network=False))
    batch, noise = random_batch(TORQUE), torch.zeros(2, 16, 2)
    losses = []
    for drawn in range(3):
        algorithm.draws = CriticDraws(torch.tensor([drawn]))
        losses.append(algorithm.critic_loss(batch, noise)[0].item())
    assert len(set(losses)) == 3
    with torch.no_grad():
        action, log_prob = algorithm.actor.sample(batch.next_observation, noise[0])
        values = algorithm.critic(batch.next_observation, action)[2].squeeze(1)
        target = batch.reward + batch.discount * (values - algorithm.temperature.value * log_prob)
        errors = algorithm.critic(batch.observation, batch.action).squeeze(2) - target
    assert losses[2] == pytest.approx(0.5 * errors.square().mean(dim=1).sum().item(), rel=1e-5)


@pytest.mark.parametrize(("way", "values"), [("min", (4.0, 5.0)), ("mean", (4.5, 5.5))])
def test_the_actor_ascends_the_smallest_or_the_mean_value(way: str, values: tuple[float, float]) -> None:
    critic: Any = Critics([[4.0, 6.0], [5.0, 5.0]])
    actor: Any = Actor()
    loss, _ = actor_loss(critic, actor, torch.zeros(2, 1), torch.tensor([0.1]), torch.zeros(2, 1), way)
    assert loss.item() == pytest.approx(((0.1 * -2 - values[0]) + (0.1 * 1 - values[1])) / 2)


def test_redq_draws_two_of_ten_critics_anew_for_every_update() -> None:
    algorithm, draws = make_sac(REDQParams()), generator(0)
    drawn = [algorithm.draw(draws) for _ in range(2_000)]
    counts = torch.zeros(10)
    for one in drawn:
        assert one.target_critics is not None
        assert len(set(one.target_critics.tolist())) == 2
        assert one.dropout is None
        counts[one.target_critics] += 1
    assert counts.sum() == 4_000
    assert counts.min() > 320  # 400 on average; the deviation of a count is 18
    assert counts.max() < 480


def test_chosen_networks_give_the_values_that_they_have_among_all() -> None:
    shape: Any = (4, 3, (8, 8), "relu")
    features, chosen = torch.randn(5, 3, generator=generator(1)), torch.tensor([3, 1])
    for kind in (StackedMLP, LayerNormMLP, DropoutMLP):
        networks = kind(*shape, orthogonal=False, generator=generator(0), outputs=2)
        torch.testing.assert_close(networks(features, chosen), networks(features)[chosen])


@pytest.mark.parametrize("layer_norm", [True, False])
def test_a_hidden_layer_is_dropout_then_layer_norm_then_activation(layer_norm: bool) -> None:
    settings: Any = {"dropout": 0.4, "layer_norm": layer_norm, "orthogonal": False, "outputs": 1}
    networks = DropoutMLP(2, 3, (8,), "relu", generator=generator(0), **settings)
    if layer_norm:
        with torch.no_grad():
            networks.norms[0].uniform_(0.5, 1.5, generator=generator(7))
            networks.norms[1].uniform_(-0.5, 0.5, generator=generator(8))
    features = torch.randn(6, 3, generator=generator(1))
    first, out = networks.get_parameter("weight_0"), networks.get_parameter("weight_1")
    factors = dropout_factors(torch.empty(2, 6, 8), 0.4, generator(5))
    assert 0.3 < (factors > 0).float().mean() < 0.9
    hidden = (features @ first + networks.get_parameter("bias_0")) * factors
    if layer_norm:
        hidden = functional.layer_norm(hidden, (8,)) * networks.norms[0] + networks.norms[1]
    expected = torch.relu(hidden) @ out + networks.get_parameter("bias_1")
    torch.testing.assert_close(networks(features, None, generator(5)), expected)
    # Without a generator nothing is dropped, and one network gives what it gives among all.
    assert torch.equal(networks(features), networks(features))
    torch.testing.assert_close(networks.one(1, features), networks(features)[1])
    assert not torch.allclose(networks(features), expected)


@pytest.mark.parametrize("dropout", [0.01, 0.3, 0.9])
def test_units_are_dropped_independently_and_the_others_make_up_for_them(dropout: float) -> None:
    draws = generator(3)
    passes = torch.stack([dropout_factors(torch.empty(4, 25), dropout, draws) for _ in range(5_000)]).flatten(1)
    dropped = (passes == 0.0).double()  # [passes, units]
    torch.testing.assert_close(passes[passes > 0].unique(), torch.tensor([1 / (1 - dropout)]))
    deviation = (dropout * (1 - dropout) / len(dropped)) ** 0.5
    assert (dropped.mean(0) - dropout).abs().max() < 5 * deviation  # also the first unit and the last
    neighbours = (dropped[:, 1:] * dropped[:, :-1]).mean()  # as often together as two independent ones
    assert abs(neighbours - dropout**2) < 5 * dropout / dropped[:, 1:].numel() ** 0.5
    number = dropped.sum(1)  # binomial
    assert number.var() == pytest.approx(100 * dropout * (1 - dropout), rel=0.1)


def test_every_pass_of_an_update_drops_other_units() -> None:
    algorithm = make_sac(small(DroQParams, critic_dropout=0.5))
    masks: list[Tensor] = []

    def noting(like: Tensor, dropout: float, draws: torch.Generator) -> Tensor:
        masks.append(dropout_factors(like, dropout, draws))
        return masks[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layer_norm_module, "dropout_factors", noting)
        algorithm.update(random_batch(TORQUE), CONTROLS, generator(0))
    assert [tuple(mask.shape) for mask in masks] == [(2, 16, 16)] * 6  # two layers of targets, critics, actor's critics
    assert len({tuple(mask.flatten().tolist()) for mask in masks}) == 6


@pytest.mark.parametrize("kind", [REDQParams, DroQParams])
def test_updates_draw_from_the_given_generator_alone(kind: type[SACParams]) -> None:
    changes = {"critic_dropout": 0.3} if kind is DroQParams else {}
    learners = [make_sac(small(kind, **changes)) for _ in range(3)]
    with Untouched():
        for learner, seed in zip(learners, (1, 1, 2), strict=True):
            learner.update(random_batch(TORQUE), CONTROLS, generator(seed))
    weights = [parameters_of(learner.critic) for learner in learners]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


@pytest.mark.parametrize("kind", [REDQParams, DroQParams])
def test_a_saved_state_goes_on_bit_for_bit(kind: type[SACParams]) -> None:
    changes = {"critic_dropout": 0.3} if kind is DroQParams else {}
    params = small(kind, **{**changes, "policy_delay": 2})
    assert_goes_on_alike(make_sac(params), make_sac(params, seed=9), TORQUE)


def test_dropout_is_for_updates_only() -> None:
    algorithm = make_sac(small(DroQParams, critic_dropout=0.5))
    batch = random_batch(TORQUE)
    algorithm.update(batch, CONTROLS, generator(0))
    assert torch.equal(
        algorithm.critic(batch.observation, batch.action), algorithm.critic(batch.observation, batch.action)
    )


def test_the_actor_is_updated_once_in_twenty_updates() -> None:
    for kind in (REDQParams, DroQParams):
        algorithm = make_sac(kind(hidden_sizes=(8,)))
        assert algorithm.params.gradient_steps == algorithm.params.policy_delay == 20
        before = parameters_of(algorithm.actor)
        draws = generator(0)
        for _ in range(19):
            assert "loss_actor" not in algorithm.update(random_batch(TORQUE), CONTROLS, draws)
        assert torch.equal(parameters_of(algorithm.actor), before)
        assert "loss_actor" in algorithm.update(random_batch(TORQUE), CONTROLS, draws)
        assert not torch.equal(parameters_of(algorithm.actor), before)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"num_critics": 3, "target_critics": 2}, "a target of drawn critics has no written-out gradient"),
        ({"policy_value": "mean"}, "an actor of mean values has no written-out gradient"),
        ({"critic_layer_norm": True}, "the critics' layers have no written-out gradient"),
        ({"critic_dropout": 0.1}, "the critics' layers have no written-out gradient"),
    ],
)
def test_kernels_leave_these_options_to_autograd(changes: dict[str, Any], reason: str) -> None:
    attached = attach(make_sac(small(SACParams, **changes)))
    assert (attached.kernel, attached.reason) == (None, reason)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"num_critics": 2, "target_critics": 3}, "target_critics: 3 of 2 critics cannot be drawn"),
        ({"critic_dropout": 0.1, "batch_norm": True, "target_network": False}, "critic_dropout: batch_norm leaves"),
    ],
)
def test_options_that_exclude_each_other_are_refused(changes: dict[str, Any], problem: str) -> None:
    (found,) = SACParams(**changes).problems(num_envs=1, total_timesteps=10_000)
    assert problem in found


def test_critics_of_a_users_own_need_not_know_of_draws() -> None:
    class Own(nn.Module):
        outputs = 1

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 2)

        def forward(self, observation: Tensor, action: Tensor) -> Tensor:
            return self.layer(torch.cat((observation, action), dim=1)).t().unsqueeze(2)

    class OwnSAC(SAC):
        def make_critic(self, observation_space: Any, generator: torch.Generator) -> nn.Module:
            return Own()

    algorithm = OwnSAC(small(SACParams), OBSERVATION, TORQUE, device=CPU, generator=generator(0))
    assert "loss_critic" in algorithm.update(random_batch(TORQUE), CONTROLS, generator(0))

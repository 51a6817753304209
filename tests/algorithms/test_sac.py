"""SAC and TQC: networks, acting and updates."""

from __future__ import annotations

import copy
import math
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from replay_parts import (
    CONTROLS,
    CPU,
    OBSERVATION,
    TORQUE,
    Untouched,
    assert_goes_on_alike,
    generator,
    parameters_of,
    random_batch,
)
from rl_training.algorithms import sac
from rl_training.algorithms.params.sac_params import SACParams, TQCParams
from rl_training.algorithms.sac import SAC
from rl_training.errors import ConfigError
from rl_training.kernels.door import attach
from rl_training.kernels.sac import SACGradients
from rl_training.models.continuous import ActionScale, StackedCritic
from rl_training.models.encoders import VectorEncoder
from rl_training.models.layers import StackedMLP

# -- the networks --------------------------------------------------------------------------------


def test_stacked_networks_equal_separate_ones() -> None:
    stacked = StackedMLP(3, 5, (7, 6), "tanh", orthogonal=False, generator=generator(0), outputs=2)
    features = torch.randn(4, 5, generator=generator(1))
    together = stacked(features)
    for network in range(3):
        hidden = features
        for layer in range(3):
            weight, bias = stacked.get_parameter(f"weight_{layer}"), stacked.get_parameter(f"bias_{layer}")
            hidden = torch.nn.functional.linear(hidden, weight[network].T, bias[network, 0])
            hidden = torch.tanh(hidden) if layer < 2 else hidden
        torch.testing.assert_close(together[network], hidden)
        torch.testing.assert_close(stacked.one(network, features), hidden)
    assert not torch.allclose(together[0], together[1])  # each starts from weights of its own


def test_stacked_critics_learn_as_separate_ones_do() -> None:
    critic = StackedCritic(
        VectorEncoder(OBSERVATION), 2, count=2, outputs=1, hidden_sizes=(8,), activation="relu", generator=generator(0)
    )
    batch = random_batch(TORQUE)
    assert isinstance(batch.observation, Tensor)
    target = torch.randn(16, 1, generator=generator(2))
    loss = (critic(batch.observation, batch.action) - target).square().mean(dim=(1, 2)).sum()
    weights = list(critic.parameters())
    together = torch.autograd.grad(loss, weights)
    features = torch.cat((batch.observation, batch.action), dim=1)
    for network in range(2):
        alone = torch.autograd.grad((critic.networks.one(network, features) - target).square().mean(), weights)
        for whole, part in zip(together, alone, strict=True):
            torch.testing.assert_close(whole[network], part[network])
            assert not part[1 - network].any()


def test_actions_are_stretched_to_asymmetric_bounds() -> None:
    space = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([1.0, 10.0], np.float32))
    scale = ActionScale(space)
    inner = torch.tensor([[-1.0, -1.0], [0.0, 0.0], [1.0, 1.0], [0.5, -0.5]])
    np.testing.assert_allclose(scale.to_env(inner), np.array([[-2, 0], [-0.5, 5], [1, 10], [0.25, 2.5]]))
    drawn = scale.to_env(torch.rand(500, 2, generator=generator(0)) * 2 - 1)
    assert drawn.dtype == np.float32
    assert all(space.contains(action) for action in drawn)


def test_actions_take_the_shape_of_their_space() -> None:
    scale = ActionScale(spaces.Box(-3.0, 3.0, (2, 2), np.float32))
    assert scale.size == 4
    action = scale.to_env(torch.tensor([[0.0, 1.0, -1.0, 0.5]]))
    assert action.tolist() == [[[0.0, 3.0], [-3.0, 1.5]]]


class Boundless(gym.Env[Any, Any]):
    """Its actions have no bounds."""

    observation_space = OBSERVATION
    action_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)


def test_actions_without_bounds_are_refused_with_a_repair_that_works() -> None:
    with pytest.raises(ConfigError) as refused:
        ActionScale(Boundless.action_space)
    assert "no bounds" in str(refused.value)
    assert "gymnasium.wrappers.TransformAction" in str(refused.value)
    assert "ppo" in str(refused.value)
    env = gym.wrappers.TransformAction(Boundless(), lambda action: action, TORQUE)
    assert ActionScale(env.action_space).size == 2


# -- updates -------------------------------------------------------------------------------------


def _algorithm(*, seed: int = 0, kind: type[SACParams] = SACParams, **params: Any) -> SAC:
    settings = kind(**{"hidden_sizes": (16,), **params})
    return SAC(settings, OBSERVATION, TORQUE, device=CPU, generator=generator(seed))


KINDS: list[Any] = [
    pytest.param(SACParams, {}, id="sac"),
    pytest.param(SACParams, {"use_sde": True, "sde_sample_freq": 2}, id="gsde"),
    pytest.param(SACParams, {"temperature": 0.2, "num_critics": 3}, id="fixed temperature"),
    pytest.param(TQCParams, {"num_quantiles": 5}, id="tqc"),
]


@pytest.mark.parametrize("use_sde", [False, True])
def test_state_dependent_noise_is_constant_between_draws(use_sde: bool) -> None:
    algorithm = _algorithm(use_sde=use_sde, sde_sample_freq=3, log_std_init=-1.0)
    observation, draws = torch.ones(2, 3), generator(1)
    actions = [algorithm.act(observation, None, CONTROLS, draws).clone() for _ in range(7)]
    repeats = [actions[step].equal(actions[step + 1]) for step in range(6)]
    assert repeats == ([True, True, False, True, True, False] if use_sde else [False] * 6)
    assert not actions[0][0].equal(actions[0][1])  # each environment has a matrix of its own


@pytest.mark.parametrize(("target_entropy", "direction"), [(10.0, 1), (-50.0, -1)])
def test_the_temperature_rises_while_entropy_lies_below_its_target(target_entropy: float, direction: int) -> None:
    algorithm = _algorithm(target_entropy=target_entropy, temperature_init=0.5)
    shown = []
    for seed in range(5):
        metrics = algorithm.update(random_batch(TORQUE, seed=seed), CONTROLS, generator(seed))
        shown.append(metrics["temperature"].item())
        assert math.copysign(1, target_entropy - metrics["entropy"].item()) == direction
    assert shown[0] == pytest.approx(0.5)
    changes = np.diff(shown)
    assert (changes * direction > 0).all()


def test_a_fixed_temperature_stays_and_the_automatic_target_counts_dimensions() -> None:
    algorithm = _algorithm(temperature=0.2)
    for seed in range(3):
        metrics = algorithm.update(random_batch(TORQUE), CONTROLS, generator(seed))
        assert metrics["temperature"].item() == pytest.approx(0.2)
    assert _algorithm().target_entropy == -2.0
    assert _algorithm(target_entropy=-0.5).target_entropy == -0.5


@pytest.mark.parametrize(("kind", "settings"), KINDS)
def test_the_actors_loss_leaves_the_critics_alone(
    kind: type[SACParams], settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm = _algorithm(kind=kind, **settings)
    seen: list[SimpleNamespace] = []
    original = sac.actor_loss

    def watched(*arguments: Any) -> Any:
        seen.append(
            SimpleNamespace(
                frozen=not any(parameter.requires_grad for parameter in algorithm.critic.parameters()),
                gradient=algorithm.critic_optimizer.gradient.clone(),
                critic=parameters_of(algorithm.critic),
                actor=parameters_of(algorithm.actor),
            )
        )
        return original(*arguments)

    before = parameters_of(algorithm.actor)
    monkeypatch.setattr(sac, "actor_loss", watched)
    algorithm.update(random_batch(TORQUE), CONTROLS, generator(0))
    (moment,) = seen
    assert moment.frozen
    assert moment.gradient.any()
    assert algorithm.critic_optimizer.gradient.equal(moment.gradient)
    assert parameters_of(algorithm.critic).equal(moment.critic)
    assert moment.actor.equal(before)  # the critics' loss does not move the actor either
    assert not parameters_of(algorithm.actor).equal(before)
    assert all(parameter.requires_grad for parameter in algorithm.critic.parameters())
    assert algorithm.target_critic is not None
    assert not any(parameter.requires_grad for parameter in algorithm.target_critic.parameters())


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"activation": "tanh"},
        {"hidden_sizes": ()},
        {"hidden_sizes": (8, 5, 6), "critic_hidden_sizes": (7,)},
        {"num_critics": 3},
        {"num_critics": 1, "max_grad_norm": 0.1},
        {"policy_delay": 2},
    ],
    ids=str,
)
def test_the_gradient_by_hand_is_that_of_autograd(settings: dict[str, Any]) -> None:
    by_hand, by_graph = _algorithm(**settings), _algorithm(**settings)
    assert attach(by_hand, updates=0).kernel == "sac"  # too few to be compiled
    for algorithm in (by_hand, by_graph):  # some standard deviations reach their bounds
        assert algorithm.actor.log_std_head is not None
        with torch.no_grad():
            algorithm.actor.log_std_head.weight.mul_(20.0)
    for seed, rows in enumerate((16, 16, 5)):  # memory that is used again fits batches of any size
        batch = random_batch(TORQUE, seed=seed, rows=rows)
        reports = [algorithm.update(batch, CONTROLS, generator(seed)) for algorithm in (by_hand, by_graph)]
        torch.testing.assert_close(*reports)
        for optimizer in ("actor_optimizer", "critic_optimizer"):
            gradients = [getattr(algorithm, optimizer).gradient for algorithm in (by_hand, by_graph)]
            torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-6)
    assert by_hand.actor_optimizer.gradient.any()
    assert by_hand.critic_optimizer.gradient.any()


def test_critics_that_agree_share_the_actors_gradient() -> None:
    algorithm = _algorithm()
    with torch.no_grad():
        for weight in algorithm.critic.parameters():
            weight[1] = weight[0]
    batch, noise = random_batch(TORQUE), torch.zeros(2, 16, 2)
    gradients = SACGradients(algorithm)
    gradients.critic(batch, noise)  # samples for both
    gradients.actor(batch, noise)
    shared = algorithm.actor_optimizer.gradient.clone()
    algorithm.actor_gradient(batch, noise)
    torch.testing.assert_close(shared, algorithm.actor_optimizer.gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "settings", [{"activation": "silu"}, {"use_sde": True}, {"target_network": False}, {"num_quantiles": 3}], ids=str
)
def test_other_networks_learn_by_autograd(settings: dict[str, Any]) -> None:
    accelerated = attach(_algorithm(**settings))
    assert accelerated.kernel is None
    assert accelerated.reason


def test_updates_equal_a_loop_written_with_torch_alone() -> None:
    algorithm = _algorithm(tau=0.1)
    actor, critic = copy.deepcopy(algorithm.actor), copy.deepcopy(algorithm.critic)
    target = copy.deepcopy(algorithm.target_critic)
    assert algorithm.target_critic is not None
    assert target is not None
    log_temperature = torch.zeros(1, requires_grad=True)
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=1e-2)
    actor_optimizer = torch.optim.Adam(actor.parameters(), lr=1e-2)
    temperature_optimizer = torch.optim.Adam([log_temperature], lr=1e-2)

    def descend(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    for seed in range(4):
        batch = random_batch(TORQUE, seed=seed)
        noise = torch.empty(2, 16, 2).normal_(generator=generator(seed))
        temperature = log_temperature.detach().exp()
        with torch.no_grad():
            action, log_prob = actor.sample(batch.next_observation, noise[0])
            smallest = target(batch.next_observation, action).min(dim=0).values.squeeze(1)
            goal = batch.reward + batch.discount * (smallest - temperature * log_prob)
        one, two = critic(batch.observation, batch.action).squeeze(2)
        descend(critic_optimizer, 0.5 * (one - goal).square().mean() + 0.5 * (two - goal).square().mean())
        action, log_prob = actor.sample(batch.observation, noise[1])
        smallest = critic(batch.observation, action).min(dim=0).values.squeeze(1)
        descend(actor_optimizer, (temperature * log_prob - smallest).mean())
        descend(temperature_optimizer, -(log_temperature * (log_prob.detach() - 2)).mean())
        with torch.no_grad():
            for slow, fast in zip(target.parameters(), critic.parameters(), strict=True):
                slow.mul_(0.9).add_(0.1 * fast)
        algorithm.update(batch, CONTROLS, generator(seed))
    pairs: list[tuple[torch.nn.Module, torch.nn.Module]] = [
        (algorithm.actor, actor),
        (algorithm.critic, critic),
        (algorithm.target_critic, target),
    ]
    for ours, theirs in pairs:
        torch.testing.assert_close(parameters_of(ours), parameters_of(theirs), rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(algorithm.temperature.log.detach(), log_temperature.detach(), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(("kind", "settings"), KINDS)
def test_a_saved_state_goes_on_bit_for_bit(kind: type[SACParams], settings: dict[str, Any]) -> None:
    assert_goes_on_alike(_algorithm(kind=kind, **settings), _algorithm(kind=kind, seed=9, **settings), TORQUE)


@pytest.mark.parametrize(("kind", "settings"), KINDS)
def test_global_generators_are_left_alone(kind: type[SACParams], settings: dict[str, Any]) -> None:
    with Untouched():
        algorithm = _algorithm(kind=kind, **settings)
        batch = random_batch(TORQUE)
        algorithm.act(batch.observation, None, CONTROLS, generator(0))
        algorithm.choose(batch.observation, None, generator(0))
        algorithm.random_actions(4, None, generator(0))
        algorithm.update(batch, CONTROLS, generator(0))


def test_warm_up_actions_are_uniform_and_evaluation_takes_the_mode() -> None:
    algorithm = _algorithm()
    random = algorithm.random_actions(20_000, None, generator(0))
    assert random.abs().max() <= 1
    assert random.mean(dim=0).tolist() == pytest.approx([0, 0], abs=0.02)
    assert random.var(dim=0).tolist() == pytest.approx([1 / 3, 1 / 3], rel=0.03)
    observation = torch.randn(5, 3, generator=generator(1))
    assert algorithm.choose(observation, None, None).equal(algorithm.actor.mode(observation))
    assert not algorithm.choose(observation, None, generator(2)).equal(algorithm.actor.mode(observation))

"""SAC and TQC against numbers worked out by hand, with the actors and critics that TD3 shares."""

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
    batch_of,
    generator,
    parameters_of,
    random_batch,
)
from rl_training.algorithms import sac
from rl_training.algorithms.sac import SAC, SACParams, TQCParams, actor_gradient, actor_loss, critic_loss
from rl_training.errors import ConfigError
from rl_training.experiment.config import validate_config
from rl_training.models.continuous import ActionScale, SquashedActor, StackedCritic, squashed_log_prob
from rl_training.models.exploration import draw_matrices
from rl_training.models.layers import StackedMLP

# -- squashed log-probabilities ------------------------------------------------------------------


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


# -- losses with stub networks -------------------------------------------------------------------


class FixedActor:
    """Gives the same action and the same log-probabilities wherever it is asked."""

    def __init__(self, action: list[float], log_prob: list[float]) -> None:
        self.action = torch.tensor(action).unsqueeze(1).requires_grad_()
        self.log_prob = torch.tensor(log_prob).requires_grad_()

    def sample(self, observation: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        return self.action, self.log_prob


class FixedCritic:
    """Gives values [critics, B, quantiles]; the slope along the action is one."""

    def __init__(self, values: Any) -> None:
        values = torch.tensor(values)
        self.values = (values if values.ndim == 3 else values.unsqueeze(2)).requires_grad_()
        self.outputs = self.values.shape[2]
        self.asked: list[Tensor] = []

    def __call__(self, observation: Tensor, action: Tensor) -> Tensor:
        self.asked.append(action)
        return self.values + (action - action.detach()).unsqueeze(0)


def _critic_loss(
    predicted: FixedCritic, successor: FixedCritic, actor: FixedActor, batch: Any, *, temperature: float, **params: Any
) -> tuple[Tensor, Tensor]:
    rows = len(batch.reward)
    networks: list[Any] = [predicted, successor, actor]
    rest = [batch, torch.tensor([temperature]), torch.zeros(rows, 1), SACParams(**params)]
    return critic_loss(*networks, *rest)


def test_critic_target_is_the_smallest_soft_value_of_a_fresh_action() -> None:
    predicted, successor = FixedCritic([[1.0, 2.0], [3.0, 0.0]]), FixedCritic([[4.0, 6.0], [5.0, 5.0]])
    actor = FixedActor([0.5, -0.5], [-2.0, 1.0])
    batch = batch_of([1.0, 1.0], [0.5, 0.0], action=[[0.1], [0.2]])
    loss, value = _critic_loss(predicted, successor, actor, batch, temperature=0.1)
    target = [1 + 0.5 * (4 - 0.1 * -2), 1.0]  # the second row terminated
    first = ((1 - target[0]) ** 2 + (2 - target[1]) ** 2) / 2
    second = ((3 - target[0]) ** 2 + (0 - target[1]) ** 2) / 2
    assert loss.item() == pytest.approx(0.5 * (first + second))
    assert value.item() == pytest.approx(1.5)
    assert successor.asked[0].equal(actor.action)  # the successor is judged by the policy's action,
    assert predicted.asked[0].equal(batch.action)  # the state by the one that was taken
    loss.backward()
    assert predicted.values.grad is not None
    assert predicted.values.grad[0, :, 0].tolist() == pytest.approx([(1 - target[0]) / 2, (2 - target[1]) / 2])
    assert successor.values.grad is actor.action.grad is actor.log_prob.grad is None


def test_actor_loss_weighs_entropy_against_the_smallest_value() -> None:
    critic, actor = FixedCritic([[4.0, 6.0], [5.0, 5.0]]), FixedActor([0.5, -0.5], [-2.0, 1.0])
    arguments: list[Any] = [critic, actor, torch.zeros(2, 1), torch.tensor([0.1]), torch.zeros(2, 1)]
    loss, log_prob = actor_loss(*arguments)
    assert loss.item() == pytest.approx(((0.1 * -2 - 4) + (0.1 * 1 - 5)) / 2)
    assert log_prob.tolist() == [-2.0, 1.0]
    loss.backward()
    assert actor.action.grad is not None
    assert actor.log_prob.grad is not None
    assert actor.action.grad.squeeze(1).tolist() == pytest.approx([-0.5, -0.5])  # towards larger values
    assert actor.log_prob.grad.tolist() == pytest.approx([0.05, 0.05])  # towards more entropy


def _quantile_huber(quantiles: list[float], targets: list[float]) -> float:
    """Return the loss of one row by its definition."""
    total = 0.0
    for index, quantile in enumerate(quantiles):
        fraction = (index + 0.5) / len(quantiles)
        for target in targets:
            error = target - quantile
            huber = 0.5 * error**2 if abs(error) <= 1 else abs(error) - 0.5
            total += abs(fraction - (error < 0)) * huber / len(targets)
    return total


def test_tqc_drops_the_largest_quantiles_of_all_critics_together() -> None:
    # Pooled: 1, 2, 3, 4, 50, 60. Two critics drop one each: the two largest, both of the first critic.
    successor = FixedCritic([[[50.0, 1.0, 60.0]], [[3.0, 2.0, 4.0]]])
    predicted = FixedCritic([[[0.0, 1.0, 2.0]], [[2.0, 2.5, 3.0]]])
    actor = FixedActor([0.0], [-2.0])
    batch = batch_of([1.0], [0.5], action=[[0.0]])
    settings = {"num_quantiles": 3, "dropped_quantiles": 1}
    loss, _ = _critic_loss(predicted, successor, actor, batch, temperature=0.1, **settings)
    targets = [1 + 0.5 * (value + 0.2) for value in (1, 2, 3, 4)]
    # Averaged over critics and quantiles.
    expected = (_quantile_huber([0.0, 1.0, 2.0], targets) + _quantile_huber([2.0, 2.5, 3.0], targets)) / 2 / 3
    assert loss.item() == pytest.approx(expected, rel=1e-6)


def test_tqc_pairs_every_row_with_its_own_targets() -> None:
    successor = FixedCritic([[[1.0, 2.0], [10.0, 20.0]], [[3.0, 4.0], [30.0, 40.0]]])
    predicted = FixedCritic([[[0.0, 1.0], [9.0, 9.5]], [[2.0, 2.5], [11.0, 12.0]]])
    actor = FixedActor([0.0, 0.0], [0.0, 0.0])
    batch = batch_of([0.0, 0.0], [1.0, 1.0], action=[[0.0], [0.0]])
    settings = {"num_quantiles": 2, "dropped_quantiles": 1}
    loss, _ = _critic_loss(predicted, successor, actor, batch, temperature=1.0, **settings)
    rows = [
        _quantile_huber([0.0, 1.0], [1, 2]),
        _quantile_huber([9.0, 9.5], [10, 20]),
        _quantile_huber([2.0, 2.5], [1, 2]),
        _quantile_huber([11.0, 12.0], [10, 20]),
    ]
    assert loss.item() == pytest.approx(sum(rows) / 4 / 2, rel=1e-6)


def test_the_actor_of_tqc_follows_the_mean_of_all_quantiles() -> None:
    critic, actor = FixedCritic([[[1.0, 3.0]], [[4.0, 8.0]]]), FixedActor([0.0], [-1.0])
    arguments: list[Any] = [critic, actor, torch.zeros(1, 1), torch.tensor([0.5]), torch.zeros(1, 1)]
    assert actor_loss(*arguments)[0].item() == pytest.approx(0.5 * -1 - (1 + 3 + 4 + 8) / 4)


def test_tqc_refuses_to_drop_every_quantile() -> None:
    raw = {"algo": "tqc", "env_id": "Pendulum-v1", "seed": 0, "total_timesteps": 5000, "output_dir": "runs"}
    with pytest.raises(ConfigError, match="dropped_quantiles: must be less than num_quantiles"):
        validate_config({**raw, "algo_kwargs": {"num_quantiles": 2, "dropped_quantiles": 2}})


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
        OBSERVATION, 2, count=2, outputs=1, hidden_sizes=(8,), activation="relu", generator=generator(0)
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


def _actor(*, use_sde: bool = False, log_std_init: float = -3.0) -> SquashedActor:
    return SquashedActor(
        OBSERVATION,
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
        metrics, _ = algorithm.update(random_batch(TORQUE, seed=seed), CONTROLS, generator(seed))
        shown.append(metrics["temperature"].item())
        assert math.copysign(1, target_entropy - metrics["entropy"].item()) == direction
    assert shown[0] == pytest.approx(0.5)
    changes = np.diff(shown)
    assert (changes * direction > 0).all()


def test_a_fixed_temperature_stays_and_the_automatic_target_counts_dimensions() -> None:
    algorithm = _algorithm(temperature=0.2)
    for seed in range(3):
        metrics, _ = algorithm.update(random_batch(TORQUE), CONTROLS, generator(seed))
        assert metrics["temperature"].item() == pytest.approx(0.2)
    assert _algorithm().target_entropy == -2.0
    assert _algorithm(target_entropy=-0.5).target_entropy == -0.5


@pytest.mark.parametrize(("kind", "settings"), KINDS)
def test_the_actors_loss_leaves_the_critics_alone(
    kind: type[SACParams], settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm = _algorithm(kind=kind, **settings)
    seen: list[SimpleNamespace] = []
    name = "actor_loss" if algorithm._plain_targets is None else "actor_gradient"
    original = getattr(sac, name)

    def watched(*arguments: Any) -> Any:
        seen.append(
            SimpleNamespace(
                frozen=name == "actor_gradient"
                or not any(parameter.requires_grad for parameter in algorithm.critic.parameters()),
                gradient=algorithm.critic_optimizer.gradient.clone(),
                critic=parameters_of(algorithm.critic),
                actor=parameters_of(algorithm.actor),
            )
        )
        return original(*arguments)

    before = parameters_of(algorithm.actor)
    monkeypatch.setattr(sac, name, watched)
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
    assert by_hand._plain_targets is not None
    by_graph._plain_targets = None
    for algorithm in (by_hand, by_graph):  # some standard deviations reach their bounds
        assert algorithm.actor.log_std_head is not None
        with torch.no_grad():
            algorithm.actor.log_std_head.weight.mul_(20.0)
    for seed, rows in enumerate((16, 16, 5)):  # memory that is used again fits batches of any size
        batch = random_batch(TORQUE, seed=seed, rows=rows)
        reports = [algorithm.update(batch, CONTROLS, generator(seed))[0] for algorithm in (by_hand, by_graph)]
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
    observation, noise = random_batch(TORQUE).observation, torch.zeros(16, 2)
    arguments = (algorithm.critic, algorithm.actor, observation, torch.ones(1))
    with torch.no_grad():
        actor_gradient(*arguments, algorithm.actor.trace(observation, noise))
    shared = algorithm.actor_optimizer.gradient.clone()
    algorithm.actor_optimizer.gradient.zero_()
    actor_loss(*arguments, noise)[0].backward()
    torch.testing.assert_close(shared, algorithm.actor_optimizer.gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "settings",
    [{"activation": "silu"}, {"use_sde": True}, {"target_network": False}, {"num_quantiles": 3}],
    ids=str,
)
def test_other_networks_learn_by_autograd(settings: dict[str, Any]) -> None:
    assert _algorithm(**settings)._plain_targets is None


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

"""TD3 and DDPG against numbers worked out by hand, and what one update does to the networks."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
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
from rl_training.algorithms.td3 import TD3, DDPGParams, TD3Params, td3_critic_loss, td3_target
from rl_training.kernels.door import attach


def _critic_loss(
    noise: list[float], *, target_action: float = 0.9, discount: float = 0.5, **params: Any
) -> tuple[list[float], float]:
    """Return the actions that the target critics are asked about, and the loss of critics that say 1 and 3.

    The target critics value an action by itself and by minus itself.
    """
    rows = len(noise)
    asked: list[Tensor] = []

    def target_critic(observation: Tensor, action: Tensor) -> Tensor:
        asked.append(action)
        return torch.stack((action, -action))

    def critic(observation: Tensor, action: Tensor) -> Tensor:
        return torch.tensor([1.0, 3.0]).view(2, 1, 1).expand(2, rows, 1)

    def target_actor(observation: Tensor) -> Tensor:
        return torch.full((rows, 1), target_action)

    batch = batch_of([2.0] * rows, [discount] * rows, action=[[0.0]] * rows)
    settings = TD3Params(**params)
    parts: list[Any] = [target_critic, target_actor, batch, torch.tensor(noise).unsqueeze(1), settings]
    judge: Any = critic
    loss, value = td3_critic_loss(judge, batch, td3_target(*parts))
    assert value.item() == 2.0
    return asked[0].squeeze(1).tolist(), loss.item()


def test_target_is_the_smallest_value_of_the_target_policys_action() -> None:
    for action, smallest in ((0.9, -0.9), (-0.4, -0.4)):
        _, loss = _critic_loss([0.0], target_action=action)
        target = 2 + 0.5 * smallest
        assert loss == pytest.approx((1 - target) ** 2 + (3 - target) ** 2, rel=1e-6)


def test_a_terminated_transition_is_worth_its_reward() -> None:
    assert _critic_loss([0.0], discount=0.0)[1] == pytest.approx((1 - 2) ** 2 + (3 - 2) ** 2)


def test_smoothing_noise_is_clipped_and_so_is_the_action() -> None:
    # Deviation 0.2, bound 0.5: 0.1, then the bound both ways; an action ends at 1.
    asked, _ = _critic_loss([0.5, -0.5, 100.0, -100.0], target_action=0.2)
    assert asked == pytest.approx([0.3, 0.1, 0.7, -0.3])
    asked, _ = _critic_loss([2.0, 100.0, -100.0])
    assert asked == pytest.approx([1.0, 1.0, 0.4])
    asked, _ = _critic_loss([1.0, 100.0], target_action=0.0, target_noise=0.6, target_noise_clip=0.3)
    assert asked == pytest.approx([0.3, 0.3])


def test_the_mean_over_rows_is_added_up_over_critics() -> None:
    single = [_critic_loss([noise])[1] for noise in (0.5, -2.0)]
    assert _critic_loss([0.5, -2.0])[1] == pytest.approx(sum(single) / 2)


def _algorithm(*, seed: int = 0, kind: type[TD3Params] = TD3Params, **params: Any) -> TD3:
    settings = kind(**{"hidden_sizes": (16,), **params})
    return TD3(settings, OBSERVATION, TORQUE, device=CPU, generator=generator(seed))


def test_actor_and_targets_wait_for_the_delay() -> None:
    algorithm = _algorithm(policy_delay=3, tau=0.25)
    slow = {"actor": algorithm.actor, "actor's": algorithm.target_actor, "critics'": algorithm.target_critic}
    before = {name: parameters_of(module) for name, module in slow.items()}
    critic = parameters_of(algorithm.critic)
    for step in range(1, 7):
        metrics = algorithm.update(random_batch(TORQUE, seed=step), CONTROLS, generator(step))
        assert not parameters_of(algorithm.critic).equal(critic)
        critic = parameters_of(algorithm.critic)
        moved = {name for name, module in slow.items() if not parameters_of(module).equal(before[name])}
        due = step % 3 == 0
        assert moved == (set(slow) if due else set())
        assert ("loss_actor" in metrics) is due
        if due:
            for target, source in (("actor's", algorithm.actor), ("critics'", algorithm.critic)):
                expected = 0.75 * before[target] + 0.25 * parameters_of(source)
                torch.testing.assert_close(parameters_of(slow[target]), expected, rtol=1e-6, atol=1e-7)
        before = {name: parameters_of(module) for name, module in slow.items()}


def test_the_delay_goes_on_after_a_restart() -> None:
    algorithm, other = _algorithm(policy_delay=2), _algorithm(policy_delay=2, seed=9)
    algorithm.update(random_batch(TORQUE), CONTROLS, generator(0))
    other.load_state_dict(copy.deepcopy(algorithm.state_dict()))
    metrics = other.update(random_batch(TORQUE), CONTROLS, generator(1))
    assert "loss_actor" in metrics


def test_the_actor_climbs_the_first_critic_and_leaves_the_critics_alone() -> None:
    algorithm = _algorithm(policy_delay=1)
    batch = random_batch(TORQUE)
    actor_before = copy.deepcopy(algorithm.actor)
    metrics = algorithm.update(batch, CONTROLS, generator(0))
    critic_gradient = algorithm.critic_optimizer.gradient.clone()
    # The critics have made their step, the actor's own was made against them.
    value = algorithm.critic(batch.observation, actor_before(batch.observation))[0].mean()
    assert metrics["loss_actor"].item() == pytest.approx(-value.item(), rel=1e-5)
    parameters = list(actor_before.parameters())
    expected = torch.autograd.grad(-value, parameters)
    flat = torch.cat([gradient.flatten() for gradient in expected])
    torch.testing.assert_close(algorithm.actor_optimizer.gradient, flat, rtol=1e-4, atol=1e-6)
    assert all(parameter.requires_grad for parameter in algorithm.critic.parameters())

    twin = _algorithm(policy_delay=2)  # its first update moves the critics only
    twin.update(batch, CONTROLS, generator(0))
    assert twin.critic_optimizer.gradient.equal(critic_gradient)
    assert parameters_of(twin.critic).equal(parameters_of(algorithm.critic))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"activation": "tanh"},
        {"hidden_sizes": ()},
        {"hidden_sizes": (8, 5)},
        {"num_critics": 1},
        {"num_critics": 3},
    ],
    ids=str,
)
def test_the_gradient_by_hand_is_that_of_autograd(settings: dict[str, Any]) -> None:
    by_hand, by_graph = (_algorithm(policy_delay=1, **settings) for _ in range(2))
    assert attach(by_hand, updates=0).kernel == "td3"  # too few to be compiled
    for seed in range(3):
        batch = random_batch(TORQUE, seed=seed)
        reports = [algorithm.update(batch, CONTROLS, generator(seed)) for algorithm in (by_hand, by_graph)]
        torch.testing.assert_close(*reports, rtol=1e-4, atol=1e-6)
        for optimizer in ("actor_optimizer", "critic_optimizer"):
            gradients = [getattr(algorithm, optimizer).gradient for algorithm in (by_hand, by_graph)]
            assert gradients[0].any()
            torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-6)
    assert attach(_algorithm(activation="silu")).kernel is None


# -- DDPG ----------------------------------------------------------------------------------------


def test_ddpg_is_td3_with_one_critic_without_delay_and_smoothing() -> None:
    plain, own = vars(TD3Params()), vars(DDPGParams())
    special = {key: own[key] for key in own if own[key] != plain[key]}
    assert special == {"num_critics": 1, "policy_delay": 1, "target_noise": 0.0}
    ddpg, td3 = _algorithm(kind=DDPGParams), _algorithm(**special)
    for seed in range(3):
        for algorithm in (ddpg, td3):
            algorithm.update(random_batch(TORQUE, seed=seed), CONTROLS, generator(seed))
    assert parameters_of(ddpg.actor).equal(parameters_of(td3.actor))


def test_ddpg_equals_a_loop_written_with_torch_alone() -> None:
    algorithm = _algorithm(kind=DDPGParams, tau=0.1)
    actor, critic, target_actor, target_critic = (
        copy.deepcopy(module)
        for module in (algorithm.actor, algorithm.critic, algorithm.target_actor, algorithm.target_critic)
    )
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=1e-2)
    actor_optimizer = torch.optim.Adam(actor.parameters(), lr=1e-2)
    for seed in range(4):
        batch = random_batch(TORQUE, seed=seed)
        with torch.no_grad():
            following = target_critic(batch.next_observation, target_actor(batch.next_observation))[0, :, 0]
            goal = batch.reward + batch.discount * following
        critic_optimizer.zero_grad()
        torch.nn.functional.mse_loss(critic(batch.observation, batch.action)[0, :, 0], goal).backward()
        critic_optimizer.step()
        actor_optimizer.zero_grad()
        (-critic(batch.observation, actor(batch.observation)).mean()).backward()
        actor_optimizer.step()
        with torch.no_grad():
            for slow, fast in ((target_actor, actor), (target_critic, critic)):
                for one, other in zip(slow.parameters(), fast.parameters(), strict=True):
                    one.mul_(0.9).add_(0.1 * other)
        algorithm.update(batch, CONTROLS, generator(100 + seed))  # no draw decides anything
    pairs = ((algorithm.actor, actor), (algorithm.critic, critic), (algorithm.target_actor, target_actor))
    for ours, theirs in pairs:
        torch.testing.assert_close(parameters_of(ours), parameters_of(theirs), rtol=1e-3, atol=1e-5)


# -- acting and state ----------------------------------------------------------------------------


def test_exploration_noise_has_its_deviation_and_stays_within_bounds() -> None:
    algorithm = _algorithm(exploration_noise=0.1)
    observation = torch.ones(1, 3).expand(20_000, 3)
    action = algorithm.act(observation, None, CONTROLS, generator(0))
    quiet = algorithm.choose(observation[:1], None, None)
    assert quiet.equal(algorithm.actor(observation[:1]))
    torch.testing.assert_close(action.mean(dim=0), quiet[0], rtol=0, atol=0.005)
    assert action.std(dim=0).tolist() == pytest.approx([0.1, 0.1], rel=0.03)
    wild = _algorithm(exploration_noise=5.0).act(observation, None, CONTROLS, generator(0))
    assert wild.abs().max() == 1.0
    sampled = algorithm.choose(observation, None, generator(0))
    assert sampled.equal(action)


KINDS = [TD3Params, DDPGParams]


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_state_goes_on_bit_for_bit(kind: type[TD3Params]) -> None:
    assert_goes_on_alike(_algorithm(kind=kind), _algorithm(kind=kind, seed=9), TORQUE)


@pytest.mark.parametrize("kind", KINDS)
def test_global_generators_are_left_alone(kind: type[TD3Params]) -> None:
    with Untouched():
        algorithm = _algorithm(kind=kind)
        batch = random_batch(TORQUE)
        algorithm.act(batch.observation, None, CONTROLS, generator(0))
        algorithm.random_actions(4, None, generator(0))
        for seed in range(2):
            algorithm.update(batch, CONTROLS, generator(seed))

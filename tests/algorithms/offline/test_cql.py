"""Conservative Q-learning, continuous and discrete, against numbers worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from offline_parts import RATES, make_offline, offline_batch
from replay_parts import CHOICE, CPU, OBSERVATION, TORQUE, batch_of, generator, parameters_of
from rl_training.algorithms.dqn import DQN
from rl_training.algorithms.offline.cql import conservative_penalty, cql_target, proposed_actions
from rl_training.algorithms.offline.discrete_cql import discrete_penalty
from rl_training.algorithms.params.dqn_params import DQNParams


def test_the_penalty_is_the_importance_weighted_log_sum_minus_the_datas_value() -> None:
    # One critic, two proposed actions per row, values log 2 and log 4, densities 1/2 and 4: sum 2 / 0.5 + 4 / 4 = 5.
    values = torch.tensor([[[math.log(2)], [math.log(4)]]])
    log_density = torch.tensor([[math.log(0.5)], [math.log(4)]])
    penalty = conservative_penalty(values, log_density, torch.tensor([[0.25]]))
    assert penalty.tolist() == pytest.approx([math.log(5) - 0.25])


def test_penalties_are_means_over_rows_for_each_critic() -> None:
    values = torch.zeros(2, 4, 3)
    data = torch.tensor([[0.0, 1.0, 2.0], [3.0, 3.0, 3.0]])
    penalty = conservative_penalty(values, torch.zeros(4, 3), data)
    assert penalty.tolist() == pytest.approx([math.log(4) - 1, math.log(4) - 3])


def test_actions_come_from_three_sources_with_their_densities() -> None:
    learner = make_offline("cql", TORQUE)
    batch = offline_batch(learner, TORQUE, rows=5)
    noise = torch.randn(2, 3, 5, 2, generator=generator(0))
    uniform = torch.rand(3, 5, 2, generator=generator(1)) * 2 - 1
    actions, log_density = proposed_actions(learner.actor, batch, noise, uniform)
    assert actions.shape == (9, 5, 2)
    assert not actions.requires_grad
    for number, (observation, start) in enumerate(((batch.observation, 0), (batch.next_observation, 3))):
        for sample in range(3):
            action, density = learner.actor.sample(observation, noise[number, sample])
            torch.testing.assert_close(actions[start + sample], action.detach())
            torch.testing.assert_close(log_density[start + sample], density.detach())
    assert actions[6:].equal(uniform)
    torch.testing.assert_close(log_density[6:], torch.full((3, 5), math.log(0.25)))  # two dimensions of width 2


def test_many_actions_are_valued_as_one_by_one() -> None:
    learner = make_offline("cql", TORQUE)
    batch = offline_batch(learner, TORQUE, rows=4)
    actions = torch.rand(3, 4, 2, generator=generator(0))
    values = learner.critic.many(batch.observation, actions)
    assert values.shape == (2, 3, 4, 1)
    for number in range(3):
        torch.testing.assert_close(values[:, number], learner.critic(batch.observation, actions[number]))


def _target(noise: torch.Tensor | None, temperature: float = 0.5) -> list[float]:
    class Actor:
        def mode(self, observation: torch.Tensor) -> torch.Tensor:
            return torch.full((2, 1), 0.5)

        def sample(self, observation: torch.Tensor, drawn: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return drawn, torch.full((2,), 2.0)

    batch = batch_of([1.0, 1.0], [0.5, 0.0], action=[[0.0], [0.0]])

    def critic(observation: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        return torch.stack((action + 1, action - 1))

    parts: list[Any] = [critic, Actor(), batch, torch.tensor([temperature]), noise]
    return cql_target(*parts).tolist()


def test_the_target_is_of_the_mode_or_of_soft_samples() -> None:
    assert _target(None) == pytest.approx([1 + 0.5 * (0.5 - 1), 1.0])
    assert _target(torch.tensor([[0.25], [0.25]])) == pytest.approx([1 + 0.5 * (0.25 - 1 - 0.5 * 2.0), 1.0])


def test_the_penalty_has_its_weight_in_the_critics_loss() -> None:
    learner = make_offline("cql", TORQUE, conservative_weight=0.0)
    batch = offline_batch(learner, TORQUE)
    noise = torch.randn(2 + 9, *batch.action.shape, generator=generator(0)).clamp(-1, 1)
    plain, _ = learner.critic_loss(batch, noise)
    heavy = make_offline("cql", TORQUE, conservative_weight=3.0)
    loss, metrics = heavy.critic_loss(batch, noise)
    assert loss.item() == pytest.approx(plain.item() + 2 * metrics["loss_conservative"].item(), rel=1e-5)


def test_the_multiplier_rises_above_the_threshold_and_falls_below_it() -> None:
    for threshold, rises in ((-100.0, True), (100.0, False)):
        learner = make_offline("cql", TORQUE, lagrange_threshold=threshold)
        metrics = {}
        for seed in range(3):
            metrics = learner.update(offline_batch(learner, TORQUE, seed=seed), RATES, generator(seed))
        assert (metrics["multiplier"].item() > 1.0) is rises
        assert "multiplier" in learner.state_dict()
    fixed = make_offline("cql", TORQUE)
    assert "multiplier" not in fixed.update(offline_batch(fixed, TORQUE), RATES, generator(0))
    assert fixed.multiplier.value.item() == 1.0


def test_values_of_the_data_rise_over_those_of_other_actions() -> None:
    learner = make_offline("cql", TORQUE, conservative_weight=10.0)
    batch = offline_batch(learner, TORQUE)
    other = torch.rand(20, *batch.action.shape, generator=generator(7)) * 2 - 1

    def gap() -> float:
        with torch.no_grad():
            data = learner.critic(batch.observation, batch.action).mean()
            return float(data - learner.critic.many(batch.observation, other).mean())

    before = gap()
    for seed in range(100):
        learner.update(batch, RATES, generator(seed))
    assert gap() > before + 0.5


# -- discrete actions ----------------------------------------------------------------------------


def test_the_discrete_penalty_is_exact() -> None:
    values = torch.tensor([[0.0, math.log(3), 0.0], [1.0, 1.0, 1.0]])
    penalty = discrete_penalty(values, torch.tensor([1, 0]))
    assert penalty.item() == pytest.approx((math.log(5) - math.log(3) + math.log(3)) / 2)


def test_illegal_actions_are_no_part_of_the_penalty() -> None:
    values = torch.tensor([[0.0, 9.0, 0.0]])
    mask = torch.tensor([[True, False, True]])
    assert discrete_penalty(values, torch.tensor([0]), mask).item() == pytest.approx(math.log(2))


def test_without_the_penalty_it_is_double_dqn() -> None:
    ours = make_offline("discrete_cql", CHOICE, conservative_weight=0.0, target_update_interval=2)
    dqn = DQN(
        DQNParams(hidden_sizes=(8,), double=True, target_update_interval=2),
        OBSERVATION,
        CHOICE,
        device=CPU,
        generator=generator(0),
    )
    for seed in range(5):
        batch = offline_batch(ours, CHOICE, seed=seed)
        for learner in (ours, dqn):
            learner.update(batch, RATES, generator(seed))
            learner.steps_taken(seed, seed + 1)
    for name in ("model", "target_model"):
        torch.testing.assert_close(parameters_of(getattr(ours, name)), parameters_of(getattr(dqn, name)))


@pytest.mark.parametrize("distribution", ["categorical", "quantile"])
def test_distributions_of_values_are_penalised_by_their_means(distribution: str) -> None:
    learner = make_offline("discrete_cql", CHOICE, distribution=distribution, num_atoms=5, num_quantiles=5)
    batch = offline_batch(learner, CHOICE)
    metrics = learner.update(batch, RATES, generator(0))
    assert metrics["loss_conservative"].item() == pytest.approx(math.log(4), abs=0.5)


def test_the_target_network_follows_by_gradient_steps() -> None:
    learner = make_offline("discrete_cql", CHOICE, target_update_interval=3)
    start = parameters_of(learner.target_model)
    for step in range(3):
        assert parameters_of(learner.target_model).equal(start)
        learner.update(offline_batch(learner, CHOICE, seed=step), RATES, generator(step))
        learner.steps_taken(step, step + 1)
    assert parameters_of(learner.target_model).equal(parameters_of(learner.model))

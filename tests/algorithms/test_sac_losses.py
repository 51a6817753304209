"""The losses of SAC and TQC with stub networks, against numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from replay_parts import batch_of
from rl_training.algorithms.params.sac_params import SACParams
from rl_training.algorithms.sac import actor_loss, critic_loss
from rl_training.errors import ConfigError
from rl_training.experiment.config import validate_config


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

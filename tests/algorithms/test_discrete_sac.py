"""Discrete SAC against numbers worked out by hand: expectations over all actions instead of samples."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from replay_parts import (
    CHOICE,
    CONTROLS,
    CPU,
    OBSERVATION,
    Untouched,
    assert_goes_on_alike,
    batch_of,
    generator,
    parameters_of,
    random_batch,
)
from rl_training.algorithms.discrete_sac import (
    DiscreteSAC,
    DiscreteSACParams,
    discrete_actor_loss,
    discrete_critic_loss,
)

# Two actions, chosen with 1/4 and 3/4 in either state.
PROBS = (0.25, 0.75)
ENTROPY = -sum(p * math.log(p) for p in PROBS)


class Table:
    """Gives the stored outputs [networks, states, actions] of the observed state."""

    def __init__(self, outputs: Any) -> None:
        self.outputs = torch.tensor(outputs).requires_grad_()

    def __call__(self, observation: Tensor) -> Tensor:
        return self.outputs[:, observation[:, 0].long()]


def _actor() -> Any:
    return Table([[[math.log(p) + 5 for p in PROBS]] * 2])  # a constant changes nothing


def test_critic_target_is_the_expected_soft_value() -> None:
    critic: Any = Table([[[1.0, 2.0], [9.0, 9.0]], [[3.0, 0.0], [9.0, 9.0]]])
    target: Any = Table([[[0.0, 0.0], [4.0, 8.0]], [[0.0, 0.0], [6.0, 2.0]]])  # the smallest in state 1: 4 and 2
    actor = _actor()
    batch = batch_of([1.0, 1.0], [0.5, 0.0], action=[0, 1])
    loss, value = discrete_critic_loss(critic, target, actor, batch, torch.tensor([0.1]))
    soft = 0.25 * 4 + 0.75 * 2 + 0.1 * ENTROPY
    first, second = 1 + 0.5 * soft, 1.0
    one = ((1 - first) ** 2 + (2 - second) ** 2) / 2
    two = ((3 - first) ** 2 + (0 - second) ** 2) / 2
    assert loss.item() == pytest.approx(0.5 * (one + two), rel=1e-6)
    assert value.item() == 1.5
    loss.backward()
    gradient = critic.outputs.grad
    assert gradient[0, 0].tolist() == pytest.approx([(1 - first) / 2, (2 - second) / 2])
    assert not gradient[:, 1].any()
    assert target.outputs.grad is actor.outputs.grad is None


def test_illegal_actions_of_the_successor_count_in_no_expectation() -> None:
    critic: Any = Table([[[1.0, 2.0], [9.0, 9.0]]])
    target: Any = Table([[[0.0, 0.0], [4.0, 8.0]]])
    batch = batch_of([0.0] * 3, [1.0] * 3)._replace(
        next_mask=torch.tensor([[True, True], [True, False], [False, True]])
    )
    loss, _ = discrete_critic_loss(critic, target, _actor(), batch, torch.tensor([0.1]))
    values = [0.25 * 4 + 0.75 * 8 + 0.1 * ENTROPY, 4.0, 8.0]  # one legal action has no entropy
    assert loss.item() == pytest.approx(0.5 * sum((1 - value) ** 2 for value in values) / 3, rel=1e-6)


def test_the_actor_is_judged_by_its_legal_actions_alone() -> None:
    critic: Any = Table([[[1.0, 2.0, 50.0]]])
    actor: Any = Table([[[*(math.log(p) for p in PROBS), 7.0]]])
    mask = torch.tensor([[True, True, False]])
    loss, entropy = discrete_actor_loss(critic, actor, torch.zeros(1, 1), torch.tensor([0.5]), mask)
    assert loss.item() == pytest.approx(-(0.25 * 1 + 0.75 * 2 + 0.5 * ENTROPY), rel=1e-6)
    assert entropy.item() == pytest.approx(ENTROPY)
    loss.backward()
    gradient = actor.outputs.grad[0, 0]
    assert gradient.isfinite().all()
    assert gradient[2] == 0
    assert gradient[0] != 0


def test_the_target_entropy_is_a_share_of_what_the_legal_actions_allow() -> None:
    algorithm = _algorithm(target_entropy_ratio=0.5)
    mask = torch.tensor([[True, True, False, False], [True, False, False, False]])
    assert float(algorithm.target_entropy(mask)) == pytest.approx(0.5 * (math.log(2) + math.log(1)) / 2)
    # Where only one action is legal no temperature could give more entropy, so none is asked for.
    batch = random_batch(CHOICE)
    forced = torch.nn.functional.one_hot(batch.action, 4).bool()
    before = algorithm.temperature.value
    algorithm.update(batch._replace(mask=forced, next_mask=forced), CONTROLS, generator(0))
    assert algorithm.temperature.value.equal(before)


def test_actor_loss_is_the_expectation_over_all_actions() -> None:
    critic: Any = Table([[[1.0, 2.0]], [[3.0, 0.0]]])  # the smallest: 1 and 0
    actor: Any = Table([[[math.log(p) for p in PROBS]]])
    loss, entropy = discrete_actor_loss(critic, actor, torch.zeros(2, 1), torch.tensor([0.5]))
    assert loss.item() == pytest.approx(-(0.25 * 1 + 0.5 * ENTROPY), rel=1e-6)
    assert entropy.tolist() == pytest.approx([ENTROPY, ENTROPY])
    loss.backward()
    assert critic.outputs.grad is None
    # The optimum of value + temperature * entropy is softmax(value / temperature): there the slope vanishes.
    best: Any = Table([[[1.0 / 0.5, 0.0]]])
    loss, _ = discrete_actor_loss(critic, best, torch.zeros(1, 1), torch.tensor([0.5]))
    loss.backward()
    assert best.outputs.grad.abs().max() < 1e-6
    assert actor.outputs.grad[0, 0, 0] < 0  # too seldom chosen: its logit rises


def _algorithm(*, seed: int = 0, **params: Any) -> DiscreteSAC:
    settings = DiscreteSACParams(**{"hidden_sizes": (16,), **params})
    return DiscreteSAC(settings, OBSERVATION, CHOICE, device=CPU, generator=generator(seed))


def _sharpen(algorithm: DiscreteSAC) -> None:
    """Make the first policy almost deterministic."""
    with torch.no_grad():
        algorithm.actor.networks.get_parameter("bias_1")[0, 0, 0] += 8.0


@pytest.mark.parametrize(("sharp", "direction"), [(True, 1), (False, -1)])
def test_the_temperature_rises_while_entropy_lies_below_its_target(sharp: bool, direction: int) -> None:
    algorithm = _algorithm(temperature_init=0.5, target_entropy_ratio=0.5)
    assert algorithm.target_entropy(None) == pytest.approx(0.5 * math.log(4))
    if sharp:
        _sharpen(algorithm)
    shown = []
    for seed in range(4):
        metrics = algorithm.update(random_batch(CHOICE, seed=seed), CONTROLS, generator(seed))
        shown.append(metrics["temperature"].item())
        assert math.copysign(1, algorithm.target_entropy(None) - metrics["entropy"].item()) == direction
    assert shown[0] == pytest.approx(0.5)
    assert (np.diff(shown) * direction > 0).all()


def test_a_fixed_temperature_stays() -> None:
    algorithm = _algorithm(temperature=0.2)
    for seed in range(3):
        metrics = algorithm.update(random_batch(CHOICE), CONTROLS, generator(seed))
        assert metrics["temperature"].item() == pytest.approx(0.2)


def test_target_critics_follow_by_tau() -> None:
    algorithm = _algorithm(tau=0.25)
    before = parameters_of(algorithm.target_critic)
    algorithm.update(random_batch(CHOICE), CONTROLS, generator(0))
    expected = 0.75 * before + 0.25 * parameters_of(algorithm.critic)
    torch.testing.assert_close(parameters_of(algorithm.target_critic), expected, rtol=1e-6, atol=1e-7)


def test_actions_follow_the_policy_and_its_mask() -> None:
    algorithm = _algorithm()
    observation = torch.ones(1, 3).expand(20_000, 3)
    probs = algorithm.actor(observation[:1])[0].softmax(dim=1)[0]
    action = algorithm.act(observation, None, CONTROLS, generator(0))
    assert (torch.bincount(action, minlength=4) / 20_000).tolist() == pytest.approx(probs.tolist(), abs=0.015)
    assert (algorithm.choose(observation[:5], None, None) == probs.argmax()).all()
    mask = torch.tensor([False, True, True, False]).expand(20_000, 4)
    for taken in (
        algorithm.act(observation, mask, CONTROLS, generator(1)),
        algorithm.choose(observation, mask, None),
        algorithm.choose(observation, mask, generator(1)),
        algorithm.random_actions(20_000, mask, generator(2)),
    ):
        assert set(taken.tolist()) <= {1, 2}


def test_a_saved_state_goes_on_bit_for_bit() -> None:
    assert_goes_on_alike(_algorithm(), _algorithm(seed=9), CHOICE)


def test_global_generators_are_left_alone() -> None:
    with Untouched():
        algorithm = _algorithm()
        batch = random_batch(CHOICE)
        algorithm.act(batch.observation, None, CONTROLS, generator(0))
        algorithm.update(batch, CONTROLS, generator(0))

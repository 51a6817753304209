"""PQN against numbers worked out by hand: Q(lambda) returns, their squared error, and exploration by epsilon."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from replay_parts import CHOICE, CPU, OBSERVATION, Untouched, assert_equal_states, generator, parameters_of
from rl_training.algorithms.pqn import PQN, PQNBatch, PQNParams, pqn_loss, q_lambda_return
from rl_training.data.rollout import Rollout

CONTROLS = {"learning_rate": 1e-2, "epsilon": 0.1}
SHAPE = (6, 2)


def plain_recursion(columns: Sequence[np.ndarray], gamma: float, q_lambda: float) -> np.ndarray:
    """Return the targets of one environment from their definition, step by step from the end.

    `columns` are rewards, best values, those of final observations, terminations, truncations and the last best value.
    """
    reward, best, final_best, terminated, truncated, last_best = columns
    targets = np.zeros_like(reward)
    for step in reversed(range(len(reward))):
        if terminated[step]:
            follows = 0.0
        elif truncated[step]:
            follows = final_best[step]
        elif step == len(reward) - 1:
            follows = float(last_best)
        else:
            follows = q_lambda * targets[step + 1] + (1 - q_lambda) * best[step + 1]
        targets[step] = reward[step] + gamma * follows
    return targets


def test_q_lambda_returns_by_hand() -> None:
    # Five steps of two environments: the first terminates after the second step, the second is cut off after it.
    reward = torch.tensor([[1.0, 1.0]] * 5)
    best = torch.tensor([[10.0, 10.0], [20.0, 20.0], [30.0, 30.0], [40.0, 40.0], [50.0, 50.0]])
    final_best = torch.zeros(5, 2)
    final_best[1, 1] = 8.0
    ended = torch.zeros(5, 2, dtype=torch.bool)
    terminated, truncated = ended.clone(), ended.clone()
    terminated[1, 0] = True
    truncated[1, 1] = True
    found = q_lambda_return(
        reward, best, final_best, terminated, truncated, torch.tensor([60.0, 60.0]), gamma=0.5, q_lambda=0.5
    )
    fifth = 1 + 0.5 * 60  # 31
    fourth = 1 + 0.5 * (0.5 * fifth + 0.5 * 50)  # 21.25
    third = 1 + 0.5 * (0.5 * fourth + 0.5 * 40)  # 16.3125
    terminated_second, truncated_second = 1.0, 1 + 0.5 * 8
    first = [1 + 0.5 * (0.5 * second + 0.5 * 20) for second in (terminated_second, truncated_second)]
    expected = [first, [terminated_second, truncated_second], [third] * 2, [fourth] * 2, [fifth] * 2]
    torch.testing.assert_close(found, torch.tensor(expected))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 12), st.integers(0, 2**32 - 1), st.floats(0, 1), st.floats(0, 1))
def test_q_lambda_returns_are_those_of_the_plain_recursion(
    steps: int, seed: int, gamma: float, q_lambda: float
) -> None:
    rng = np.random.default_rng(seed)
    reward, best, final_best = rng.normal(size=(3, steps, 3))
    terminated, truncated = rng.random((2, steps, 3)) < 0.3
    last_best = rng.normal(size=3)
    columns = (reward, best, final_best, terminated, truncated, last_best)
    found = q_lambda_return(*map(torch.from_numpy, columns), gamma=gamma, q_lambda=q_lambda)
    for env in range(3):
        of_env = [column[..., env] for column in columns]
        np.testing.assert_allclose(found[:, env], plain_recursion(of_env, gamma, q_lambda), rtol=1e-9, atol=1e-9)


class Table:
    """Gives the stored values [states, actions] of the observed state."""

    def __init__(self, values: Any) -> None:
        self.values = torch.tensor(values).requires_grad_()

    def forward(self, observation: Tensor) -> Tensor:
        return self.values[observation[:, 0].long()].unsqueeze(2)


def test_the_loss_is_the_squared_error_of_the_actions_taken() -> None:
    model: Any = Table([[1.0, 2.0], [3.0, 4.0]])
    batch = PQNBatch(torch.tensor([[0.0], [1.0]]), torch.tensor([1, 0]), torch.tensor([5.0, 2.0]))
    loss, value = pqn_loss(model, batch)
    assert loss.item() == pytest.approx(((2 - 5) ** 2 + (3 - 2) ** 2) / 2)
    assert value.item() == 2.5
    loss.backward()
    assert model.values.grad.tolist() == [[0.0, -3.0], [1.0, 0.0]]


def make_pqn(*, seed: int = 0, **params: Any) -> PQN:
    chosen: dict[str, Any] = {"num_steps": SHAPE[0], "minibatch_size": 4, "update_epochs": 2, "hidden_sizes": (16,)}
    return PQN(PQNParams(**{**chosen, **params}), OBSERVATION, CHOICE, device=CPU, generator=generator(seed))


def make_rollout(*, seed: int = 1, masked: bool = False) -> Rollout:
    """Return a random rollout; with masks the last of four actions is never legal."""
    rng = np.random.default_rng(seed)
    legal = torch.tensor([True, True, True, False])
    return Rollout(
        observation=torch.from_numpy(rng.normal(size=(*SHAPE, 3)).astype(np.float32)),
        action=torch.from_numpy(rng.integers(3, size=SHAPE)),
        mask=legal.expand(*SHAPE, 4) if masked else None,
        reward=torch.from_numpy(rng.normal(size=SHAPE).astype(np.float32)),
        terminated=torch.from_numpy(rng.random(SHAPE) < 0.2),
        truncated=torch.from_numpy(rng.random(SHAPE) < 0.2),
        final_value=torch.from_numpy(rng.normal(size=SHAPE).astype(np.float32)),
        last_observation=torch.from_numpy(rng.normal(size=(SHAPE[1], 3)).astype(np.float32)),
        last_mask=legal.expand(SHAPE[1], 4) if masked else None,
    )


@pytest.mark.parametrize("masked", [False, True])
def test_targets_of_a_rollout_use_the_best_legal_actions(masked: bool) -> None:
    algorithm, rollout = make_pqn(q_lambda=0.7), make_rollout(masked=masked)
    with torch.no_grad():
        algorithm.model.advantage.bias_1[..., 3] += 0.5  # the illegal action would often be the best one
        every = algorithm.model.forward(rollout.flat_observation()).view(*SHAPE, 4)
        last = algorithm.model.forward(rollout.last_observation).squeeze(2)
    count = 3 if masked else 4
    assert (every.argmax(dim=2) == 3).any()
    assert (last.argmax(dim=1) == 3).any()
    best, last_best = every[..., :count].amax(dim=2), last[:, :count].amax(dim=1)
    columns = (rollout.reward, best, rollout.final_value, rollout.terminated, rollout.truncated, last_best)
    target = algorithm.prepare(rollout).target.view(SHAPE)
    for env in range(SHAPE[1]):
        expected = plain_recursion([column[..., env].numpy() for column in columns], 0.99, 0.7)
        np.testing.assert_allclose(target[:, env], expected, rtol=1e-5, atol=1e-6)


def test_an_update_visits_every_transition_once_per_epoch() -> None:
    algorithm, seen = make_pqn(update_epochs=3, minibatch_size=5), []
    original = algorithm.loss

    def noting(batch: PQNBatch) -> Any:
        seen.append(batch.target)
        return original(batch)

    algorithm.loss = noting  # type: ignore[method-assign]
    rollout = make_rollout()
    target = algorithm.prepare(rollout).target  # of the network that acted: epochs do not change them
    metrics = algorithm.update(rollout, CONTROLS, generator(0))
    assert [len(part) for part in seen] == [5, 5, 2] * 3
    for epoch in range(3):
        assert torch.equal(torch.cat(seen[3 * epoch : 3 * epoch + 3]).sort().values, target.sort().values)
    assert metrics.keys() == {"loss_q", "q_mean", "gradient_norm"}


def test_one_step_of_radam_is_that_of_torch() -> None:
    algorithm, reference = make_pqn(minibatch_size=None, update_epochs=9), make_pqn()
    optimizer = torch.optim.RAdam(reference.model.parameters(), lr=1e-2, eps=1e-8)
    rollout = make_rollout()
    batch = reference.prepare(rollout)
    for _ in range(9):  # the rectification begins with the sixth
        optimizer.zero_grad()
        pqn_loss(reference.model, batch)[0].backward()
        torch.nn.utils.clip_grad_norm_(reference.model.parameters(), 10.0)
        optimizer.step()
    algorithm.update(rollout, CONTROLS, generator(0))
    torch.testing.assert_close(parameters_of(algorithm.model), parameters_of(reference.model), rtol=1e-5, atol=1e-6)


def test_hidden_layers_are_normalised_before_their_activation() -> None:
    algorithm = make_pqn()
    observation = torch.randn(5, 3, generator=generator(3))
    stream = algorithm.model.advantage
    hidden = observation @ stream.weight_0[0] + stream.bias_0[0]
    hidden = torch.relu(torch.nn.functional.layer_norm(hidden, (16,)))
    expected = hidden @ stream.weight_1[0] + stream.bias_1[0]
    torch.testing.assert_close(algorithm.model.forward(observation).squeeze(2), expected)
    plain = make_pqn(layer_norm=False).model.forward(observation).squeeze(2)
    assert not torch.allclose(plain, expected)


def test_epsilon_of_the_actions_are_random_and_legal() -> None:
    algorithm = make_pqn()
    observation = torch.ones(1, 3).expand(20_000, 3)
    mask = torch.tensor([False, True, True, False]).expand(20_000, 4)
    best = int(algorithm.choose(observation[:1], None, None))
    for epsilon in (0.0, 0.4, 1.0):
        action = algorithm.act(observation, None, {"epsilon": epsilon}, generator(0))
        share = (action == best).float().mean().item()
        assert share == pytest.approx(1 - 0.75 * epsilon, abs=0.015)
    taken = algorithm.act(observation, mask, {"epsilon": 0.5}, generator(1))
    assert set(taken.tolist()) == {1, 2}
    assert set(algorithm.choose(observation, mask, generator(2)).tolist()) == {1, 2}


def test_log_probabilities_are_those_of_sampled_actions() -> None:
    algorithm = make_pqn()
    observation = torch.ones(1, 3).expand(4, 3)
    best = int(algorithm.choose(observation[:1], None, None))
    found = algorithm.env_log_prob(observation, None, np.arange(4))
    assert found is not None
    expected = [math.log(0.05 / 4 + 0.95 * (action == best)) for action in range(4)]
    assert found.tolist() == pytest.approx(expected, abs=1e-5)


def test_a_saved_state_goes_on_bit_for_bit() -> None:
    trained, fresh = make_pqn(), make_pqn(seed=9)
    for seed in range(2):
        trained.update(make_rollout(seed=seed), CONTROLS, generator(seed))
    fresh.load_state_dict({name: _copied(part) for name, part in trained.state_dict().items()})
    for learner in (trained, fresh):
        learner.update(make_rollout(seed=5), CONTROLS, generator(5))
    assert_equal_states(trained.state_dict(), fresh.state_dict())


def _copied(part: Any) -> Any:
    return {name: tensor.clone() for name, tensor in part.items()}


def test_global_generators_are_left_alone() -> None:
    with Untouched():
        algorithm = make_pqn()
        algorithm.act(torch.ones(2, 3), None, {"epsilon": 0.5}, generator(0))
        algorithm.update(make_rollout(), CONTROLS, generator(0))


def test_minibatches_larger_than_the_rollout_are_refused() -> None:
    problems = PQNParams(num_steps=4, minibatch_size=128).problems(num_envs=8, total_timesteps=1000)
    assert problems == [
        "algo_kwargs.minibatch_size: 128 is larger than the rollout of 32 transitions (num_steps 4 x num_envs 8); "
        "lower it to at most 32, or raise num_steps or num_envs"
    ]

"""Learners with halves of a batch, connected by gloo, learn what one learner does from the whole."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import ProcessGroupGloo, Store

import ppo_parts
import replay_parts
from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.discrete_sac import DiscreteSAC, DiscreteSACParams
from rl_training.algorithms.dqn import DQN
from rl_training.algorithms.params.dqn_params import DQNParams
from rl_training.algorithms.params.sac_params import SACParams
from rl_training.algorithms.ppo import PPO, PPOBatch, joint_moments
from rl_training.algorithms.sac import SAC
from rl_training.algorithms.td3 import TD3, TD3Params
from rl_training.errors import ConfigError

UPDATES = 20
ROWS = 16
Learn = Callable[[Any, int, int], None]  # an algorithm learns from the rows [first, last) of every batch


class GlooLearners:
    """One of several threads of this process that are connected by gloo."""

    def __init__(self, store: Store, rank: int, count: int) -> None:
        self.count = count
        self._group: Any = ProcessGroupGloo(store, rank, count, datetime.timedelta(seconds=60))

    def average(self, tensor: Tensor) -> Tensor:
        self._group.allreduce([tensor]).wait()
        return tensor.div_(self.count)


def _weights(algorithm: Algorithm) -> dict[str, Tensor]:
    return {
        f"{part}.{name}": tensor.clone()
        for part, state in algorithm.learned_weights().items()
        for name, tensor in state.items()
        if isinstance(tensor, Tensor)
    }


def _apart(make: Callable[[], Any], learn: Learn, count: int = 2) -> list[dict[str, Tensor]]:
    """Let learners learn together, each from its rows, and return the weights of each."""
    store = HashStore()

    def one(rank: int) -> dict[str, Tensor]:
        algorithm = make()
        algorithm.share(GlooLearners(store, rank, count))
        learn(algorithm, rank * ROWS // count, (rank + 1) * ROWS // count)
        return _weights(algorithm)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


def _assert_as_one(make: Callable[[], Any], learn: Learn) -> None:
    whole = make()
    before = _weights(whole)
    learn(whole, 0, ROWS)
    expected = _weights(whole)
    first, second = _apart(make, learn)
    for name, weights in expected.items():
        assert torch.equal(first[name], second[name]), name
        torch.testing.assert_close(first[name], weights, rtol=0, atol=1e-6)
    assert max(float((expected[name] - before[name]).abs().max()) for name in before) > 1e-3


def _ppo_batch(rows: int = ROWS) -> PPOBatch:
    rng = np.random.default_rng(0)

    def numbers(*shape: int) -> Tensor:
        return torch.from_numpy(rng.normal(size=shape).astype(np.float32))

    return PPOBatch(
        observation=numbers(rows, 3),
        action=torch.from_numpy(rng.integers(3, size=rows)),
        action_mask=None,
        log_prob=-1.1 + 0.1 * numbers(rows),
        value=numbers(rows),
        advantage=3.0 + 2.0 * numbers(rows),
        target_value=numbers(rows),
    )


@pytest.mark.parametrize("target_kl", [None, 0.02])
def test_two_learners_of_ppo_equal_one_with_the_joined_batch(target_kl: float | None) -> None:
    batch = _ppo_batch()

    def learn(algorithm: PPO, first: int, last: int) -> None:
        share = batch.select(torch.arange(first, last))
        for number in range(UPDATES):
            algorithm.improve(share, ppo_parts.CONTROLS, ppo_parts.seeded(number))

    _assert_as_one(lambda: ppo_parts.make_ppo(max_grad_norm=0.5, target_kl=target_kl), learn)


def _from_replay(improve: Callable[[Any, Any, Tensor], Any], space: spaces.Space[Any]) -> Learn:
    def learn(algorithm: Any, first: int, last: int) -> None:
        for number in range(UPDATES):
            batch = replay_parts.random_batch(space, rows=ROWS, seed=number)
            noise = torch.randn((2, ROWS, 2), generator=replay_parts.generator(number))
            share: Any = [value[first:last] if isinstance(value, Tensor) else value for value in batch]
            improve(algorithm, type(batch)(*share), noise[:, first:last])

    return learn


def _make(cls: Any, params: Any, space: spaces.Space[Any]) -> Callable[[], Any]:
    return lambda: cls(
        params, replay_parts.OBSERVATION, space, device=replay_parts.CPU, generator=replay_parts.generator(0)
    )


def test_two_learners_of_sac_equal_one_with_the_joined_batch() -> None:
    def improve(algorithm: SAC, batch: Any, noise: Tensor) -> None:
        algorithm.updates += 1
        algorithm.improve(batch, noise, 1e-3)

    make = _make(SAC, SACParams(hidden_sizes=(8,), max_grad_norm=1.0), replay_parts.TORQUE)
    _assert_as_one(make, _from_replay(improve, replay_parts.TORQUE))


def test_two_learners_of_td3_equal_one_with_the_joined_batch() -> None:
    def improve(algorithm: TD3, batch: Any, noise: Tensor) -> None:
        algorithm.updates += 1
        algorithm.improve(batch, noise[0], 1e-3)

    make = _make(TD3, TD3Params(hidden_sizes=(8,)), replay_parts.TORQUE)
    _assert_as_one(make, _from_replay(improve, replay_parts.TORQUE))


@pytest.mark.parametrize(
    ("cls", "params"),
    [(DQN, DQNParams(hidden_sizes=(8,))), (DiscreteSAC, DiscreteSACParams(hidden_sizes=(8,)))],
)
def test_two_learners_of_choices_equal_one_with_the_joined_batch(cls: Any, params: Any) -> None:
    def improve(algorithm: Any, batch: Any, noise: Tensor) -> None:
        algorithm.update(batch, {"learning_rate": 1e-3}, replay_parts.generator(0))

    choice = ppo_parts.CHOICE
    _assert_as_one(_make(cls, params, choice), _from_replay(improve, choice))


def test_moments_of_several_learners_are_those_of_all_their_advantages() -> None:
    advantage = 1000.0 + _ppo_batch(18).advantage
    store = HashStore()

    def one(rank: int) -> Tensor:
        return joint_moments(advantage[6 * rank : 6 * (rank + 1)], GlooLearners(store, rank, 3))

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(one, range(3)))
    expected = torch.stack([advantage.double().mean(), advantage.double().std()]).float()
    for moments in found:
        torch.testing.assert_close(moments, expected)
        assert torch.equal(moments, found[0])


def test_an_algorithm_without_an_optimizer_that_shares_is_refused() -> None:
    class OwnSteps(PPO):
        parts: ClassVar[Any] = ("model",)

    algorithm = OwnSteps(
        ppo_parts.make_ppo().params,
        ppo_parts.OBSERVATION,
        ppo_parts.CHOICE,
        device=ppo_parts.CPU,
        generator=ppo_parts.seeded(0),
    )
    with pytest.raises(ConfigError, match="devices: none of the parts of OwnSteps takes the mean"):
        algorithm.share(GlooLearners(HashStore(), 0, 1))

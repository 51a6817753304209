"""Batches from the replay: bootstraps by the target network, policies searched again, actions past the end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from planning_parts import ACTIONS, OBSERVATION, generator, make_algorithm
from rl_training.algorithms.efficientzero import EfficientZeroParams
from rl_training.algorithms.gumbel_muzero import GumbelMuZeroParams
from rl_training.algorithms.muzero import MuZero
from rl_training.algorithms.planning.batches import Draws
from rl_training.algorithms.planning.unroll import UnrollBatch
from rl_training.data.samplers import UniformSampler
from rl_training.data.trajectory_replay import TrajectoryReplay
from rl_training.search.gumbel import Gumbel
from rl_training.search.search import TreeSearch

STEPS = 3  # of an unroll, in `planning_parts.SMALL`


def draws(seed: int = 0) -> Draws:
    return Draws(np.random.default_rng(seed), np.random.default_rng(seed), generator(seed))


def recorded(ends: str, *, masked: bool = False) -> TrajectoryReplay:
    """Return one environment's steps: `.` goes on, `t` terminates, `c` is cut; step t pays t + 1."""
    replay = TrajectoryReplay(
        OBSERVATION, np.zeros(1, np.int64), UniformSampler(64), actions=ACTIONS, capacity=64, num_envs=1
    )
    numbers = np.random.default_rng(3)

    def mask(step: int) -> np.ndarray | None:
        return np.arange(ACTIONS)[None] != step % ACTIONS if masked else None

    replay.begin(numbers.normal(size=(1, 3)).astype(np.float32), mask(0))
    for step, end in enumerate(ends):
        terminated, truncated = np.array([end == "t"]), np.array([end == "c"])
        final = numbers.normal(size=(1, 3)).astype(np.float32)
        shown = numbers.normal(size=(1, 3)).astype(np.float32) if end in "tc" else final
        legal = mask(step + 1)
        reward = np.array([step + 1.0], np.float32)
        replay.add(np.array([(step + 1) % ACTIONS]), reward, terminated, truncated, final, shown, legal, legal)
        policy = np.full((1, ACTIONS), 1 / ACTIONS, np.float32)
        replay.add_search(policy, np.array([0.5 * step]), terminated, truncated)
    return replay


def made(
    algorithm: MuZero, replay: TrajectoryReplay, rows: list[int], *, seed: int = 0, **settings: Any
) -> UnrollBatch:
    options = {"num_simulations": 4, "exploration": 0.0, "total_timesteps": 1000, **settings}
    return algorithm.batches.make(replay, np.array(rows), None, draws=draws(seed), **options)


def worth(algorithm: MuZero, replay: TrajectoryReplay, row: int) -> float:
    """Return the target network's value of the state after a step."""
    successor = replay.reached(np.array([row]))
    assert isinstance(successor, np.ndarray)
    with torch.no_grad():
        return float(algorithm.target_network.values(torch.from_numpy(successor)))


def test_values_are_bootstrapped_by_the_target_network() -> None:
    algorithm, replay = make_algorithm(gamma=0.5), recorded(".......")
    batch = made(algorithm, replay, [1, 2])
    for column, start in enumerate((1, 2)):
        for state in range(STEPS + 1):
            first = start + state
            expected = (first + 1) + 0.5 * (first + 2) + 0.25 * worth(algorithm, replay, first + 1)
            if first + 1 < 7:
                assert batch.value[state, column].item() == pytest.approx(expected, rel=1e-5)
    assert batch.value_mask.tolist() == [[1, 1]] * 4
    with torch.no_grad():
        by_learner = algorithm.network.values(torch.zeros(1, 3))
    assert abs(by_learner.item() - float(algorithm.target_network.values(torch.zeros(1, 3)))) > 1e-3


def test_a_cut_is_bootstrapped_from_its_final_observation_and_a_termination_from_nothing() -> None:
    algorithm, replay = make_algorithm(gamma=0.5), recorded("..c..t...")
    batch = made(algorithm, replay, [1, 4])
    assert batch.value[0, 0].item() == pytest.approx(2 + 0.5 * 3 + 0.25 * worth(algorithm, replay, 2), rel=1e-5)
    assert batch.value[1, 0].item() == pytest.approx(3 + 0.5 * worth(algorithm, replay, 2), rel=1e-5)
    assert batch.value_mask[:, 0].tolist() == [1, 1, 0, 0]
    assert batch.value[:, 1].tolist() == [5 + 0.5 * 6, 6, 0, 0]
    assert batch.value_mask[:, 1].tolist() == [1, 1, 1, 1]
    observation = replay.observed(np.array([1, 4]))[0]
    assert isinstance(observation, np.ndarray)
    assert isinstance(batch.observation, torch.Tensor)
    assert batch.observation.equal(torch.from_numpy(observation))


def test_actions_are_those_taken_and_random_past_the_end() -> None:
    algorithm, replay = make_algorithm(), recorded("..t" + "." * 20)
    seen = set()
    for seed in range(40):
        batch = made(algorithm, replay, [2, 5], seed=seed)
        assert batch.action[0, 0].item() == 3 % ACTIONS
        assert batch.action[:, 1].tolist() == [6 % ACTIONS, 7 % ACTIONS, 8 % ACTIONS]
        seen.add(tuple(batch.action[1:, 0].tolist()))
    assert len(seen) == ACTIONS**2


@pytest.mark.parametrize("ratio", [0.0, 0.25, 1.0])
def test_the_asked_share_of_policies_is_searched_again_by_the_target_network(ratio: float) -> None:
    algorithm, replay = make_algorithm(reanalyze_ratio=ratio), recorded("." * 30)
    rows = list(range(8))
    batch = made(algorithm, replay, rows)
    again = (batch.policy != 1 / ACTIONS).any(-1)  # [K + 1, B]
    assert again.all(0).equal(again.any(0))  # whole windows
    assert again[0].sum().item() == round(8 * ratio)
    if ratio == 1.0:
        observation = replay.observed(np.arange(3))[0]
        assert isinstance(observation, np.ndarray)
        expected = TreeSearch(algorithm.search.rule).run(
            algorithm.target_model,
            torch.from_numpy(observation),
            num_simulations=4,
            exploration=0.0,
            generator=np.random.default_rng(0),
        )
        np.testing.assert_allclose(batch.policy[0, :3].numpy(), expected.weights, atol=1e-6)
        assert (batch.policy * 4 == (batch.policy * 4).round()).all()  # shares of four visits


def test_which_windows_are_searched_again_is_drawn() -> None:
    algorithm, replay = make_algorithm(reanalyze_ratio=0.25), recorded("." * 30)
    seen = set()
    for seed in range(30):
        batch = made(algorithm, replay, list(range(8)), seed=seed)
        seen.update(torch.nonzero((batch.policy[0] != 1 / ACTIONS).any(-1)).flatten().tolist())
    assert seen == set(range(8))


def test_searching_again_leaves_alone_what_lies_past_the_end() -> None:
    algorithm, replay = make_algorithm(reanalyze_ratio=1.0), recorded("..t.....")
    batch = made(algorithm, replay, [1])
    assert batch.policy_mask[:, 0].tolist() == [1, 1, 0, 0]
    assert (batch.policy[:, 0] != 1 / ACTIONS).any(-1).tolist() == [True, True, False, False]


@pytest.mark.parametrize("kind", [GumbelMuZeroParams, EfficientZeroParams])
def test_searching_again_keeps_to_what_was_legal(kind: Any) -> None:
    algorithm, replay = make_algorithm(kind, reanalyze_ratio=1.0), recorded("." * 12, masked=True)
    batch = made(algorithm, replay, [0, 1, 2])
    for column, start in enumerate((0, 1, 2)):
        for state in range(STEPS + 1):
            illegal = (start + state) % ACTIONS
            assert batch.policy[state, column, illegal].item() == 0.0
            assert batch.policy[state, column].sum().item() == pytest.approx(1.0)


def test_searching_again_explores_as_much_as_is_asked() -> None:
    algorithm, replay = make_algorithm(GumbelMuZeroParams, reanalyze_ratio=1.0), recorded("." * 12)
    assert isinstance(algorithm.search.rule, Gumbel)
    made(algorithm, replay, [0, 1], exploration=1.0)
    assert np.abs(algorithm.target_search.tree.gumbel).min() > 0
    made(algorithm, replay, [0, 1], exploration=0.0)
    assert np.abs(algorithm.target_search.tree.gumbel).max() == 0


def test_old_trajectories_sum_fewer_rewards() -> None:
    algorithm = make_algorithm(shrink_n_step=True, gamma=0.5)
    replay = recorded("." * 20)
    batch = made(algorithm, replay, [0, 14], total_timesteps=60)  # one less after every 18 steps
    assert batch.value[0, 0].item() == pytest.approx(1 + 0.5 * worth(algorithm, replay, 0), rel=1e-5)
    expected = 15 + 0.5 * 16 + 0.25 * worth(algorithm, replay, 15)
    assert batch.value[0, 1].item() == pytest.approx(expected, rel=1e-5)


def test_successors_are_what_really_came_and_time_first() -> None:
    algorithm, replay = make_algorithm(EfficientZeroParams, reanalyze_ratio=0.0), recorded("..t......")
    batch = made(algorithm, replay, [1, 4])
    assert isinstance(batch.successor, torch.Tensor)
    successor = batch.successor.view(STEPS, 2, 3)
    for column, rows in enumerate(([1, 2], [4, 5, 6])):
        expected = replay.reached(np.array(rows))
        assert isinstance(expected, np.ndarray)
        assert successor[: len(rows), column].equal(torch.from_numpy(expected))
    assert batch.successor_mask.tolist() == [[1, 1], [1, 1], [0, 1]]
    assert made(make_algorithm(), replay, [1]).successor is None


def test_rewards_are_prefixes_where_those_are_predicted() -> None:
    replay = recorded("." * 12)
    plain = made(make_algorithm(), replay, [0])
    assert plain.reward[:, 0].tolist() == [1, 2, 3]
    summed = make_algorithm(EfficientZeroParams, reanalyze_ratio=0.0, value_prefix_horizon=2)
    assert made(summed, replay, [0]).reward[:, 0].tolist() == [1, 3, 3]


def test_two_players_see_each_others_values_with_the_sign_turned() -> None:
    algorithm, replay = make_algorithm(two_player=True, gamma=1.0, n_step=1), recorded("......")
    batch = made(algorithm, replay, [0])
    assert batch.value[0, 0].item() == pytest.approx(1 - worth(algorithm, replay, 0), rel=1e-5)


def test_equal_draws_make_equal_batches() -> None:
    algorithm, replay = make_algorithm(GumbelMuZeroParams, reanalyze_ratio=0.5), recorded("..t.....c........")
    one, other = (made(algorithm, replay, [0, 3, 8], seed=4) for _ in range(2))
    for ours, theirs in zip(one, other, strict=True):
        assert (ours is None and theirs is None) or torch.equal(ours, theirs)  # type: ignore[arg-type]

"""Importance sampling and doubly robust estimates: by hand, and over all trajectories of a small decision process."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
import pytest

from rl_training.algorithms.evaluation.importance_sampling import (
    cumulative_log_ratio,
    discounted_sum,
    doubly_robust,
    effective_sample_size,
    pad_episodes,
    per_decision,
    resample_counts,
    td_errors,
    weighted_per_decision,
)

GAMMA = 0.5
ONCE = np.ones((1, 2))  # each of two episodes once
# Two episodes, of two steps and of one: ratios 2, 1/2 and 4; rewards 1, 3 and 2.
RATIOS = pad_episodes(np.log([2.0, 0.5, 4.0]), np.array([2, 1]))
REWARDS = pad_episodes(np.array([1.0, 3.0, 2.0]), np.array([2, 1]))


def test_episodes_are_padded_behind_their_ends():
    assert REWARDS.tolist() == [[1.0, 3.0], [2.0, 0.0]]


def test_discounting_starts_at_the_first_step():
    assert discounted_sum(REWARDS, GAMMA).tolist() == [2.5, 2.0]


def test_weights_multiply_the_ratios_up_to_a_step_and_stay_after_the_end():
    assert np.exp(cumulative_log_ratio(RATIOS)) == pytest.approx(np.array([[2.0, 1.0], [4.0, 4.0]]))


def test_per_decision_weighs_a_reward_by_the_actions_up_to_it():
    (value,) = per_decision(cumulative_log_ratio(RATIOS), REWARDS, GAMMA, ONCE)
    assert value == pytest.approx(((2 * 1 + 0.5 * 1 * 3) + 4 * 2) / 2)


def test_weighted_per_decision_divides_by_the_weights_of_a_step():
    (value,) = weighted_per_decision(cumulative_log_ratio(RATIOS), REWARDS, GAMMA, ONCE)
    assert value == pytest.approx((2 * 1 + 4 * 2) / 6 + 0.5 * (1 * 3 + 4 * 0) / 5)


def test_weights_beyond_the_range_of_floats_stay_finite():
    log_weight = np.array([[2000.0], [0.0]])
    assert np.isfinite(per_decision(log_weight, np.ones((2, 1)), GAMMA, ONCE)).all()
    assert weighted_per_decision(log_weight, np.array([[3.0], [1.0]]), GAMMA, ONCE) == pytest.approx(3.0)
    never = np.full((2, 1), -np.inf)
    assert weighted_per_decision(never, np.ones((2, 1)), GAMMA, ONCE) == 0.0
    assert effective_sample_size(never[:, 0]) == 0.0


def test_a_truncated_episode_goes_on_in_the_value_of_its_last_observation():
    errors = td_errors(np.array([1.0, 1.0]), np.array([2.0, 2.0]), np.array([6.0, 6.0]), np.array([False, True]), GAMMA)
    assert errors.tolist() == [1 + 0.5 * 6 - 2, 1 - 2]


def test_doubly_robust_equals_the_recursion_of_its_paper():
    random = np.random.default_rng(0)
    ratio = random.uniform(0.5, 2, 3)
    reward, q, v = (random.normal(size=3) for _ in range(3))
    after = 0.0  # of a terminated episode
    for t in (2, 1, 0):
        after = v[t] + ratio[t] * (reward[t] + GAMMA * after - q[t])
    errors = td_errors(reward, q, np.append(v[1:], 99.0), np.array([False, False, True]), GAMMA)
    log_weight = cumulative_log_ratio(np.log(ratio)[None])
    (value,) = doubly_robust(log_weight, errors[None], v[:1], GAMMA, np.ones((1, 1)), weighted=False)
    assert value == pytest.approx(after)


def test_effective_sample_size_is_the_number_of_equal_weights():
    assert effective_sample_size(np.log([3.0, 3.0, 3.0, 3.0])) == pytest.approx(4.0)
    assert effective_sample_size(np.log([1.0, 3.0])) == pytest.approx(16 / 10)
    assert effective_sample_size(np.array([0.0, -800.0])) == pytest.approx(1.0)


def test_resamples_draw_as_many_episodes_as_there_are():
    counts = resample_counts(7, 50, np.random.default_rng(0))
    assert counts.shape == (50, 7)
    assert (counts.sum(axis=1) == 7).all()
    assert not (counts == counts[0]).all()


# -- all trajectories of three steps through three states, with their exact probabilities ----------

STEPS = 3


class Process(NamedTuple):
    """A decision process: 3 states, 2 actions; an episode may end after any step."""

    start: np.ndarray  # [S]
    move: np.ndarray  # [S, A, S]
    reward: np.ndarray  # [S, A]
    goes_on: np.ndarray  # [S, A] probability that the episode does not terminate
    policy: np.ndarray  # [S, A]
    behaviour: np.ndarray  # [S, A]


def _process() -> Process:
    random = np.random.default_rng(3)
    return Process(
        start=random.dirichlet(np.ones(3)),
        move=random.dirichlet(np.ones(3), size=(3, 2)),
        reward=random.normal(size=(3, 2)),
        goes_on=random.uniform(0.3, 1.0, size=(3, 2)),
        policy=random.dirichlet(np.ones(2), size=3),
        behaviour=random.dirichlet(np.ones(2), size=3),
    )


def _true_values(process: Process) -> tuple[np.ndarray, np.ndarray]:
    """Return V [T + 1, S] and Q [T, S, A] of the policy with so many steps left, by backward induction."""
    v, q = [np.zeros(3)], []
    for _ in range(STEPS):
        q.append(process.reward + GAMMA * process.goes_on * (process.move @ v[-1]))
        v.append((process.policy * q[-1]).sum(axis=1))
    return np.array(v[::-1]), np.array(q[::-1])


class Enumerated(NamedTuple):
    """All trajectories as padded episodes."""

    probability: np.ndarray  # [1, E]
    log_ratio: np.ndarray  # [E, T]
    reward: np.ndarray
    states: np.ndarray  # [E, T + 1] int; -1 after the end
    actions: np.ndarray  # [E, T] int


def _enumerate(process: Process, assumed_behaviour: np.ndarray) -> Enumerated:
    rows = []

    def walk(probability: float, states: list[int], actions: list[int]) -> None:
        state = states[-1]
        if state < 0 or len(actions) == STEPS:
            rows.append((probability, states, actions))
            return
        for action in range(2):
            chance = probability * process.behaviour[state, action]
            stay = process.goes_on[state, action]
            walk(chance * (1 - stay), [*states, -1], [*actions, action])
            for successor in range(3):
                walk(chance * stay * process.move[state, action, successor], [*states, successor], [*actions, action])

    for state in range(3):
        walk(process.start[state], [state], [])
    ratio = np.log(process.policy) - np.log(assumed_behaviour)
    lengths = np.array([len(actions) for _, _, actions in rows])
    steps = [list(zip(states, actions, strict=False)) for _, states, actions in rows]
    taken = list(itertools.chain.from_iterable(steps))
    return Enumerated(
        np.array([[probability for probability, _, _ in rows]]),
        pad_episodes(np.array([ratio[step] for step in taken]), lengths),
        pad_episodes(np.array([process.reward[step] for step in taken]), lengths),
        np.array([states + [-1] * (STEPS + 1 - len(states)) for _, states, _ in rows]),
        np.array([actions + [0] * (STEPS - len(actions)) for _, _, actions in rows]),
    )


def _errors(found: Enumerated, v: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Return the TD errors [E, T] of the given values, which depend on the step."""
    step = np.arange(STEPS)
    states, ended = found.states[:, :-1], found.states[:, 1:] < 0
    errors = td_errors(found.reward, q[step, states, found.actions], v[step + 1, found.states[:, 1:]], ended, GAMMA)
    return np.where(states < 0, 0.0, errors)


def test_importance_sampling_has_exactly_the_policys_value_as_its_expectation():
    process = _process()
    truth = process.start @ _true_values(process)[0][0]
    found = _enumerate(process, process.behaviour)
    assert found.probability.sum() == pytest.approx(1.0)
    log_weight = cumulative_log_ratio(found.log_ratio)
    assert per_decision(log_weight, found.reward, GAMMA, found.probability) == pytest.approx(truth, abs=1e-12)
    assert weighted_per_decision(log_weight, found.reward, GAMMA, found.probability) == pytest.approx(truth, abs=1e-12)
    own = process._replace(policy=process.behaviour)
    behaviours = own.start @ _true_values(own)[0][0]
    assert abs(behaviours - truth) > 0.1
    assert found.probability @ discounted_sum(found.reward, GAMMA) == pytest.approx(behaviours)


@pytest.mark.parametrize("weighted", [False, True])
def test_doubly_robust_is_exact_with_wrong_values_or_with_wrong_probabilities(weighted: bool):
    process = _process()
    v, q = _true_values(process)
    truth = process.start @ v[0]
    noise = np.random.default_rng(1).normal(size=q.shape)
    wrong_q = q + noise
    wrong_v = np.append((process.policy * wrong_q).sum(axis=2), np.zeros((1, 3)), axis=0)
    flat = np.full((3, 2), 0.5)
    for values, behaviour, exact in (
        ((wrong_v, wrong_q), process.behaviour, True),
        ((v, q), flat, True),
        ((wrong_v, wrong_q), flat, False),
    ):
        found = _enumerate(process, behaviour)
        (value,) = doubly_robust(
            cumulative_log_ratio(found.log_ratio),
            _errors(found, *values),
            values[0][0][found.states[:, 0]],
            GAMMA,
            found.probability,
            weighted=weighted,
        )
        assert (value == pytest.approx(truth, abs=1e-12)) == exact

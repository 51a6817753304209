"""Off-policy estimates of a small process whose values are known, and their intervals."""

from __future__ import annotations

import numpy as np
import pytest

from rl_training.algorithms.evaluation.fitted_q import FittedQParams
from rl_training.runtime.offline_evaluation.estimates import estimate_all, fitted_q_estimate, mean_of
from rl_training.runtime.offline_evaluation.evaluation import Settings, evaluate_columns
from tabular import SmallProcess, table_policy

BEHAVIOUR = np.array([[0.5, 0.5], [0.6, 0.4], [0.3, 0.7]])
POLICY = np.array([[0.75, 0.25], [0.4, 0.6], [0.2, 0.8]])
SMALL = FittedQParams(members=3, hidden_sizes=(32,), batch_size=64)
NAMES = ("fqe", "per_decision_is", "weighted_is", "doubly_robust", "weighted_doubly_robust")


def _draws() -> np.random.Generator:
    return np.random.default_rng(0)


def test_an_interval_of_a_mean_is_that_of_a_bootstrap_over_episodes():
    values = np.random.default_rng(3).normal(5.0, 2.0, size=400)
    found = estimate_all({"mean": mean_of(values)}, 400, _draws())["mean"]
    assert found.value == pytest.approx(values.mean())
    assert found.interval is not None
    half = 1.96 * values.std() / 20
    assert found.interval.low == pytest.approx(values.mean() - half, abs=0.05)
    assert found.interval.high == pytest.approx(values.mean() + half, abs=0.05)


def test_an_interval_of_fitted_values_contains_the_spread_of_members_and_of_episodes():
    members = np.array([[-1.0], [0.0], [1.0], [2.0], [-2.0]])
    spread = fitted_q_estimate(np.repeat(members, 50, axis=1), _draws())  # all episodes are alike
    assert spread.value == 0.0
    assert spread.interval == (-2.0, 2.0)
    alike = fitted_q_estimate(np.tile(np.random.default_rng(1).normal(size=50), (5, 1)), _draws())
    assert alike.interval is not None
    assert alike.interval.low < alike.value - 0.2 < alike.value + 0.2 < alike.interval.high


def test_one_episode_has_a_value_and_no_interval():
    assert estimate_all({"mean": mean_of(np.array([3.0]))}, 1, _draws()) == {"mean": (3.0, None)}
    assert fitted_q_estimate(np.array([[1.0], [3.0]]), _draws()) == (2.0, None)
    assert fitted_q_estimate(np.array([[1.0]]), _draws()).as_metrics("fqe") == {
        "fqe_value": 1.0,
        "fqe_low": None,
        "fqe_high": None,
    }


def test_every_estimate_finds_the_value_of_another_policy():
    process = SmallProcess()
    truth, behaviours = process.true_value(POLICY), process.true_value(BEHAVIOUR)
    assert abs(truth - behaviours) > 0.3
    columns = process.record(BEHAVIOUR, 1500, longest=40)
    settings = Settings(gamma=process.gamma, updates=700, seed=0, stochastic=True)
    metrics, notes = evaluate_columns(table_policy(POLICY), columns, settings, params=SMALL)
    for name in NAMES:
        assert metrics[f"{name}_value"] == pytest.approx(truth, abs=0.15), name
        assert metrics[f"{name}_low"] <= truth <= metrics[f"{name}_high"], name
    assert metrics["behaviour_value"] == pytest.approx(behaviours, abs=0.1)
    assert (metrics["support"], metrics["importance_support"]) == ("adequate", "adequate")
    assert (notes.doubts, notes.left_out) == ([], [])
    again, _ = evaluate_columns(table_policy(POLICY), columns, settings, params=SMALL)
    assert again == metrics


def test_a_deterministic_policy_of_discrete_actions_has_importance_weights():
    process = SmallProcess()
    greedy = np.eye(2)[POLICY.argmax(axis=1)]
    truth = process.true_value(greedy)
    columns = process.record(BEHAVIOUR, 1500, longest=40)
    settings = Settings(gamma=process.gamma, updates=300, seed=0, stochastic=False)
    metrics, _ = evaluate_columns(table_policy(POLICY), columns, settings, params=SMALL)
    for name in ("weighted_is", "weighted_doubly_robust"):
        assert metrics[f"{name}_value"] == pytest.approx(truth, abs=0.3), name
    assert metrics["effective_episodes"] < 1500


def test_truncated_episodes_go_on_in_fitted_values():
    """Cut after one step, episodes show single rewards; the values are still those of the whole process."""
    process = SmallProcess()
    cut = process.record(BEHAVIOUR, 800, longest=1)
    assert cut.truncated.sum() > 600
    settings = Settings(gamma=process.gamma, updates=700, seed=0, stochastic=True)
    metrics, _ = evaluate_columns(table_policy(BEHAVIOUR), cut, settings, params=SMALL)
    assert metrics["fqe_value"] == pytest.approx(process.true_value(BEHAVIOUR), abs=0.2)

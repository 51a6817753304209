"""The sum tree and the prioritised sampler: sums stay exact, draws follow priorities, weights undo the bias."""

from __future__ import annotations

import numpy as np
import pytest

from rl_training.data.samplers import PrioritizedSampler, UniformSampler
from rl_training.data.sum_tree import SumTree


def level_sums(tree: SumTree) -> None:
    """Assert that every inner node is the sum of its children."""
    inner = np.arange(1, tree.leaves)
    np.testing.assert_array_equal(tree.nodes[inner], tree.nodes[2 * inner] + tree.nodes[2 * inner + 1])


@pytest.mark.parametrize("capacity", [1, 2, 5, 64, 1000])
def test_thousands_of_updates_leave_the_same_sums_as_numpy(capacity):
    generator = np.random.default_rng(capacity)
    tree, reference = SumTree(capacity), np.zeros(capacity)
    for _ in range(300):
        rows = generator.permutation(capacity)[: generator.integers(1, 17)]
        priorities = generator.exponential(size=len(rows)) * (generator.random(len(rows)) < 0.8)
        tree.set(rows, priorities)
        reference[rows] = priorities
    np.testing.assert_array_equal(tree.get(np.arange(capacity)), reference)
    level_sums(tree)
    # No rounding error has piled up: the total is the same sum made at once.
    assert tree.total == pytest.approx(reference.sum(), rel=1e-14)


def test_of_a_repeated_row_the_last_priority_counts():
    tree = SumTree(4)
    tree.set(np.array([2, 1, 2]), np.array([5.0, 1.0, 3.0]))
    assert tree.nodes[tree.leaves :].tolist() == [0.0, 1.0, 3.0, 0.0]
    assert tree.total == 4.0


def test_a_mass_falls_on_the_leaf_whose_interval_holds_it():
    tree = SumTree(5)
    tree.set(np.arange(5), np.array([1.0, 0.0, 2.0, 4.0, 0.5]))
    masses = np.array([0.0, 0.999, 1.0, 2.999, 3.0, 6.999, 7.0, 7.499])
    assert tree.find(masses).tolist() == [0, 0, 2, 2, 3, 3, 4, 4]


def test_leaves_without_priority_are_never_drawn():
    generator = np.random.default_rng(0)
    tree = SumTree(37)
    priorities = np.where(np.arange(37) % 3 == 1, 0.1, 0.0)  # not exact, so that sums round; the last leaves are 0
    tree.set(np.arange(37), priorities)
    edges = np.cumsum(priorities)
    masses = np.concatenate((generator.random(20_000) * tree.total, edges, np.nextafter(edges, 0), [0.0, tree.total]))
    assert (priorities[tree.find(masses)] > 0).all()


def test_filling_gives_the_tree_that_setting_gives():
    priorities = np.random.default_rng(1).random(100)
    filled, built = SumTree(150), SumTree(150)
    filled.set(np.arange(150), np.full(150, 9.0))  # what was there before is gone
    filled.fill(priorities)
    built.set(np.arange(100), priorities)
    np.testing.assert_array_equal(filled.nodes, built.nodes)
    level_sums(filled)


def test_drawn_frequencies_are_proportional_to_priorities():
    generator = np.random.default_rng(2)
    sampler = PrioritizedSampler(50, alpha=1.0, eps=0.0)
    sampler.update(np.arange(50), generator.exponential(size=50))
    priorities = sampler.tree.get(np.arange(50))
    draws = 200_000
    # One row per batch: without the slices that make a batch more even than chance.
    rows = sampler.sample(0, 50, (draws, 1), 1.0, generator).rows
    expected = draws * priorities / priorities.sum()
    statistic = (np.square(np.bincount(rows.ravel(), minlength=50) - expected) / expected).sum()
    assert statistic < 85.4  # the 99.9 % quantile of chi-square with 49 degrees of freedom


def test_a_batch_has_one_row_of_every_slice_of_the_total():
    sampler = PrioritizedSampler(4, alpha=1.0, eps=0.0)
    sampler.update(np.arange(4), np.array([1.0, 1.0, 4.0, 2.0]))
    rows = sampler.sample(0, 4, (200, 8), 1.0, np.random.default_rng(0)).rows
    assert (np.sort(rows, axis=1) == [0, 1, 2, 2, 2, 2, 3, 3]).all()


def test_importance_weights_by_hand():
    sampler = PrioritizedSampler(8, alpha=0.5, eps=0.0)
    sampler.added(0, 3)
    sampler.update(np.arange(3), np.array([1.0, 4.0, 25.0]))  # priorities 1, 2, 5; P = 1/8, 2/8, 5/8
    rows, weight = sampler.sample(0, 3, (1, 400), 0.5, np.random.default_rng(0))
    assert set(rows.ravel()) == {0, 1, 2}
    # (3 P)^-0.5 divided by the largest, which belongs to row 0: 1, sqrt(1/2), sqrt(1/5).
    np.testing.assert_allclose(weight, np.array([1.0, 0.5**0.5, 0.2**0.5])[rows], rtol=1e-6)
    assert weight is not None
    assert weight.dtype == np.float32


def test_beta_0_corrects_nothing():
    sampler = PrioritizedSampler(8, alpha=1.0, eps=0.0)
    sampler.update(np.arange(3), np.array([1.0, 4.0, 25.0]))
    assert (sampler.sample(0, 3, (2, 16), 0.0, np.random.default_rng(0)).weight == 1.0).all()


def test_weights_are_scaled_within_each_batch():
    sampler = PrioritizedSampler(2, alpha=1.0, eps=0.0)
    sampler.update(np.arange(2), np.array([1.0, 1000.0]))
    rows, weight = sampler.sample(0, 2, (2000, 4), 1.0, np.random.default_rng(0))
    assert 0 < (rows == 0).any(axis=1).sum() < 2000  # some batches hold the rare row with the large weight
    assert weight is not None
    assert (weight.max(axis=1) == 1.0).all()


def test_new_transitions_get_the_largest_priority_so_far():
    sampler = PrioritizedSampler(8, alpha=0.5, eps=0.0)
    sampler.added(0, 1)
    sampler.update(np.array([0]), np.array([16.0]))
    sampler.update(np.array([0]), np.array([-1.0]))  # an error's sign does not count
    sampler.added(1, 1)
    assert sampler.tree.get(np.arange(3)).tolist() == [1.0, 4.0, 0.0]


def test_no_error_is_so_small_that_a_transition_is_never_seen_again():
    sampler = PrioritizedSampler(2, alpha=0.6, eps=1e-6)
    sampler.update(np.arange(2), np.array([0.0, 1.0]))
    assert sampler.tree.get(np.array([0]))[0] == pytest.approx(1e-6**0.6)


def test_removed_rows_are_never_drawn():
    sampler = PrioritizedSampler(8, alpha=0.6, eps=1e-6)
    sampler.added(0, 8)
    sampler.removed(np.array([0, 5]))
    rows = sampler.sample(0, 8, (100, 16), 1.0, np.random.default_rng(0)).rows
    assert set(rows.ravel()) == {1, 2, 3, 4, 6, 7}


def test_a_restored_sampler_draws_the_same_rows_and_weights():
    generator = np.random.default_rng(3)
    sampler = PrioritizedSampler(100, alpha=0.6, eps=1e-6)
    sampler.added(0, 70)
    sampler.update(generator.integers(0, 70, 40), generator.normal(size=40) * 9)
    sampler.removed(np.array([1, 2]))
    state = sampler.state_dict()
    assert len(state["priorities"]) == 70  # what a checkpoint costs follows what is in use
    restored = PrioritizedSampler(100, alpha=0.6, eps=1e-6)
    restored.load_state_dict(state)
    np.testing.assert_array_equal(restored.tree.nodes, sampler.tree.nodes)
    one = sampler.sample(0, 70, (3, 32), 0.4, np.random.default_rng(5))
    other = restored.sample(0, 70, (3, 32), 0.4, np.random.default_rng(5))
    np.testing.assert_array_equal(one.rows, other.rows)
    np.testing.assert_array_equal(one.weight, other.weight)
    for each in (sampler, restored):
        each.added(80, 1)
    np.testing.assert_array_equal(restored.tree.nodes, sampler.tree.nodes)


def test_the_uniform_sampler_draws_every_row_alike_and_only_those_in_reach():
    rows, weight = UniformSampler(10).sample(13, 20, (1000, 70), 1.0, np.random.default_rng(0))
    assert weight is None
    counts = np.bincount(rows.ravel(), minlength=10)
    assert counts[:3].tolist() == [0, 0, 0]  # serial numbers 13 to 19 are the rows 3 to 9
    assert (np.square(counts[3:] - 10_000) / 10_000).sum() < 22.5  # 99.9 %, 6 degrees of freedom

"""Random actions are uniform over what is valid, and their probabilities are right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import Space, spaces

from rl_training.runtime.datasets.behaviour import Behaviour, Draws, random_actions, random_log_probs

ROWS = 12_000


def _draw(space: Space[Any], mask: np.ndarray | None = None) -> np.ndarray:
    actions = random_actions(space, ROWS, mask, np.random.default_rng(1))
    assert actions.shape == (ROWS, *(space.shape or ()))
    assert all(space.contains(action if np.ndim(action) else np.int64(action)) for action in actions[:50])
    return actions


@pytest.mark.parametrize(
    ("space", "mask", "count"),
    [
        (spaces.Discrete(4, start=-1), None, 4),
        (spaces.Discrete(4, start=2), [False, True, True, False], 2),
        (spaces.MultiDiscrete([2, 3]), None, 6),
        (spaces.MultiDiscrete([2, 3], start=[5, -5]), [True, False, True, False, True], 2),
        (spaces.MultiDiscrete(np.array([[2, 2], [2, 1]])), None, 8),
        (spaces.MultiBinary(3), None, 8),
        (spaces.MultiBinary([2, 2]), [True, False, True, True], 8),
        (spaces.Box(-1, 2, (1,), np.int64), None, 4),
        (spaces.Box(0, 1, (2,), np.uint8), None, 4),
    ],
)
def test_every_valid_choice_is_equally_likely(space: Space[Any], mask: list[bool] | None, count: int) -> None:
    masks = None if mask is None else np.tile(np.array(mask), (ROWS, 1))
    actions = _draw(space, masks)
    choices, counts = np.unique(actions.reshape(ROWS, -1), axis=0, return_counts=True)
    assert len(choices) == count
    np.testing.assert_allclose(counts / ROWS, 1 / count, atol=0.02)
    reported = random_log_probs(space, ROWS, masks)
    assert reported is not None
    np.testing.assert_allclose(np.exp(reported), 1 / count, rtol=1e-5)


def test_masks_of_a_batch_are_obeyed_row_by_row() -> None:
    masks = np.random.default_rng(0).random((ROWS, 5)) < 0.4
    masks[:, 2] |= ~masks.any(axis=1)
    actions = random_actions(spaces.Discrete(5, start=1), ROWS, masks, np.random.default_rng(1))
    assert masks[np.arange(ROWS), actions - 1].all()


def test_a_bounded_box_is_filled_evenly() -> None:
    space = spaces.Box(np.array([-1, 0], np.float32), np.array([1, 10], np.float32))
    actions = _draw(space)
    np.testing.assert_allclose(actions.mean(axis=0), [0, 5], atol=0.1)
    np.testing.assert_allclose(actions.std(axis=0), np.array([2, 10]) / np.sqrt(12), rtol=0.03)
    reported = random_log_probs(space, 2, None)
    assert reported is not None
    np.testing.assert_allclose(np.exp(reported), 1 / 20, rtol=1e-5)


def test_a_box_without_bounds_has_no_known_density() -> None:
    low, high = np.array([-np.inf, 1, -np.inf], np.float32), np.array([np.inf, np.inf, -1], np.float32)
    space = spaces.Box(low, high)
    actions = _draw(space)
    np.testing.assert_allclose(actions.mean(axis=0), [0, 2, -2], atol=0.05)
    assert random_log_probs(space, 2, None) is None


def test_the_draws_of_a_round_depend_on_its_number_and_the_seed_alone() -> None:
    import torch

    def numbers(seed: int, number: int) -> tuple[float, float]:
        draws = Draws.of(seed, number, torch.device("cpu"))
        return torch.rand(1, generator=draws.policy).item(), draws.random.random()

    assert numbers(1, 2) == numbers(1, 2)
    assert len({*numbers(1, 2), *numbers(1, 3), *numbers(2, 2)}) == 6


def test_labels_are_parts_of_ids() -> None:
    assert [Behaviour().label, Behaviour("epsilon", 0.05).label] == ["deterministic", "epsilon0_05"]

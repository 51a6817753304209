"""Batches of a dataset are its transitions, scaled as asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import Space, spaces

from dataset_parts import IMAGE, PARTS, VECTOR
from offline_parts import RATES, make_offline, write_dataset
from replay_parts import CPU, generator
from rl_training.data.datasets.columns import DatasetColumns, load_columns
from rl_training.data.datasets.dataset import open_dataset
from rl_training.data.datasets.episode import Episode
from rl_training.data.datasets.offline_replay import (
    RETURN_RANGE,
    OfflineReplay,
    best_transitions,
    measure_observations,
    return_range_scale,
)
from rl_training.data.observations import map_observation
from rl_training.envs.normalize import ObservationNormalizer
from rl_training.models.policy_network import stored_actions

TORQUE = spaces.Box(-2.0, 2.0, (2,), np.float32)


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))


def _columns(
    observation_space: Space[Any] = VECTOR, action_space: Space[Any] = TORQUE, **options: Any
) -> tuple[list[Episode], DatasetColumns]:
    episodes = write_dataset("tests/some-v0", observation_space, action_space, **options)
    return episodes, load_columns(open_dataset("tests/some-v0"))


def _replay(columns: DatasetColumns, action_space: Space[Any] = TORQUE, **options: Any) -> OfflineReplay:
    return OfflineReplay(columns, lambda action: stored_actions(action_space, action), **{"gamma": 0.9, **options})


def _flat(episodes: Sequence[Episode]) -> list[dict[str, Any]]:
    """Return every transition, written down one by one."""
    found = []
    for episode in episodes:
        for step in range(episode.steps):
            now, then = (
                map_observation(lambda array, at=at: array[at], episode.observations) for at in (step, step + 1)
            )
            last = step + 1 == episode.steps
            found.append(
                {
                    "observation": now,
                    "next_observation": then,
                    "action": episode.actions[step],
                    "next_action": None if last else episode.actions[step + 1],
                    "reward": episode.rewards[step],
                    "terminated": bool(episode.terminations[step]),
                }
            )
    return found


@pytest.mark.parametrize("space", [VECTOR, IMAGE, PARTS], ids=["vector", "image", "dict"])
def test_batches_are_the_transitions_of_their_rows(space: Space[Any]) -> None:
    episodes, columns = _columns(space)
    expected = _flat(episodes)
    replay = _replay(columns, with_next_action=True)
    assert replay.size == len(expected) == 48
    batches, rows = replay.sample(16, np.random.default_rng(0), CPU, count=6)
    assert rows.shape == (6, 16)
    assert {expected[row]["terminated"] for row in rows.flat} == {True, False}
    for batch, numbers in zip(batches, rows, strict=True):
        for place, number in enumerate(numbers):
            one = expected[number]
            for name in ("observation", "next_observation"):
                map_observation(
                    lambda ours, theirs, place=place: np.testing.assert_array_equal(ours[place], theirs),
                    getattr(batch, name),
                    one[name],
                )
            np.testing.assert_allclose(batch.action[place], one["action"] / 2.0, atol=1e-6)  # from [-2, 2] to [-1, 1]
            assert batch.reward[place].item() == pytest.approx(one["reward"], rel=1e-6)
            assert batch.discount[place].item() == pytest.approx(0.0 if one["terminated"] else 0.9)
            assert batch.next_action is not None
            if one["next_action"] is None:
                assert batch.next_action[place].isnan().all()
            else:
                np.testing.assert_allclose(batch.next_action[place], one["next_action"] / 2.0, atol=1e-6)


def test_a_truncated_episode_bootstraps_from_its_true_final_observation() -> None:
    episodes, columns = _columns()
    truncated = episodes[1]
    row = episodes[0].steps + truncated.steps - 1
    batches, _ = _replay(columns, rows=np.array([row])).sample(1, np.random.default_rng(0), CPU)
    assert isinstance(truncated.observations, np.ndarray)
    np.testing.assert_array_equal(batches[0].next_observation, truncated.observations[-1:])
    assert batches[0].discount.item() == pytest.approx(0.9)


def test_draws_depend_on_the_generator_alone() -> None:
    _, columns = _columns()
    one, other = (_replay(columns).sample(8, np.random.default_rng(5), CPU, count=4)[1] for _ in range(2))
    np.testing.assert_array_equal(one, other)
    assert len(np.unique(one)) > 10


def test_rewards_are_scaled_and_shifted() -> None:
    _, columns = _columns()
    plain, scaled = (
        _replay(columns, **options).sample(8, np.random.default_rng(5), CPU)[0][0].reward.clone()
        for options in (dict[str, Any](), {"reward_scale": 0.5, "reward_shift": -1.0})
    )
    np.testing.assert_allclose(scaled, 0.5 * plain - 1.0, rtol=1e-6)


def test_the_range_of_returns_becomes_a_thousand() -> None:
    episodes, columns = _columns()
    returns = [episode.episode_return for episode in episodes]
    scale = return_range_scale(columns)
    assert scale is not None
    assert scale * (max(returns) - min(returns)) == pytest.approx(RETURN_RANGE)


def test_equal_returns_have_no_range() -> None:
    episodes = write_dataset("tests/one-v0", VECTOR, TORQUE, lengths=(5,))
    assert len(episodes) == 1
    assert return_range_scale(load_columns(open_dataset("tests/one-v0"))) is None


def test_the_best_episodes_are_those_with_the_highest_returns() -> None:
    episodes, columns = _columns(lengths=(4, 5, 6, 7, 8, 9, 10, 3, 2, 11))
    order = np.argsort([-episode.episode_return for episode in episodes])
    for fraction, kept in ((0.3, 3), (0.01, 1), (1.0, 10)):
        rows = best_transitions(columns, fraction)
        assert set(columns.episode[rows]) == set(order[:kept])
        assert len(rows) == sum(episodes[number].steps for number in order[:kept])
    replay = _replay(columns, rows=best_transitions(columns, 0.1))
    _, rows = replay.sample(64, np.random.default_rng(0), CPU)
    assert set(columns.episode[rows.ravel()]) == {order[0]}


def test_observations_are_normalised_by_all_that_the_dataset_has() -> None:
    episodes, columns = _columns()
    normalizer = ObservationNormalizer(VECTOR, 10.0)
    measure_observations(columns, normalizer)
    every = np.concatenate([np.asarray(episode.observations) for episode in episodes])
    batches, rows = _replay(columns, normalizer=normalizer).sample(8, np.random.default_rng(0), CPU)
    raw = np.stack([_flat(episodes)[row]["observation"] for row in rows[0]])
    expected = (raw - every.mean(0)) / np.sqrt(every.var(0) + 1e-8)
    np.testing.assert_allclose(np.asarray(batches[0].observation), expected, rtol=1e-4, atol=1e-5)


def test_images_are_not_normalised() -> None:
    _, columns = _columns(PARTS)
    normalizer = ObservationNormalizer(PARTS, 10.0)
    measure_observations(columns, normalizer)
    batches, _ = _replay(columns, normalizer=normalizer).sample(8, np.random.default_rng(0), CPU)
    shown = batches[0].observation
    assert isinstance(shown, dict)
    assert shown["image"].dtype == torch.uint8
    assert shown["position"].abs().max() < 10


def test_recorded_masks_become_those_of_batches() -> None:
    episodes, columns = _columns(VECTOR, spaces.Discrete(4), infos=["action_mask"])
    masks = np.concatenate([episode.infos["action_mask"] for episode in episodes])
    replay = _replay(columns, spaces.Discrete(4))
    batches, rows = replay.sample(8, np.random.default_rng(0), CPU)
    assert batches[0].mask is not None
    assert batches[0].next_mask is not None
    places = columns.place[rows[0]]
    masks[~masks.any(axis=1)] = True  # where nothing is legal, as at the end of a game
    np.testing.assert_array_equal(batches[0].mask, masks[places])
    np.testing.assert_array_equal(batches[0].next_mask, masks[places + 1])


def test_no_legal_action_at_the_end_leaves_targets_finite() -> None:
    """The largest of no values is minus infinity, which a discount of 0 would turn into NaN."""
    _, columns = _columns(VECTOR, spaces.Discrete(4), infos=["action_mask"])
    columns.observation_infos["action_mask"][:] = 0
    learner = make_offline("discrete_cql", spaces.Discrete(4), observation_space=VECTOR, double=False)
    (batch,), _ = OfflineReplay(columns, learner.stored_action, gamma=0.9).sample(32, np.random.default_rng(0), CPU)
    assert learner.update(batch, RATES, generator(0))["loss_q"].isfinite()

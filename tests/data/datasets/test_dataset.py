"""Datasets made by Minari's own functions are read as they were written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import Space, spaces

from dataset_parts import IMAGE, PARTS, VECTOR, assert_same_episode, random_episode, write_with_minari
from rl_training.data.datasets import columns as columns_module
from rl_training.data.datasets.columns import load_columns
from rl_training.data.datasets.dataset import open_dataset
from rl_training.errors import DatasetError

ACTIONS = (
    spaces.Discrete(3, start=2),
    spaces.MultiDiscrete([3, 4]),
    spaces.MultiBinary(5),
    spaces.Box(-1, 1, (2,), np.float32),
)


def _write(observation_space: Space[Any], action_space: Space[Any], lengths: tuple[int, ...], **options: Any) -> list:
    generator = np.random.default_rng(3)
    infos = options.pop("infos", ())
    episodes = [
        random_episode(generator, observation_space, action_space, steps, seed=7 + number, infos=infos)
        for number, steps in enumerate(lengths)
    ]
    write_with_minari("tests/some-v0", episodes, observation_space, action_space, **options)
    return episodes


@pytest.mark.parametrize("observation_space", [VECTOR, IMAGE, PARTS], ids=["vector", "image", "dict"])
@pytest.mark.parametrize("action_space", ACTIONS, ids=lambda space: type(space).__name__)
def test_episodes_of_minari_are_read_as_they_were_written(
    observation_space: Space[Any], action_space: Space[Any]
) -> None:
    written = _write(observation_space, action_space, (4, 1, 3), infos=("log_prob", "action_mask"))
    dataset = open_dataset("tests/some-v0")
    assert dataset.observation_space == observation_space
    assert dataset.action_space == action_space
    assert (dataset.total_episodes, dataset.total_steps, dataset.env_id) == (3, 8, None)
    for one, other in zip(written, dataset.episodes(), strict=True):
        assert_same_episode(one, other)


def test_the_environment_of_a_dataset_is_named_and_not_made() -> None:
    spaces_of_env = spaces.Box(-np.inf, np.inf, (4,), np.float32), spaces.Discrete(2)
    _write(*spaces_of_env, (2,), env="CartPole-v1")
    assert open_dataset("tests/some-v0").env_id == "CartPole-v1"


def test_jpeg_images_of_minari_are_decoded(root: Path) -> None:
    import minari

    _write(IMAGE, ACTIONS[0], (3, 2), jpeg_encoding=True)
    ours = [episode.observations for episode in open_dataset("tests/some-v0").episodes()]
    theirs = [episode.observations for episode in minari.load_dataset("tests/some-v0").iterate_episodes()]
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one, other)


def test_columns_hold_every_observation_once_and_point_to_it(root: Path) -> None:
    written = _write(PARTS, ACTIONS[0], (4, 1, 3), infos=("log_prob", "action_mask"))
    columns = load_columns(open_dataset("tests/some-v0"))
    assert columns.place.tolist() == [0, 1, 2, 3, 5, 7, 8, 9]
    assert columns.first.tolist() == [0, 5, 7]
    assert columns.episode.tolist() == [0, 0, 0, 0, 1, 2, 2, 2]
    assert columns.terminated.tolist() == [False, False, False, True, True, False, False, True]
    assert not columns.truncated.any()
    assert isinstance(columns.observation, dict)
    for key in ("image", "position", "room"):
        np.testing.assert_array_equal(
            columns.observation[key][columns.place + 1],
            np.concatenate([episode.observations[key][1:] for episode in written]),
        )
    np.testing.assert_array_equal(columns.action, np.concatenate([episode.actions for episode in written]))
    assert columns.reward.dtype == np.float32
    np.testing.assert_allclose(columns.episode_returns, [episode.rewards.sum() for episode in written])
    masks = np.concatenate([episode.infos["action_mask"] for episode in written])
    np.testing.assert_array_equal(columns.observation_infos["action_mask"], masks)
    np.testing.assert_array_equal(columns.infos["action_mask"], masks[columns.place])
    log_probs = np.concatenate([episode.infos["log_prob"] for episode in written])
    np.testing.assert_array_equal(columns.infos["log_prob"], log_probs)


def test_an_info_that_one_episode_lacks_is_no_column(root: Path) -> None:
    generator = np.random.default_rng(0)
    episodes = [
        random_episode(generator, VECTOR, ACTIONS[0], 3, infos=("log_prob",)),
        random_episode(generator, VECTOR, ACTIONS[0], 3),
    ]
    write_with_minari("tests/some-v0", episodes, VECTOR, ACTIONS[0])
    assert load_columns(open_dataset("tests/some-v0")).infos == {}


def test_large_columns_are_files_that_are_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _write(PARTS, ACTIONS[3], (4, 1, 3), infos=("log_prob",))
    dataset = open_dataset("tests/some-v0")
    small = load_columns(dataset)
    monkeypatch.setattr(columns_module, "IN_MEMORY", 0)
    cache = tmp_path / "cache"
    with caplog.at_level("INFO", logger="rl_training"):
        load_columns(dataset, cache=cache)
        large = load_columns(dataset, cache=cache)
    assert len([record for record in caplog.records if "as arrays" in record.getMessage()]) == 1
    assert [path.name for path in cache.iterdir()] == [dataset.fingerprint]
    assert isinstance(large.reward, np.memmap)
    for name in ("place", "action", "reward", "terminated", "truncated", "episode", "episode_returns", "first"):
        np.testing.assert_array_equal(getattr(small, name), getattr(large, name), err_msg=name)
    assert isinstance(small.observation, dict)
    assert isinstance(large.observation, dict)
    for key in small.observation:
        np.testing.assert_array_equal(small.observation[key], large.observation[key])
    np.testing.assert_array_equal(small.infos["log_prob"], large.infos["log_prob"])


def test_an_incomplete_cache_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(VECTOR, ACTIONS[0], (4, 1, 3))
    dataset = open_dataset("tests/some-v0")
    monkeypatch.setattr(columns_module, "IN_MEMORY", 0)
    cache = tmp_path / "cache"
    (cache / dataset.fingerprint).mkdir(parents=True)
    (cache / dataset.fingerprint / "000.npy").write_bytes(b"half")
    assert len(load_columns(dataset, cache=cache)) == 8


def test_a_dataset_is_found_by_its_path_too(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(VECTOR, ACTIONS[0], (2,))
    monkeypatch.delenv("MINARI_DATASETS_PATH")
    for path in (root / "tests" / "some-v0", root / "tests" / "some-v0" / "data"):
        assert open_dataset(path).total_steps == 2
        assert open_dataset(str(path)).name == "tests/some-v0"


def test_an_unknown_dataset_is_refused_with_the_nearest_name(root: Path) -> None:
    _write(VECTOR, ACTIONS[0], (2,))
    with pytest.raises(DatasetError, match="did you mean `tests/some-v0`"):
        open_dataset("tests/sone-v0")
    with pytest.raises(DatasetError, match="no dataset"):
        open_dataset("../tests/some-v1")

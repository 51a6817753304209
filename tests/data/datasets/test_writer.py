"""Datasets that this package writes: Minari opens them, nothing is lost, and a failure leaves nothing behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import minari
import numpy as np
import pytest
from gymnasium import Space, spaces
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dataset_parts import IMAGE, PARTS, VECTOR, assert_same_episode, random_episode, write_dataset
from rl_training.data.datasets.dataset import open_dataset
from rl_training.data.datasets.editing import merge, split, split_names
from rl_training.data.datasets.inspection import check
from rl_training.data.datasets.writer import Description, new_dataset
from rl_training.errors import DatasetError

ACTIONS = (
    spaces.Discrete(3, start=2),
    spaces.MultiDiscrete([3, 4]),
    spaces.MultiBinary(5),
    spaces.Box(-1, 1, (2,), np.float32),
)
OBSERVATIONS = (
    VECTOR,
    IMAGE,
    PARTS,
    spaces.Box(-5, 5, (), np.float64),
    spaces.Discrete(4, start=-2),
    spaces.Dict({"b": spaces.MultiBinary([2, 3]), "a": spaces.MultiDiscrete([2, 5], dtype=np.int32)}),
)


def _episodes(
    observation_space: Space[Any],
    action_space: Space[Any],
    lengths: list[int],
    infos: tuple[str, ...] = (),
    seed: int = 1,
) -> list:
    generator = np.random.default_rng(seed)
    return [
        random_episode(generator, observation_space, action_space, steps, seed=number, infos=infos)
        for number, steps in enumerate(lengths)
    ]


@given(
    observation_space=st.sampled_from(OBSERVATIONS),
    action_space=st.sampled_from(ACTIONS),
    lengths=st.lists(st.integers(1, 7), min_size=1, max_size=4),
    infos=st.sampled_from([(), ("log_prob",), ("log_prob", "action_mask")]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_written_is_read_back_bit_for_bit(
    root: Path,
    observation_space: Space[Any],
    action_space: Space[Any],
    lengths: list[int],
    infos: tuple[str, ...],
    seed: int,
) -> None:
    name = f"tests/x{len(list(root.glob('tests/*')))}-v0"
    written = _episodes(observation_space, action_space, lengths, infos, seed)
    write_dataset(name, written, observation_space, action_space)
    dataset = open_dataset(name)
    assert dataset.observation_space == observation_space
    assert dataset.action_space == action_space
    assert (dataset.total_episodes, dataset.total_steps) == (len(lengths), sum(lengths))
    for one, other in zip(written, dataset.episodes(), strict=True):
        assert_same_episode(one, other)
        assert one.rewards.dtype == other.rewards.dtype
    assert check(dataset).faults == []


@pytest.mark.parametrize("observation_space", OBSERVATIONS[:3], ids=["vector", "image", "dict"])
@pytest.mark.parametrize("action_space", ACTIONS, ids=lambda space: type(space).__name__)
def test_minari_opens_our_datasets(observation_space: Space[Any], action_space: Space[Any]) -> None:
    written = _episodes(observation_space, action_space, [4, 1, 3], ("log_prob", "action_mask"))
    write_dataset("tests/ours-v3", written, observation_space, action_space)
    theirs = minari.load_dataset("tests/ours-v3")
    assert theirs.spec.observation_space == observation_space
    assert theirs.spec.action_space == action_space
    assert (theirs.total_episodes, theirs.total_steps) == (3, 8)
    seeds = [entry["seed"] for entry in theirs.storage.get_episode_metadata(range(3))]
    assert seeds == [0, 1, 2]
    for one, other in zip(written, theirs.iterate_episodes(), strict=True):
        for key in ("actions", "rewards", "terminations", "truncations"):
            np.testing.assert_array_equal(getattr(one, key), getattr(other, key))
        if isinstance(one.observations, dict):
            for key, part in one.observations.items():
                np.testing.assert_array_equal(part, other.observations[key])
        else:
            np.testing.assert_array_equal(one.observations, other.observations)
        np.testing.assert_array_equal(one.infos["log_prob"], other.infos["log_prob"])
    assert "tests/ours-v3" in minari.list_local_datasets()


def test_a_short_episode_takes_no_kilobytes_for_every_array(root: Path) -> None:
    write_dataset("tests/short-v0", _episodes(VECTOR, ACTIONS[0], [10] * 50), VECTOR, ACTIONS[0])
    size = (root / "tests" / "short-v0" / "data" / "main_data.hdf5").stat().st_size
    content = 50 * (11 * 12 + 10 * (8 + 8 + 2))
    assert size < content + 50 * 3000


def test_images_are_compressed_without_loss(root: Path) -> None:
    generator = np.random.default_rng(0)
    episode = random_episode(generator, IMAGE, ACTIONS[0], 40)
    assert isinstance(episode.observations, np.ndarray)
    episode.observations[:, 5:] = 7
    write_dataset("tests/images-v0", [episode], IMAGE, ACTIONS[0])
    with h5py.File(root / "tests" / "images-v0" / "data" / "main_data.hdf5") as file:
        stored = file["episode_0/observations"].id.get_storage_size()
    assert stored < episode.observations.nbytes / 4
    assert_same_episode(episode, next(open_dataset("tests/images-v0").episodes()))


def test_an_error_leaves_no_dataset_and_no_files(root: Path) -> None:
    def write() -> None:
        with new_dataset(Description("tests/half-v0", VECTOR, ACTIONS[0], {})) as file:
            file.add(_episodes(VECTOR, ACTIONS[0], [3])[0])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write()
    assert [path for path in root.rglob("*") if path.is_file()] == []
    with pytest.raises(DatasetError, match="no dataset"):
        open_dataset("tests/half-v0")


def test_what_a_killed_process_left_is_removed_and_what_a_running_one_makes_is_not(root: Path) -> None:
    (root / ".making-dead").mkdir(parents=True)
    (root / ".making-dead" / "lock").touch()
    with new_dataset(Description("tests/one-v0", VECTOR, ACTIONS[0], {})) as one:
        assert not (root / ".making-dead").exists()
        with new_dataset(Description("tests/two-v0", VECTOR, ACTIONS[0], {})) as two:
            for file in (one, two):
                file.add(_episodes(VECTOR, ACTIONS[0], [3])[0])
    assert [path.name for path in root.iterdir()] == ["tests"]
    assert open_dataset("tests/one-v0").total_steps == open_dataset("tests/two-v0").total_steps == 3


def test_an_existing_dataset_is_not_replaced() -> None:
    write_dataset("tests/one-v0", _episodes(VECTOR, ACTIONS[0], [3]), VECTOR, ACTIONS[0])
    with pytest.raises(DatasetError, match="exists"):
        write_dataset("tests/one-v0", _episodes(VECTOR, ACTIONS[0], [4]), VECTOR, ACTIONS[0])
    assert open_dataset("tests/one-v0").total_steps == 3


@pytest.mark.parametrize("name", ["x", "x-v", "../x-v0", "x y-v0", "/x-v0", "a/x-v0", "a//x-v0", "-v0", "ü-v0"])
def test_an_id_that_minari_could_not_open_is_refused(name: str, root: Path) -> None:
    with pytest.raises(DatasetError, match="is no id"):
        write_dataset(name, _episodes(VECTOR, ACTIONS[0], [3]), VECTOR, ACTIONS[0])
    assert not root.exists()


def test_merged_datasets_have_all_episodes_in_order() -> None:
    first, second = _episodes(PARTS, ACTIONS[1], [2, 3]), _episodes(PARTS, ACTIONS[1], [4], seed=9)
    write_dataset("tests/a-v0", first, PARTS, ACTIONS[1], extra={"algorithm_name": "ppo", "author": ["one"]})
    write_dataset("tests/b-v0", second, PARTS, ACTIONS[1], extra={"algorithm_name": "ppo", "author": ["two"]})
    sources = [open_dataset("tests/a-v0"), open_dataset("tests/b-v0")]
    merge(sources, "tests/ab-v0")
    merged = open_dataset("tests/ab-v0")
    for one, other in zip([*first, *second], merged.episodes(), strict=True):
        assert_same_episode(one, other)
    assert merged.metadata["algorithm_name"] == "ppo"
    assert "author" not in merged.metadata
    assert [source["fingerprint"] for source in merged.metadata["axiomrl"]["sources"]] == [
        source.fingerprint for source in sources
    ]
    assert minari.load_dataset("tests/ab-v0").spec.combined_datasets == ["tests/a-v0", "tests/b-v0"]


def test_datasets_of_other_spaces_are_not_merged() -> None:
    write_dataset("tests/a-v0", _episodes(VECTOR, ACTIONS[0], [2]), VECTOR, ACTIONS[0])
    write_dataset("tests/b-v0", _episodes(VECTOR, ACTIONS[1], [2]), VECTOR, ACTIONS[1])
    with pytest.raises(DatasetError, match="action spaces"):
        merge([open_dataset("tests/a-v0"), open_dataset("tests/b-v0")], "tests/ab-v0")


def test_datasets_of_other_environments_are_not_merged() -> None:
    for letter, env in (("a", "CartPole-v0"), ("b", "CartPole-v1")):
        spec = json.dumps({"id": env})
        write_dataset(f"tests/{letter}-v0", _episodes(VECTOR, ACTIONS[0], [2]), VECTOR, ACTIONS[0], env_spec=spec)
    with pytest.raises(DatasetError, match="CartPole-v0, the other of CartPole-v1"):
        merge([open_dataset("tests/a-v0"), open_dataset("tests/b-v0")], "tests/ab-v0")


def test_a_split_divides_every_episode_to_one_part_in_order() -> None:
    write_dataset("tests/all-v0", _episodes(VECTOR, ACTIONS[0], [1, 2, 3, 4, 5, 6, 7]), VECTOR, ACTIONS[0])
    source = open_dataset("tests/all-v0")
    names = split_names("tests/all-v0")
    assert names == ("tests/all-train-v0", "tests/all-test-v0")
    assert split(source, names, fraction=0.7, seed=3) == (5, 2)
    lengths = [[episode.steps for episode in open_dataset(name).episodes()] for name in names]
    assert all(part == sorted(part) for part in lengths)
    assert sorted([*lengths[0], *lengths[1]]) == [1, 2, 3, 4, 5, 6, 7]
    split(source, ("tests/x-v0", "tests/y-v0"), episodes=5, seed=3)
    assert [episode.steps for episode in open_dataset("tests/x-v0").episodes()] == lengths[0]
    split(source, ("tests/x-v1", "tests/y-v1"), episodes=5, seed=4)
    assert [episode.steps for episode in open_dataset("tests/x-v1").episodes()] != lengths[0]


@pytest.mark.parametrize("episodes", [0, 3, 4])
def test_a_part_without_episodes_is_refused(episodes: int) -> None:
    write_dataset("tests/all-v0", _episodes(VECTOR, ACTIONS[0], [1, 2, 3]), VECTOR, ACTIONS[0])
    with pytest.raises(DatasetError, match="can have 1 to 2"):
        split(open_dataset("tests/all-v0"), ("tests/x-v0", "tests/y-v0"), episodes=episodes)

"""Files that somebody else made or damaged: one sentence, nothing followed, nothing executed, no memory taken."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dataset_parts import PARTS, VECTOR, assert_same_episode, random_episode, write_dataset, write_with_minari
from rl_training.data.datasets import safe_hdf5
from rl_training.data.datasets.columns import load_columns
from rl_training.data.datasets.dataset import open_dataset
from rl_training.data.datasets.inspection import check
from rl_training.errors import AxiomError, DatasetError

ACTIONS = spaces.Discrete(3)
NAME = "tests/some-v0"


@pytest.fixture
def data(root: Path) -> Path:
    """A sound dataset of two episodes; its file of episodes."""
    generator = np.random.default_rng(0)
    episodes = [random_episode(generator, VECTOR, ACTIONS, steps, infos=("log_prob",)) for steps in (4, 3)]
    write_dataset(NAME, episodes, VECTOR, ACTIONS)
    return root / NAME / "data" / "main_data.hdf5"


def _read_everything() -> None:
    for _ in open_dataset(NAME).episodes():
        pass


def _assert_refused(pattern: str) -> None:
    """Assert that reading fails with one sentence, and that a check finds the same."""
    for read in (_read_everything, lambda: load_columns(open_dataset(NAME))):
        with pytest.raises(AxiomError, match=pattern) as caught:
            read()
        assert caught.value.exit_status == 2
        assert "\n" not in str(caught.value)
    assert any(re.search(pattern, fault) for fault in check(open_dataset(NAME)).faults)


def _replace(data: Path, name: str, make: Callable[[h5py.Group, str], Any]) -> None:
    with h5py.File(data, "a") as file:
        group, _, own = name.rpartition("/")
        del file[name]
        make(file[group] if group else file, own)


def _plain(array: Any) -> Callable[[h5py.Group, str], Any]:
    return lambda group, name: group.create_dataset(name, data=array)


# -- content ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "array", "pattern"),
    [
        ("rewards", np.array([1, np.nan, 2, 3]), "episode 0.*rewards hold NaN"),
        ("rewards", np.array([1, np.inf, 2, 3]), "episode 0.*rewards hold NaN or infinity"),
        ("rewards", np.ones((4, 2)), "rewards have shape"),
        ("rewards", np.ones(3), "observations have shape"),
        ("rewards", np.zeros(0), "no steps"),
        ("observations", np.full((5, 3), np.nan, np.float32), "observations hold NaN"),
        ("observations", np.ones((4, 3), np.float32), r"observations have shape \(4, 3\) where \(5, 3\) is needed"),
        ("observations", np.ones((5, 2), np.float32), "observations have shape"),
        ("actions", np.array([0, 1, 3, 0]), "actions hold a number beyond their space"),
        ("actions", np.array([0, -1, 1, 0]), "actions hold a number beyond their space"),
        ("actions", np.array([0.0, 1.5, 1.0, 0.0]), "actions are of float64"),
        ("actions", np.zeros((4, 1), np.int64), "actions have shape"),
        ("terminations", np.array([False, True, False, True]), "say that it ended at step 2 of 4"),
        ("truncations", np.array([True, False, False, False]), "say that it ended at step 1 of 4"),
        ("truncations", np.zeros(3, bool), "truncations have shape"),
        ("terminations", np.array([0, 0, 2, 1]), "numbers other than 0 and 1"),
    ],
)
def test_a_broken_episode_is_named(data: Path, name: str, array: np.ndarray, pattern: str) -> None:
    _replace(data, f"episode_0/{name}", _plain(array))
    _assert_refused(pattern)


def test_a_check_lists_every_broken_episode(data: Path) -> None:
    for number, steps in ((0, 4), (1, 3)):
        _replace(data, f"episode_{number}/rewards", _plain(np.full(steps, np.nan)))
    findings = check(open_dataset(NAME))
    assert any(fault.startswith("episodes 0, 1: the rewards hold NaN") for fault in findings.faults)


@pytest.mark.parametrize("name", ["episode_1", "episode_0/rewards", "episode_0/observations", "episode_1/truncations"])
def test_a_missing_part_is_named(data: Path, name: str) -> None:
    with h5py.File(data, "a") as file:
        del file[name]
    _assert_refused("lacks|holds 1 episodes")


def test_what_is_unusual_is_reported_and_read(data: Path) -> None:
    _replace(data, "episode_0/terminations", _plain(np.zeros(4, bool)))
    _read_everything()
    findings = check(open_dataset(NAME))
    assert [odd for odd in findings.oddities if "episode 0: it was cut off" in odd]
    assert all("not what was written" in fault for fault in findings.faults)


# -- what HDF5 can do ------------------------------------------------------------------------------


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """Another file, with rewards that would fit."""
    path = tmp_path / "other.hdf5"
    with h5py.File(path, "w") as file:
        file["rewards"] = np.ones(4)
    (tmp_path / "raw").write_bytes(np.ones(4).tobytes())
    return path


def _virtual(other: Path) -> Callable[[h5py.Group, str], Any]:
    def make(group: h5py.Group, name: str) -> None:
        layout = h5py.VirtualLayout((4,), "f8")
        layout[:] = h5py.VirtualSource(str(other), "rewards", (4,))
        group.create_virtual_dataset(name, layout)

    return make


def _link(link: Any) -> Callable[[h5py.Group, str], Any]:
    def make(group: h5py.Group, name: str) -> None:
        group[name] = link

    return make


HOSTILE: dict[str, tuple[Callable[[Path], Callable[[h5py.Group, str], Any]], str]] = {
    "external link": (lambda other: _link(h5py.ExternalLink(str(other), "/rewards")), "is a link"),
    "soft link": (lambda other: _link(h5py.SoftLink("/episode_1/rewards")), "is a link"),
    "dangling link": (lambda other: _link(h5py.SoftLink("/nowhere")), "is a link"),
    "virtual dataset": (_virtual, "lies in other files"),
    "external storage": (
        lambda other: (
            lambda group, name: group.create_dataset(name, (4,), "f8", external=[(str(other.with_name("raw")), 0, 32)])
        ),
        "lies in other files",
    ),
    "references": (
        lambda other: lambda group, name: group.create_dataset(name, data=[group.ref] * 4, dtype=h5py.ref_dtype),
        "not plain numbers",
    ),
    "strings": (lambda other: _plain(np.array([b"a", b"b", b"c", b"d"])), "not plain numbers"),
    "objects": (
        lambda other: lambda group, name: group.create_dataset(name, data=["x"] * 4, dtype=h5py.string_dtype()),
        "not plain numbers",
    ),
    "records": (lambda other: _plain(np.zeros(4, [("a", "f8"), ("b", "i4")])), "not plain numbers"),
    "complex numbers": (lambda other: _plain(np.zeros(4, complex)), "not plain numbers"),
    "a group": (lambda other: lambda group, name: group.create_group(name), "is no array"),
    "nothing": (lambda other: lambda group, name: group.create_dataset(name, data=h5py.Empty("f8")), "no|numbers"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_only_plain_numbers_in_the_file_itself_are_read(data: Path, elsewhere: Path, kind: str) -> None:
    make, pattern = HOSTILE[kind]
    _replace(data, "episode_0/rewards", make(elsewhere))
    _assert_refused(pattern)


@pytest.mark.parametrize("kind", ["external link", "soft link", "virtual dataset", "external storage"])
def test_infos_are_not_read_from_elsewhere(data: Path, elsewhere: Path, kind: str) -> None:
    make, pattern = HOSTILE[kind]
    _replace(data, "episode_0/infos/log_prob", make(elsewhere))
    _assert_refused(pattern)


def test_texts_in_infos_are_left_out(data: Path) -> None:
    with h5py.File(data, "a") as file:
        file["episode_0/infos"].create_dataset("words", data=["x"] * 5, dtype=h5py.string_dtype())
    assert set(next(open_dataset(NAME).episodes()).infos) == {"log_prob"}


def test_groups_that_contain_themselves_end(data: Path) -> None:
    with h5py.File(data, "a") as file:
        file["episode_0/infos/again"] = file["episode_0/infos"]
    _assert_refused("nested too deeply")


def test_an_episode_that_is_a_link_is_refused(data: Path, tmp_path: Path) -> None:
    with h5py.File(data, "a") as file, h5py.File(tmp_path / "other.hdf5", "w") as other:
        file.copy("episode_1", other)
        del file["episode_1"]
        file["episode_1"] = h5py.ExternalLink(str(tmp_path / "other.hdf5"), "/episode_1")
    _assert_refused("is a link")


def test_a_filter_that_would_be_loaded_from_the_system_is_refused(data: Path) -> None:
    def make(group: h5py.Group, name: str) -> None:
        created = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        created.set_chunk((4,))
        created.set_filter(32015, h5py.h5z.FLAG_OPTIONAL)  # of a plugin
        space = h5py.h5s.create_simple((4,))
        h5py.h5d.create(group.id, name.encode(), h5py.h5t.NATIVE_DOUBLE, space, created)

    _replace(data, "episode_0/rewards", make)
    _assert_refused("filter 32015, which is not loaded")


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_a_claimed_size_that_is_not_stored_takes_no_memory(data: Path, compression: str | None) -> None:
    def make(group: h5py.Group, name: str) -> None:
        group.create_dataset(name, (1 << 44, 3), "f4", chunks=(1024, 3), compression=compression)

    _replace(data, "episode_0/observations", make)
    _assert_refused("claims .* bytes, but 0 are stored")


def test_what_unpacks_beyond_the_free_memory_is_refused(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zeros = np.zeros((1 << 19, 3), np.float32)
    _replace(
        data,
        "episode_0/observations",
        lambda group, name: group.create_dataset(name, data=zeros, chunks=(1 << 15, 3), compression="gzip"),
    )
    monkeypatch.setattr(safe_hdf5, "available_memory", lambda: 10 << 20)
    _assert_refused("of memory, and 10.5 MB are free")


def test_a_chunk_that_would_fill_the_memory_is_refused(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(group: h5py.Group, name: str) -> None:
        dataset = group.create_dataset(
            name, (1, 1), "f4", chunks=(1 << 10, 1 << 9), maxshape=(None, None), compression=1
        )
        dataset[0, 0] = 1.0

    monkeypatch.setattr(safe_hdf5, "_MAX_CHUNK", 1 << 20)
    _replace(data, "episode_0/observations", make)
    _assert_refused("chunks of more than")


def test_a_seed_that_is_no_number_is_refused(data: Path) -> None:
    with h5py.File(data, "a") as file:
        file["episode_0"].attrs["seed"] = "seven"
    _assert_refused("seed of /episode_0 is no integer")


# -- damage ----------------------------------------------------------------------------------------


@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_flipped_bit_is_found_or_harmless(root: Path, place: float, bit: int) -> None:
    generator = np.random.default_rng(0)
    episodes = [random_episode(generator, PARTS, ACTIONS, steps, seed=5, infos=("log_prob",)) for steps in (2, 1)]
    name = f"tests/flip{len(list(root.glob('tests/*')))}-v0"
    write_dataset(name, episodes, PARTS, ACTIONS)
    file = root / name / "data" / "main_data.hdf5"
    content = bytearray(file.read_bytes())
    content[int(place * len(content))] ^= 1 << bit
    file.write_bytes(content)
    dataset = open_dataset(name)
    assert check(dataset).faults, "the fingerprint shows every change"
    try:
        for one, other in zip(episodes, dataset.episodes(), strict=True):
            assert_same_episode(one, other)
    except DatasetError:
        pass


@pytest.mark.parametrize("name", ["observations", "actions", "rewards", "terminations", "infos/log_prob"])
def test_a_flipped_bit_of_any_number_is_found_when_it_is_read(data: Path, name: str) -> None:
    with h5py.File(data) as file:
        place = file[f"episode_1/{name}"].id.get_chunk_info(0).byte_offset
    content = bytearray(data.read_bytes())
    content[place + 1] ^= 1
    data.write_bytes(content)
    _assert_refused("damaged or no HDF5 file")


@pytest.mark.parametrize("part", [0.0, 0.01, 0.3, 0.7, 0.99])
def test_a_truncated_file_is_refused(data: Path, part: float) -> None:
    content = data.read_bytes()
    data.write_bytes(content[: int(part * len(content))])
    _assert_refused("damaged or no HDF5 file")


@given(flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=4))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damage_to_minaris_own_files_raises_nothing_but_our_error(root: Path, flips: list[tuple[float, int]]) -> None:
    name = f"tests/theirs{len(list(root.glob('tests/*')))}-v0"
    episode = random_episode(np.random.default_rng(1), VECTOR, ACTIONS, 3, infos=("log_prob",))
    write_with_minari(name, [episode], VECTOR, ACTIONS)
    file = root / name / "data" / "main_data.hdf5"
    content = bytearray(file.read_bytes())
    for place, value in flips:
        content[int(place * len(content))] = value
    file.write_bytes(content)
    try:
        for _ in open_dataset(name).episodes():
            pass
    except AxiomError:
        pass


# -- metadata --------------------------------------------------------------------------------------


def _box(**changes: Any) -> str:
    return json.dumps({"type": "Box", "dtype": "float32", "shape": [3], "low": [0] * 3, "high": [1] * 3, **changes})


@pytest.mark.parametrize(
    ("key", "value", "pattern"),
    [
        ("total_episodes", -1, "total_episodes"),
        ("total_episodes", "2", "total_episodes"),
        ("total_episodes", 10**15, "holds 2 episodes, its metadata says 1,000,000,000,000,000"),
        ("total_episodes", 0, "has no episodes"),
        ("total_steps", 8, "have 7 steps, its metadata says 8"),
        ("total_steps", 6, "7 steps, its metadata says 6|more steps than its metadata says"),
        ("data_format", "arrow", "only hdf5 is read"),
        ("observation_space", None, "not in its metadata"),
        ("observation_space", "{", "not valid JSON"),
        ("observation_space", "[" * 5000, "nested"),
        ("observation_space", "[]", "cannot be read"),
        ("observation_space", '{"type": "Lambda"}', "unknown type `Lambda`"),
        ("observation_space", '{"type": "Text"}', "cannot be learned from"),
        ("observation_space", '{"type": "Tuple", "subspaces": []}', "cannot be learned from"),
        ("observation_space", '{"type": "Dict", "subspaces": {}}', "the Dict is empty"),
        ("observation_space", _box(dtype="O"), "no type of numbers"),
        ("observation_space", _box(dtype="float128"), "no type of numbers"),
        ("observation_space", _box(shape=[10**6, 10**6]), "no observation or action has the shape"),
        ("observation_space", _box(shape=[-1]), "no observation or action has the shape"),
        ("observation_space", _box(shape=[4]), "a bound has shape"),
        ("observation_space", _box().replace("[0, 0, 0]", "[NaN, 0, 0]"), "a bound is NaN"),
        ("action_space", '{"type": "Discrete", "n": 0, "start": 0}', "there cannot be 0 choices"),
        ("action_space", '{"type": "Discrete", "n": 1e300, "start": 0}', "no integer"),
        ("action_space", '{"type": "Discrete", "n": true, "start": 0}', "no integer"),
        ("action_space", '{"type": "MultiBinary", "n": 99999999999}', "there cannot be"),
        ("action_space", '{"type": "MultiDiscrete", "nvec": [2, -2], "dtype": "int64"}', "cannot be read"),
        ("action_space", '{"type": "Dict", "subspaces": {"a": {"type": "Discrete", "n": 2}}}', "actions cannot be"),
    ],
)
def test_metadata_that_cannot_be_true_is_refused(data: Path, key: str, value: Any, pattern: str) -> None:
    file = data.with_name("metadata.json")
    metadata = json.loads(file.read_text())
    file.write_text(json.dumps({**metadata, key: value}))
    for read in (_read_everything, lambda: load_columns(open_dataset(NAME))):
        with pytest.raises(AxiomError, match=pattern) as caught:
            read()
        assert caught.value.exit_status == 2


def test_more_steps_than_any_disk_holds_are_refused(data: Path) -> None:
    file = data.with_name("metadata.json")
    metadata = json.loads(file.read_text())
    file.write_text(json.dumps({**metadata, "total_steps": 10**15}))
    with pytest.raises(DatasetError, match="are free there"):
        load_columns(open_dataset(NAME))


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff", b'{"total_episodes": 1}'])
def test_a_damaged_metadata_file_is_refused(data: Path, content: bytes) -> None:
    data.with_name("metadata.json").write_bytes(content)
    with pytest.raises(AxiomError):
        open_dataset(NAME)


def test_a_pipe_in_the_place_of_a_file_does_not_block(data: Path) -> None:
    data.unlink()
    os.mkfifo(data)
    with pytest.raises(DatasetError, match="lacks its episodes"):
        open_dataset(NAME)


def test_code_named_by_a_file_is_no_environment(data: Path) -> None:
    file = data.with_name("metadata.json")
    metadata = json.loads(file.read_text())
    file.write_text(json.dumps({**metadata, "axiomrl": {"env_id": "os.path:join"}}))
    assert open_dataset(NAME).env_id is None
    file.write_text(json.dumps({**metadata, "env_spec": json.dumps({"id": "A-v0", "entry_point": "os:abort"})}))
    assert open_dataset(NAME).env_id == "A-v0"

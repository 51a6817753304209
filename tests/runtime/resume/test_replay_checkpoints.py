"""The replay on disk: written as it grows, shared by checkpoints, verified, and removed with the last that needs it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

import gymnasium as gym
import numpy as np
import pytest

from harness import assert_same_run, final_state, last_checkpoint, stopped_after, tiny_config
from planning_runs import planning_config
from processes import process_environment, uninterrupted
from replays import (
    assert_same_replay,
    assert_same_run_and_replay,
    off_policy_config,
    replay_rows,
    segment_entries,
    segment_names,
)
from rl_training.data.replay import Replay
from rl_training.data.samplers import UniformSampler
from rl_training.errors import CheckpointError, StorageError
from rl_training.experiment.checkpoints import (
    CHECKPOINTS,
    list_checkpoints,
    newest_sound_checkpoint,
    verify_checkpoint,
)
from rl_training.experiment.runs import read_metadata
from rl_training.experiment.storage.segments import SEGMENTS, write_segment
from rl_training.runtime.recording.replay_archive import ReplayArchive
from rl_training.runtime.workflows import resume, train

NUM_ENVS = 100


def vector_replay(capacity: int) -> Replay:
    space = gym.spaces.Box(-np.inf, np.inf, (8,), np.float32)
    action = np.zeros(NUM_ENVS, np.int64)
    return Replay(space, action, UniformSampler(capacity), capacity=capacity, num_envs=NUM_ENVS, n_step=1, gamma=0.99)


def play(replay: Replay, transitions: int, generator: np.random.Generator) -> None:
    """Add transitions of endless episodes."""
    running, reward = np.zeros(NUM_ENVS, bool), np.zeros(NUM_ENVS, np.float32)
    for _ in range(transitions // NUM_ENVS):
        shown = generator.random((NUM_ENVS, 8), np.float32)
        replay.add(generator.integers(0, 4, NUM_ENVS), reward, running, running, shown, shown)


def written(run_dir: Path) -> int:
    """Return the bytes of all segments."""
    return sum(path.stat().st_size for path in (run_dir / SEGMENTS).iterdir())


def test_a_second_checkpoint_costs_what_is_new(tmp_path):
    generator = np.random.default_rng(0)
    replay = vector_replay(1_000_000)
    replay.begin(generator.random((NUM_ENVS, 8), np.float32))
    archive = ReplayArchive(replay)
    play(replay, 100_000, generator)
    archive.save(tmp_path)
    first = written(tmp_path)
    play(replay, 10_000, generator)
    entries = archive.save(tmp_path)
    second = written(tmp_path) - first
    width = 32 + 8 + 8 + 8 + 4 + 4 + 4  # observation, two serial numbers, action, reward, discount, environment
    assert 10_000 * width <= second <= 10_000 * width + 4096
    assert first <= 100_100 * width + 8 * 4096
    assert len(entries) == len(segment_names(tmp_path))
    assert archive.save(tmp_path) == entries  # nothing is new
    assert written(tmp_path) == first + second


def test_segments_that_were_overwritten_are_no_longer_listed(tmp_path):
    generator = np.random.default_rng(0)
    replay = vector_replay(2000)
    replay.begin(generator.random((NUM_ENVS, 8), np.float32))
    archive = ReplayArchive(replay)
    for _ in range(12):
        play(replay, 1000, generator)
        entries = archive.save(tmp_path)
    assert len(segment_names(tmp_path)) == 12
    assert len(entries) <= 4
    assert min(entry["transitions"][0] for entry in entries) >= 12_000 - 4000
    restored = vector_replay(2000)
    ReplayArchive(restored).restore(tmp_path, entries, fork=False)
    restored.load_state_dict(replay.state_dict())
    rows = np.arange(replay.oldest, replay.count) % 2000
    one, other = replay.gather(rows, generator), restored.gather(rows, generator)
    for name in one:
        np.testing.assert_array_equal(one[name], other[name])


MEASURE = """
import resource, sys
from pathlib import Path
import numpy as np
import gymnasium as gym
from rl_training.data.replay import Replay
from rl_training.data.samplers import UniformSampler
from rl_training.runtime.recording.replay_archive import ReplayArchive

def replay():
    space = gym.spaces.Box(0, 255, (84, 84), np.uint8)
    return Replay(space, np.zeros(100, np.int64), UniformSampler(12_000), capacity=12_000, num_envs=100, n_step=1,
                  gamma=0.99)

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

def reset_peak():
    Path("/proc/self/clear_refs").write_text("5")

def peak():
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024

def measured(action):
    before = resident()
    reset_peak()
    result = action()
    print((peak() - before) / size)
    return result

directory = Path(sys.argv[1])
full = replay()
shown = np.random.default_rng(0).integers(0, 256, (100, 84, 84), dtype=np.uint8)
full.begin(shown)
running = np.zeros(100, bool)
while full.observations.oldest == 0:  # every page is touched
    full.add(np.zeros(100, np.int64), np.zeros(100, np.float32), running, running, shown, shown)
size = sum(column.nbytes for column in [*full.columns.values(), *full.observations._columns.values()])
ReplayArchive(replay()).save(directory)  # what is imported on first use
entries = measured(lambda: ReplayArchive(full).save(directory))
full.restore_rows(entries[0], full.rows(entries[0]))
measured(lambda: ReplayArchive(full).restore(directory, entries, fork=False))
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs the memory accounting of Linux")
def test_saving_and_restoring_a_full_replay_need_little_more_memory_than_the_replay(tmp_path):
    """About 100 MB that are all new, as for a fork or a first checkpoint late in a run."""
    finished = subprocess.run(
        [sys.executable, "-c", MEASURE, str(tmp_path)],
        env=process_environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert finished.returncode == 0, finished.stderr
    saving, restoring = (float(line) for line in finished.stdout.split())
    assert saving < 0.1
    assert restoring < 0.1


def test_a_segment_has_the_permissions_of_other_files(tmp_path):
    (tmp_path / "other").touch()
    write_segment(tmp_path, "replay_0_1", {"a": np.zeros(3)})
    mode = (tmp_path / SEGMENTS / "replay_0_1.safetensors").stat().st_mode
    assert mode == (tmp_path / "other").stat().st_mode


def test_a_full_disk_is_named_while_a_segment_is_written(tmp_path, monkeypatch):
    from safetensors import SafetensorError

    def save_file(arrays, path):
        path.write_bytes(b"half")
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("safetensors.numpy.save_file", save_file)
    with pytest.raises(StorageError, match="the disk is full; free some space"):
        write_segment(tmp_path, "replay_0_1", {"a": np.zeros(3)})
    assert segment_names(tmp_path) == set()


# -- whole runs --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """A finished run of rainbow with checkpoints every 64 steps; its replay holds the last 120."""
    return uninterrupted(off_policy_config("rainbow", tmp_path_factory.mktemp("straight"), keep_checkpoints=3))


@pytest.fixture
def run(straight, tmp_path):
    """A copy of it to damage."""
    return Path(shutil.copytree(straight, tmp_path / straight.name, symlinks=True))


def test_the_segments_that_are_there_are_those_that_checkpoints_list(straight):
    listed = {entry["name"] for path in list_checkpoints(straight) for entry in segment_entries(path)}
    assert segment_names(straight) == listed
    # What the first steps left is overwritten in memory, so that the newest checkpoint does not need it.
    newest = segment_entries(last_checkpoint(straight))
    assert min(entry["observations"][0] for entry in newest) > 0
    assert len(newest) < len(listed)


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(("harm", "word"), [(damage, "damaged"), (Path.unlink, "missing")])
def test_a_damaged_segment_is_named_and_the_newest_sound_checkpoint_is_used(run, straight, harm, word):
    newest, *older = list_checkpoints(run)
    name = (
        {entry["name"] for entry in segment_entries(newest)} - {entry["name"] for entry in segment_entries(older[0])}
    ).pop()
    harm(run / SEGMENTS / name)
    with pytest.raises(CheckpointError) as caught:
        verify_checkpoint(newest, to_resume=True)
    assert f"{newest} is damaged: segment {name} is {word}" in str(caught.value)
    sound, notices = newest_sound_checkpoint(run)
    assert sound.path == older[0]
    assert len(notices) == 1
    result = resume(run)
    assert any(name in notice for notice in read_metadata(run)["notices"])
    assert result.status == "completed"
    assert_same_run_and_replay(run, straight)


def test_a_segment_outside_of_the_run_is_refused(run):
    path = last_checkpoint(run) / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["segments"][0]["name"] = "../../secret"
    path.write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match=r"unsafe: the manifest lists the segment '\.\./\.\./secret'"):
        verify_checkpoint(last_checkpoint(run), to_resume=True)


def test_a_resume_from_an_older_checkpoint_goes_the_same_way_again(run, straight):
    older = list_checkpoints(run)[-1]
    before = replay_rows(older)
    resume(older)
    assert_same_run_and_replay(run, straight)
    assert len(before["transition/reward"]) > 50


def test_going_back_removes_the_segments_of_what_came_later(tmp_path):
    """Also where all checkpoints are kept and nothing is ever pruned."""
    run_dir = uninterrupted(off_policy_config("dqn", tmp_path, keep_checkpoints=None))
    older = run_dir / CHECKPOINTS / "step_64"
    (run_dir / SEGMENTS / ".replay_9_10.writing").write_bytes(b"left by a kill")
    with stopped_after(1):
        resume(older)
    listed = {entry["name"] for path in list_checkpoints(run_dir) for entry in segment_entries(path)}
    assert segment_names(run_dir) == listed


def test_pruning_keeps_what_the_best_checkpoint_needs(tmp_path):
    run_dir = uninterrupted(off_policy_config("dqn", tmp_path, keep_checkpoints=1, total_timesteps=400))
    paths = list_checkpoints(run_dir)
    assert len(paths) <= 2
    for path in paths:
        verify_checkpoint(path)
    listed = {entry["name"] for path in paths for entry in segment_entries(path)}
    assert segment_names(run_dir) == listed


def test_a_fork_writes_the_replay_in_its_own_run(run, straight):
    before = {path: path.stat().st_mtime_ns for path in (run / SEGMENTS).iterdir()}
    forked = resume(list_checkpoints(run)[-1], fork=True).run_dir
    assert forked != run
    assert {path: path.stat().st_mtime_ns for path in (run / SEGMENTS).iterdir()} == before
    shutil.rmtree(run)  # the fork needs nothing of its parent
    for path in list_checkpoints(forked):
        verify_checkpoint(path)
    assert_same_replay(forked, straight)
    ours, theirs = final_state(forked), final_state(straight)
    learned = [key for key in theirs if key.startswith("/algorithm") or "/replay/" in key]
    assert learned
    for key in learned:
        np.testing.assert_array_equal(np.asarray(ours[key]), np.asarray(theirs[key]), err_msg=key)


def test_runs_without_a_replay_have_no_segments(tmp_path):
    result = train(off_policy_config("dqn", tmp_path / "dqn", total_timesteps=64))
    assert (result.run_dir / SEGMENTS).is_dir()
    result = train(tiny_config(tmp_path / "ppo", total_timesteps=64))
    assert not (result.run_dir / SEGMENTS).exists()
    assert segment_entries(last_checkpoint(result.run_dir)) == []


def test_a_longer_horizon_goes_on_with_the_replay(run):
    steps = len(replay_rows(last_checkpoint(run))["transition/reward"])
    assert steps > 100
    extended = resume(run, total_timesteps=300)
    assert extended.metrics["global_step"] == 300
    assert_same_run(extended.run_dir, run)
    verify_checkpoint(last_checkpoint(run), to_resume=True)


@pytest.mark.parametrize(("name", "blocked"), [("qr_dqn", True), ("gumbel_muzero", False)])
def test_a_moved_run_with_a_memory_mapped_replay_goes_on_where_it_is(name, blocked, tmp_path):
    make = off_policy_config if name == "qr_dqn" else planning_config
    old, new = tmp_path / "old", tmp_path / "elsewhere" / "moved"
    with stopped_after(35):
        run_dir = train(make(name, old)).run_dir
    new.parent.mkdir()
    shutil.move(run_dir, new)
    shutil.rmtree(old)
    if blocked:
        old.write_text("no directory can be made here")
    with mock.patch.object(tempfile, "TemporaryFile", wraps=tempfile.TemporaryFile) as made:
        assert resume(new).status == "completed"
    assert {call.kwargs["dir"] for call in made.call_args_list} == {new}
    assert old.is_file() if blocked else not old.exists()
    if blocked:
        assert_same_run_and_replay(new, uninterrupted(make(name, tmp_path / "straight")))

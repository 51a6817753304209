"""Checkpoints and runs that somebody changed on purpose are refused in one sentence: nothing runs, hangs or swells."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness import last_checkpoint
from hostile_checkpoints import base_runs, cases, hash_anew, spoil
from paths import HELPERS
from processes import process_environment
from rl_training.cli import main
from rl_training.errors import CheckpointError
from rl_training.experiment.benchmarking import read_summary
from rl_training.experiment.checkpoints import verify_checkpoint
from rl_training.runtime.acting.policy import load_policy
from rl_training.runtime.workflows import evaluate, resume

TERABYTES = 10**13


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return base_runs(tmp_path_factory.mktemp("bases"))


@pytest.fixture
def ppo(bases: list[Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(bases[0], tmp_path / "run", symlinks=True))


@pytest.fixture
def dqn(bases: list[Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(bases[1], tmp_path / "run", symlinks=True))


def change(path: Path, function: Callable[[Any], object]) -> None:
    """Change the JSON in a file."""
    tree = json.loads(path.read_text())
    function(tree)
    path.write_text(json.dumps(tree))


def set_at(tree: Any, place: str, value: Any) -> None:
    *above, last = [int(key) if key.isdigit() else key for key in place.split("/")]
    for key in above:
        tree = tree[key]
    tree[last] = value


MANIFEST: list[tuple[str, Any]] = [
    ("step", None),
    ("step", 2**80),
    ("step", "4"),
    ("torch_threads", None),
    ("torch_threads", "many"),
    ("torch_threads", 10**6),
    ("versions", None),
    ("versions/torch", 7),
    ("resume_mode", "\x1b[2Jexact"),
    ("config", []),
    ("spaces/observation/shape", [10**6, 10**6]),
    ("spaces/observation/shape", "4"),
    ("spaces/action/n", 2**70),
    ("spaces/action/n", None),
    ("files/state.json/size", None),
    ("files/state.json/sha256", 3),
]


@pytest.mark.parametrize(("place", "value"), MANIFEST)
def test_a_field_of_the_manifest_that_cannot_be_is_named(place: str, value: Any, ppo: Path) -> None:
    checkpoint = last_checkpoint(ppo)
    change(checkpoint / "manifest.json", lambda tree: set_at(tree, place, value))
    for use in (load_policy, evaluate):
        with pytest.raises(CheckpointError, match=r"manifest\.json cannot be read") as raised:
            use(checkpoint)
        assert place.replace("/", ".").removesuffix(".shape").removesuffix(".n") in str(raised.value)
        assert "\n" not in str(raised.value)


STATE: list[tuple[str, Any]] = [
    ("session/counters/step", None),
    ("session/counters/step", 2**100),
    ("session/counters/update_count", "3"),
    ("session/counters/episodes/latest", [[1]]),
    ("session/counters/best/path", "../../elsewhere"),
    ("session/streams/numpy", None),
    ("session/callbacks", [1]),
    ("session/file_lengths", {}),
    ("collector", None),
]


@pytest.mark.parametrize(("place", "value"), STATE)
def test_a_field_of_the_state_that_cannot_be_is_named(place: str, value: Any, ppo: Path) -> None:
    change(last_checkpoint(ppo) / "state.json", lambda tree: set_at(tree, place, value))
    hash_anew(ppo)
    for use in (load_policy, resume):
        with pytest.raises(CheckpointError, match=r"state\.json cannot be read") as raised:
            use(last_checkpoint(ppo))
        assert place.replace("/", ".") in str(raised.value)


@pytest.mark.parametrize(
    ("place", "value", "says"),
    [
        ("algorithm/updates", "many", "algorithm.updates is not of the type int"),
        ("collector/replay/count", 2**61, "cannot hold|counts"),
        ("collector/replay/oldest", None, "does not fit"),
        ("collector/mask", 2**61, "action mask"),
        ("collector/replay/accumulator/steps", "x", "collector.replay.accumulator.steps is not of the type int"),
        ("collector/env/slots/0/env/base/type", "os.system", "environment has a `os.system`"),
    ],
)
def test_a_state_that_its_components_would_not_write_is_refused(place: str, value: Any, says: str, dqn: Path) -> None:
    checkpoint = last_checkpoint(dqn)
    if (
        place == "algorithm/updates"
        and "updates" not in json.loads((checkpoint / "state.json").read_text())["algorithm"]
    ):
        place, says = "collector/replay/sampler/largest", "largest is not of the type float"
    change(checkpoint / "state.json", lambda tree: set_at(tree, place, value))
    hash_anew(dqn)
    with pytest.raises(CheckpointError, match=says):
        resume(checkpoint, total_timesteps=40)


@pytest.mark.parametrize("key", ["transitions", "observations"])
@pytest.mark.parametrize("value", [[0, TERABYTES], [0, None], "all", [5, 0], [2**62, 2**64]])
def test_a_range_of_a_segment_asks_for_no_more_than_its_file_holds(key: str, value: Any, dqn: Path) -> None:
    change(last_checkpoint(dqn) / "manifest.json", lambda tree: set_at(tree, f"segments/0/{key}", value))
    for path in (dqn / "checkpoints").glob("step_*"):
        if path != last_checkpoint(dqn):
            shutil.rmtree(path)  # there is nothing to fall back on
    with pytest.raises(CheckpointError, match=r"segment|counts"):
        resume(dqn, total_timesteps=40)


@pytest.mark.parametrize(
    ("place", "value"),
    [("num_envs", 10**8), ("algo_kwargs/hidden_sizes", [10**6, 10**6]), ("algo_kwargs/hidden_sizes", [10**9])],
)
def test_sizes_in_the_configuration_are_those_of_the_state(place: str, value: Any, ppo: Path) -> None:
    checkpoint = last_checkpoint(ppo)
    change(checkpoint / "manifest.json", lambda tree: set_at(tree["config"], place, value))
    with pytest.raises(CheckpointError, match=place.split("/")[-1]):
        resume(checkpoint)
    if place != "num_envs":
        with pytest.raises(CheckpointError, match="hidden_sizes"):
            load_policy(checkpoint)


@pytest.mark.parametrize("file", ["manifest.json", "state.json"])
@pytest.mark.parametrize("depth", [150, 30_000])
def test_deep_nesting_is_refused(file: str, depth: int, ppo: Path) -> None:
    checkpoint = last_checkpoint(ppo)
    (checkpoint / file).write_text('{"a":' * depth + "1" + "}" * depth)
    if file == "state.json":
        hash_anew(ppo)
    with pytest.raises(CheckpointError, match="levels deep"):
        load_policy(checkpoint)


@pytest.mark.parametrize("files", [{}, {"state.json": None}, {"tensors.safetensors": None}])
def test_a_manifest_that_does_not_list_the_files_skips_no_hash(files: dict[str, Any], ppo: Path) -> None:
    checkpoint = last_checkpoint(ppo)

    def keep(tree: Any) -> None:
        tree["files"] = {name: tree["files"][name] for name in files}

    change(checkpoint / "manifest.json", keep)
    with pytest.raises(CheckpointError, match="does not list"):
        verify_checkpoint(checkpoint)


@pytest.mark.parametrize("file", ["manifest.json", "state.json", "tensors.safetensors"])
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_pipes_and_devices_in_place_of_files_are_refused_at_once(file: str, kind: str, ppo: Path) -> None:
    path = last_checkpoint(ppo) / file
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(CheckpointError, match=r"not a regular file|is missing"):
        load_policy(path.parent)


def test_a_damaged_manifest_falls_back_to_the_newest_sound_checkpoint(dqn: Path) -> None:
    newest = last_checkpoint(dqn)
    change(newest / "manifest.json", lambda tree: set_at(tree, "segments/0/size", None))
    older = [path for path in (dqn / "checkpoints").glob("step_*") if path != newest]
    assert older
    result = resume(dqn, total_timesteps=40)
    assert result.status == "completed"


@pytest.mark.parametrize(
    "content",
    ["[" * 30_000, "[]", '{"schema_version": 1}', '{"schema_version": 1, "runs": 3}', '{"schema_version": null}'],
)
def test_a_summary_that_is_none_is_refused(content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "benchmark_summary__x.json"
    path.write_text(content)
    assert main(["train", "--continue", str(path)]) == 2
    error = capsys.readouterr().err
    assert str(path) in error
    assert "bug" not in error


def test_a_record_of_a_summary_is_checked_by_field(tmp_path: Path) -> None:
    path = tmp_path / "benchmark_summary__x.json"
    summary: dict[str, Any] = {
        "schema_version": 1,
        "status": "running",
        "created_at_utc": "now",
        "finished_at_utc": None,
        "config": None,
        "runs": [{"seed": "three"}],
    }
    path.write_text(json.dumps(summary))
    with pytest.raises(Exception, match=r"runs\.0\.seed"):
        read_summary(path)
    os.unlink(path)
    os.mkfifo(path)
    with pytest.raises(Exception, match="not a regular file"):
        read_summary(path)


def test_no_random_change_of_a_checkpoint_ends_in_anything_but_a_sentence(bases: list[Path], tmp_path: Path) -> None:
    outcomes = {name: attempt() for name, _, attempt in cases(bases, tmp_path, 60, seed=15)}
    assert len(outcomes) == 60
    assert {"refused", "harmless"} == set(outcomes.values())


@pytest.mark.slow
def test_thousands_of_changes_execute_nothing_and_stay_within_bounds(tmp_path: Path) -> None:
    process = subprocess.run(
        [sys.executable, str(HELPERS / "hostile_checkpoints.py"), str(tmp_path), "--cases", "3000", "--seed", "7"],
        capture_output=True,
        text=True,
        env=process_environment(OMP_NUM_THREADS="1"),
        timeout=3600,
        cwd=tmp_path,
    )
    assert process.returncode == 0, process.stdout[-5000:] + process.stderr[-2000:]
    assert not (tmp_path / "exploded").exists()
    assert json.loads(process.stdout.splitlines()[0])["cases"] == 3000


def test_the_mutator_can_spoil(bases: list[Path], tmp_path: Path) -> None:
    """What the search for faults relies on: each kind of spoiled file is one that cannot be loaded."""
    import random

    for seed in range(10):
        run = Path(shutil.copytree(bases[0], tmp_path / str(seed), symlinks=True))
        spoil(last_checkpoint(run) / "tensors.safetensors", random.Random(seed))
        with pytest.raises(CheckpointError):
            load_policy(run)

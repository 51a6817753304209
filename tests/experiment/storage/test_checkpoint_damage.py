"""Damaged, unfinished and unsafe checkpoints: found, named, replaced by a sound one or refused."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
from pathlib import Path

import pytest

from harness import (
    assert_same_run,
    last_checkpoint,
    tiny_config,
)
from processes import uninterrupted
from rl_training.errors import CheckpointError
from rl_training.experiment.checkpoints import (
    BEST,
    CHECKPOINTS,
    LATEST,
    list_checkpoints,
    pointed,
    resolve_checkpoint,
    verify_checkpoint,
)
from rl_training.experiment.runs import read_metadata
from rl_training.runtime.acting.policy import load_policy
from rl_training.runtime.workflows import evaluate, resume


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """A finished run with checkpoints at 0 (pruned), 64, 128, ..., 320."""
    return uninterrupted(tiny_config(tmp_path_factory.mktemp("straight")))


@pytest.fixture
def run(straight, tmp_path):
    """A copy of it to damage."""
    return Path(shutil.copytree(straight, tmp_path / straight.name, symlinks=True))


def flip_byte(checkpoint):
    path = checkpoint / "tensors.safetensors"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate(checkpoint):
    path = checkpoint / "tensors.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def break_manifest(checkpoint):
    path = checkpoint / "manifest.json"
    path.write_bytes(path.read_bytes()[:100])


DAMAGES = {
    "flipped byte": (flip_byte, "the content of tensors.safetensors does not match its hash"),
    "truncated file": (truncate, "tensors.safetensors has"),
    "missing file": (lambda path: (path / "state.json").unlink(), "state.json is missing"),
    "missing manifest": (lambda path: (path / "manifest.json").unlink(), "manifest.json is missing"),
    "broken manifest": (break_manifest, "manifest.json cannot be read"),
    "empty directory": (lambda path: [file.unlink() for file in path.iterdir()], "manifest.json is missing"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_resume_names_the_damaged_checkpoint_and_goes_on_from_the_newest_sound_one(damage, run, straight, caplog):
    inflict, sentence = DAMAGES[damage]
    newest = last_checkpoint(run)
    inflict(newest)
    result = resume(run)
    assert result.status == "completed"
    assert f"checkpoint {newest} is damaged: {sentence}" in caplog.text
    assert f"going on from {run / CHECKPOINTS / 'step_256'}" in caplog.text
    notices = "\n".join(read_metadata(run)["notices"])
    assert sentence in notices
    assert "step_256" in notices
    assert_same_run(run, straight)


def test_several_damaged_checkpoints_are_all_named(run, straight, caplog):
    for path in list_checkpoints(run)[:3]:
        flip_byte(path)
    resume(run)
    for step in (320, 256, 192):
        assert f"step_{step} is damaged" in caplog.text
    assert_same_run(run, straight)


def test_where_every_checkpoint_is_damaged_resume_says_that_none_is_left(run):
    paths = list_checkpoints(run)
    for path in paths:
        flip_byte(path)
    with pytest.raises(CheckpointError) as caught:
        resume(run)
    for path in paths:
        assert f"checkpoint {path} is damaged" in str(caught.value)
    assert "no sound checkpoint is left; start the run anew with its config.yaml" in str(caught.value)
    assert list_checkpoints(run) == paths


@pytest.mark.parametrize("damage", DAMAGES)
def test_evaluation_of_a_damaged_checkpoint_refuses(damage, run):
    """A score must not be taken for that of other weights: nothing is substituted."""
    inflict, sentence = DAMAGES[damage]
    inflict(last_checkpoint(run))
    with pytest.raises(CheckpointError, match=sentence):
        evaluate(run, num_episodes=1)
    with pytest.raises(CheckpointError, match=sentence):
        load_policy(run)


def test_an_unfinished_save_is_not_taken_for_a_checkpoint(run, straight):
    half = run / CHECKPOINTS / ".writing-step_999-123"
    shutil.copytree(last_checkpoint(run), half)
    (half / "manifest.json").unlink()
    pointer = run / CHECKPOINTS / ".writing-latest-123"
    pointer.symlink_to("step_999")
    assert resolve_checkpoint(run).name == "step_320"
    flip_byte(last_checkpoint(run))
    resume(run)
    assert not half.exists()
    assert not pointer.is_symlink()
    assert_same_run(run, straight)


def test_a_dangling_latest_pointer_is_replaced_by_the_newest_checkpoint(run, straight):
    shutil.rmtree(last_checkpoint(run))
    assert (run / CHECKPOINTS / LATEST).is_symlink()
    assert resolve_checkpoint(run).name == "step_256"
    with pytest.raises(CheckpointError, match="leads nowhere"):
        resolve_checkpoint(run / CHECKPOINTS / LATEST)
    resume(run)
    assert_same_run(run, straight)


def test_a_missing_latest_pointer_is_no_obstacle(run):
    (run / CHECKPOINTS / LATEST).unlink()
    assert resolve_checkpoint(run).name == "step_320"
    resume(run)
    assert last_checkpoint(run).name == "step_320"


def test_a_copy_whose_pointers_became_directories_is_evaluated_and_resumed(straight, tmp_path):
    """`scp -r`, `cp -L` and zip files follow symbolic links."""
    run = Path(shutil.copytree(straight, tmp_path / "copy", symlinks=False))
    assert not (run / CHECKPOINTS / BEST).is_symlink()
    best = pointed(straight, BEST)
    assert best is not None
    assert evaluate(run / CHECKPOINTS / BEST, num_episodes=1).checkpoint_path == run / CHECKPOINTS / best.name
    resume(run)
    assert [os.readlink(run / CHECKPOINTS / name) for name in (LATEST, BEST)] == ["step_320", best.name]
    assert_same_run(run, straight)


@pytest.mark.parametrize("place", [".", "checkpoints", "checkpoints/step_320", "link"])
def test_a_checkpoint_is_found_from_wherever_the_user_stands(place, run, tmp_path, monkeypatch):
    """Inside the run, among its checkpoints, or beside a link of the user's own."""
    (tmp_path / "link").symlink_to(run / CHECKPOINTS / "step_320")
    standing, path = {
        ".": (run, "."),
        "checkpoints": (run / CHECKPOINTS, LATEST),
        "checkpoints/step_320": (run / CHECKPOINTS, "step_320"),
        "link": (tmp_path, "link"),
    }[place]
    monkeypatch.chdir(standing)
    result = resume(path, fork=True, total_timesteps=352)
    assert result.run_dir.parent.resolve() == run.parent
    assert read_metadata(result.run_dir)["parent"]["run_dir"] == str(run)


@pytest.mark.parametrize("place", ["nothing", "file", "empty", "run without checkpoints"])
def test_a_path_that_is_no_checkpoint_is_refused_with_a_sentence(place, tmp_path):
    path = tmp_path / "x"
    sentence = "no checkpoint at"
    if place == "file":
        path.write_text("weights")
        sentence = "is a file: a checkpoint is a directory"
    elif place == "empty":
        path.mkdir()
        sentence = "is neither a checkpoint nor a run directory"
    elif place == "run without checkpoints":
        path.mkdir()
        (path / "metadata.json").write_text("{}")
        sentence = "has no complete checkpoint: start it anew with its config.yaml"
    for use in (resume, evaluate, load_policy):
        with pytest.raises(CheckpointError, match=sentence):
            use(path)


# -- unsafe and foreign content ----------------------------------------------------------------------


def rewrite_manifest(checkpoint, change):
    path = checkpoint / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


def entry_of(path):
    return {"size": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


@pytest.mark.parametrize("name", ["../evil", "/etc/hostname", "sub/file", "..", ""])
def test_a_manifest_that_lists_files_outside_is_refused(name, run):
    checkpoint = last_checkpoint(run)
    (checkpoint.parent / "evil").write_text("x")
    entry = entry_of(checkpoint.parent / "evil")
    rewrite_manifest(checkpoint, lambda manifest: manifest["files"].update({name: entry}))
    with pytest.raises(CheckpointError, match="unsafe"):
        evaluate(checkpoint, num_episodes=1)


class Bomb:
    def __reduce__(self):
        return os.system, ("touch exploded",)


@pytest.mark.parametrize("file", ["tensors.safetensors", "state.json"])
def test_a_pickle_in_place_of_the_state_is_refused_and_not_executed(file, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    checkpoint = last_checkpoint(run)
    (checkpoint / file).write_bytes(pickle.dumps(Bomb()))
    rewrite_manifest(checkpoint, lambda manifest: manifest["files"].update({file: entry_of(checkpoint / file)}))
    for use in (evaluate, load_policy, resume):
        with pytest.raises(CheckpointError, match="cannot be read as a checkpoint's state"):
            use(checkpoint)
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("tree", ["[]", '{"session": 1}', '{"__tensor__": []}', '{"__tensor__": "nowhere"}', "7"])
def test_a_state_of_another_form_is_refused(tree, run):
    checkpoint = last_checkpoint(run)
    (checkpoint / "state.json").write_text(tree)
    rewrite_manifest(
        checkpoint,
        lambda manifest: manifest["files"].update({"state.json": entry_of(checkpoint / "state.json")}),
    )
    for use in (load_policy, resume):
        with pytest.raises(CheckpointError):
            use(checkpoint)


@pytest.mark.parametrize("content", ["[]", "null", '{"format_version": 1}', '{"files": 3, "format_version": 1}'])
def test_a_manifest_of_another_form_is_refused(content, run):
    checkpoint = last_checkpoint(run)
    (checkpoint / "manifest.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"manifest\.json cannot be read"):
        verify_checkpoint(checkpoint)


def test_a_checkpoint_of_a_later_format_says_what_to_do(run):
    checkpoint = last_checkpoint(run)
    rewrite_manifest(checkpoint, lambda manifest: manifest.update(format_version=2))
    with pytest.raises(CheckpointError, match="format version 2, this release reads 1; install the release"):
        evaluate(checkpoint)


def test_a_checkpoint_of_another_task_says_that_it_does_not_fit(run):
    checkpoint = last_checkpoint(run)
    rewrite_manifest(checkpoint, lambda manifest: manifest["config"].update(env_id="Acrobot-v1"))
    with pytest.raises(CheckpointError, match="does not fit"):
        resume(checkpoint)


def test_a_checkpoint_holds_tensors_and_strict_json_only(run):
    checkpoint = last_checkpoint(run)
    assert {path.name for path in checkpoint.iterdir()} == {
        "manifest.json",
        "state.json",
        "tensors.safetensors",
    }

    modes = {path.stat().st_mode & 0o777 for path in checkpoint.iterdir()}
    assert len(modes) == 1  # who may read one file of it may read all

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    for name in ("manifest.json", "state.json"):
        json.loads((checkpoint / name).read_text(), parse_constant=refuse)

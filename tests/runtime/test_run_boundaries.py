"""A run changes and deletes nothing but its own files, and notices when those are taken away."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness import assert_same_run, last_checkpoint, only_run, tiny_config
from processes import uninterrupted
from replays import assert_same_replay, off_policy_config
from rl_training.cli import main
from rl_training.errors import AxiomError, CheckpointError, StorageError
from rl_training.experiment.checkpoints import BEST, CHECKPOINTS, LATEST, pointed, resolve_checkpoint
from rl_training.experiment.runs import read_metadata
from rl_training.experiment.storage.segments import SEGMENTS
from rl_training.runtime.callbacks import Callback, TrainingEvent
from rl_training.runtime.workflows import evaluate, resume, train

SHORT: dict[str, Any] = {"total_timesteps": 120, "keep_checkpoints": 2, "checkpoint_interval": 20}


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a replay."""
    return uninterrupted(off_policy_config("dqn", tmp_path_factory.mktemp("straight"), **SHORT))


@pytest.fixture
def run(straight: Path, tmp_path: Path) -> Path:
    """A copy to change."""
    return Path(shutil.copytree(straight, tmp_path / "runs" / straight.name, symlinks=True))


def moved_out(run: Path, name: str) -> Path:
    """Move a part of a run to another place, with a link in its stead, and put a foreign file beside its own."""
    outside = run.parent.parent / "outside"
    outside.mkdir()
    shutil.move(run / name, outside / name)
    (run / name).symlink_to(outside / name)
    if (outside / name).is_dir():
        (outside / name / "diary.txt").write_text("mine")
    return outside / name


def content(path: Path) -> dict[str, bytes]:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return {str(file): file.read_bytes() for file in files}


@pytest.mark.parametrize("name", [SEGMENTS, CHECKPOINTS, "metrics.jsonl", "evaluations.jsonl", "metadata.json"])
def test_resume_refuses_a_run_whose_parts_are_links_and_touches_nothing(name: str, run: Path) -> None:
    target = moved_out(run, name)
    before = content(target)
    with pytest.raises(AxiomError, match="is a symbolic link, and nothing outside of a run is changed") as raised:
        resume(run, total_timesteps=160)
    assert name in str(raised.value)
    assert raised.value.exit_status == 2
    assert content(target) == before
    assert evaluate(run, num_episodes=1).metrics["eval_episodes"] == 1  # reading changes nothing
    forked = resume(run, total_timesteps=160, fork=True)
    assert forked.status == "completed"
    assert content(target) == before


def test_a_run_that_is_reached_through_a_link_of_the_users_own_goes_on(run: Path, straight: Path) -> None:
    link = run.parent.parent / "link"
    link.symlink_to(run)
    assert resume(link, total_timesteps=160).status == "completed"
    assert resume(run / CHECKPOINTS / "latest", total_timesteps=200).status == "completed"


FOREIGN = (".ipynb_checkpoints", "notes.txt", ".DS_Store", "replay_final.safetensors", "step_best", ".writing-paper")


def test_foreign_files_in_a_runs_directories_stay_and_disturb_nobody(run: Path, tmp_path: Path) -> None:
    for directory in (SEGMENTS, CHECKPOINTS):
        for name in FOREIGN:
            (run / directory / name).write_text("mine") if "." in name[1:] else (run / directory / name).mkdir()
    (run / SEGMENTS / "replay_7_9.safetensors").mkdir()
    (run / CHECKPOINTS / "step_7").write_text("mine")
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "diary.txt").write_text("mine")
    (run / CHECKPOINTS / "step_999").symlink_to(mine)
    (last_checkpoint(run) / "notes.txt").write_text("mine")
    noted = last_checkpoint(run)
    assert resume(run, total_timesteps=240).status == "completed"
    for directory in (SEGMENTS, CHECKPOINTS):
        for name in FOREIGN:
            assert (run / directory / name).exists()
    assert (run / CHECKPOINTS / "step_7").read_text() == "mine"
    assert (mine / "diary.txt").read_text() == "mine"
    assert [path.name for path in noted.iterdir()] == ["notes.txt"]  # it was pruned, but for what is not the run's
    whole = uninterrupted(off_policy_config("dqn", tmp_path / "whole", **{**SHORT, "total_timesteps": 240}))
    assert_same_replay(run, whole)
    used = {path.name for path in (whole / SEGMENTS).iterdir()}
    assert {path.name for path in (run / SEGMENTS).iterdir() if path.is_file()} - set(FOREIGN) == used


@pytest.mark.parametrize("target", ["../../other/checkpoints/step_120", "/step_120", "step_120/.", "../checkpoints"])
def test_a_pointer_that_leads_out_of_its_run_leads_nowhere(target: str, run: Path) -> None:
    shutil.copytree(run, run.parent / "other", symlinks=True)
    (run / CHECKPOINTS / LATEST).unlink()
    (run / CHECKPOINTS / LATEST).symlink_to(target)
    assert pointed(run, LATEST) is None
    assert resolve_checkpoint(run) == run / CHECKPOINTS / "step_120"
    with pytest.raises(CheckpointError, match="leads nowhere"):
        resolve_checkpoint(run / CHECKPOINTS / LATEST)


def test_what_an_interrupted_save_left_is_removed_and_links_of_its_name_are_not_followed(run: Path) -> None:
    outside = run.parent / "outside"
    outside.mkdir()
    (outside / "diary.txt").write_text("mine")
    victim = outside / "victim.txt"
    victim.write_text("mine")
    (run / CHECKPOINTS / ".writing-step_5-1").symlink_to(outside)
    (run / ".metadata.json.tmp").symlink_to(victim)
    (run / ".config.yaml.tmp").symlink_to(victim)
    assert resume(run, total_timesteps=160).status == "completed"
    assert not (run / CHECKPOINTS / ".writing-step_5-1").is_symlink()
    assert content(outside) == {str(outside / name): b"mine" for name in ("diary.txt", "victim.txt")}


# -- files that vanish while the run is going on ------------------------------------------------------


class At(Callback):
    """Does something to the run directory once a step is reached."""

    def __init__(self, step: int, action: Callable[[Path], object]) -> None:
        self.step = step
        self.action: Callable[[Path], object] | None = action

    def on_update_end(self, event: TrainingEvent) -> None:
        if event.step >= self.step and self.action is not None:
            action, self.action = self.action, None
            action(event.run_dir)


REMOVALS: dict[str, Callable[[Path], object]] = {
    "the run": shutil.rmtree,
    "metrics.jsonl": lambda run_dir: (run_dir / "metrics.jsonl").unlink(),
    "evaluations.jsonl": lambda run_dir: (run_dir / "evaluations.jsonl").unlink(),
    "metrics.jsonl replaced": lambda run_dir: (run_dir / "evaluations.jsonl").rename(run_dir / "metrics.jsonl"),
    "config.yaml": lambda run_dir: (run_dir / "config.yaml").unlink(),
    "checkpoints": lambda run_dir: shutil.rmtree(run_dir / CHECKPOINTS),
    "segments": lambda run_dir: shutil.rmtree(run_dir / SEGMENTS),
    "one segment": lambda run_dir: next(iter(sorted((run_dir / SEGMENTS).iterdir()))).unlink(),
}


@pytest.mark.parametrize("what", REMOVALS)
def test_a_run_whose_files_are_removed_fails_with_a_sentence(what: str, tmp_path: Path) -> None:
    config = off_policy_config("dqn", tmp_path, **SHORT)
    with pytest.raises(StorageError) as raised:
        train(config, callbacks=[At(60, REMOVALS[what])])
    assert raised.value.exit_status == 1
    assert "\n" not in str(raised.value)
    if what != "the run":
        assert "removed or replaced while the run was going on" in str(raised.value)
        metadata = read_metadata(only_run(tmp_path))
        assert metadata["status"] == "failed"
        assert metadata["error"] == f"StorageError: {raised.value}"


def test_a_best_checkpoint_that_was_removed_is_said_and_a_new_best_is_chosen(tmp_path: Path) -> None:
    def remove_best(run_dir: Path) -> None:
        best = pointed(run_dir, BEST)
        assert best is not None
        assert best != pointed(run_dir, LATEST)
        shutil.rmtree(best)

    result = train(tiny_config(tmp_path), callbacks=[At(224, remove_best)])
    assert result.status == "completed"
    assert any("is gone; a new best is chosen" in notice for notice in read_metadata(result.run_dir)["notices"])
    assert result.best_checkpoint_path is not None
    assert result.best_checkpoint_path.is_dir()


def test_metadata_without_its_parts_is_refused_with_the_field(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "metadata.json").write_text('{"status": "running"}')
    assert main(["resume", "--checkpoint", str(run), "--total-timesteps", "160"]) == 2
    error = capsys.readouterr().err
    assert "metadata.json is damaged (notices: Field required" in error
    assert "bug" not in error


def test_a_pipe_in_place_of_a_file_of_rows_is_refused_at_once(run: Path) -> None:
    (run / "metrics.jsonl").unlink()
    os.mkfifo(run / "metrics.jsonl")
    with pytest.raises(StorageError, match=r"cannot write metrics\.jsonl"):
        resume(run, total_timesteps=160)


def test_a_resumed_run_ends_as_the_straight_one(run: Path, straight: Path) -> None:
    """The copies of this page are sound."""
    assert resume(run / CHECKPOINTS / "step_100").status == "completed"
    assert_same_run(run, straight)

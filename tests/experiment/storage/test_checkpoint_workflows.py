"""Checkpoints over the life of a run: pointers, pruning, forks, horizons, locks, kills, old formats."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from harness import (
    assert_same_run,
    evaluation_rows,
    json_rows,
    last_checkpoint,
    metric_rows,
    stopped_after,
    tiny_config,
)
from paths import FIXTURES
from processes import Launcher, kill_and_resume, process_environment, uninterrupted
from rl_training.errors import AxiomError, ConfigError
from rl_training.experiment import checkpoints
from rl_training.experiment.checkpoints import (
    BEST,
    CHECKPOINTS,
    LATEST,
    list_checkpoints,
    newest_sound_checkpoint,
    pointed,
    resolve_checkpoint,
    verify_checkpoint,
)
from rl_training.experiment.runs import read_metadata
from rl_training.runtime.acting.policy import load_policy
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.workflows import evaluate, resume, train

FIXTURE_V1 = FIXTURES / "checkpoints" / "v1"


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """A finished run with checkpoints at 0 (pruned), 64, 128, ..., 320."""
    return uninterrupted(tiny_config(tmp_path_factory.mktemp("straight")))


@pytest.fixture
def run(straight, tmp_path):
    """A copy of it to damage."""
    return Path(shutil.copytree(straight, tmp_path / straight.name, symlinks=True))


# -- pointers and pruning ----------------------------------------------------------------------------


class ScriptedReturns(Callback):
    """Gives evaluations the returns of a script by wrapping `summarize`."""

    def __init__(self, monkeypatch, returns):
        script = iter(returns)

        def summarize(episodes):
            return {"eval_return_mean": next(script), "eval_episodes": len(episodes)}

        monkeypatch.setattr("rl_training.runtime.acting.evaluator.summarize", summarize)


def test_pruning_keeps_the_newest_and_the_best(tmp_path, monkeypatch):
    config = tiny_config(tmp_path, eval_interval=64, checkpoint_interval=32, keep_checkpoints=2)
    with monkeypatch.context() as scripted:
        ScriptedReturns(scripted, [1.0, 5.0, 2.0, 3.0, 4.0])
        result = train(config)
    names = [path.name for path in list_checkpoints(result.run_dir)]
    assert names == ["step_320", "step_288", "step_128"]
    assert result.best_checkpoint_path == result.run_dir / CHECKPOINTS / "step_128"
    best = pointed(result.run_dir, BEST)
    assert best == result.best_checkpoint_path
    assert read_metadata(result.run_dir)["best_checkpoint"] == {
        "path": "checkpoints/step_128",
        "metric": "eval_return_mean",
        "mode": "max",
        "value": 5.0,
        "step": 128,
    }
    assert read_metadata(result.run_dir)["latest_checkpoint"] == "checkpoints/step_320"
    assert evaluate(result.run_dir / CHECKPOINTS / BEST, num_episodes=1).step == 128


def test_without_pruning_every_checkpoint_stays(tmp_path):
    run_dir = uninterrupted(tiny_config(tmp_path, keep_checkpoints=None, checkpoint_interval=32))
    assert [path.name for path in list_checkpoints(run_dir)] == [f"step_{step}" for step in range(320, -1, -32)]


def test_a_resume_points_best_to_what_was_best_at_its_checkpoint(tmp_path, monkeypatch):
    """The best score is part of the state: a worse evaluation after a resume does not replace a better one."""
    ScriptedReturns(monkeypatch, [1.0, 5.0, 9.0, 4.0, 3.0, 2.0])
    config = tiny_config(tmp_path, eval_interval=64, keep_checkpoints=None, total_timesteps=192)
    run_dir = train(config).run_dir
    assert pointed(run_dir, BEST).name == "step_192"
    resumed = resume(run_dir / CHECKPOINTS / "step_128", total_timesteps=320)
    assert pointed(run_dir, BEST).name == "step_128"
    assert resumed.best_checkpoint_path == run_dir / CHECKPOINTS / "step_128"
    assert read_metadata(run_dir)["best_checkpoint"]["value"] == 5.0


def test_a_kill_between_the_two_pointers_loses_neither(tmp_path, monkeypatch):
    """The process dies after `latest` moved and before `best` did."""
    ScriptedReturns(monkeypatch, [1.0, 5.0, 2.0, 2.0, 2.0])
    point = checkpoints.point

    def die(run_dir, name, checkpoint):
        if name == BEST and checkpoint.name == "step_128":
            raise KeyboardInterrupt
        point(run_dir, name, checkpoint)

    with monkeypatch.context() as patch:
        patch.setattr("rl_training.runtime.recording.saved_run.point", die)
        with pytest.raises(KeyboardInterrupt):
            train(tiny_config(tmp_path, eval_interval=64, keep_checkpoints=1))
    run_dir = next(tmp_path.iterdir())
    assert pointed(run_dir, BEST).name == "step_64"
    resume(run_dir)
    assert pointed(run_dir, BEST).name == "step_128"


def test_a_checkpoint_rewritten_at_its_own_step_is_never_gone(tmp_path, monkeypatch):
    """With one checkpoint kept, a kill while it is replaced must leave the old one or the new one."""
    run_dir = uninterrupted(tiny_config(tmp_path, keep_checkpoints=1, eval_episodes=0, total_timesteps=64))
    assert [path.name for path in list_checkpoints(run_dir)] == ["step_64"]
    content = (run_dir / CHECKPOINTS / "step_64" / "state.json").read_bytes()

    class Killed(BaseException):
        pass

    for function in ("rename", "replace"):
        for victim in range(1, 4):
            copy = Path(shutil.copytree(run_dir, tmp_path / f"{function}-{victim}", symlinks=True))
            calls = 0
            original = getattr(os, function)

            def dying(source, target, original=original, victim=victim):
                nonlocal calls
                calls += 1
                if calls == victim:
                    raise Killed
                original(source, target)

            with monkeypatch.context() as patch:
                patch.setattr(checkpoints.os, function, dying)
                patch.setattr(checkpoints.shutil, "rmtree", lambda *args, **kwargs: None)
                try:
                    checkpoints.write_checkpoint(
                        copy, 64, lambda directory: (directory / "new").write_text("x"), {"config": {}}
                    )
                except Killed:
                    sound, _ = newest_sound_checkpoint(copy)
                    assert (sound.path / "new").exists() or ((sound.path / "state.json").read_bytes() == content)


# -- lineage, horizons, cutting back -----------------------------------------------------------------


def test_a_fork_starts_a_new_run_with_its_parent_named(run, straight):
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    result = resume(run / CHECKPOINTS / "step_128", fork=True)
    assert result.run_dir != run
    assert result.run_dir.parent == run.parent
    parent = read_metadata(result.run_dir)["parent"]
    assert parent["run_dir"] == str(run)
    assert parent["checkpoint"].endswith("step_128")
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    # It continues from the same state; its own files hold its own rows only.
    expected = [row for row in metric_rows(straight) if row["global_step"] > 128]
    assert metric_rows(result.run_dir) == expected
    own = list_checkpoints(result.run_dir)
    assert [path.name for path in own] == ["step_320", "step_256", "step_192", "step_128"]
    assert result.best_checkpoint_path is not None
    assert result.best_checkpoint_path.is_relative_to(result.run_dir)


def test_a_completed_run_goes_on_with_a_larger_horizon(run):
    result = resume(run, total_timesteps=480)
    assert result.status == "completed"
    assert last_checkpoint(run).name == "step_480"
    assert metric_rows(run)[-1]["global_step"] == 480
    assert read_metadata(run)["status"] == "completed"
    assert verify_checkpoint(last_checkpoint(run)).config["total_timesteps"] == 480
    assert "total_timesteps: 480" in (run / "config.yaml").read_text()


def test_a_completed_run_resumed_as_it_is_changes_nothing(run, straight):
    result = resume(run)
    assert result.status == "completed"
    assert result.metrics["global_step"] == 320
    assert_same_run(run, straight)


def test_a_horizon_before_the_checkpoint_is_refused(run):
    with pytest.raises(ConfigError, match="100 lies before the checkpoint's step 320"):
        resume(run, total_timesteps=100)
    assert read_metadata(run)["status"] == "completed"


def test_resume_from_an_older_checkpoint_cuts_everything_back(run, straight, caplog):
    seen = {}

    class Look(Callback):
        def on_train_start(self, event):
            metadata = read_metadata(run)
            seen.update(
                rows=json_rows(run / "metrics.jsonl"),
                evaluations=evaluation_rows(run),
                checkpoints=[path.name for path in list_checkpoints(run)],
                latest=pointed(run, LATEST),
                metadata=metadata,
            )

    resume(run / CHECKPOINTS / "step_192", callbacks=[Look()])
    assert max(row["global_step"] for row in seen["rows"]) == 192
    assert max(row["global_step"] for row in seen["evaluations"]) == 128
    assert seen["checkpoints"] == ["step_192", "step_128", "step_64"]
    assert seen["latest"] == run / CHECKPOINTS / "step_192"
    assert seen["metadata"]["latest_checkpoint"] == "checkpoints/step_192"
    assert seen["metadata"]["latest_metrics"]["global_step"] == 192
    assert seen["metadata"]["status"] == "running"
    assert "removed what came after step 192: step_320, step_256" in caplog.text
    assert_same_run(run, straight)


def test_rows_that_somebody_deleted_do_not_become_zeros(run):
    """The file is shorter than the checkpoint knew it."""
    (run / "metrics.jsonl").write_text("")
    resume(run, total_timesteps=384)
    assert [row["global_step"] for row in json_rows(run / "metrics.jsonl") if row["event"] == "train"] == [352, 384]


def test_a_run_directory_can_be_moved(run, straight, tmp_path):
    moved = tmp_path / "elsewhere" / "renamed"
    moved.parent.mkdir()
    shutil.move(run, moved)
    result = resume(moved / CHECKPOINTS / "step_128")
    assert result.run_dir == moved
    assert not run.exists()
    assert_same_run(moved, straight)


# -- one process at a time ---------------------------------------------------------------------------

HOLD_LOCK = """
import pathlib, sys
from rl_training.experiment.storage.files import hold_lock
lock = hold_lock(pathlib.Path(sys.argv[1]) / ".lock", taken="taken")
print("held", flush=True)
sys.stdin.read()
"""


def test_a_second_process_on_the_same_run_is_refused(run, straight):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD_LOCK, str(run)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=process_environment(),
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(AxiomError, match=r"another process is training in .*--fork"):
        resume(run / CHECKPOINTS / "step_128")
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    holder.communicate()
    resume(run / CHECKPOINTS / "step_128")  # the system released the lock with the process
    assert_same_run(run, straight)


# -- kept formats ------------------------------------------------------------------------------------


def test_a_checkpoint_of_format_version_1_stays_loadable(tmp_path):
    """The fixture was written by the first release; it must never need to be written anew."""
    run_dir = Path(shutil.copytree(FIXTURE_V1 / "run", tmp_path / "run", symlinks=True))
    assert verify_checkpoint(resolve_checkpoint(run_dir)).manifest["format_version"] == 1
    expected = json.loads((FIXTURE_V1 / "expected.json").read_text())
    policy = load_policy(run_dir)
    observations = np.array(expected["observations"], dtype=np.float32)
    np.testing.assert_allclose(policy.predict(observations), expected["actions"], rtol=1e-4)
    assert evaluate(run_dir, num_episodes=2).metrics["eval_episodes"] == 2
    result = resume(run_dir)
    assert result.status == "completed"
    assert result.metrics["global_step"] == expected["total_timesteps"]


# -- SIGKILL while saving ----------------------------------------------------------------------------


def newest_is_sound(run_dir):
    """Whatever is visible under a checkpoint's name is complete."""
    assert newest_sound_checkpoint(run_dir)[1] == []
    for path in list_checkpoints(run_dir)[:2]:
        verify_checkpoint(path)


def kill_while_saving(tmp_path, *, kills, seed):
    changes = {"checkpoint_interval": 1, "eval_interval": 512, "keep_checkpoints": 2}
    config = tiny_config(tmp_path / "killed", total_timesteps=10_000_000, **changes)
    return kill_and_resume(
        Launcher(tmp_path / "processes"),
        config,
        kills=kills,
        seed=seed,
        only_while_saving=True,
        steps_at_last=320,
        after_kill=newest_is_sound,
    )


def test_a_process_killed_while_saving_always_resumes(tmp_path):
    killed = kill_while_saving(tmp_path, kills=4, seed=5)
    assert killed.kills_while_saving >= 3


@pytest.mark.slow
def test_a_hundred_kills_while_saving_all_resume(tmp_path):
    killed = kill_while_saving(tmp_path, kills=100, seed=6)
    assert killed.kills_while_saving >= 80


def test_training_goes_on_after_a_stop_with_only_the_first_checkpoint(tmp_path):
    with stopped_after(1):
        result = train(tiny_config(tmp_path))
    assert [path.name for path in list_checkpoints(result.run_dir)] == ["step_2", "step_0"]
    assert resume(result.run_dir).status == "completed"

"""SIGTERM and SIGINT to real processes: save, say so, exit 143 or 130; a second one ends the process at once."""

from __future__ import annotations

import os
import signal
import time

import pytest

from harness import assert_same_run, evaluation_rows, last_checkpoint, only_run, tiny_config
from processes import Launcher, train_arguments, uninterrupted
from rl_training.experiment.checkpoints import verify_checkpoint
from rl_training.experiment.runs import read_metadata
from rl_training.runtime.acting import evaluator
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.workflows import resume, train

LONG = {"total_timesteps": 4800, "checkpoint_interval": 2400, "eval_interval": 2400, "log_interval": 96}


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    return uninterrupted(tiny_config(tmp_path_factory.mktemp("straight"), **LONG))


@pytest.fixture(scope="module")
def launcher(tmp_path_factory):
    return Launcher(tmp_path_factory.mktemp("processes"))


def wait_until(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.002)


def has_rows(output_dir):
    """Whether a run has started to learn."""
    return any(path.stat().st_size > 0 for path in output_dir.glob("*/metrics.jsonl"))


@pytest.mark.parametrize(
    ("number", "backend", "status"),
    [(signal.SIGTERM, "local_sync", 143), (signal.SIGINT, "local_sync", 130), (signal.SIGINT, "local_async", 130)],
)
def test_a_signal_saves_the_run_and_it_resumes_exactly(number, backend, status, straight, launcher, tmp_path):
    """With `local_async` the whole process group gets the signal, as from a terminal's Ctrl-C."""
    output_dir = tmp_path / "runs"
    config = tiny_config(output_dir, execution_backend=backend, **LONG)
    child = launcher.start(train_arguments(config, tmp_path))
    wait_until(lambda: has_rows(output_dir))
    if backend == "local_async":
        os.killpg(child.pid, number)
    else:
        os.kill(child.pid, number)
    assert child.wait() == status
    output = child.output.read_text()
    assert "Traceback" not in output
    run_dir = only_run(output_dir)
    assert f"run_dir={run_dir}" in output.splitlines()
    metadata = read_metadata(run_dir)
    assert (metadata["status"], metadata["error"]) == ("interrupted", None)
    assert metadata["finished_at_utc"] is not None
    assert verify_checkpoint(last_checkpoint(run_dir)).step > 0
    assert resume(run_dir).status == "completed"
    assert_same_run(run_dir, straight)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_the_process_at_once(number, launcher, tmp_path):
    """The first one waits for a step that never ends; what was saved before stays."""
    output_dir, marker = tmp_path / "runs", tmp_path / "hanging"
    env_kwargs = {"training": {"fault": "hang", "at": 100, "once": str(marker)}}
    config = tiny_config(output_dir, env_id="run_samples:Run/Faulty-v0", env_kwargs=env_kwargs)
    child = launcher.start(train_arguments(config, tmp_path))
    wait_until(marker.exists)
    os.kill(child.pid, number)
    time.sleep(0.3)
    assert child.poll() is None  # the first signal asks
    os.kill(child.pid, number)
    assert child.wait() in (-number, 128 + number)
    run_dir = only_run(output_dir)
    assert verify_checkpoint(last_checkpoint(run_dir)).step == 192
    assert resume(run_dir).status == "completed"


class SignalAt(Callback):
    """Sends this process SIGTERM in one of its hooks, at the last step."""

    def __init__(self, hook):
        setattr(self, hook, self._send)

    def _send(self, event):
        if event.step == event.total_timesteps:
            signal.raise_signal(signal.SIGTERM)


def test_a_signal_after_the_final_evaluation_changes_nothing(tmp_path):
    """A run that is done is done."""
    result = train(tiny_config(tmp_path), callbacks=[SignalAt("on_eval_end")])
    assert (result.status, result.signal) == ("completed", None)


def test_a_signal_before_or_in_the_final_evaluation_stops_it_and_the_resumed_run_makes_it(tmp_path, monkeypatch):
    straight = uninterrupted(tiny_config(tmp_path / "straight"))
    before = train(tiny_config(tmp_path / "before"), callbacks=[SignalAt("on_update_end")])

    def play(policy, slots, seeds, *, interrupted, **options):
        if before_the_end(seeds):
            return original(policy, slots, seeds, interrupted=interrupted, **options)
        answers = iter([False, False, True])  # some steps are made before the signal comes

        def signalled():
            if next(answers):
                signal.raise_signal(signal.SIGTERM)
            return interrupted()

        return original(policy, slots, seeds, interrupted=signalled, **options)

    def before_the_end(seeds):
        return list(seeds) != evaluator.evaluation_seeds(7, 320, 2)

    original = evaluator.play_episodes
    with monkeypatch.context() as patch:
        patch.setattr(evaluator, "play_episodes", play)
        during = train(tiny_config(tmp_path / "during"))
    for result in (before, during):
        assert (result.status, result.signal) == ("interrupted", signal.SIGTERM)
        assert read_metadata(result.run_dir)["status"] == "interrupted"
        assert evaluation_rows(result.run_dir)[-1]["global_step"] == 256
        assert last_checkpoint(result.run_dir).name == "step_320"
        assert resume(result.run_dir).status == "completed"
        assert_same_run(result.run_dir, straight)


def test_handlers_are_put_back(tmp_path):
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    uninterrupted(tiny_config(tmp_path, total_timesteps=32))
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before

"""NaN, failing and dying environments: the cause is named, what was good stays, the run can go on."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from harness import (
    assert_same_run,
    last_checkpoint,
    metric_rows,
    only_run,
    tiny_config,
    weights,
)
from rl_training.algorithms.ppo import PPO
from rl_training.errors import EnvironmentFailure, NonFiniteError
from rl_training.experiment.checkpoints import verify_checkpoint
from rl_training.experiment.runs import read_metadata
from rl_training.runtime.acting.evaluator import evaluation_seeds
from rl_training.runtime.acting.policy import load_policy
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.session import TrainingSession
from rl_training.runtime.setup.streams import derive_seeds
from rl_training.runtime.workflows import resume, train

FAULTY = "run_samples:Run/Faulty-v0"


def failing(tmp_path, expected, **changes):
    """Train until it fails and return the message and the run directory."""
    with pytest.raises(expected) as caught:
        train(tiny_config(tmp_path, **changes))
    run_dir = only_run(tmp_path)
    metadata = read_metadata(run_dir)
    assert metadata["status"] == "failed"
    assert metadata["error"] == f"{expected.__name__}: {caught.value}"
    assert metadata["finished_at_utc"] is not None
    return str(caught.value), run_dir


def seed_of_the_first():
    """Return the seed of environment 0 in a tiny configuration."""
    return derive_seeds(tiny_config("runs").seed, "environment", count=2)[0]


@pytest.mark.parametrize(
    ("backend", "fault", "at", "what", "moment"),
    [
        ("local_sync", "reward", 40, "reward", "at step 1 of its episode"),
        ("local_sync", "infinite reward", 39, "reward", "at the last step of an episode"),
        ("local_sync", "observation", 40, "observation", "at step 1 of its episode"),
        ("local_sync", "final observation", 40, "final observation", "at step 1 of its episode"),
        ("local_sync", "reset", 39, "observation", "in reset"),
        ("local_async", "reset", 39, "observation", "in reset"),
    ],
)
def test_nan_from_an_environment_names_its_place_and_keeps_the_last_good_checkpoint(
    backend, fault, at, what, moment, tmp_path
):
    env_kwargs = {"training": {"fault": fault, "at": at}, "num_workers": 1}  # in the third rollout
    changes = {"env_id": FAULTY, "execution_backend": backend, "env_kwargs": env_kwargs}
    message, run_dir = failing(tmp_path, NonFiniteError, **changes)
    place = f"at step {2 * at} of the run, environment 0 (seed {seed_of_the_first()}), {moment}, "
    assert message.startswith(f"{place}gave NaN or infinity as {what}; repair the environment")
    assert message.endswith("the last good checkpoint is kept")
    newest = verify_checkpoint(last_checkpoint(run_dir))
    assert newest.step == 64
    assert all(tensor.isfinite().all() for tensor in weights(run_dir).values())
    assert load_policy(run_dir).predict(np.zeros(2, np.float32)) in (0, 1)


@pytest.mark.parametrize(
    ("fault", "at", "good"),
    [
        ("observation", 31, "step_0"),
        ("observation", 32, "step_0"),
        ("final observation", 32, "step_0"),
        ("final observation", 48, "step_64"),
        ("reset", 48, "step_64"),
    ],
)
def test_nan_in_an_observation_is_blamed_on_the_environment_wherever_it_falls(fault, at, good, tmp_path):
    """Also in the last observation of a rollout and in the final one of a truncated episode."""
    env_kwargs = {"training": {"fault": fault, "at": at}}
    message, run_dir = failing(tmp_path, NonFiniteError, env_id=FAULTY, env_kwargs=env_kwargs)
    assert message.startswith(f"at step {2 * at} of the run, environment 0 (seed ")
    assert "gave NaN or infinity as" in message
    assert last_checkpoint(run_dir).name == good


@pytest.mark.parametrize("normalized", [False, True])
def test_nan_in_the_observation_of_a_reset_reaches_no_replay(normalized, tmp_path):
    """It is blamed on the environment, and neither on the learning rate nor on its neighbours."""
    env_kwargs = {"training": {"fault": "reset", "at": 39}, "normalize_observation": normalized}
    algo_kwargs = {"learning_starts": 8, "batch_size": 4, "buffer_size": 200, "hidden_sizes": [8]}
    changes = {"env_id": FAULTY, "env_kwargs": env_kwargs, "algo_kwargs": algo_kwargs, "algo": "dqn"}
    message, run_dir = failing(tmp_path, NonFiniteError, **changes)
    assert message.startswith(f"at step 78 of the run, environment 0 (seed {seed_of_the_first()}), in reset, gave NaN")
    assert "learning_rate" not in message
    newest = verify_checkpoint(last_checkpoint(run_dir))
    assert newest.step == 64
    for file in run_dir.rglob("*.safetensors"):
        for name, tensor in load_file(file).items():
            assert not tensor.is_floating_point() or tensor.isfinite().all(), name


def test_nan_in_the_very_first_observation_leaves_no_run_behind(tmp_path):
    with pytest.raises(NonFiniteError, match=r"^environment 0 \(seed \d+\), in reset, gave NaN"):
        train(tiny_config(tmp_path, env_id=FAULTY, env_kwargs={"training": {"fault": "reset", "at": 0}}))
    assert list(tmp_path.iterdir()) == []


def test_nan_seen_in_an_evaluation_names_the_seed_and_stops_the_run(tmp_path):
    env_kwargs = {"evaluation": {"fault": "observation", "at": 2}}
    message, run_dir = failing(tmp_path, NonFiniteError, env_id=FAULTY, env_kwargs=env_kwargs)
    seed = evaluation_seeds(tiny_config(tmp_path).seed, 128, 1)[0]
    assert message.startswith(f"in the evaluation, environment 0 (seed {seed}), at step 2 of its episode, gave NaN")
    assert last_checkpoint(run_dir).name == "step_64"


def test_nan_in_an_evaluation_stops_the_run(tmp_path):
    env_kwargs = {"evaluation": {"fault": "reward", "at": 2}}
    message, run_dir = failing(tmp_path, NonFiniteError, env_id=FAULTY, env_kwargs=env_kwargs)
    assert "evaluation" in message
    assert "seed" in message
    assert last_checkpoint(run_dir).name == "step_64"


@pytest.mark.parametrize("name", ["loss_policy", "gradient_norm"])
def test_nan_in_a_loss_or_gradient_names_it_and_the_step(name, tmp_path, monkeypatch):
    update = PPO.update
    calls = []

    def poisoned(algorithm, rollout, controls, generator):
        metrics = update(algorithm, rollout, controls, generator)
        calls.append(1)
        if len(calls) == 4:
            metrics[name] = torch.tensor(math.nan)
        return metrics

    monkeypatch.setattr(PPO, "update", poisoned)
    message, run_dir = failing(tmp_path, NonFiniteError)
    assert message.startswith(f"{name} became NaN or infinite at step 128")
    assert last_checkpoint(run_dir).name == "step_64"
    assert [row["global_step"] for row in metric_rows(run_dir)] == [32, 64, 96]


def test_a_diverging_run_stops_by_itself(tmp_path):
    """Nothing is patched: a learning rate that overflows."""
    message, run_dir = failing(
        tmp_path,
        NonFiniteError,
        env_id="Pendulum-v1",
        algo_kwargs={"learning_rate": 1e37, "max_grad_norm": None},
    )
    assert "learning_rate" in message
    assert verify_checkpoint(last_checkpoint(run_dir)).step < 320


def test_a_rollout_of_one_transition_has_finite_metrics(tmp_path):
    config = tiny_config(
        tmp_path, algo="a2c", num_envs=1, total_timesteps=20, algo_kwargs={"num_steps": 1, "hidden_sizes": [8]}
    )
    assert train(config).status == "completed"


@pytest.mark.parametrize(
    ("backend", "fault", "cause"),
    [
        ("local_sync", "raise", "the floor gave way"),
        ("local_async", "raise", "the floor gave way"),
        ("local_async", "die", "was killed by SIGKILL"),
    ],
)
def test_where_an_environment_fails_the_learner_is_saved_and_resumes(backend, fault, cause, tmp_path):
    env_kwargs = {"training": {"fault": fault, "at": 40, "once": str(tmp_path / "happened")}, "num_workers": 1}
    changes = {"env_id": FAULTY, "execution_backend": backend, "env_kwargs": env_kwargs, "checkpoint_interval": 300}
    message, run_dir = failing(tmp_path / "runs", EnvironmentFailure, **changes)
    assert "environment 0" in message
    assert cause in message
    newest = verify_checkpoint(last_checkpoint(run_dir))
    assert newest.step == 64 + 2 * 7  # the whole steps before the fault are kept
    assert newest.manifest["resume_mode"] == "episode-boundary"
    assert any("its episodes start anew" in notice for notice in read_metadata(run_dir)["notices"])
    result = resume(run_dir)
    assert result.status == "completed"
    assert result.metrics["global_step"] == 320
    metadata = read_metadata(run_dir)
    assert (metadata["status"], metadata["error"]) == ("completed", None)
    assert [row["global_step"] for row in metric_rows(run_dir) if row["event"] == "train"] == list(range(32, 321, 32))


@pytest.mark.parametrize("hook", ["on_update_end", "on_exception", "on_train_end"])
def test_a_callback_that_raises_hides_neither_the_end_of_the_run_nor_other_callbacks(hook, tmp_path):
    class Broken(Callback):
        pass

    class Watcher(Callback):
        heard: ClassVar[list[str]] = []

        def on_train_end(self, event):
            self.heard.append(event.status)

    def fail(self, event):
        raise LookupError(f"{hook} is broken")

    setattr(Broken, hook, fail)
    changes = {}
    if hook == "on_exception":  # needs an exception to be called for
        changes = {"env_id": FAULTY, "env_kwargs": {"training": {"fault": "raise", "at": 40}}}
    with pytest.raises(LookupError, match="is broken"):
        train(tiny_config(tmp_path, **changes), callbacks=[Broken(), Watcher()])
    metadata = read_metadata(only_run(tmp_path))
    cause = "the floor gave way" if hook == "on_exception" else f"{hook} is broken"
    assert metadata["status"] == "failed"
    assert cause in metadata["error"]
    assert Watcher.heard[-1] == "failed"


def test_a_run_killed_between_its_last_checkpoint_and_its_last_row_ends_like_any_other(tmp_path, monkeypatch):
    """The last row holds the controls, although nothing is learned after the resume."""
    changes = {"log_interval": 1000, "eval_interval": None}
    straight = train(tiny_config(tmp_path / "straight", **changes)).run_dir
    with monkeypatch.context() as patch:
        patch.setattr(TrainingSession, "result", lambda session: (_ for _ in ()).throw(LookupError("killed")))
        with pytest.raises(LookupError):
            train(tiny_config(tmp_path / "killed", **changes))
    killed = only_run(tmp_path / "killed")
    assert last_checkpoint(killed).name == "step_320"
    assert metric_rows(killed) == []
    resume(killed)
    assert "learning_rate" in metric_rows(killed)[0]
    assert_same_run(killed, straight)


def test_a_mistake_in_the_configuration_leaves_no_run_behind(tmp_path):
    for changes in (
        {"env_id": "CartPol-v1"},
        {"env_kwargs": {"gravity": 1}},
        {"algo_kwargs": {"use_sde": True}},
        {"tracking": {"wandb": {}}},
    ):
        if "tracking" in changes and _installed("wandb"):
            continue
        with pytest.raises(Exception) as caught:
            train(tiny_config(tmp_path, **changes))
        assert getattr(caught.value, "exit_status", None) == 2
        assert list(tmp_path.iterdir()) == []


def _installed(name):
    try:
        __import__(name)
    except ImportError:
        return False
    return True

"""What happens in a run and when: cadence, evaluation, early stopping, callbacks, faults, schedules."""

from __future__ import annotations

import math

import gymnasium as gym
import numpy as np
import pytest
import torch

from harness import (
    assert_same_run,
    assert_same_state,
    evaluation_rows,
    json_rows,
    last_checkpoint,
    metric_rows,
    only_run,
    stopped_after,
    tiny_config,
    train_with_stops,
    weights,
)
from processes import uninterrupted
from rl_training.algorithms.ppo import PPO
from rl_training.envs.slot import EnvSlot
from rl_training.errors import ConfigError, EnvironmentFailure, NonFiniteError
from rl_training.experiment.checkpoints import list_checkpoints, verify_checkpoint
from rl_training.experiment.runs import read_metadata
from rl_training.runtime.callbacks import Callback, EarlyStopping, TrainingEvent
from rl_training.runtime.evaluator import evaluate_policy
from rl_training.runtime.policy import load_policy
from rl_training.runtime.streams import derive_seeds
from rl_training.runtime.workflows import evaluate, resume, train

FAULTY = "run_samples:Run/Faulty-v0"

# -- cadence ---------------------------------------------------------------------------------------


def events(run_dir):
    """Return the steps of evaluations, training rows and checkpoints."""
    rows = metric_rows(run_dir)
    return {
        "evaluations": [row["global_step"] for row in rows if row["event"] == "eval"],
        "rows": [row["global_step"] for row in rows if row["event"] == "train"],
        "checkpoints": [path.name for path in list_checkpoints(run_dir)],
    }


@pytest.mark.parametrize("num_envs", [3, 8])
def test_cadence_does_not_depend_on_the_number_of_environments(num_envs, tmp_path):
    """Rollouts of 48 transitions, however many environments share them."""

    def run(count):
        config = tiny_config(
            tmp_path / str(count),
            num_envs=count,
            total_timesteps=480,
            eval_interval=96,
            log_interval=48,
            checkpoint_interval=96,
            keep_checkpoints=None,
            algo_kwargs={"num_steps": 48 // count},
        )
        return uninterrupted(config)

    one, many = run(1), run(num_envs)
    assert events(one) == events(many)
    assert events(one)["evaluations"] == [96, 192, 288, 384, 480]
    assert events(one)["rows"] == list(range(48, 481, 48))
    assert events(one)["checkpoints"] == [f"step_{step}" for step in range(480, -1, -96)]
    updates = [[row["update_count"] for row in metric_rows(path) if row["event"] == "train"] for path in (one, many)]
    assert updates[0] == updates[1] == list(range(1, 11))


@pytest.mark.parametrize("num_envs", [1, 3, 8])
def test_marks_are_crossed_not_hit(num_envs, tmp_path):
    """Rollouts of 16, 48 and 128 transitions against marks that no rollout ends on."""
    config = tiny_config(
        tmp_path,
        num_envs=num_envs,
        total_timesteps=1500,
        eval_interval=250,
        log_interval=150,
        checkpoint_interval=300,
        keep_checkpoints=None,
    )
    counts = {name: len(steps) for name, steps in events(uninterrupted(config)).items()}
    best_at_other_marks = counts.pop("checkpoints")  # evaluations that find a new best save one too
    assert counts == {"evaluations": 6, "rows": 10}
    assert best_at_other_marks >= 6


def test_defaults_are_a_hundred_rows_ten_checkpoints_one_evaluation(tmp_path):
    config = tiny_config(
        tmp_path,
        total_timesteps=800,
        eval_interval=None,
        log_interval=None,
        checkpoint_interval=None,
        keep_checkpoints=None,
        num_envs=1,
        algo_kwargs={"num_steps": 8, "minibatch_size": 8, "update_epochs": 1},
    )
    found = events(uninterrupted(config))
    assert found["evaluations"] == [800]
    assert found["rows"] == list(range(8, 801, 8))
    assert found["checkpoints"] == [f"step_{step}" for step in range(800, -1, -80)]


def test_a_horizon_between_rollouts_is_crossed_and_evaluated_once(tmp_path):
    config = tiny_config(tmp_path, total_timesteps=100, eval_interval=50, log_interval=100)
    found = events(uninterrupted(config))
    assert found["evaluations"] == [64, 128]  # 128 crosses the mark 100, which is the horizon too
    assert found["rows"] == [128]


# -- evaluation ------------------------------------------------------------------------------------


def test_evaluation_seeds_are_never_training_seeds(tmp_path, monkeypatch):
    given = []
    reset = EnvSlot.reset

    def noting(slot, seed=None):
        if seed is not None:
            given.append(seed)
        return reset(slot, seed)

    monkeypatch.setattr(EnvSlot, "reset", noting)
    run_dir = uninterrupted(tiny_config(tmp_path, num_envs=3, eval_episodes=5, eval_interval=48, total_timesteps=240))
    evaluation = [row["seed"] for row in evaluation_rows(run_dir)]
    training = derive_seeds(7, "environment", count=3)
    assert len(evaluation) == 25
    assert len(set(evaluation)) == 25
    assert sorted(given) == sorted(evaluation + training)
    assert not set(evaluation) & set(training)
    later = {episode.seed for episode in evaluate(run_dir, num_episodes=5).episodes}
    assert not later & {*evaluation, *training}  # the command's episodes chose neither weights nor the best


@pytest.mark.parametrize(
    ("env_id", "env_kwargs"),
    [
        ("CartPole-v1", {"sutton_barto_reward": True}),
        (
            "Pendulum-v1",
            {"normalize_observation": True, "normalize_reward": True, "reward_sign": True, "clip_reward": 0.5},
        ),
    ],
)
def test_an_evaluation_return_is_the_raw_environments_return(env_id, env_kwargs, tmp_path):
    """Played again in plain Gymnasium by the recorded seeds and the checkpoint's policy."""
    run_dir = uninterrupted(tiny_config(tmp_path, env_id=env_id, env_kwargs=env_kwargs, eval_episodes=3))
    policy = load_policy(run_dir)
    raw_kwargs = {key: value for key, value in env_kwargs.items() if key == "sutton_barto_reward"}
    last = [row for row in evaluation_rows(run_dir) if row["global_step"] == 320]
    assert len(last) == 3
    for row in last:
        env = gym.make(env_id, **raw_kwargs)
        observation, _ = env.reset(seed=row["seed"])
        total, length, ended = 0.0, 0, False
        while not ended:
            observation, reward, terminated, truncated, _ = env.step(policy.predict(observation))
            total, length, ended = total + float(reward), length + 1, terminated or truncated
        env.close()
        assert row["length"] == length
        assert row["return"] == pytest.approx(total, rel=1e-4)
        assert not row["capped"]
    final = metric_rows(run_dir)[-1]
    returns = np.array([row["return"] for row in last])
    assert final["event"] == "eval"
    assert final["eval_return_mean"] == pytest.approx(returns.mean())
    assert final["eval_return_std"] == pytest.approx(returns.std())
    assert (final["eval_return_min"], final["eval_return_max"]) == (returns.min(), returns.max())


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"env_id": "Pendulum-v1", "env_kwargs": {"normalize_observation": True, "normalize_reward": True}},
        {"env_id": "Taxi-v4"},
    ],
)
def test_evaluating_changes_nothing_in_training(changes, tmp_path):
    changes = {**changes, "env_kwargs": {**changes.get("env_kwargs", {}), "max_episode_steps": 50}}
    often = tiny_config(tmp_path / "often", eval_interval=32, eval_episodes=3, **changes)
    never = tiny_config(tmp_path / "never", eval_interval=None, eval_episodes=0, **changes)
    one, other = uninterrupted(often), uninterrupted(never)
    assert_same_state(weights(one), weights(other))
    training = [[row for row in metric_rows(run_dir) if row["event"] == "train"] for run_dir in (one, other)]
    assert training[0] == training[1]
    assert evaluation_rows(other) == []


def test_the_normaliser_is_frozen_while_evaluating(tmp_path):
    env_kwargs = {"normalize_observation": True, "max_episode_steps": 30}
    config = tiny_config(tmp_path, env_id="Pendulum-v1", env_kwargs=env_kwargs)
    policy = load_policy(uninterrupted(config))
    assert policy.normalizer is not None
    before = policy.normalizer.state_dict()["observation"]
    assert before["count"] == 320 + 2  # every training observation and no other
    evaluate_policy(policy, config, [1, 2, 3])
    after = policy.normalizer.state_dict()["observation"]
    assert after["count"] == before["count"]
    np.testing.assert_array_equal(after["mean"], before["mean"])


def test_every_seed_gets_one_complete_episode_in_order(tmp_path):
    """More episodes than run at once; short ones do not crowd out long ones."""
    config = tiny_config(tmp_path, total_timesteps=64)
    policy = load_policy(uninterrupted(config))
    seeds = list(range(40))
    together = evaluate_policy(policy, config, seeds)
    assert [episode.seed for episode in together] == seeds
    alone = [evaluate_policy(policy, config, [seed])[0] for seed in seeds[::8]]
    assert alone == together[::8]


def test_an_endless_episode_is_capped_and_marked(tmp_path):
    config = tiny_config(tmp_path, total_timesteps=64)
    policy = load_policy(uninterrupted(config))
    (episode,) = evaluate_policy(policy, config, [1], step_cap=5)
    assert (episode.length, episode.capped) == (5, True)


def test_rewards_of_numpy_types_are_summed_in_full_precision(tmp_path):
    config = tiny_config(tmp_path, env_id=FAULTY, env_kwargs={"fault": "float32"})
    row = evaluation_rows(uninterrupted(config))[0]
    assert row["return"] == pytest.approx(3 * float(np.float32(0.1)), abs=1e-12)


def test_stochastic_evaluation_repeats_by_its_seed(tmp_path):
    run_dir = uninterrupted(tiny_config(tmp_path, total_timesteps=64))
    one, two = (evaluate(run_dir, num_episodes=4, seed=5, stochastic=True).episodes for _ in range(2))
    assert one == two
    assert one != evaluate(run_dir, num_episodes=4, seed=6, stochastic=True).episodes


# -- early stopping --------------------------------------------------------------------------------


def watch(stopper, values, metric="eval_return_mean"):
    """Report values to an early stopping and return after how many of them it asked to stop."""
    reasons = []
    for count, value in enumerate(values, start=1):
        event = TrainingEvent(
            run_dir=None,  # type: ignore[arg-type]
            step=count,
            total_timesteps=100,
            update_count=count,
            request_stop=reasons.append,
            metrics={metric: value},
        )
        stopper.on_eval_end(event)
        if reasons:
            return count, reasons[0]
    return None


@pytest.mark.parametrize(
    ("settings", "values", "stop"),
    [
        ({"target": 10}, [1, 9.9, 10, 11], 3),
        ({"target": 10, "mode": "min"}, [30, 11, 10], 3),
        ({"patience": 2}, [1, 2, 2, 3, 3, 3], 6),
        ({"patience": 2, "mode": "min"}, [5, 4, 4, 3, 3, 3], 6),
        ({"patience": 2, "min_delta": 1}, [1, 1.5, 2.0], 3),
        ({"patience": 2, "min_delta": 1}, [1, 2.5, 4, 4.5, 4.9], 5),
        ({"patience": 3, "target": 2}, [1, 2], 2),
        ({"patience": 3}, [1, 1, 2, 2, 2], None),
    ],
)
def test_early_stopping_stops_by_target_and_patience(settings, values, stop):
    outcome = watch(EarlyStopping(**settings), values)
    assert (outcome and outcome[0]) == stop


def test_early_stopping_ignores_rows_without_its_metric():
    assert watch(EarlyStopping(patience=1), [1, 1, 1], metric="loss_value") is None


def test_early_stopping_without_a_condition_is_refused():
    with pytest.raises(ConfigError, match="patience, target or both"):
        EarlyStopping()


def test_early_stopping_counts_on_after_its_state_was_restored():
    one, other = EarlyStopping(patience=3), EarlyStopping(patience=3)
    assert watch(one, [5, 4, 4]) is None
    other.load_state_dict(one.state_dict())
    assert watch(other, [4])[0] == 1


STOP_EARLY = {"metric": "eval_return_mean", "patience": 2, "min_delta": 1000.0}


def test_a_run_stops_early_and_says_why(tmp_path):
    """The first evaluation counts as an improvement, the next two do not."""
    result = train(tiny_config(tmp_path, eval_interval=32, early_stopping=STOP_EARLY))
    assert result.status == "completed"
    assert result.metrics["global_step"] == 96
    assert result.stop_reason == "eval_return_mean has not improved for 2 reports"
    assert read_metadata(result.run_dir)["status"] == "completed"


def test_early_stopping_survives_a_resume(tmp_path):
    changes = {"eval_interval": 32, "early_stopping": STOP_EARLY}
    stopped = train_with_stops(tiny_config(tmp_path / "stopped", **changes), [20, 20])
    assert_same_run(stopped, uninterrupted(tiny_config(tmp_path / "straight", **changes)))


def test_a_run_that_stopped_early_stays_stopped(tmp_path):
    """A process killed between the decision and the end of the run must not train on; a new horizon may."""
    result = train(tiny_config(tmp_path, eval_interval=32, early_stopping=STOP_EARLY))
    again = resume(result.run_dir)
    assert again.metrics["global_step"] == 96
    assert again.stop_reason == result.stop_reason
    longer = resume(result.run_dir, total_timesteps=640)
    assert longer.metrics["global_step"] == 128  # one more evaluation without improvement


# -- callbacks -------------------------------------------------------------------------------------

HOOKS = (
    "on_train_start",
    "on_collect_end",
    "on_update_end",
    "on_eval_end",
    "on_checkpoint",
    "on_exception",
    "on_train_end",
)


class Notes(Callback):
    """Writes down every call; its count is checkpointed."""

    def __init__(self, notes, name):
        self.notes, self.name = notes, name
        self.updates = 0

    def on_update_end(self, event):
        self.updates += 1

    def state_dict(self):
        return {"updates": self.updates}

    def load_state_dict(self, state):
        self.updates = state["updates"]


def note(hook):
    own = Notes.__dict__.get(hook)

    def call(self, event):
        self.notes.append((self.name, hook, event))
        if own is not None:
            own(self, event)

    return call


for hook in HOOKS:
    setattr(Notes, hook, note(hook))


def test_callbacks_are_called_in_order(tmp_path):
    notes = []
    config = tiny_config(tmp_path, total_timesteps=64, eval_interval=32, checkpoint_interval=32)
    result = train(config, callbacks=[Notes(notes, "a"), Notes(notes, "b")])
    assert [name for name, _, _ in notes] == ["a", "b"] * (len(notes) // 2)  # in the order they were given
    sequence = [hook for name, hook, _ in notes if name == "a"]
    rollout = ["on_collect_end", "on_update_end", "on_eval_end", "on_checkpoint"]
    assert sequence[:6] == ["on_train_start", "on_checkpoint", *rollout]
    assert sequence[6:9] == rollout[:3]
    assert sequence[-1] == "on_train_end"
    assert "on_exception" not in sequence
    last = notes[-1][2]
    assert (last.status, last.step, last.update_count, last.error) == ("completed", 64, 2, None)
    assert last.run_dir == result.run_dir
    evaluated = next(event for _, hook, event in notes if hook == "on_eval_end")
    assert evaluated.metrics["eval_return_mean"] > 0
    saved = [event for _, hook, event in notes if hook == "on_checkpoint"]
    assert saved[-1].checkpoint_path == result.checkpoint_path
    with pytest.raises(AttributeError):
        last.step = 5


def test_callbacks_hear_of_a_failure_before_the_end(tmp_path):
    notes = []
    config = tiny_config(tmp_path, env_id=FAULTY, env_kwargs={"training": {"fault": "raise"}})
    with pytest.raises(EnvironmentFailure) as caught:
        train(config, callbacks=[Notes(notes, "a")])
    assert [hook for _, hook, _ in notes[-2:]] == ["on_exception", "on_train_end"]
    for _, _, event in notes[-2:]:
        assert (event.status, event.error) == ("failed", caught.value)


def test_a_callback_that_raises_fails_the_run(tmp_path):
    class Broken(Callback):
        def on_update_end(self, event):
            raise ZeroDivisionError("in the callback")

    notes = []
    with pytest.raises(ZeroDivisionError):
        train(tiny_config(tmp_path), callbacks=[Broken(), Notes(notes, "a")])
    assert notes[-1][1] == "on_train_end"
    metadata = read_metadata(only_run(tmp_path))
    assert metadata["status"] == "failed"
    assert metadata["error"] == "ZeroDivisionError: in the callback"


def test_a_callback_can_stop_the_run(tmp_path):
    class Enough(Callback):
        def on_update_end(self, event):
            if event.step >= 96:
                event.request_stop("enough")

    result = train(tiny_config(tmp_path), callbacks=[Enough()])
    assert (result.status, result.stop_reason, result.metrics["global_step"]) == ("completed", "enough", 96)
    assert last_checkpoint(result.run_dir).name == "step_96"


def test_callback_state_is_checkpointed(tmp_path):
    counted = []

    def callbacks():
        counted.append(Notes([], "a"))
        return [counted[-1]]

    train_with_stops(tiny_config(tmp_path), [20, 25, 60], callbacks=callbacks)
    assert len(counted) == 4
    assert counted[-1].updates == 10


# -- faults ----------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("fault", "place"),
    [
        ("reward", "environment 0 gave NaN or infinity as reward at step 8"),
        ("infinite reward", "environment 0 gave NaN or infinity as reward at step 8"),
        ("observation", "environment 0 gave NaN or infinity as observation at step 8"),
    ],
)
def test_nan_from_an_environment_names_its_place_and_keeps_the_last_good_checkpoint(fault, place, tmp_path):
    env_kwargs = {"training": {"fault": fault, "at": 40}}  # the 8th step of the third rollout
    message, run_dir = failing(tmp_path, NonFiniteError, env_id=FAULTY, env_kwargs=env_kwargs)
    assert place in message
    assert "the last good checkpoint is kept" in message
    newest = verify_checkpoint(last_checkpoint(run_dir))
    assert newest.step == 64
    assert all(tensor.isfinite().all() for tensor in weights(run_dir).values())
    assert load_policy(run_dir).predict(np.zeros(2, np.float32)) in (0, 1)


@pytest.mark.parametrize(
    ("fault", "at", "good"),
    [("observation", 32, "step_0"), ("final observation", 40, "step_64"), ("final observation", 48, "step_64")],
)
def test_nan_in_an_observation_is_blamed_on_the_environment_wherever_it_falls(fault, at, good, tmp_path):
    """Also in the last observation of a rollout and in the final one of a truncated episode."""
    env_kwargs = {"training": {"fault": fault, "at": at}}
    message, run_dir = failing(tmp_path, NonFiniteError, env_id=FAULTY, env_kwargs=env_kwargs)
    assert f"environment 0 gave NaN or infinity as {fault} at step {(at - 1) % 16 + 1}" in message
    assert last_checkpoint(run_dir).name == good


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


# -- schedules and sinks ---------------------------------------------------------------------------


def test_schedules_appear_in_the_metrics(tmp_path):
    config = tiny_config(
        tmp_path,
        algo_kwargs={
            "learning_rate": 0.1,
            "learning_rate_schedule": "linear",
            "ent_coef": 0.5,
            "ent_coef_warmup_steps": 64,
            "clip_coef_schedule": {"type": "step", "milestones": [160], "values": [0.3]},
        },
    )
    rows = [row for row in metric_rows(uninterrupted(config)) if row["event"] == "train"]
    # A row shows the value that the update used, which is that of the step before its rollout was counted.
    expected = [0.1 * (1 - step / 320) for step in range(0, 320, 32)]
    assert [row["learning_rate"] for row in rows] == pytest.approx(expected)
    assert [row["ent_coef"] for row in rows] == pytest.approx([0.0, 0.25] + [0.5] * 8)
    assert [row["clip_coef"] for row in rows] == pytest.approx([0.2] * 5 + [0.3] * 5)


def test_a_training_row_has_the_documented_names(tmp_path):
    run_dir = uninterrupted(tiny_config(tmp_path))
    row = [row for row in json_rows(run_dir / "metrics.jsonl") if row["event"] == "train"][-1]
    documented = (
        *("global_step", "update_count", "train_return_mean", "train_length_mean", "steps_per_second"),
        *("time_collect", "time_update", "time_eval", "loss_policy", "loss_value", "learning_rate"),
    )
    assert set(documented) <= set(row)
    assert row["steps_per_second"] > 0


def test_tensorboard_files_are_written_and_a_stop_does_not_disturb_them(tmp_path):
    with stopped_after(20):
        result = train(tiny_config(tmp_path, tracking={"tensorboard": True}))
    assert resume(result.run_dir).status == "completed"
    assert len(list((result.run_dir / "tensorboard").iterdir())) == 2

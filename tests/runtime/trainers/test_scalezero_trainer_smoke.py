"""ScaleZero is wired up: tasks of different shape, one search, solved tasks that leave, stages, results by task."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from harness import json_rows, last_checkpoint, metric_rows, tiny_config, weights
from off_policy_runs import train_rows
from replays import replay_states
from rl_training.algorithms.scalezero import ScaleZero
from rl_training.cli import main
from rl_training.errors import AxiomError
from rl_training.runtime.acting.policy import load_policy
from rl_training.runtime.session import TrainResult
from rl_training.runtime.workflows import evaluate, train
from scalezero_runs import AT_ONCE, NEVER, SMALL, tiny_suite

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    """Three tasks of which none is solved."""
    return train(tiny_suite(tmp_path_factory.mktemp("runs"), NEVER, NEVER, NEVER, num_envs=2))


def test_three_shapes_are_trained_by_one_model(result: TrainResult) -> None:
    assert result.status == "completed"
    row = train_rows(result.run_dir)[-1]
    for task in ("CartPole-v1", "KeyDoor", "Acrobot-v1"):
        for metric in ("loss_policy", "loss_value", "loss_reward", "loss_latent", "expert_use_0", "expert_use_1"):
            assert np.isfinite(row[f"{metric}/{task}"])
        assert row[f"expert_use_0/{task}"] + row[f"expert_use_1/{task}"] == pytest.approx(1.0)
    assert {"load_balance", "gradient_norm", "num_simulations", "trainable_parameters"} <= row.keys()
    assert (row["stage"], row["solved_tasks"], row["update_count"]) == (
        1,
        0,
        (96 - 24) // 4,
    )  # by the maximum of a stage
    assert all(tensor.isfinite().all() for tensor in weights(result.run_dir).values() if tensor.is_floating_point())


def test_evaluations_tell_the_tasks_apart(result: TrainResult) -> None:
    rows = [row for row in metric_rows(result.run_dir) if row["event"] == "eval"]
    last = rows[-1]
    returns = {task: last[f"eval_return_mean/{task}"] for task in ("CartPole-v1", "KeyDoor", "Acrobot-v1")}
    assert last["eval_episodes"] == 6
    assert last["eval_return_mean"] == pytest.approx(np.mean(list(returns.values())))
    shares = [returns["CartPole-v1"] / NEVER, (returns["KeyDoor"] + 1) / (NEVER + 1)]
    shares.append((returns["Acrobot-v1"] + 500) / (NEVER + 500))
    assert last["eval_normalized_mean"] == pytest.approx(np.mean(shares))
    assert last["eval_normalized_median"] == pytest.approx(np.median(shares))
    episodes = [row for row in json_rows(result.run_dir / "evaluations.jsonl") if row["global_step"] == 96]
    assert [(row["task"], row["episode"]) for row in episodes] == [
        (task, episode) for task in returns for episode in (0, 1)
    ]
    metadata = json.loads((result.run_dir / "metadata.json").read_text())
    schema = resources.files("rl_training.experiment").joinpath("metadata.schema.json").read_text(encoding="utf-8")
    jsonschema.validate(metadata, json.loads(schema))
    assert metadata["latest_metrics"]["eval_return_mean/KeyDoor"] == returns["KeyDoor"]
    best = metadata["best_checkpoint"]
    assert best["metric"] == "eval_normalized_mean"
    assert best["value"] == max(row["eval_normalized_mean"] for row in rows)


def test_the_scheduled_number_of_simulations_is_that_of_every_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []
    original = ScaleZero.search_tasks

    def watched(self: ScaleZero, *arguments: Any, **settings: Any) -> Any:
        found = original(self, *arguments, **settings)
        assert all((part.visits.sum(1) == settings["num_simulations"]).all() for part in found)
        if settings["exploration"] > 0:  # evaluations play without
            counts.append(settings["num_simulations"])
        return found

    monkeypatch.setattr(ScaleZero, "search_tasks", watched)
    settings = {
        "num_simulations": 2,
        "num_simulations_schedule": {"type": "piecewise", "points": [[0, 2], [48, 6]]},
        "num_simulations_warmup_steps": 8,
    }
    config = tiny_suite(tmp_path, None, None, total_timesteps=64, eval_interval=None, algo_kwargs=settings)
    outcome = train(config)
    steps = range(0, 64, 4)  # two environments of two tasks
    expected = [max(1, int((2 + 4 * min(step, 48) / 48) * min(step / 8, 1) + 0.5)) for step in steps]
    assert counts == expected
    assert [row["num_simulations"] for row in train_rows(outcome.run_dir)] == expected[3::4]
    assert config.algo_kwargs["num_simulations"] == 2


def test_a_solved_task_is_no_longer_collected_and_still_evaluated(tmp_path: Path) -> None:
    outcome = train(tiny_suite(tmp_path, AT_ONCE, NEVER, algo_kwargs={"buffer_size": 200, "stage_steps": 99}))
    rows = train_rows(outcome.run_dir)
    assert [row["solved_tasks"] for row in rows] == [0, 0, 1, 1, 1, 1]
    assert rows[-1]["solved/CartPole-v1"] == 1
    assert rows[-1]["solved/KeyDoor"] == 0
    evaluated = [row for row in metric_rows(outcome.run_dir) if row["event"] == "eval"]
    assert [row["global_step"] for row in evaluated] == [32, 64, 96]
    assert all("eval_return_mean/CartPole-v1" in row for row in evaluated)
    algorithm: Any = load_policy(outcome.run_dir, task="KeyDoor").actor
    assert algorithm.algorithm.trained == (1,)
    # 32 steps were shared; the other 64 all went to the unsolved task.
    assert [state["count"] for state in replay_states(last_checkpoint(outcome.run_dir))] == [16, 80]
    # One of two tasks is an adapter's share of them: the next stage begins, and fewer parameters are trained.
    assert [row["stage"] for row in rows] == [0, 0, 1, 1, 1, 1]
    assert rows[1]["trainable_parameters"] > rows[2]["trainable_parameters"] == rows[-1]["trainable_parameters"]


def test_the_run_ends_when_every_task_is_solved(tmp_path: Path) -> None:
    outcome = train(tiny_suite(tmp_path, AT_ONCE, AT_ONCE))
    assert (outcome.status, outcome.metrics["global_step"]) == ("completed", 32)
    assert outcome.stop_reason == "every task reached its target return"
    assert outcome.metrics["solved_tasks"] == 2


def test_without_targets_every_task_is_trained_to_the_end(tmp_path: Path) -> None:
    outcome = train(tiny_suite(tmp_path, None, None, eval_interval=None))
    row = train_rows(outcome.run_dir)[-1]
    assert row["stage"] == 0
    assert "solved_tasks" not in row
    assert "eval_normalized_mean" not in outcome.metrics
    assert "eval_return_mean/KeyDoor" in outcome.metrics


def test_one_environment_is_a_suite_of_one(tmp_path: Path) -> None:
    config = tiny_config(
        tmp_path,
        algo="scalezero",
        env_id="toy_envs:Toy/MaskedDiscrete-v0",
        algo_kwargs={**SMALL, "reanalyze_ratio": 0.5, "per_alpha": 0.6},
        total_timesteps=64,
        torch_threads=1,
    )
    outcome = train(config)
    assert not any(name.startswith("eval_return_mean/") for name in outcome.metrics)
    policy = load_policy(outcome.run_dir)
    observation = policy.observation_space.sample()
    assert policy.predict(observation, num_simulations=4) in range(policy.action_space.n)  # type: ignore[attr-defined]
    assert evaluate(outcome.run_dir, num_episodes=2).metrics["eval_episodes"] == 2


def test_a_policy_acts_in_the_task_that_is_named(result: TrainResult, capsys: Capture) -> None:
    with pytest.raises(AxiomError, match="several tasks; name one of CartPole-v1, KeyDoor, Acrobot-v1"):
        load_policy(result.run_dir)
    for task, actions in (("CartPole-v1", 2), ("KeyDoor", 4), ("Acrobot-v1", 3)):
        policy = load_policy(result.run_dir, task=task)
        observation = policy.observation_space.sample()
        assert policy.action_space.n == actions  # type: ignore[attr-defined]
        assert policy.predict(observation) == policy.predict(observation)
        assert policy.predict(observation, num_simulations=4) in range(actions)
    everything = evaluate(result.run_dir, num_episodes=2)
    alone = evaluate(result.run_dir, num_episodes=2, task="KeyDoor")
    key = "eval_return_mean/KeyDoor"
    assert everything.metrics[key] == alone.metrics[key] == alone.metrics["eval_return_mean"]
    assert main(["eval", "--checkpoint", str(result.run_dir), "--num-episodes", "1", "--task", "KeyDoor"]) == 0
    assert "eval_return_mean/KeyDoor=" in capsys.readouterr().out

"""What happens how often is counted in environment steps: the same for 1, 3 and 8 environments."""

from __future__ import annotations

from collections import Counter

import pytest

from harness import metric_rows, stopped_after
from replays import off_policy_config
from rl_training.algorithms.dqn import DQN
from rl_training.algorithms.sac import SAC
from rl_training.algorithms.td3 import TD3
from rl_training.experiment.cadence import marks_between
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.workflows import resume, train


class Counts(Callback):
    """Counts what a run does."""

    def __init__(self) -> None:
        self.counter: Counter[str] = Counter()
        self.checkpoints: list[str] = []

    def on_eval_end(self, event):
        self.counter["evaluations"] += 1

    def on_checkpoint(self, event):
        self.counter["checkpoints"] += 1


def count_calls(monkeypatch, counter, owner, method):
    original = getattr(owner, method)

    def counting(*arguments, **named):
        counter[method] += 1
        return original(*arguments, **named)

    monkeypatch.setattr(owner, method, counting)


def run_counts(monkeypatch, tmp_path, task, num_envs, **changes):
    counts = Counts()
    with monkeypatch.context() as patch:
        for owner in (DQN, SAC, TD3):
            count_calls(patch, counts.counter, owner, "update")
        count_calls(patch, counts.counter, DQN, "update_target")
        settings = {"eval_episodes": 1, "eval_interval": 50, "checkpoint_interval": 40, "log_interval": 20, **changes}
        result = train(
            off_policy_config(task, tmp_path / f"{task}-{num_envs}", num_envs=num_envs, **settings), callbacks=[counts]
        )
    counts.counter["logged"] = sum(row["event"] == "train" for row in metric_rows(result.run_dir))
    assert result.metrics["update_count"] == counts.counter["update"]
    return counts.counter


# 200 is a multiple of 1 and 8, not of 3: steps beyond the horizon must not count.
DQN_SETTINGS = {"train_interval": 4, "gradient_steps": 2, "target_update_interval": 24, "learning_starts": 30}


def test_dqn_does_everything_equally_often_with_1_3_and_8_environments(monkeypatch, tmp_path):
    counts = {
        num_envs: run_counts(
            monkeypatch, tmp_path, "dqn", num_envs, total_timesteps=200, algo_kwargs=DQN_SETTINGS, keep_checkpoints=None
        )
        for num_envs in (1, 3, 8)
    }
    assert counts[1] == counts[3] == counts[8]
    expected = {
        "update": 2 * (200 // 4 - 30 // 4),
        "update_target": 200 // 24,
        "evaluations": 4,
        "logged": 10,
    }
    assert {name: counts[1][name] for name in expected} == expected
    # The first of all, those of the marks, and any that only a new best evaluation asked for.
    assert counts[1]["checkpoints"] >= 6


@pytest.mark.parametrize("num_envs", [3, 8])
def test_a_horizon_that_is_no_multiple_of_the_environments_gives_no_more_updates(num_envs, monkeypatch, tmp_path):
    settings = {"train_interval": 1, "gradient_steps": 1, "target_update_interval": 1, "learning_starts": 30}
    counts = run_counts(
        monkeypatch, tmp_path, "dqn", num_envs, total_timesteps=100, algo_kwargs=settings, eval_interval=None
    )
    assert counts["update"] == 70
    assert counts["update_target"] == 100


@pytest.mark.parametrize("task", ["sac_sde", "td3"])
def test_continuous_algorithms_update_equally_often(task, monkeypatch, tmp_path):
    updates = {
        num_envs: run_counts(monkeypatch, tmp_path, task, num_envs, total_timesteps=120, eval_interval=None)["update"]
        for num_envs in (1, 3, 8)
    }
    expected = {"sac_sde": 2 * (120 // 3 - 24 // 3), "td3": 120 - 24}[task]
    assert updates == {1: expected, 3: expected, 8: expected}


def test_a_resume_repeats_neither_warm_up_nor_updates(monkeypatch, tmp_path):
    counts = Counts()
    random_steps: Counter[str] = Counter()
    for method in ("update", "update_target"):
        count_calls(monkeypatch, counts.counter, DQN, method)
    original = DQN.act

    def acting(*arguments):
        random_steps["learned"] += 1
        return original(*arguments)

    monkeypatch.setattr(DQN, "act", acting)
    config = off_policy_config("dqn", tmp_path, num_envs=3, total_timesteps=120, algo_kwargs=DQN_SETTINGS)
    with stopped_after(25):
        result = train(config)
    assert resume(result.run_dir).status == "completed"
    assert counts.counter["update"] == 2 * (120 // 4 - 30 // 4)
    assert counts.counter["update_target"] == 120 // 24
    assert random_steps["learned"] == (120 - 30) // 3


def test_marks_are_counted_by_crossing():
    assert marks_between(0, 8, 4) == 2
    assert marks_between(3, 4, 4) == 1
    assert marks_between(4, 7, 4) == 0
    assert marks_between(0, 24, 3, beyond=10) == 5  # 12, 15, 18, 21, 24
    assert marks_between(0, 8, 3, beyond=10) == 0
    for num_envs in (1, 3, 8, 24):
        steps = range(0, 240, num_envs)
        assert sum(marks_between(step, step + num_envs, 7, beyond=50) for step in steps) == 240 // 7 - 50 // 7

"""Normalised learning from a replay: what is drawn are the raw steps under the statistics of now."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from harness import last_checkpoint, stopped_after, tiny_config
from planning_runs import SMALL as SMALL_PLANNING
from replays import off_policy_config, segment_entries
from rl_training.algorithms.dqn import DQN
from rl_training.algorithms.planning.batches import BatchMaker
from rl_training.algorithms.planning.unroll import UnrollBatch
from rl_training.algorithms.sac import SAC
from rl_training.data.replay import Replay, ReplayBatch
from rl_training.data.trajectory_replay import TrajectoryReplay
from rl_training.envs.step import StepBatch
from rl_training.envs.vector import SyncVectorEnv
from rl_training.errors import CheckpointError
from rl_training.experiment.checkpoints import MANIFEST
from rl_training.runtime.acting.policy import load_policy
from rl_training.runtime.workflows import resume, train
from rl_training.search.search import TreeSearch
from scalezero_runs import SMALL as SMALL_SCALEZERO

GAMMA, EPSILON = 0.9, 1e-8
CLIP_OBSERVATION, CLIP_REWARD = 2.0, 1.5
NORMALIZED: dict[str, Any] = {
    "normalize_observation": True,
    "normalize_reward": True,
    "clip_observation": CLIP_OBSERVATION,
    "clip_reward": CLIP_REWARD,
}
SMALL: dict[str, Any] = {"hidden_sizes": [8], "batch_size": 16, "learning_starts": 40, "buffer_size": 500}
DISCRETE, BOX = "toy_envs:Toy/DriftDiscrete-v0", "toy_envs:Toy/DriftBox-v0"


class Witness:
    """Everything that the environments of one task gave, and what it is under the statistics of all of it."""

    def __init__(self) -> None:
        self.shown: list[np.ndarray] = []  # [num_envs, ...] each
        self.steps: list[StepBatch] = []
        self.begins: dict[bytes, tuple[int, int]] = {}  # environment and number of the step that an observation begins

    def show(self, observation: np.ndarray) -> None:
        self.shown.append(observation.copy())
        for env, row in enumerate(observation):
            self.begins[row.tobytes()] = env, len(self.steps)

    def scaled(self, observation: np.ndarray) -> np.ndarray:
        everything = np.concatenate(self.shown)
        deviation = np.sqrt(everything.var(axis=0) + EPSILON)
        return np.clip((observation - everything.mean(axis=0)) / deviation, -CLIP_OBSERVATION, CLIP_OBSERVATION)

    def rewards(self) -> np.ndarray:
        """Return the scaled reward of every step, [steps, num_envs]."""
        running, returns = np.zeros(len(self.shown[0])), []
        for step in self.steps:
            running = running * GAMMA + step.reward
            returns.append(running.copy())
            running[step.terminated | step.truncated] = 0.0
        raw = np.array([step.reward for step in self.steps], np.float64)
        return np.clip(raw / np.sqrt(np.var(returns) + EPSILON), -CLIP_REWARD, CLIP_REWARD)

    def going_on(self, env: int, first: int, count: int) -> list[int]:
        """Return the numbers of up to `count` steps of an environment from `first` on, to the end of its episode."""
        found = []
        for number in range(first, min(first + count, len(self.steps))):
            found.append(number)
            if self.steps[number].terminated[env] or self.steps[number].truncated[env]:
                break
        return found

    def transition(self, env: int, first: int, n_step: int, rewards: np.ndarray) -> tuple[float, float, np.ndarray]:
        """Return the n-step reward, the discount and the raw successor of a step."""
        numbers = self.going_on(env, first, n_step)
        reward = sum(GAMMA**power * rewards[number, env] for power, number in enumerate(numbers))
        last = self.steps[numbers[-1]]
        successor = last.final_obs
        assert isinstance(successor, np.ndarray)
        return reward, 0.0 if last.terminated[env] else GAMMA ** len(numbers), successor[env]


def rows_of(replay: Replay, column: str, rows: np.ndarray) -> np.ndarray:
    """Return the observations that a replay holds for transitions, as it holds them."""
    stored = replay.observations.get(replay.columns[column][rows])
    assert isinstance(stored, np.ndarray)
    return stored


class Witnesses:
    """Watches all training environments of a run."""

    def __init__(self) -> None:
        self.by_env: dict[int, Witness] = {}
        self.checked = 0

    def of(self, stored: np.ndarray) -> Witness:
        """Return who saw an observation, which has to be stored as the environment gave it."""
        (found,) = (witness for witness in self.by_env.values() if stored.tobytes() in witness.begins)
        return found

    def reset(self, env: SyncVectorEnv, seeds: Any) -> Any:
        observation, mask = original_reset(env, seeds)
        witness = self.by_env.setdefault(id(env), Witness())
        assert isinstance(observation, np.ndarray)
        witness.show(observation)
        return observation, mask

    def step(self, env: SyncVectorEnv, actions: np.ndarray) -> StepBatch:
        step = original_step(env, actions)
        witness = self.by_env[id(env)]
        witness.steps.append(step)
        assert isinstance(step.obs, np.ndarray)
        witness.show(step.obs)
        return step


original_reset, original_step = SyncVectorEnv.reset, SyncVectorEnv.step


@pytest.fixture
def witnesses(monkeypatch: pytest.MonkeyPatch) -> Iterator[Witnesses]:
    found = Witnesses()
    monkeypatch.setattr(SyncVectorEnv, "reset", lambda env, seeds: found.reset(env, seeds))
    monkeypatch.setattr(SyncVectorEnv, "step", lambda env, actions: found.step(env, actions))
    yield found
    assert found.checked


def close(actual: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.asarray(actual), np.asarray(expected), rtol=2e-4, atol=2e-4)


# -- transitions ---------------------------------------------------------------------------------


KINDS: dict[str, dict[str, Any]] = {
    "plain": {"algo": "dqn", "env_id": DISCRETE},
    "continuous": {"algo": "sac", "env_id": BOX},
    "n-step": {"algo": "dqn", "env_id": DISCRETE, "algo_kwargs": {"n_step": 3}},
    "stacked": {"algo": "sac", "env_id": BOX, "env_kwargs": {"frame_stack": 3}},
    "prioritised": {
        "algo": "dqn",
        "env_id": DISCRETE,
        "algo_kwargs": {"prioritized": True, "n_step": 2},
        "env_kwargs": {"frame_stack": 2},
    },
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_drawn_batch_is_the_raw_steps_under_the_statistics_of_now(
    kind: str, witnesses: Witnesses, tmp_path: Path
) -> None:
    about = KINDS[kind]
    settings: dict[str, Any] = {**SMALL, "gamma": GAMMA, "n_step": 1, **about.get("algo_kwargs", {})}
    original_sample = Replay.sample

    def sample(replay: Replay, *arguments: Any, **options: Any) -> tuple[list[ReplayBatch], np.ndarray]:
        batches, drawn = original_sample(replay, *arguments, **options)
        for batch, rows in zip(batches, drawn, strict=True):
            stored = rows_of(replay, "observation", rows)
            witness = witnesses.of(stored[0])
            rewards = witness.rewards()
            places = [witness.begins[row.tobytes()] for row in stored]
            expected = [witness.transition(*place, settings["n_step"], rewards) for place in places]
            close(batch.observation, witness.scaled(stored))
            close(batch.reward, [reward for reward, _, _ in expected])
            close(batch.discount, [discount for _, discount, _ in expected])
            close(batch.next_observation, witness.scaled(np.array([successor for _, _, successor in expected])))
            assert batch.reward.dtype == torch.float32
            witnesses.checked += 1
        return batches, drawn

    config = tiny_config(
        tmp_path,
        algo=about["algo"],
        env_id=about["env_id"],
        total_timesteps=120,
        eval_interval=60,
        env_kwargs={**NORMALIZED, **about.get("env_kwargs", {})},
        algo_kwargs={**settings, "train_interval": 10},
    )
    with mock.patch.object(Replay, "sample", sample):
        train(config)
    (witness,) = witnesses.by_env.values()
    clipped = np.abs(witness.rewards()) == CLIP_REWARD
    assert clipped.any()  # the bound matters, and is that of single rewards
    assert not clipped.all()


@pytest.mark.parametrize(("algorithm", "env_id"), [(DQN, DISCRETE), (SAC, BOX)])
def test_the_policy_acts_on_scaled_observations(
    algorithm: type[DQN] | type[SAC], env_id: str, witnesses: Witnesses, tmp_path: Path
) -> None:
    original_act = algorithm.act

    def act(actor: Any, observation: torch.Tensor, *arguments: Any) -> torch.Tensor:
        (witness,) = witnesses.by_env.values()
        close(observation, witness.scaled(witness.shown[-1]))
        witnesses.checked += 1
        return original_act(actor, observation, *arguments)

    config = tiny_config(
        tmp_path,
        algo="dqn" if algorithm is DQN else "sac",
        env_id=env_id,
        total_timesteps=80,
        eval_interval=None,
        env_kwargs=NORMALIZED,
        algo_kwargs={**SMALL, "gamma": GAMMA, "train_interval": 10},
    )
    with mock.patch.object(algorithm, "act", act):
        train(config)


# -- windows -------------------------------------------------------------------------------------


def check_windows(
    witnesses: Witnesses, maker: BatchMaker, replay: TrajectoryReplay, rows: np.ndarray, batch: UnrollBatch
) -> None:
    """Assert that a planning batch is made of the raw steps under the statistics of now."""
    stored = rows_of(replay, "observation", rows)
    witness = witnesses.of(stored[0])
    rewards, params = witness.rewards(), maker.params
    close(batch.observation, witness.scaled(stored))
    places, expected, after = [], [], []
    for column, row in enumerate(stored):
        env, first = witness.begins[row.tobytes()]
        for state, number in enumerate(witness.going_on(env, first, params.unroll_steps)):
            close(batch.reward[state, column], rewards[number, env])
            places.append((state, column))
            expected.append(witness.transition(env, number, params.n_step, rewards))
            after.append(witness.transition(env, number, 1, rewards)[2])
    states, columns = np.array(places).T
    total, discount = np.array([row[:2] for row in expected]).T
    reached = witness.scaled(np.array([successor for _, _, successor in expected])).astype(np.float32)
    with torch.inference_mode():
        worth = maker.network.values(torch.from_numpy(reached)).numpy()
    close(batch.value[states, columns], total + discount * worth)
    if isinstance(batch.successor, torch.Tensor):
        close(batch.successor[states * len(rows) + columns], witness.scaled(np.array(after)))
    witnesses.checked += 1


SUITE = {
    "tasks": [
        {"env_id": DISCRETE, "name": "one", **NORMALIZED},
        {"env_id": DISCRETE, "name": "other", **NORMALIZED, "max_episode_steps": 5},
    ]
}
PLANNING: dict[str, dict[str, Any]] = {
    "muzero": {"algo": "muzero", "env_kwargs": {**NORMALIZED, "frame_stack": 2}},
    "efficientzero": {
        "algo": "efficientzero",
        "env_kwargs": NORMALIZED,
        "algo_kwargs": {"value_prefix_horizon": 1, "shrink_n_step": False},
    },
    "scalezero": {"algo": "scalezero", "env_id": "suite", "env_kwargs": SUITE},
}


@pytest.mark.parametrize("kind", PLANNING)
def test_planning_windows_are_the_raw_steps_under_the_statistics_of_now(
    kind: str, witnesses: Witnesses, tmp_path: Path
) -> None:
    about = PLANNING[kind]
    small = SMALL_SCALEZERO if kind == "scalezero" else SMALL_PLANNING
    original_make, original_run = BatchMaker.make, TreeSearch.run

    def make(maker: BatchMaker, replay: TrajectoryReplay, rows: np.ndarray, *more: Any, **options: Any) -> UnrollBatch:
        batch = original_make(maker, replay, rows, *more, **options)
        check_windows(witnesses, maker, replay, rows, batch)
        return batch

    def run(search: TreeSearch, model: Any, observation: Any, **options: Any) -> Any:
        if isinstance(observation, torch.Tensor):  # of acting, of policies searched again, and of nothing else
            known = [witness.scaled(np.concatenate(witness.shown)) for witness in witnesses.by_env.values()]
            seen = observation.numpy().reshape(len(observation), 1, -1)
            everything = np.concatenate(known).reshape(1, -1, seen.shape[-1])
            assert np.abs(seen - everything).max(axis=-1).min(axis=1).max() < 1e-3
        return original_run(search, model, observation, **options)

    config = tiny_config(
        tmp_path,
        env_id=about.get("env_id", DISCRETE),
        algo=about["algo"],
        total_timesteps=80,
        eval_episodes=0,
        torch_threads=1,
        env_kwargs=about["env_kwargs"],
        algo_kwargs={
            **small,
            "learning_starts": 40,
            "gamma": GAMMA,
            "reanalyze_ratio": 0.5,
            "replay_ratio": 0.1,
            "support_size": 20,
            **about.get("algo_kwargs", {}),
        },
    )
    with mock.patch.object(BatchMaker, "make", make), mock.patch.object(TreeSearch, "run", run):
        train(config)
    assert len(witnesses.by_env) == (2 if kind == "scalezero" else 1)


# -- hindsight -----------------------------------------------------------------------------------


def test_an_event_pays_the_same_whether_it_was_stored_or_relabelled(tmp_path: Path) -> None:
    """A goal that is missed pays -1 in this task, and a goal that is reached 0."""
    seen: set[float] = set()
    original_sample = Replay.sample

    def sample(replay: Replay, *arguments: Any, **options: Any) -> tuple[list[ReplayBatch], np.ndarray]:
        batches, rows = original_sample(replay, *arguments, **options)
        for batch in batches:
            assert len(set(batch.reward.tolist())) <= 2
            assert set(batch.reward.tolist()) <= set(replay.normalizers.scale_reward(np.array([0.0, -1.0])).tolist())
            seen.update(np.sign(batch.reward.numpy()).tolist())
        return batches, rows

    hindsight = {"hindsight": "future", "hindsight_ratio": 0.5}
    config = tiny_config(
        tmp_path,
        algo="dqn",
        env_id="rl_training.envs.goal_tasks:BitFlip-v0",
        total_timesteps=120,
        eval_episodes=0,
        env_kwargs={"normalize_reward": True},
        algo_kwargs={**SMALL, **hindsight, "train_interval": 4},
    )
    with mock.patch.object(Replay, "sample", sample):
        train(config)
    assert seen == {-1.0, 0.0}


# -- checkpoints of versions that stored what was scaled --------------------------------------------


def stopped_run(output_dir: Path, task: str) -> Path:
    """Return an interrupted run whose manifest says nothing of raw rows, as those of earlier versions."""
    with stopped_after(40):
        run_dir = train(off_policy_config(task, output_dir)).run_dir
    path = last_checkpoint(run_dir) / MANIFEST
    manifest = json.loads(path.read_text(encoding="utf-8"))
    assert all(entry.pop("raw") for entry in manifest["segments"])
    path.write_text(json.dumps(manifest), encoding="utf-8")
    return run_dir


def test_a_replay_of_scaled_numbers_is_refused_and_its_policy_still_loads(tmp_path: Path) -> None:
    run_dir = stopped_run(tmp_path, "sac")
    with pytest.raises(CheckpointError, match="Resume it with the version that wrote it, or train anew"):
        resume(run_dir)
    assert load_policy(run_dir).predict(np.zeros(3, np.float32)).shape == (1,)


def test_a_replay_of_an_earlier_version_goes_on_where_nothing_is_normalised(tmp_path: Path) -> None:
    run_dir = stopped_run(tmp_path, "dqn")
    assert resume(run_dir).status == "completed"
    assert segment_entries(last_checkpoint(run_dir))[-1]["raw"]

"""Agents of one world are rows of a batch; nothing is learned from the rows of agents that are absent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from harness import assert_same_run, metric_rows, tiny_config, train_with_stops
from rl_training.algorithms.params.ppo_params import PPOParams
from rl_training.algorithms.params.recurrent_params import RecurrentParams
from rl_training.algorithms.ppo import PPO
from rl_training.algorithms.recurrent.recurrent_ppo import RecurrentPPO, SequenceBatch
from rl_training.data.rollout import Rollout, RolloutStorage
from rl_training.envs.make import check_environment, make_slots, make_vector_env
from rl_training.envs.normalize import with_normalization
from rl_training.errors import ConfigError, EnvironmentFailure, NonFiniteError
from rl_training.experiment.configuration.env_params import EnvParams
from rl_training.experiment.own_code.user_code import admit
from rl_training.runtime.workflows import evaluate, train

pytest.importorskip("pettingzoo")

HERE = "test_multi_agent"
WORLD = f"pettingzoo:{HERE}"
# When each agent is there: from its first step to the one after which it leaves, in an episode of six steps.
STAYS = {"early": (0, 3), "late": (2, 6), "host": (0, 6)}
LAST = 6


class Visitors:
    """Agents that come and go; each sees [its number, the step, the episode] and earns 10 * number + step."""

    def __init__(self, fault: str = "", masks: bool = False) -> None:
        self.possible_agents = list(STAYS)
        self.agents: list[str] = []
        self.fault, self.masks = fault, masks
        self.clock = 0
        self.episode = -1
        self.last_actions: dict[str, Any] = {}

    @property
    def unwrapped(self) -> Any:
        return self

    def observation_space(self, agent: str) -> gym.Space[Any]:
        size = 4 if self.fault == "spaces" and agent == "host" else 3
        return gym.spaces.Box(-100.0, 100.0, (size,), np.float32)

    def action_space(self, agent: str) -> gym.Space[Any]:
        return gym.spaces.Discrete(2)

    def _show(self, agents: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
        shown = {
            agent: np.array([self.possible_agents.index(agent), self.clock, self.episode], np.float32)
            for agent in agents
        }
        if self.fault == "nan" and self.clock == 2:
            shown["host"][0] = np.nan
        infos: dict[str, Any] = {agent: {} for agent in agents}
        if self.masks:
            infos = {agent: {"action_mask": [True, agent == "host"]} for agent in agents}
        return shown, infos

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.clock = 0
        self.episode += 1
        self.agents = [agent for agent, (come, _) in STAYS.items() if come == 0]
        return self._show(self.agents)

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        assert set(actions) == set(self.agents), "every agent acts, and nobody else"
        if self.fault == "step":
            raise RuntimeError("broken")
        self.last_actions = dict(actions)
        self.clock += 1
        acted = list(self.agents)
        leaving = [agent for agent in acted if STAYS[agent][1] == self.clock]
        coming = [agent for agent, (come, _) in STAYS.items() if come == self.clock]
        self.agents = [agent for agent in self.possible_agents if agent in acted + coming and agent not in leaving]
        shown, infos = self._show(acted + coming)
        rewards = {agent: 10.0 * self.possible_agents.index(agent) + self.clock for agent in acted}
        terminations = {agent: agent in leaving and agent != "host" for agent in acted}
        truncations = {agent: agent in leaving and agent == "host" for agent in acted}
        return shown, rewards, terminations, truncations, infos

    def close(self) -> None: ...


def parallel_env(**kwargs: Any) -> Visitors:
    return Visitors(**kwargs)


def _vector(num_envs: int = 3, **kwargs: Any) -> Any:
    return make_vector_env(WORLD, kwargs, mode="training", num_envs=num_envs, backend="auto")


def _play(env: Any, steps: int) -> list[Any]:
    return [env.step(np.zeros(env.num_envs, np.int64)) for _ in range(steps)]


def test_rows_are_the_agents_of_one_world_after_the_other() -> None:
    env = _vector(6)
    obs, mask = env.reset([1, 2, 3, 4, 5, 6])
    assert obs[:, 0].tolist() == [0, 0, 2, 0, 0, 2]  # one who comes later shows what another sees
    assert mask is None
    step = env.step(np.zeros(6, np.int64))
    assert step.reward.tolist() == [1, 0, 21] * 2


@pytest.mark.parametrize("name", ["", ":parallel_env", ":Visitors"])
def test_a_module_without_a_name_means_its_parallel_env(name: str) -> None:
    if name:
        admit(f"{HERE}{name}", place="env_id")  # as written by a user
    space, action = check_environment(f"pettingzoo:{HERE}{name}", {})
    assert space.shape == (3,)
    assert isinstance(action, gym.spaces.Discrete)


def test_an_agent_is_real_from_its_coming_to_its_leaving() -> None:
    env = _vector()
    env.reset([1, 2, 3])
    steps = _play(env, LAST)
    real = np.array([np.ones(3, bool) if step.real is None else step.real for step in steps])
    assert real.T.tolist() == [
        [True] * 3 + [False] * 3,
        [False] * 2 + [True] * 4,
        [True] * 6,
    ]
    present = np.array([np.ones(3, bool) if step.present is None else step.present for step in steps])
    assert present[:-1].tolist() == real[1:].tolist()
    assert present[-1].tolist() == [True, False, True]  # of the next episode
    rewards = np.array([step.reward for step in steps]).T
    assert rewards.tolist() == [[1, 2, 3, 0, 0, 0], [0, 0, 13, 14, 15, 16], [21, 22, 23, 24, 25, 26]]
    for step in steps:
        rows = np.zeros(3, bool) if step.real is None else ~step.real
        assert step.terminated[rows].all()


def test_ends_episodes_and_returns_are_each_agents_own() -> None:
    env = _vector()
    env.reset([1, 2, 3])
    steps = _play(env, 2 * LAST)
    ends = {number: step.episodes for number, step in enumerate(steps) if step.episodes}
    assert {number: [tuple(end) for end in found] for number, found in ends.items()} == {
        2: [(0, 6.0, 3)],
        5: [(1, 58.0, 4), (2, 141.0, 6)],
        8: [(0, 6.0, 3)],
        11: [(1, 58.0, 4), (2, 141.0, 6)],
    }
    assert steps[5].metrics == [{"return_late": 58.0}, {"return_host": 141.0}]
    assert steps[2].terminated.tolist() == [True, False, False]
    assert steps[5].truncated.tolist() == [False, False, True]


def test_final_observations_are_those_before_the_reset() -> None:
    env = _vector()
    env.reset([1, 2, 3])
    last = _play(env, LAST)[-1]
    assert last.final_obs[1:, :2].tolist() == [[1, 6], [2, 6]]
    assert last.obs[:, 1].tolist() == [0, 0, 0]
    assert last.obs[2, 2] == 1


def test_a_time_limit_truncates_everybody() -> None:
    env = _vector(max_episode_steps=4)
    env.reset([1, 2, 3])
    last = _play(env, 4)[-1]
    assert last.truncated.tolist() == [False, True, True]
    assert [end.length for end in last.episodes] == [2, 4]
    assert last.obs[2, 1] == 0


def test_masks_are_each_agents_own() -> None:
    env = _vector(masks=True)
    _, mask = env.reset([1, 2, 3])
    assert mask.tolist() == [[True, False], [True, True], [True, True]]  # who has not come yet has no mask
    assert env.step(np.zeros(3, np.int64)).action_mask.tolist() == [[True, False], [True, True], [True, True]]


def test_a_restored_batch_continues_identically() -> None:
    original, fresh = _vector(6), _vector(6)
    original.reset(list(range(6)))
    _play(original, 4)
    fresh.load_state_dict(original.state_dict())
    for ours, theirs in zip(_play(original, 9), _play(fresh, 9), strict=True):
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_equal(one, other)


def test_statistics_are_those_of_real_steps_alone() -> None:
    env = with_normalization(_vector(), EnvParams(normalize_observation=True, normalize_reward=True), gamma=0.5)
    env.reset([1, 2, 3])
    first: Any = env.normalizers.observation  # type: ignore[attr-defined]
    counted = first.state_dict()
    _play(env, LAST)
    added = [
        after["count"] - before["count"]
        for before, after in zip(counted.values(), first.state_dict().values(), strict=True)
    ]
    # Of the 18 rows that were shown: early in steps 1, 2 and 6, late in 2 to 5, host in all.
    assert added == [3 + 4 + 6]


@pytest.mark.parametrize(
    ("kwargs", "error", "text"),
    [
        ({"fault": "spaces"}, ConfigError, "one policy acts for all agents"),
        ({"fault": "unknown", "frame_stack": 2}, ConfigError, "env_kwargs.frame_stack: is for environments with one"),
        ({"color": 1}, ConfigError, "refuses color=1"),
    ],
)
def test_a_world_that_cannot_be_learned_is_refused(kwargs: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        check_environment(WORLD, kwargs)


def test_agents_must_fill_whole_worlds() -> None:
    with pytest.raises(ConfigError, match="set it to a multiple of 3, such as 6"):
        _vector(4)


def test_other_backends_and_single_environments_are_refused() -> None:
    with pytest.raises(ConfigError, match="execution_backend"):
        make_vector_env(WORLD, {}, mode="training", num_envs=3, backend="local_async")
    with pytest.raises(ConfigError, match="several agents"):
        make_slots(WORLD, {}, mode="training", count=1)


@pytest.mark.parametrize(
    ("fault", "error", "text"),
    [("step", EnvironmentFailure, "RuntimeError: broken"), ("nan", NonFiniteError, "host saw NaN")],
)
def test_a_fault_names_the_world_and_its_seed(fault: str, error: type[Exception], text: str) -> None:
    env = _vector(fault=fault)
    env.reset([5, 6, 7])
    with pytest.raises(error, match=r"world 0 \(seed 5\)") as caught:
        _play(env, 3)
    assert text in str(caught.value)


def _rollout(memory: bool) -> Rollout:
    """Return a rollout of two episodes of `Visitors`."""
    env = _vector()
    obs, _ = env.reset([1, 2, 3])
    storage = RolloutStorage(2 * LAST, 3, env.observation_space, np.zeros(3, np.int64))
    zeros = np.zeros(3, np.float32)
    remembered: dict[str, Any] = {"log_prob": zeros, "value": zeros, "memory": np.zeros((3, 8), np.float32)}
    for step in _play(env, 2 * LAST):
        given = remembered if memory else {}
        storage.add(
            obs, np.zeros(3, np.int64), None, step.reward, step.terminated, step.truncated, real=step.real, **given
        )
        obs = step.obs
    return storage.on_device(obs, torch.device("cpu"), remembered["memory"] if memory else None)


def _algorithm(**kwargs: Any) -> Any:
    params = PPOParams(num_steps=2 * LAST, minibatch_size=8, hidden_sizes=(8,), **kwargs)
    kind: Any = PPO.for_params(params)
    space = gym.spaces.Box(-100.0, 100.0, (3,), np.float32)
    generator = torch.Generator().manual_seed(0)
    return kind(params, space, gym.spaces.Discrete(2), device=torch.device("cpu"), generator=generator)


def test_ppo_learns_from_real_steps_alone() -> None:
    algorithm, rollout = _algorithm(gamma=0.5, gae_lambda=1.0), _rollout(memory=False)
    batch = algorithm.prepare(rollout)
    assert len(batch.log_prob) == 2 * (3 + 4 + 6)
    numbers = batch.observation[:, 0].tolist()
    assert [numbers.count(number) for number in (0, 1, 2)] == [6, 8, 12]
    # The first agent leaves after its third step: nothing of what others earn later reaches its returns.
    early = batch.target_value[(batch.observation[:, 0] == 0) & (batch.observation[:, 2] == 0)]
    torch.testing.assert_close(early, torch.tensor([1 + 0.5 * 2 + 0.25 * 3, 2 + 0.5 * 3, 3.0]))
    algorithm.update(rollout, {"learning_rate": 1e-3, "clip_coef": 0.2, "ent_coef": 0.0}, torch.Generator())


def test_recurrent_ppo_learns_from_real_steps_alone() -> None:
    algorithm = _algorithm(recurrent=RecurrentParams(size=2, sequence_length=4))
    assert isinstance(algorithm, RecurrentPPO)
    rollout = _rollout(memory=True)
    batch = algorithm.prepare(rollout)
    assert isinstance(batch, SequenceBatch)
    assert isinstance(batch.observation, torch.Tensor)
    assert int(batch.sequences.lengths.sum()) == len(batch.log_prob) == 2 * (3 + 4 + 6)
    starts = torch.cumsum(batch.sequences.lengths, 0) - batch.sequences.lengths
    for start, length in zip(starts.tolist(), batch.sequences.lengths.tolist(), strict=True):
        rows = batch.observation[start : start + length]
        assert (rows[:, 0] == rows[0, 0]).all()  # one agent
        assert (rows[:, 2] == rows[0, 2]).all()  # one episode
        assert rows[:, 1].diff().tolist() == [1.0] * (length - 1)


@pytest.mark.parametrize("recurrent", [None, {"size": 4, "sequence_length": 4}])
def test_a_run_with_agents_that_come_and_go_is_resumed_exactly(tmp_path: Path, recurrent: Any) -> None:
    def config(name: str) -> Any:
        return tiny_config(
            tmp_path / name,
            env_id=WORLD,
            num_envs=6,
            total_timesteps=384,
            algo_kwargs={"recurrent": recurrent},
            env_kwargs={"normalize_observation": True, "normalize_reward": True},
        )

    straight = train(config("straight")).run_dir
    assert_same_run(train_with_stops(config("stopped"), [3, 20]), straight)
    returns = [row["env_return_host"] for row in metric_rows(straight) if "env_return_host" in row]
    assert set(returns) == {141.0}
    assert evaluate(straight, num_episodes=3).metrics["eval_return_mean"] == pytest.approx((6 + 58 + 141) / 3)
    assert evaluate(straight, num_episodes=3).metrics["eval_env_return_late"] == 58.0


def test_samplers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="samplers"):
        train(tiny_config(tmp_path, env_id=WORLD, num_envs=6, samplers=1))


def test_pqn_learns_beside_absent_agents(tmp_path: Path) -> None:
    pqn: dict[str, Any] = {"algo": "pqn", "algo_kwargs": {"num_steps": 8, "minibatch_size": 16, "hidden_sizes": [8]}}
    result = train(tiny_config(tmp_path, env_id=WORLD, num_envs=6, total_timesteps=96, **pqn))
    assert result.status == "completed"


def test_a_replay_refuses_agents_that_leave(tmp_path: Path) -> None:
    dqn: dict[str, Any] = {"algo": "dqn", "algo_kwargs": {"learning_starts": 9}}
    config = tiny_config(tmp_path, env_id=WORLD, num_envs=3, total_timesteps=96, **dqn)
    with pytest.raises(ConfigError, match="choose ppo, a2c or pqn"):
        train(config)


def test_dqn_learns_where_everybody_stays(tmp_path: Path) -> None:
    pytest.importorskip("mpe2")
    config = tiny_config(
        tmp_path,
        algo="dqn",
        env_id="pettingzoo:mpe2.simple_spread_v3",
        num_envs=6,
        total_timesteps=300,
        algo_kwargs={"learning_starts": 100, "buffer_size": 500},
    )
    row = metric_rows(train(config).run_dir)[-1]
    assert row["eval_env_return_agent_0"] < 0

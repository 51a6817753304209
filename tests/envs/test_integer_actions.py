"""Box actions of integers: every one of them is taken, the highest too."""

from __future__ import annotations

from typing import Any, cast

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from harness import tiny_config
from rl_training.errors import ConfigError
from rl_training.models.continuous import ActionScale
from rl_training.models.heads import make_action_head
from rl_training.runtime.acting.policy import load_policy
from rl_training.runtime.workflows import train


class Levels(gym.Env[Any, Any]):
    """Takes one of five levels and pays for the highest."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Box(-2, 2, (1,), np.int8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._left = 8
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        self._left -= 1
        return np.zeros(1, np.float32), float(action[0] == 2), False, self._left == 0, {}


gym.register("Test/Levels-v0", entry_point=cast("Any", Levels))


@pytest.mark.parametrize(("low", "high", "dtype"), [(-2, 2, np.int8), (0, 255, np.uint8), (0, 1, np.bool_)])
def test_under_uniform_actions_every_integer_is_equally_likely(low: int, high: int, dtype: Any) -> None:
    scale = ActionScale(spaces.Box(low, high, (1,), dtype))
    count = high - low + 1
    middles = (torch.arange(1000 * count, dtype=torch.float64) + 0.5) / (500 * count) - 1.0
    taken = scale.to_env(middles.unsqueeze(1))
    assert taken.dtype == dtype
    values, counts = np.unique(taken.astype(int), return_counts=True)
    assert values.tolist() == list(range(low, high + 1))
    assert counts.tolist() == [1000] * count
    ends = scale.to_env(torch.tensor([[-1.0], [1.0]])).astype(int)
    assert ends.tolist() == [[low], [high]]


def test_bounds_may_differ_by_entry() -> None:
    scale = ActionScale(spaces.Box(np.array([0, -5]), np.array([3, -4]), (2,), np.int64))
    inner = torch.tensor([[-1.0, -1.0], [-0.51, -0.01], [0.49, 0.01], [1.0, 1.0]])
    assert scale.to_env(inner).tolist() == [[0, -5], [0, -5], [2, -4], [3, -4]]


def test_integers_without_bounds_worth_the_name_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"reach beyond 16777216.*narrower bounds, or float32"):
        ActionScale(spaces.Box(np.iinfo(np.int64).min, np.iinfo(np.int64).max, (1,), np.int64))


def test_a_normal_distribution_gives_the_nearest_integers_within_the_bounds() -> None:
    head = make_action_head(
        spaces.Box(-2, 2, (1,), np.int8),
        4,
        log_std="state_independent",
        log_std_init=0.0,
        use_sde=False,
        orthogonal=False,
        generator=torch.Generator(),
    )
    raw = torch.tensor([[-7.0], [-1.51], [-1.49], [-0.49], [0.49], [0.51], [1.51], [9.0]])
    taken = head.env_action(raw)
    assert taken.dtype == np.int8
    assert taken[:, 0].tolist() == [-2, -2, -1, 0, 0, 1, 2, 2]


@pytest.mark.parametrize(
    ("algo", "algo_kwargs"),
    [("ppo", {}), ("sac", {"learning_starts": 16, "batch_size": 8, "buffer_size": 100, "hidden_sizes": [8]})],
)
def test_a_policy_predicts_members_of_an_integer_box(algo: str, algo_kwargs: dict[str, Any], tmp_path: Any) -> None:
    changes = {"algo": algo, "env_id": "Test/Levels-v0", "algo_kwargs": algo_kwargs, "total_timesteps": 64}
    run_dir = train(tiny_config(tmp_path, **changes)).run_dir
    actions = load_policy(run_dir).predict(np.zeros((200, 1), np.float32), deterministic=False, seed=1)
    assert actions.dtype == np.int8
    assert {-2, 2} <= set(actions[:, 0].tolist()) <= set(range(-2, 3))

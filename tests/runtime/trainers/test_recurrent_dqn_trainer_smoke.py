"""DQN with a memory is wired up for every kind of observation, and acts, is evaluated and exported as it learned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from off_policy_runs import last_row, tiny_run, train_tiny
from rl_training.errors import ConfigError
from rl_training.runtime.acting.policy import load_policy
from rl_training.runtime.workflows import evaluate

MEMORY = {"size": 6, "sequence_length": 5, "burn_in": 3}


def settings(**more: Any) -> dict[str, Any]:
    """Return small settings with a memory."""
    return {"recurrent": MEMORY, "n_step": 2, "train_interval": 8, **more}


@pytest.mark.parametrize(
    ("env_id", "algo"),
    [
        ("toy_envs:Toy/Image-v0", "dqn"),
        ("toy_envs:Toy/Dict-v0", "qr_dqn"),
        ("toy_envs:Toy/MaskedDiscrete-v0", "rainbow"),
    ],
)
def test_every_kind_of_observation_is_remembered(tmp_path: Path, env_id: str, algo: str) -> None:
    result = train_tiny(tmp_path, algo, env_id, algo_kwargs=settings())
    assert last_row(result.run_dir)["loss_q"] > 0
    again = [evaluate(result.run_dir, num_episodes=3).metrics["eval_return_mean"] for _ in range(2)]
    assert again[0] == again[1]


def test_a_trained_policy_remembers_in_predict_and_says_why_it_learned_by_autograd(tmp_path: Path) -> None:
    result = train_tiny(tmp_path, "dqn", "CartPole-v1", algo_kwargs=settings())
    policy = load_policy(result.run_dir)
    observations = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    state = None
    for observation in observations:
        action, state = policy.predict(observation, state)
        assert policy.action_space.contains(action)
    assert state is not None
    assert state.shape == (12,)
    _, fresh = policy.predict(observations[-1], state, True)
    _, first = policy.predict(observations[-1])
    np.testing.assert_array_equal(fresh, first)
    assert not np.allclose(state, first)
    used = json.loads((result.run_dir / "metadata.json").read_text())["acceleration"]
    assert used["kernel"] is None
    assert "RecurrentDQN.loss is not that of DQN" in used["reason"]


def test_settings_of_rollouts_are_unknown_to_a_replayed_memory(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"recurrent.*separate_critic"):
        tiny_run(tmp_path, "dqn", "CartPole-v1", algo_kwargs=settings(recurrent={"separate_critic": True}))

"""What the proof of parity allows: ties between actions, and rounding that an environment amplifies; nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from exporting.exports import toy
from rl_training import load_policy
from rl_training.deploy import ExportedPolicy
from rl_training.experiment.tasks import Task
from rl_training.runtime.acting.evaluator import evaluate_policy
from rl_training.runtime.acting.policy import Policy
from rl_training.runtime.export.parity import PlayedPolicy, Rounded, measure_parity
from rl_training.runtime.workflows import train


class Acting(ExportedPolicy):
    """In the place of an exported policy: the policy's actions, changed."""

    def __init__(self, policy: Policy, change: Any) -> None:
        self.policy, self.change = policy, change

    @property
    def takes_mask(self) -> bool:
        return False

    @property
    def memory_size(self) -> int:
        return self.policy.memory_size

    def act(self, observation: Any, mask: Any = None, memory: Any = None) -> tuple[np.ndarray, np.ndarray | None]:
        actions, after = self.policy.act(observation, mask, None, memory)
        return self.change(actions), after


class Growing(gym.Env[Any, Any]):
    """A number that actions push, and whose differences grow by `factor` per step: chaos if that is above 1."""

    def __init__(self, factor: float = 1.0) -> None:
        self.factor = factor
        self.observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = gym.spaces.Box(-1, 1, (2,), np.float32)
        self.place, self.steps = 0.0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.steps = float(self.np_random.uniform()), 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.place = (self.factor * self.place + 0.01 * float(action[0])) % 1.0
        self.steps += 1
        return self._seen(), self.place, False, self.steps == 60, {}

    def _seen(self) -> np.ndarray:
        return np.array([self.place, 1.0], np.float32)


for name, factor in (("Calm", 0.5), ("Chaotic", 3.0)):
    if f"Parity/{name}-v0" not in gym.registry:
        gym.register(f"Parity/{name}-v0", entry_point=f"{__name__}:Growing", kwargs={"factor": factor})


@pytest.fixture(scope="module")
def continuous(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    return load_policy(train(toy(tmp_path_factory.mktemp("box"), "Box")).run_dir)


@pytest.fixture(scope="module")
def discrete(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    return load_policy(train(toy(tmp_path_factory.mktemp("discrete"), "Discrete")).run_dir)


def report(policy: Policy, env_id: str, change: Any) -> dict[str, Any]:
    task = Task(env_id, env_id, {})
    played = PlayedPolicy(policy)
    episodes = evaluate_policy(played, task, [1, 2, 3])
    return measure_parity(played, Acting(policy, change), task, episodes)


def test_the_same_actions_pass(discrete: Policy, continuous: Policy) -> None:
    assert report(discrete, "toy_envs:Toy/Discrete-v0", lambda actions: actions)["passed"]
    assert report(continuous, "Parity/Calm-v0", lambda actions: actions)["passed"]


def test_another_action_between_equally_good_ones_is_a_tie(discrete: Policy) -> None:
    head = discrete.actor.model.head.linear  # type: ignore[attr-defined]
    with torch.no_grad():
        head.weight.zero_()
        head.bias.fill_(1.0)
    found = report(discrete, "toy_envs:Toy/Discrete-v0", lambda actions: actions * 0 + 3)
    assert found["recorded"]["passed"]
    assert found["recorded"]["ties"] > 0
    with torch.no_grad():
        head.bias[0] += 0.001
    found = report(discrete, "toy_envs:Toy/Discrete-v0", lambda actions: actions * 0 + 3)
    assert not found["passed"]
    assert found["recorded"]["different"] == found["recorded"]["observations"]


def test_rounding_is_excused_where_it_changes_the_policys_own_returns(continuous: Policy) -> None:
    found = report(continuous, "Parity/Chaotic-v0", lambda actions: actions * np.float32(1 + 1e-6))
    assert found["passed"]
    assert found["returns"]["largest_difference"] > 1e-3
    assert found["returns"]["largest_difference_by_rounding"] > 1e-3


def test_a_difference_above_rounding_is_not_excused(continuous: Policy) -> None:
    found = report(continuous, "Parity/Chaotic-v0", lambda actions: actions + np.float32(1e-3))
    assert not found["passed"]
    assert found["returns"] is None


@pytest.mark.parametrize(
    "change",
    [lambda actions: actions[:, :1], lambda actions: actions.astype(np.float64), lambda actions: actions * np.nan],
)
def test_actions_of_another_form_fail(continuous: Policy, change: Any) -> None:
    assert not report(continuous, "Parity/Calm-v0", change)["passed"]


def test_rounding_changes_products_only_while_it_is_active() -> None:
    weight, inputs = torch.rand(3, 4), torch.rand(2, 4)
    exact = torch.nn.functional.linear(inputs, weight)
    with Rounded(0):
        rounded = torch.nn.functional.linear(inputs, weight)
    assert not torch.equal(rounded, exact)
    torch.testing.assert_close(rounded, exact, rtol=1e-5, atol=0)
    assert torch.equal(torch.nn.functional.linear(inputs, weight), exact)


def test_recorded_rows_are_limited(continuous: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_training.runtime.export.parity.MAX_RECORDED_ROWS", 20)
    played = PlayedPolicy(continuous)
    evaluate_policy(played, Task("Calm", "Parity/Calm-v0", {}), [1, 2])
    assert len(played.observations) == 20
    assert played.actions(np.zeros((3, 2), np.float32)).shape == (3, 2)


def test_paths_are_not_part_of_the_record(tmp_path: Path) -> None:
    from rl_training.runtime.export.export import export_policy

    result = export_policy(train(toy(tmp_path, "Box")).run_dir, format="pt2", episodes=1)
    assert str(tmp_path) not in result.record_path.read_text()

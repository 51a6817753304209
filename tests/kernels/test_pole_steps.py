"""CartPole's rollouts in compiled code: every bit is that of the collector and the environments themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from harness import assert_same_run, task_config, train_with_stops
from rl_training.algorithms.params.ppo_params import PPOParams
from rl_training.algorithms.ppo import PPO
from rl_training.data.rollout import Rollout
from rl_training.envs.families.vector_cartpole import VectorCartPole
from rl_training.envs.normalize import NormalizedVectorEnv, Normalizers
from rl_training.envs.step import Episode, StepBatch
from rl_training.experiment.runs import read_metadata
from rl_training.kernels import poles
from rl_training.kernels.checks import KernelMismatch
from rl_training.kernels.door import attach, attach_collecting
from rl_training.runtime.collector import RolloutCollector
from rl_training.runtime.workflows import train

CPU = torch.device("cpu")
CONTROLS = {"learning_rate": 1e-2, "clip_coef": 0.2, "ent_coef": 0.01}


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def make_collector(
    num_envs: int = 5, *, compiled: bool, learner: type[PPO] = PPO, env: VectorCartPole | None = None, **kwargs: Any
) -> RolloutCollector:
    env = VectorCartPole(num_envs, **{"max_episode_steps": 30, **kwargs}) if env is None else env
    algorithm = learner(
        PPOParams(num_steps=24, minibatch_size=20, update_epochs=2, hidden_sizes=(8, 8)),
        env.observation_space,
        env.action_space,
        device=CPU,
        generator=torch.Generator().manual_seed(0),
    )
    assert attach(algorithm).kernel == "ppo"
    generator = torch.Generator().manual_seed(1)
    collector = RolloutCollector(env, algorithm, num_steps=24, seed=3, device=CPU, generator=generator)
    if compiled:
        assert attach_collecting(collector).kernel == "poles"
    return collector


def bits(rollout: Rollout | None) -> dict[str, bytes]:
    assert rollout is not None
    return {name: value.numpy().tobytes() for name, value in vars(rollout).items() if value is not None}


def state_of(collector: RolloutCollector) -> tuple[Any, ...]:
    env = collector.env.state_dict()
    assert env is not None
    arrays = [env[name].tobytes() for name in ("state", "steps", "returns")]
    return collector.taken.value, arrays, env["generator"], collector.generator.get_state().numpy().tobytes()


@pytest.mark.parametrize("options", [{}, {"sutton_barto_reward": True}, {"num_envs": 1}, {"num_envs": 20}], ids=str)
def test_rollouts_episodes_and_what_they_leave_behind_are_the_same_bits(options: dict[str, Any]) -> None:
    plain, compiled = (make_collector(compiled=compiled, **options) for compiled in (False, True))
    episodes: tuple[list[Episode], list[Episode]] = [], []
    truncated = 0
    for number in range(25):
        for collector, ended in zip((plain, compiled), episodes, strict=True):
            steps: list[StepBatch] = []
            rollout = collector.collect(CONTROLS, on_step=steps.append)
            ended.extend(episode for step in steps for episode in step.episodes)
            assert rollout is not None
            truncated += int(rollout.truncated.sum())
            if collector is plain:
                expected = bits(rollout)
            else:
                assert bits(rollout) == expected
            collector.actor.update(rollout, CONTROLS, torch.Generator().manual_seed(number))
        assert state_of(compiled) == state_of(plain)
    assert episodes[0] == episodes[1]
    assert len(episodes[0]) > 10
    assert truncated > 0


def test_a_rollout_in_progress_is_completed_as_it_would_have_been() -> None:
    plain, compiled = (make_collector(compiled=compiled) for compiled in (False, True))
    steps: list[Any] = []
    assert plain.collect(CONTROLS, interrupted=lambda: len(steps) == 9, on_step=steps.append) is None
    saved, random = plain.state_dict(), plain.generator.get_state()
    compiled.load_state_dict(saved, step=plain.taken.value)
    compiled.generator.set_state(random)
    assert bits(compiled.collect(CONTROLS)) == bits(plain.collect(CONTROLS))
    assert state_of(compiled) == state_of(plain)


def test_a_run_that_was_stopped_and_resumed_is_the_same_as_one_that_was_not(
    tmp_path: Path, accelerate_short_runs: None
) -> None:
    def config(name: str) -> Any:
        return task_config("cartpole_vector", tmp_path / name, torch_threads=1)

    whole = train(config("whole")).run_dir
    assert read_metadata(whole)["acceleration"] == {"kernel": "ppo, poles", "reason": None}
    assert_same_run(whole, train_with_stops(config("stopped"), [3, 2, 2]))


def test_environments_that_move_otherwise_stop_the_run_at_its_first_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    collector = make_collector(compiled=True)
    original = VectorCartPole._move

    def move(env: VectorCartPole, actions: np.ndarray) -> None:
        original(env, actions)
        env.poles[1] *= 1.0000001

    monkeypatch.setattr(VectorCartPole, "_move", move)
    with pytest.raises(KernelMismatch, match=r"`poles`.*first rollout"):
        collector.collect(CONTROLS)


class OwnPole(VectorCartPole):
    """Environments of another class."""


class OwnActing(PPO):
    """A policy of another kind."""

    def env_action(self, action: torch.Tensor) -> np.ndarray:
        return 1 - super().env_action(action)


def test_there_is_a_kernel_only_for_the_package_s_own_environments_and_compiled_actions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    normalized: Any = NormalizedVectorEnv(VectorCartPole(2, max_episode_steps=9), Normalizers())
    for collector, reason in (
        (make_collector(compiled=False, env=OwnPole(2, max_episode_steps=9)), "OwnPole has no kernel"),
        (make_collector(compiled=False, learner=OwnActing), "actions are not chosen by compiled code"),
        (make_collector(compiled=False, env=normalized), "NormalizedVectorEnv has no kernel"),
    ):
        assert attach_collecting(collector).reason == reason
        assert collector.collect(CONTROLS) is not None
    monkeypatch.setattr(poles, "same_sines", lambda: False)
    assert "sines" in str(attach_collecting(make_collector(compiled=False)).reason)

"""DQN and its variants are wired up for every kind of observation, leave what they promise and repeat themselves."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from harness import assert_same_run, final_state, json_rows, weights
from off_policy_runs import COMMON_METRICS, STEPS, last_row, tiny_run, train_rows, train_tiny
from rl_training.algorithms.dqn import DQN
from rl_training.cli import main
from rl_training.data.replay import Replay, ReplayBatch
from rl_training.errors import ConfigError
from rl_training.experiment.configuration.config_files import load_config
from rl_training.runtime.acting.policy import load_policy
from rl_training.runtime.workflows import evaluate, train

VARIANTS = ["dqn", "double_dqn", "c51", "qr_dqn", "rainbow"]
METRICS = COMMON_METRICS | {"loss_q"}
CONTROLS = {"learning_rate", "epsilon", "per_beta"}


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[ReplayBatch]:
    """Every batch that is learned from."""
    kept: list[ReplayBatch] = []
    original = DQN.update

    def watched(self: DQN, batch: ReplayBatch, *arguments: Any) -> Any:
        kept.append(copy.deepcopy(batch))
        return original(self, batch, *arguments)

    monkeypatch.setattr(DQN, "update", watched)
    return kept


# -- spaces --------------------------------------------------------------------------------------


@pytest.mark.parametrize("algo", VARIANTS)
def test_every_variant_trains_and_hands_over_its_policy(tmp_path: Path, algo: str) -> None:
    result = train_tiny(tmp_path, algo, "toy_envs:Toy/Discrete-v0")
    row = last_row(result.run_dir)
    assert row.keys() >= METRICS
    used = {"per_beta"} if algo == "rainbow" else {"epsilon"}  # learned noise explores, priorities are corrected
    assert row.keys() & CONTROLS == {"learning_rate"} | used
    policy = load_policy(result.run_dir)
    observation = np.array([2.0], dtype=np.float32)
    action = policy.predict(observation)
    assert policy.action_space.contains(action)
    assert all(policy.predict(observation) == action for _ in range(3))  # no noise, no epsilon
    batch = policy.predict(np.zeros((5, 1), dtype=np.float32), deterministic=False, seed=1)
    assert batch.shape == (5,)
    again = [evaluate(result.run_dir, num_episodes=3).metrics["eval_return_mean"] for _ in range(2)]
    assert again[0] == again[1]


@pytest.mark.parametrize(
    ("algo", "kind"), [("dqn", "Image"), ("rainbow", "Image"), ("dqn", "Dict"), ("c51", "DictWithImage")]
)
def test_images_and_dicts_train(tmp_path: Path, algo: str, kind: str) -> None:
    settings = {"train_interval": 16, "hidden_sizes": None}
    result = train_tiny(tmp_path, algo, f"toy_envs:Toy/{kind}-v0", algo_kwargs=settings)
    policy = load_policy(result.run_dir)
    assert policy.action_space.contains(policy.predict(policy.observation_space.sample()))
    assert any("convolutions" in name for name in weights(result.run_dir)) is ("Image" in kind)


def test_a_discrete_observation_trains(tmp_path: Path) -> None:
    train_tiny(tmp_path, "dqn", "FrozenLake-v1")


@pytest.mark.parametrize("n_step", [1, 3])
def test_stacked_frames_are_stored_once_and_come_back_as_they_were_seen(
    tmp_path: Path, batches: list[ReplayBatch], n_step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored: list[tuple[int, ...]] = []
    original = Replay.begin

    def watched(self: Replay, observation: Any, mask: Any) -> None:
        original(self, observation, mask)
        stored.append(self.observations.rows(0, self.observations.count)["observation"].shape)

    monkeypatch.setattr(Replay, "begin", watched)
    settings = {"train_interval": 16, "hidden_sizes": None, "n_step": n_step, "gamma": 0.5}
    env_kwargs = {"frame_stack": 3}
    train_tiny(tmp_path, "dqn", "corridor_envs:Corridor/Frames-v0", algo_kwargs=settings, env_kwargs=env_kwargs)
    assert len(batches) == 3
    assert stored[0] == (2, 1, 36, 36)  # the newest frame of two environments
    for batch in batches:
        assert isinstance(batch.observation, torch.Tensor)
        assert isinstance(batch.next_observation, torch.Tensor)
        assert batch.observation.shape == (8, 3, 36, 36)
        assert batch.observation.dtype == torch.uint8
        # Every picture shows its step, and before the first one stands the first one.
        now, then = (seen[:, :, 0, 0].int() // 10 for seen in (batch.observation, batch.next_observation))
        for stack in (now, then):
            newest = stack[:, 2]
            expected = torch.stack([(newest - back).clamp(min=0) for back in (2, 1, 0)], dim=1)
            assert stack.equal(expected.int())
        steps = then[:, 2] - now[:, 2]
        ended = then[:, 2] == 6  # terminated: whatever is left of the sum
        assert steps.equal(torch.where(ended, (6 - now[:, 2]).clamp(max=n_step), n_step).int())
        assert batch.discount.equal(torch.where(ended, 0.0, 0.5**n_step))
        rewards = [
            sum(0.5**k * (start + k + 1) for k in range(count))
            for start, count in zip(now[:, 2].tolist(), steps.tolist(), strict=True)
        ]
        assert batch.reward.tolist() == pytest.approx(rewards)


@pytest.mark.parametrize("algo", ["dqn", "rainbow"])
@pytest.mark.parametrize("kind", ["MaskedDiscrete", "LateMask"])
def test_illegal_actions_are_never_taken(tmp_path: Path, algo: str, kind: str) -> None:
    # The environment raises at an illegal action, in training and in evaluation.
    result = train_tiny(tmp_path, algo, f"toy_envs:Toy/{kind}-v0")
    evaluate(result.run_dir, num_episodes=2, stochastic=True)


# -- what is learned from ------------------------------------------------------------------------


@pytest.mark.parametrize("n_step", [1, 3])
def test_a_batch_says_what_is_legal_before_and_after(tmp_path: Path, batches: list[ReplayBatch], n_step: int) -> None:
    # The observation is the one action that is sure to be legal, also where the clock cut the episode.
    settings = {"n_step": n_step, "learning_starts": 24}
    train_tiny(tmp_path, "dqn", "toy_envs:Toy/MaskedDiscrete-v0", algo_kwargs=settings)
    for batch in batches:
        assert batch.mask is not None
        assert batch.next_mask is not None
        assert batch.mask.gather(1, batch.action.unsqueeze(1)).all()
        for seen, mask in ((batch.observation, batch.mask), (batch.next_observation, batch.next_mask)):
            assert isinstance(seen, torch.Tensor)
            assert mask.gather(1, seen.long()).all()
            assert not mask.all()


def test_what_is_stored_is_what_happened(tmp_path: Path, batches: list[ReplayBatch]) -> None:
    train_tiny(tmp_path, "dqn", "toy_envs:Toy/Discrete-v0", algo_kwargs={"gamma": 0.9})
    for batch in batches:
        assert isinstance(batch.observation, torch.Tensor)
        # The observation is the target of the action taken on it.
        expected = -(batch.action != batch.observation[:, 0]).float()
        assert batch.reward.equal(expected)
        assert set(batch.discount.tolist()) <= {0.0, np.float32(0.9)}
    assert any((batch.discount == 0).any() for batch in batches)


def test_the_clock_ends_nothing_and_success_does(tmp_path: Path, batches: list[ReplayBatch]) -> None:
    settings = {"env_kwargs": {"max_episode_steps": 5}, "algo_kwargs": {"gamma": 0.5}}
    train_tiny(tmp_path, "dqn", "MountainCar-v0", **settings)  # always cut by the clock
    assert all((batch.discount == 0.5).all() for batch in batches)
    batches.clear()
    train_tiny(tmp_path, "dqn", "corridor_envs:Corridor/Discrete-v0", algo_kwargs={"gamma": 0.5})
    rewards = torch.cat([batch.reward for batch in batches])
    discounts = torch.cat([batch.discount for batch in batches])
    assert discounts.equal(torch.where(rewards > 0, 0.0, 0.5))


def test_actions_are_random_until_learning_starts_and_the_policys_from_then_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    originals = {name: getattr(DQN, name) for name in ("act", "random_actions")}

    def watched(name: str) -> Any:
        def call(self: DQN, *arguments: Any) -> Any:
            made.append(name)
            return originals[name](self, *arguments)

        return call

    for name in originals:
        monkeypatch.setattr(DQN, name, watched(name))
    settings = {"learning_starts": 16, "epsilon": 0.0, "epsilon_schedule": None}
    train_tiny(tmp_path, "dqn", "toy_envs:Toy/Discrete-v0", algo_kwargs=settings)
    example = ["random_actions"]  # one call shows the replay what an action looks like
    assert made == example + ["random_actions"] * (16 // 2) + ["act"] * ((STEPS - 16) // 2)


def test_priorities_weigh_the_loss_and_beta_is_scheduled(tmp_path: Path, batches: list[ReplayBatch]) -> None:
    settings = {"prioritized": True, "per_beta": 0.4, "per_beta_schedule": {"type": "linear", "end": 1.0}}
    result = train_tiny(tmp_path, "dqn", "toy_envs:Toy/Discrete-v0", algo_kwargs=settings)
    assert all(batch.weight is not None for batch in batches)
    weight = torch.stack([batch.weight for batch in batches if batch.weight is not None])
    assert weight.amax(dim=1).equal(torch.ones(len(batches)))
    assert (weight[0] == 1).all()  # before any error is known, all are drawn alike
    assert (weight[-1] < 1).any()
    for row in train_rows(result.run_dir):
        assert row["per_beta"] == pytest.approx(0.4 + 0.6 * (row["global_step"] - 2) / STEPS)


def test_schedules_reach_the_metrics(tmp_path: Path) -> None:
    settings = {
        "learning_rate": 0.01,
        "learning_rate_schedule": "linear",
        "epsilon_schedule": {"type": "linear", "end": 0.1, "duration": 0.5},
    }
    result = train_tiny(tmp_path, "dqn", "toy_envs:Toy/Discrete-v0", algo_kwargs=settings, log_interval=16)
    rows = train_rows(result.run_dir)
    assert [row["global_step"] for row in rows] == [16, 32, 48, 64]
    at = [step - 2 for step in (16, 32, 48, 64)]  # a step is taken with the values of its beginning
    assert [row["epsilon"] for row in rows] == pytest.approx([max(0.1, 1 - 0.9 * step / 32) for step in at])
    assert [row["learning_rate"] for row in rows] == pytest.approx([0.01 * (1 - step / STEPS) for step in at])
    assert "loss_q" not in rows[0]  # learning starts after 16 steps
    assert [row["update_count"] for row in rows] == [0, 4, 8, 12]


# -- what a run leaves behind --------------------------------------------------------------------


def test_a_run_leaves_its_artifacts(tmp_path: Path) -> None:
    result = train_tiny(tmp_path, "rainbow", "toy_envs:Toy/Discrete-v0", checkpoint_interval=32)
    run_dir = result.run_dir
    assert run_dir.name.startswith("rainbow__")
    metadata = json.loads((run_dir / "metadata.json").read_text(encoding="utf-8"))
    assert (metadata["status"], metadata["algo"], metadata["resume_mode"]) == ("completed", "rainbow", "exact")
    assert metadata["latest_checkpoint"] == "checkpoints/step_64"
    assert (run_dir / "checkpoints" / "step_32" / "manifest.json").is_file()
    assert len(json_rows(run_dir / "evaluations.jsonl")) == 2
    repeated = load_config(run_dir / "config.yaml")
    assert repeated == tiny_run(tmp_path, "rainbow", "toy_envs:Toy/Discrete-v0", checkpoint_interval=32)
    assert repeated.algo_kwargs["distribution"] == "categorical"


@pytest.mark.parametrize("algo", ["dqn", "rainbow"])
def test_a_seed_repeats_bit_for_bit_and_another_differs(tmp_path: Path, algo: str) -> None:
    first = train_tiny(tmp_path / "first", algo, "CartPole-v1")
    torch.manual_seed(12345)  # the global generator decides nothing
    second = train_tiny(tmp_path / "second", algo, "CartPole-v1")
    assert_same_run(first.run_dir, second.run_dir)
    other = train_tiny(tmp_path / "other", algo, "CartPole-v1", seed=8)
    ours, theirs = final_state(first.run_dir), final_state(other.run_dir)
    streams = [path for path in ours if "streams" in path and isinstance(ours[path], torch.Tensor)]
    assert streams
    assert not any(ours[path].equal(theirs[path]) for path in streams)


def test_a_run_leaves_the_process_as_it_was(tmp_path: Path) -> None:
    torch.manual_seed(0)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    train_tiny(tmp_path, "dqn", "CartPole-v1", torch_threads=threads + 1)
    assert torch.get_rng_state().equal(before)
    assert torch.get_num_threads() == threads


# -- mistakes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("algo", VARIANTS)
def test_a_continuous_task_is_refused_and_names_what_fits(tmp_path: Path, algo: str) -> None:
    with pytest.raises(ConfigError) as refused:
        train(tiny_run(tmp_path / "runs", algo, "Pendulum-v1"))
    message = str(refused.value)
    assert f"{algo} does not support the Box actions of Pendulum-v1" in message
    assert "a2c, appo, crossq, ddpg, droq, impala, ppo, redq, sac, td3, tqc" in message
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ("learning_starts=100", "leave nothing of total_timesteps 100"),
        ("buffer_size=16", "batch_size: is larger than the replay"),
        ("n_step=200000", "n_step: is longer than the replay"),
        ("distribution=gaussian", "distribution"),
        ("bufer_size=100", "buffer_size"),
    ],
)
def test_bad_settings_end_with_status_2_and_the_repair(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], setting: str, complaint: str
) -> None:
    arguments = ["train", "--algo", "dqn", "--env", "CartPole-v1", "--total-timesteps", "100"]
    output = ["--output-dir", str(tmp_path / "runs"), "--set", "algo_kwargs.learning_starts=10"]
    assert main([*arguments, *output, "--set", f"algo_kwargs.{setting}"]) == 2
    said = capsys.readouterr()
    assert complaint in said.err
    assert "Traceback" not in said.err
    assert not (tmp_path / "runs").exists()

"""What an algorithm with a replay refuses before anything is trained, and the repair it names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from off_policy_runs import last_row, tiny_run, train_tiny
from replays import segment_names
from rl_training.algorithms.params.dqn_params import DQNParams, RainbowParams
from rl_training.algorithms.params.sac_params import SACParams
from rl_training.algorithms.td3 import TD3Params
from rl_training.cli import main
from rl_training.data.replay import Replay
from rl_training.data.samplers import UniformSampler
from rl_training.envs.make import make_vector_env
from rl_training.errors import ConfigError
from rl_training.experiment.cadence import marks_between
from rl_training.experiment.storage.segments import SEGMENTS
from rl_training.runtime.callbacks import Callback, TrainingEvent
from rl_training.runtime.off_policy import updates_due
from rl_training.runtime.setup.replay_limits import ReplayDemand
from rl_training.runtime.workflows import resume, train

IMAGES = "toy_envs:Toy/Image-v0"  # 36 x 36 x 3 bytes
FRAME = 36 * 36 * 3
HORIZON = 300
VECTOR = spaces.Box(-1, 1, (2,), np.float32)
LIMITS = "rl_training.runtime.setup.replay_limits"


def have(monkeypatch: pytest.MonkeyPatch, *, memory: int = 10**12, disk: int = 10**12) -> None:
    """Pretend that this much is left of memory and disk."""
    monkeypatch.setattr(f"{LIMITS}.available_memory", lambda: memory)
    monkeypatch.setattr(f"{LIMITS}.free_disk", lambda path: disk)


def images(output_dir: Path, *, buffer_size: int = HORIZON, **changes: Any) -> Any:
    """Return a run on images that learns once, at its end; a transition takes about 4.4 kB."""
    kwargs = {"buffer_size": buffer_size, "hidden_sizes": None, "train_interval": HORIZON, "learning_starts": 100}
    kwargs |= changes.pop("algo_kwargs", {})
    changes = {"total_timesteps": HORIZON, "eval_episodes": 0, "checkpoint_interval": HORIZON, **changes}
    return tiny_run(output_dir, "dqn", IMAGES, algo_kwargs=kwargs, **changes)


def refusal(config: Any) -> str:
    """Return the sentence of a refused run, which left nothing behind."""
    with pytest.raises(ConfigError) as refused:
        train(config)
    assert not config.output_dir.exists()
    return str(refused.value)


def demand_of(config: Any) -> ReplayDemand:
    env = make_vector_env(config.env_id, {}, mode="training", num_envs=config.num_envs, backend="local_sync")
    params = DQNParams(n_step=1, buffer_size=config.algo_kwargs["buffer_size"])
    return ReplayDemand.of(config, params, env, np.zeros(config.num_envs, np.int64))


# -- memory --------------------------------------------------------------------------------------


def test_a_replay_larger_than_memory_is_refused_with_the_largest_that_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    have(monkeypatch, memory=500_000)
    message = refusal(images(tmp_path / "runs"))
    needed = demand_of(images(tmp_path)).memory(HORIZON)
    assert 1.1 * HORIZON * FRAME < needed < 1.3 * HORIZON * FRAME
    assert message.startswith(
        f"algo_kwargs.buffer_size: the 300 transitions that this run keeps need {needed / 1e6:.1f} MB of memory, "
        "and 0.5 MB are available; set it to at most "
    )
    assert message.endswith(", or keep it on disk by memory_map: true, or free some memory")
    named = re.search(r"at most (\d+)", message)
    assert named is not None
    largest = int(named[1])
    assert 0.9 < demand_of(images(tmp_path)).memory(largest) / 500_000 <= 1
    assert "at most" in refusal(images(tmp_path / "runs", buffer_size=largest + 10))
    assert train(images(tmp_path / "runs", buffer_size=largest)).status == "completed"


def test_the_disk_is_no_repair_where_it_is_full_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    have(monkeypatch, memory=500_000, disk=2_000_000)
    message = refusal(images(tmp_path / "runs"))
    assert "at most" in message
    assert "memory_map" not in message


def test_a_replay_that_leaves_no_room_for_a_batch_is_no_repair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    have(monkeypatch, memory=1000, disk=1000)
    memory, disk = refusal(images(tmp_path / "runs")).splitlines()  # both are said at once
    assert memory.endswith("and 0.0 MB are available; free some memory")
    assert disk.endswith("choose another output directory (--output-dir), or free some space")


def test_what_a_short_run_never_fills_is_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    have(monkeypatch, memory=2_000_000, disk=2_000_000)
    assert train(images(tmp_path, buffer_size=1_000_000)).status == "completed"


def test_priorities_are_counted_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    have(monkeypatch, memory=2_000_000)
    message = refusal(images(tmp_path / "runs", buffer_size=1_000_000, algo_kwargs={"prioritized": True}))
    assert "need 18.2 MB of memory" in message  # 2 * 2^20 numbers, and 1.4 MB of transitions


@pytest.mark.parametrize("size", [10**15, 10**30])
def test_what_no_system_reserves_ends_with_status_2_and_the_repair(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], size: int
) -> None:
    arguments = ["train", "--algo", "dqn", "--env", "CartPole-v1", "--total-timesteps", "2000"]
    output = ["--output-dir", str(tmp_path / "runs"), "--set", f"algo_kwargs.buffer_size={size}"]
    assert main([*arguments, *output]) == 2
    said = capsys.readouterr().err
    assert "algo_kwargs.buffer_size: the system does not reserve" in said
    assert "set it to 2000, all that this run fills, or less" in said
    assert "Traceback" not in said
    assert not (tmp_path / "runs").exists()


# -- disk ----------------------------------------------------------------------------------------


def test_a_memory_mapped_replay_is_measured_against_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mapped = {"memory_map": True}
    have(monkeypatch, memory=1000, disk=2_000_000)
    message = refusal(images(tmp_path / "runs", algo_kwargs=mapped))
    assert "the replay's files and checkpoints need 2.8 MB of disk" in message  # both 1.4 MB
    # Kept checkpoints list all 300 transitions even of a smaller replay: that leaves 0.6 MB for its files.
    assert f"and {tmp_path / 'runs'} has 2.0 MB for them; set it to at most 110, or choose another" in message
    have(monkeypatch, memory=1000, disk=3_000_000)
    assert train(images(tmp_path / "runs", algo_kwargs=mapped)).status == "completed"


def test_the_disk_must_hold_what_checkpoints_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    have(monkeypatch, disk=1_000_000)
    assert "checkpoints of the replay need 1.4 MB of disk" in refusal(images(tmp_path / "runs"))
    # A small replay is overwritten between checkpoints: each needs one of its own.
    small = {"buffer_size": 100, "checkpoint_interval": 100}
    message = refusal(images(tmp_path / "runs", **small))
    assert "keep fewer checkpoints (keep_checkpoints)" in message
    assert train(images(tmp_path / "runs", **small, keep_checkpoints=1)).status == "completed"


@pytest.mark.parametrize("keep", [1, 3, None])
@pytest.mark.parametrize(("buffer_size", "interval"), [(300, 100), (60, 100), (100, 50)])
def test_checkpoints_take_what_was_estimated(tmp_path: Path, keep: int | None, buffer_size: int, interval: int) -> None:
    class Sizes(Callback):
        """Notes how much the segments take after each checkpoint."""

        largest = 0

        def on_checkpoint(self, event: TrainingEvent) -> None:
            total = sum((event.run_dir / SEGMENTS / name).stat().st_size for name in segment_names(event.run_dir))
            self.largest = max(self.largest, total)

    sizes = Sizes()
    config = images(tmp_path, buffer_size=buffer_size, checkpoint_interval=interval, keep_checkpoints=keep)
    train(config, callbacks=[sizes])
    estimate = demand_of(config).disk(buffer_size)
    assert 0.5 * estimate < sizes.largest < 1.1 * estimate


# -- resuming ------------------------------------------------------------------------------------


def test_a_resume_is_checked_with_its_own_horizon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = train(images(tmp_path, buffer_size=2 * HORIZON)).run_dir
    before = sorted(path.name for path in run_dir.rglob("*"))
    have(monkeypatch, memory=2_000_000)
    with pytest.raises(ConfigError, match=r"the 600 transitions .* 2.0 MB are available; free some memory$"):
        resume(run_dir, total_timesteps=2 * HORIZON)
    # What is written already needs no more room, unless another run has to hold it too.
    have(monkeypatch, disk=1_600_000)
    with pytest.raises(ConfigError, match=r"need 2.7 MB of disk, and .* has 1.6 MB for them; free some space$"):
        resume(run_dir, total_timesteps=2 * HORIZON, fork=True)
    assert sorted(path.name for path in run_dir.rglob("*")) == before
    assert resume(run_dir, total_timesteps=2 * HORIZON).status == "completed"


# -- the warm-up ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "num_envs"),
    [
        (SACParams(learning_starts=100), 1),
        (RainbowParams(learning_starts=40), 8),
        (TD3Params(learning_starts=0, n_step=2), 4),
        (TD3Params(learning_starts=100, batch_size=2000), 1),
        (DQNParams(learning_starts=1, n_step=9, batch_size=2000), 1),
    ],
)
def test_a_batch_may_be_larger_than_what_the_warm_up_stores(params: Any, num_envs: int) -> None:
    assert params.problems(num_envs=num_envs, total_timesteps=1000) == []


@pytest.mark.parametrize("params", [SACParams(), TD3Params(), DQNParams(), RainbowParams()])
def test_the_defaults_warm_up_for_a_batch(params: Any) -> None:
    assert params.problems(num_envs=8, total_timesteps=10_000) == []


@settings(max_examples=60)
@given(
    st.integers(0, 40), st.integers(1, 12), st.integers(1, 4), st.integers(1, 6), st.integers(1, 9), st.integers(1, 99)
)
def test_every_update_finds_a_transition_and_none_is_lost(
    learning_starts: int, gradient_steps: int, n_step: int, num_envs: int, train_interval: int, seed: int
) -> None:
    """However few steps come before learning, and however long returns take to be complete."""
    params = DQNParams(
        learning_starts=learning_starts,
        gradient_steps=-1 if gradient_steps == 12 else gradient_steps,
        n_step=n_step,
        train_interval=train_interval,
        buffer_size=64,
    )
    assert params.problems(num_envs=num_envs, total_timesteps=999) == []
    generator = np.random.default_rng(seed)
    action, reward = np.zeros(num_envs, np.int64), np.zeros(num_envs)
    replay = Replay(VECTOR, action, UniformSampler(64), capacity=64, num_envs=num_envs, n_step=n_step, gamma=0.9)
    shown, made = np.zeros((num_envs, 2), np.float32), 0
    replay.begin(shown)
    steps = 60 // num_envs * num_envs
    for before in range(0, steps, num_envs):
        ended = generator.random(num_envs) < 0.05
        replay.add(action, reward, ended, np.zeros(num_envs, bool), shown, shown)
        updates = updates_due(before, before + num_envs, params, made=made, stored=replay.size)
        assert not updates or len(replay.sample(5, generator, torch.device("cpu"), count=updates)[0]) == updates
        made += updates
    rounds = marks_between(0, steps, train_interval, beyond=learning_starts)
    assert made == rounds * (train_interval if gradient_steps == 12 else gradient_steps)


def test_a_run_learns_from_the_first_round_on(tmp_path: Path) -> None:
    # 3 steps in 8 environments: 16 of the first 24 are held back.
    kwargs = {"n_step": 3, "batch_size": 8, "learning_starts": 24, "train_interval": 8}
    result = train_tiny(tmp_path, "dqn", "toy_envs:Toy/Discrete-v0", num_envs=8, algo_kwargs=kwargs)
    assert result.metrics["update_count"] == (64 - 24) // 8


# -- controls ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kwargs", "expected"),
    [
        ({}, {"learning_rate", "epsilon"}),
        ({"prioritized": True}, {"learning_rate", "epsilon", "per_beta"}),
        ({"noisy": True, "epsilon": 0.0, "epsilon_schedule": None}, {"learning_rate"}),
        (
            {"noisy": True, "epsilon": 0.0, "epsilon_schedule": {"type": "linear", "end": 0.1}},
            {"learning_rate", "epsilon"},
        ),
        ({"epsilon": 0.2, "epsilon_schedule": None}, {"learning_rate", "epsilon"}),
    ],
)
def test_the_metrics_show_every_control_in_use_and_no_other(
    tmp_path: Path, kwargs: dict[str, Any], expected: set[str]
) -> None:
    row = last_row(train_tiny(tmp_path, "dqn", "toy_envs:Toy/Discrete-v0", algo_kwargs=kwargs).run_dir)
    assert row.keys() & {"learning_rate", "epsilon", "per_beta"} == expected

"""Helpers for tests of runs with a replay: tiny configurations, and the replay that a checkpoint holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from harness import (
    SAMPLER_METRICS,
    assert_same_run,
    assert_same_state,
    evaluation_rows,
    final_state,
    last_checkpoint,
    metric_rows,
    rows_without_samplers,
    tiny_config,
)
from rl_training.experiment.checkpoints import MANIFEST
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.storage.segments import SEGMENTS, read_segment
from rl_training.experiment.storage.state_files import read_state

_SMALL: dict[str, Any] = {"hidden_sizes": [8], "batch_size": 8, "learning_starts": 24, "buffer_size": 120}
_SHORT_EPISODES = {"max_episode_steps": 30}
OFF_POLICY_TASKS: dict[str, dict[str, Any]] = {
    "dqn": {"algo": "dqn", "algo_kwargs": {**_SMALL, "train_interval": 4, "target_update_interval": 16}},
    "dqn_repeats": {
        "algo": "dqn",
        "algo_kwargs": {
            **_SMALL,
            "train_interval": 8,
            "epsilon": 0.2,
            "epsilon_schedule": None,
            "repeat_exponent": 1.2,
        },
    },
    "rainbow": {
        "algo": "rainbow",
        "algo_kwargs": {**_SMALL, "train_interval": 2, "target_update_interval": 16, "num_atoms": 5},
    },
    "qr_dqn": {
        "algo": "qr_dqn",
        "algo_kwargs": {**_SMALL, "num_quantiles": 4, "memory_map": True, "tau": 0.1, "target_update_interval": 8},
    },
    "dqn_stacked_images": {
        "algo": "dqn",
        "env_id": "toy_envs:Toy/Image-v0",
        "total_timesteps": 72,
        "algo_kwargs": {**_SMALL, "prioritized": True, "n_step": 2, "train_interval": 8, "buffer_size": 40},
        "env_kwargs": {"frame_stack": 2},
    },
    "dqn_lstm": {  # with final observations whose values need the memory of their time
        "algo": "dqn",
        "algo_kwargs": {
            **_SMALL,
            "n_step": 3,
            "train_interval": 8,
            "recurrent": {"size": 8, "sequence_length": 6, "burn_in": 4},
        },
        "env_kwargs": {"max_episode_steps": 13, "normalize_observation": True},
    },
    "rainbow_gru": {
        "algo": "rainbow",
        "execution_backend": "vector",
        "num_envs": 4,
        "total_timesteps": 320,
        "algo_kwargs": {
            **_SMALL,
            "train_interval": 8,
            "num_atoms": 5,
            "recurrent": {"type": "gru", "size": 8, "layers": 2, "sequence_length": 5, "burn_in": 3},
        },
    },
    "sac": {
        "algo": "sac",
        "env_id": "Pendulum-v1",
        "algo_kwargs": dict(_SMALL),
        "env_kwargs": {**_SHORT_EPISODES, "normalize_observation": True, "normalize_reward": True},
    },
    "sac_sde": {
        "algo": "sac",
        "env_id": "Pendulum-v1",
        "algo_kwargs": {**_SMALL, "use_sde": True, "sde_sample_freq": 5, "train_interval": 3, "gradient_steps": 2},
        "env_kwargs": _SHORT_EPISODES,
    },
    "crossq": {
        "algo": "crossq",
        "env_id": "Pendulum-v1",
        "algo_kwargs": {**_SMALL, "critic_hidden_sizes": [8], "policy_delay": 2, "renorm_warmup": 40},
        "env_kwargs": _SHORT_EPISODES,
    },
    "redq": {
        "algo": "redq",
        "env_id": "Pendulum-v1",
        "algo_kwargs": {**_SMALL, "gradient_steps": 3, "policy_delay": 2},
        "env_kwargs": _SHORT_EPISODES,
    },
    "droq": {
        "algo": "droq",
        "env_id": "Pendulum-v1",
        "algo_kwargs": {**_SMALL, "gradient_steps": 3, "policy_delay": 2, "critic_dropout": 0.2},
        "env_kwargs": _SHORT_EPISODES,
    },
    "td3": {"algo": "td3", "env_id": "Pendulum-v1", "algo_kwargs": dict(_SMALL), "env_kwargs": _SHORT_EPISODES},
    "discrete_sac": {"algo": "discrete_sac", "algo_kwargs": dict(_SMALL)},
    "dqn_masked": {
        "algo": "dqn",
        "env_id": "toy_envs:Toy/MaskedDiscrete-v0",
        "algo_kwargs": {**_SMALL, "n_step": 3, "learning_starts": 32},
        "env_kwargs": {"normalize_observation": True, "normalize_reward": True},
    },
}


def off_policy_config(name: str, output_dir: Path, **changes: Any) -> TrainConfig:
    """Return the tiny configuration of one of `OFF_POLICY_TASKS`; its replay wraps around."""
    merged: dict[str, Any] = {"total_timesteps": 240, "eval_interval": 96, **OFF_POLICY_TASKS[name]}
    for key, value in changes.items():
        merged[key] = {**merged.get(key, {}), **value} if isinstance(value, dict) else value
    return tiny_config(output_dir, **merged)


def segment_entries(checkpoint: Path) -> list[dict[str, Any]]:
    """Return what a checkpoint's manifest says of its segments."""
    entries: list[dict[str, Any]] = json.loads((checkpoint / MANIFEST).read_text(encoding="utf-8"))["segments"]
    return entries


def segment_names(run_dir: Path) -> set[str]:
    """Return the files in a run's directory of segments."""
    return {path.name for path in (run_dir / SEGMENTS).iterdir()}


def replay_states(checkpoint: Path) -> list[dict[str, Any]]:
    """Return what a checkpoint says of its replays: one, or one per task of a suite."""
    collector = read_state(checkpoint)["collector"]
    return [task["replay"] for task in collector["tasks"].values()] if "tasks" in collector else [collector["replay"]]


def replay_rows(checkpoint: Path, number: int = 0) -> dict[str, np.ndarray]:
    """Return the columns of everything that can be drawn from a checkpoint's replay, with its observations."""
    state = replay_states(checkpoint)[number]
    columns: dict[str, dict[int, Any]] = {}
    for entry in segment_entries(checkpoint):
        if entry["replay"] != number:
            continue
        for name, array in read_segment(checkpoint.parent.parent, entry).items():
            first = entry["transitions" if name.startswith("transition/") else "observations"][0]
            column = columns.setdefault(name, {})
            column.update({first + offset: row for offset, row in enumerate(array)})
    transitions = range(state["oldest"], state["count"])
    found = {
        name: np.array([column[serial] for serial in transitions])
        for name, column in columns.items()
        if name.startswith("transition/")
    }
    serials = {int(serial) for key in ("observation", "successor") for serial in found[f"transition/{key}"].flat}
    for name in columns.keys() - found.keys():
        found[name] = np.array([columns[name][serial] for serial in sorted(serials)])
    return found


def assert_same_replay(one: Path, other: Path) -> None:
    """Assert that the last checkpoints of two runs hold the same transitions and observations, bit for bit."""
    checkpoints = [last_checkpoint(run_dir) for run_dir in (one, other)]
    for number in range(len(replay_states(checkpoints[0]))):
        first, second = (replay_rows(checkpoint, number) for checkpoint in checkpoints)
        assert first.keys() == second.keys()
        assert len(first["transition/reward"]) > 0
        for name, column in first.items():
            assert column.dtype == second[name].dtype
            np.testing.assert_array_equal(column, second[name], err_msg=name)


def assert_same_run_and_replay(one: Path, other: Path) -> None:
    """Assert that two runs ended with the same state, rows, evaluations, priorities and replay."""
    assert_same_run(one, other)  # priorities are part of the state
    assert_same_replay(one, other)


def assert_same_but_for_samplers(split: Path, alone: Path) -> None:
    """Assert that two runs are the same, except for what only one with samplers records."""
    assert rows_without_samplers(split) == metric_rows(alone)
    assert evaluation_rows(split) == evaluation_rows(alone)
    state = {key: value for key, value in final_state(split).items() if not key.endswith(SAMPLER_METRICS)}
    assert_same_state(state, final_state(alone))
    assert_same_replay(split, alone)

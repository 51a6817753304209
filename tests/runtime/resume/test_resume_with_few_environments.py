"""Every algorithm, with one, two and three environments, killed and resumed: memory decides no rounding.

Products of matrices round by how their operands lie in memory, which a checkpoint must not change: with few
environments what was restored is as small as an odd place in a file.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from harness import assert_same_run, tiny_config
from processes import Launcher, newest_run, newest_step, train_arguments, uninterrupted
from replays import assert_same_replay
from rl_training.data.observations import to_tensor
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import get_algorithm_spec, list_algorithm_specs
from rl_training.experiment.storage.state_files import read_state, write_state
from scalezero_runs import NEVER, tasks

ALIGNMENT = 64  # bytes, what torch allocates by

REPLAY = {"batch_size": 16, "buffer_size": 300, "learning_starts": 30}
ON_POLICY = {"num_steps": 8, "hidden_sizes": [32]}
PLANNING = {**REPLAY, "latent_size": 32, "hidden_size": 32, "num_simulations": 4, "unroll_steps": 3, "n_step": 3}
SETTINGS: dict[str, dict[str, Any]] = {
    "ppo": {**ON_POLICY, "minibatch_size": 8, "update_epochs": 2, "use_sde": True, "sde_sample_freq": 4},
    "a2c": {**ON_POLICY, "use_sde": True, "sde_sample_freq": 4},
    "appo": {**ON_POLICY, "minibatch_size": 8},
    "impala": dict(ON_POLICY),
    "pqn": {**ON_POLICY, "minibatch_size": 8},
    "muzero": {**PLANNING, "reanalyze_ratio": 0.25},
    "gumbel_muzero": {**PLANNING, "reanalyze_ratio": 0.25},
    "efficientzero": {**PLANNING, "value_prefix_horizon": 3},
    "scalezero": {
        **REPLAY,
        "width": 32,
        "layers": 1,
        "heads": 2,
        "experts": 2,
        "expert_size": 16,
        "hidden_size": 32,
        "num_simulations": 3,
        "unroll_steps": 3,
        "context_steps": 4,
        "n_step": 3,
        "reanalyze_ratio": 0.25,
    },
    "sac": {**REPLAY, "hidden_sizes": [32], "use_sde": True, "sde_sample_freq": 5},
    "redq": {**REPLAY, "hidden_sizes": [32], "gradient_steps": 2, "policy_delay": 2},
    "droq": {**REPLAY, "hidden_sizes": [32], "gradient_steps": 2, "policy_delay": 2, "critic_dropout": 0.2},
    "crossq": {**REPLAY, "hidden_sizes": [32], "critic_hidden_sizes": [32]},
}


def small_run(output_dir: Path, algo: str, num_envs: int) -> TrainConfig:
    """Return a run of some hundred steps that saves every twenty."""
    task: dict[str, Any] = {"env_id": "Acrobot-v1", "env_kwargs": {"max_episode_steps": 25}}
    if algo == "scalezero":
        task = {"env_id": "two-tasks", "env_kwargs": {"tasks": tasks(NEVER, NEVER)}}
    elif "Box" in get_algorithm_spec(algo).action_spaces:
        task = {"env_id": "Pendulum-v1", "env_kwargs": {"max_episode_steps": 25}}
    return tiny_config(
        output_dir,
        algo=algo,
        algo_kwargs=SETTINGS.get(algo, {**REPLAY, "hidden_sizes": [32]}),
        num_envs=num_envs,
        total_timesteps=180,
        checkpoint_interval=20,
        eval_interval=90,
        torch_threads=1,
        **task,
    )


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Launcher:
    return Launcher(tmp_path_factory.mktemp("processes"))


def killed_at(launcher: Launcher, config: TrainConfig, steps: list[int]) -> Path:
    """Train in processes that are killed as soon as a checkpoint of these steps or later is there."""
    arguments = train_arguments(config, launcher.directory)
    for step in steps:
        child = launcher.start(arguments)
        while newest_step(config.output_dir) < step and child.poll() is None:
            time.sleep(0.001)
        child.kill()
        assert child.returncode == -signal.SIGKILL, child.output.read_text()
        arguments = ["resume", "--checkpoint", str(newest_run(config.output_dir))]
    child = launcher.start(arguments)
    assert child.wait() == 0, child.output.read_text()
    run_dir = newest_run(config.output_dir)
    assert run_dir is not None
    return run_dir


ONLINE = [spec.name for spec in list_algorithm_specs() if spec.loop != "offline"]  # the others step no environment


@pytest.mark.slow
@pytest.mark.parametrize("num_envs", [1, 2, 3])
@pytest.mark.parametrize("algo", ONLINE)
def test_a_run_of_few_environments_that_was_killed_ends_as_one_that_was_not(
    algo: str, num_envs: int, launcher: Launcher, tmp_path: Path
) -> None:
    straight = uninterrupted(small_run(tmp_path / "straight", algo, num_envs))
    killed = killed_at(launcher, small_run(tmp_path / "killed", algo, num_envs), [40, 100])
    assert_same_run(killed, straight)
    if (straight / "segments").is_dir():
        assert_same_replay(killed, straight)


def test_restored_arrays_lie_as_fresh_ones_do_and_share_nothing(tmp_path: Path) -> None:
    """Views into the file would start at any multiple of four bytes."""
    state = {
        "odd": torch.zeros(3, dtype=torch.uint8),
        "weights": [torch.randn(2, 3), torch.randn(1), torch.randn(5, 7)],
        "observation": np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32),
        "scalar": torch.tensor(1.5),
    }
    write_state(tmp_path, state)
    restored = read_state(tmp_path)
    tensors = [restored["odd"], *restored["weights"], torch.from_numpy(restored["observation"]), restored["scalar"]]
    for tensor in tensors:
        assert tensor.data_ptr() % ALIGNMENT == 0
        assert tensor.untyped_storage().nbytes() == tensor.nbytes
        assert tensor.storage_offset() == 0
    assert len({tensor.data_ptr() for tensor in tensors}) == len(tensors)
    np.testing.assert_array_equal(restored["observation"], state["observation"])
    restored["observation"][0, 0] = 7.0  # it can be written to


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_observations_enter_products_from_memory_of_their_own(dtype: type) -> None:
    """Environments hand over views, shared memory and NumPy's arrays, which lie anywhere."""
    memory: np.ndarray = np.zeros(64, dtype)
    for start in range(1, 9):
        view = memory[start : start + 6].reshape(2, 3)
        tensor = to_tensor(view, torch.device("cpu"))
        assert isinstance(tensor, torch.Tensor)
        assert tensor.dtype == torch.float32
        assert tensor.data_ptr() % ALIGNMENT == 0

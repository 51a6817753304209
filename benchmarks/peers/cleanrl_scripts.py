"""CleanRL's own scripts as a peer: started as they are, with the settings of one of our configurations.

CleanRL 1.2.0 wants older libraries than ours, so it is installed beside them and read by its own processes only:

    pip install --target build/cleanrl --no-deps --ignore-requires-python \\
        cleanrl==1.2.0 gym==0.23.1 gym-notices gymnasium==0.29.1 numpy==1.26.4
    pip install --target build/cleanrl-sac --no-deps stable-baselines3==1.8.0

torch is the one that both sides use. The scripts import `distutils`, which Python has up to 3.11; `dqn.py` takes its
replay from the extra `bench`, `sac_continuous_action.py` from the second folder.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from peers.same_settings import PLAIN_DQN, PLAIN_SAC, linear, linear_to_the_end, refuse
from records import PEERS
from rl_training.experiment.config import TrainConfig, algorithm_params

FOLDER, SAC_FOLDER = PEERS / "cleanrl", PEERS / "cleanrl-sac"
INSTALL = "see benchmarks/peers/cleanrl_scripts.py for how to install it"
_NAME = "CleanRL"
SCRIPTS = {"ppo": "ppo.py", "dqn": "dqn.py", "sac": "sac_continuous_action.py"}
_STEPS_PER_LINE = 100  # of the scripts that have a replay


def why_missing(algo: str) -> str | None:
    """Return why the script cannot run, or None where it can."""
    script = FOLDER / "cleanrl" / SCRIPTS[algo]
    folders = [FOLDER, SAC_FOLDER] if algo == "sac" else [FOLDER]
    absent = [folder for folder in folders if not folder.is_dir()]
    if absent:
        return f"CleanRL is not installed in build/{absent[0].name}: {INSTALL}"
    tried = subprocess.run(
        [sys.executable, str(script), "--help"], env=_environment(algo), capture_output=True, text=True, check=False
    )
    if tried.returncode:
        return f"CleanRL's {script.name} does not run here: {(tried.stderr.strip() or 'no message').splitlines()[-1]}"
    return None


def arguments(config: TrainConfig) -> list[str]:
    """Return the script's arguments for a configuration; what it cannot do is refused."""
    if config.env_kwargs:
        raise ValueError(f"{_NAME} has no {', '.join(config.env_kwargs)}")
    build = {"ppo": _ppo, "dqn": _dqn, "sac": _sac}[config.algo]
    settings = {
        "env_id": config.env_id,
        "seed": config.seed,
        "total_timesteps": config.total_timesteps,
        "cuda": False,
        **build(config, algorithm_params(config)),
    }
    return [word for key, value in settings.items() for word in (f"--{key.replace('_', '-')}", str(value))]


def run(config: TrainConfig, directory: Path) -> tuple[float, float]:
    """Train in a process of its own; return steps per second of the processor's time and of the clock's.

    The time runs from the first to the last line in which the script tells its speed, so start-up and the random
    warm-up of a replay are left out.
    """
    script = FOLDER / "cleanrl" / SCRIPTS[config.algo]
    command = [sys.executable, "-u", str(script), *arguments(config)]
    marks: list[tuple[float, float]] = []
    # Warnings of old libraries go where they do not fill a pipe that nobody reads.
    with (directory / "stderr.txt").open("w+", encoding="utf-8") as errors:
        with subprocess.Popen(
            command, cwd=directory, env=_environment(config.algo), stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process:
            measured = psutil.Process(process.pid)
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("SPS:"):
                    used = measured.cpu_times()
                    marks.append((used.user + used.system, time.perf_counter()))
        if process.returncode:
            errors.seek(0)
            raise RuntimeError(f"CleanRL's {script.name} failed:\n{errors.read()}")
    per_line = config.num_envs * algorithm_params(config).num_steps if config.algo == "ppo" else _STEPS_PER_LINE
    steps = per_line * (len(marks) - 1)
    return steps / (marks[-1][0] - marks[0][0]), steps / (marks[-1][1] - marks[0][1])


def _environment(algo: str) -> dict[str, str]:
    folders = [SAC_FOLDER, FOLDER] if algo == "sac" else [FOLDER]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders)), "OMP_NUM_THREADS": "1"}


def _ppo(config: TrainConfig, params: Any) -> dict[str, Any]:
    # Its clipping range cannot shrink, which costs neither side anything.
    refuse(
        _NAME,
        params,
        hidden_sizes=None,
        activation="tanh",
        orthogonal_init=True,
        target_kl=None,
        optimizer="adam",
        optimizer_eps=1e-5,
        ent_coef_schedule=None,
        ent_coef_warmup_steps=0,
        clip_coef_warmup_steps=0,
    )
    start, end = linear_to_the_end(_NAME, params, "learning_rate", config.total_timesteps)
    if end not in (0.0, start):
        raise ValueError(f"{_NAME} has no learning_rate that ends at {end:g}")
    return {
        "num_envs": config.num_envs,
        "num_steps": params.num_steps,
        "num_minibatches": config.num_envs * params.num_steps // params.minibatch_size,
        "update_epochs": params.update_epochs,
        "learning_rate": start,
        "anneal_lr": end != start,
        "gamma": params.gamma,
        "gae_lambda": params.gae_lambda,
        "clip_coef": params.clip_coef,
        "clip_vloss": params.clip_value_loss,
        "norm_adv": params.normalize_advantage,
        "ent_coef": params.ent_coef,
        "vf_coef": params.vf_coef,
        "max_grad_norm": params.max_grad_norm,
    }


def _dqn(config: TrainConfig, params: Any) -> dict[str, Any]:
    refuse(
        _NAME,
        params,
        **PLAIN_DQN,
        hidden_sizes=(120, 84),
        activation="relu",
        loss="squared",
        max_grad_norm=None,
        optimizer_eps=1e-8,
        gradient_steps=1,
    )
    start, end, share = linear(_NAME, params, "epsilon", config.total_timesteps)
    return {
        **_replay(config, params),
        "learning_rate": params.learning_rate,
        "target_network_frequency": params.target_update_interval,
        "start_e": start,
        "end_e": end,
        "exploration_fraction": share,
        "train_frequency": params.train_interval,
    }


def _sac(config: TrainConfig, params: Any) -> dict[str, Any]:
    refuse(
        _NAME,
        params,
        **PLAIN_SAC,
        hidden_sizes=(256, 256),
        critic_hidden_sizes=None,
        activation="relu",
        num_critics=2,
        temperature="auto",
        temperature_init=1.0,
        target_entropy="auto",
        use_sde=False,
        optimizer_beta1=0.9,
        train_interval=1,
        gradient_steps=1,
    )
    return {
        **_replay(config, params),
        "policy_lr": params.learning_rate,
        "q_lr": params.learning_rate,
        "policy_frequency": 1,
        "target_network_frequency": 1,
    }


def _replay(config: TrainConfig, params: Any) -> dict[str, Any]:
    refuse(_NAME, params, hindsight="none", n_step=1, learning_rate_schedule=None, learning_rate_warmup_steps=0)
    refuse(_NAME, config, num_envs=1)
    return {
        "buffer_size": params.buffer_size,
        "batch_size": params.batch_size,
        "learning_starts": params.learning_starts,
        "gamma": params.gamma,
        "tau": params.tau,
    }

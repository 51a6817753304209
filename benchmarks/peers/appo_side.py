"""Trains APPO by Sample Factory or RLlib and writes how long it took; run by the interpreter that has the peer.

    PYTHON benchmarks/peers/appo_side.py --settings SETTINGS.json --output RESULT.json

Imports nothing of this package: all three need different versions of others. Each peer runs as it does by default, its
workers in processes of their own that never wait for the learner; sizes of networks, rollouts and batches are given.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

# Gymnasium's older versions know the task by an older number.
_OLDER_NAMES = {"LunarLander-v3": "LunarLander-v2"}


def make_env(env_id: str, *_: Any, **__: Any) -> Any:
    """Return an environment of a worker of Sample Factory."""
    import gymnasium as gym

    return gym.make(env_id)


def sample_factory(settings: Mapping[str, Any], folder: str) -> Callable[[], int]:
    """Return what trains by Sample Factory and returns the environment steps that it took."""
    from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
    from sample_factory.envs.env_utils import register_env
    from sample_factory.train import make_runner

    name = _OLDER_NAMES.get(settings["env_id"], settings["env_id"])
    register_env(name, make_env)
    workers, envs = settings["samplers"], settings["num_envs"]
    options = {
        "algo": "APPO",
        "env": name,
        "device": "cpu",
        "experiment": "appo",
        "train_dir": folder,
        "train_for_env_steps": settings["steps"],
        "num_workers": workers,
        "num_envs_per_worker": envs // workers,
        "rollout": settings["num_steps"],
        "batch_size": envs * settings["num_steps"],
        "num_epochs": settings["update_epochs"],
        "use_rnn": False,
        "normalize_input": False,
        "with_wandb": False,
    }
    layers = ["--encoder_mlp_layers", *map(str, settings["hidden_sizes"])]
    argv = [*(f"--{key}={value}" for key, value in options.items()), *layers]
    config = parse_full_cfg(parse_sf_args(argv)[0], argv)

    def run() -> int:
        _, runner = make_runner(config)
        runner.init()
        runner.run()
        return int(sum(runner.env_steps.values()))

    return run


def rllib(settings: Mapping[str, Any], folder: str) -> Callable[[], int]:
    """Return what trains by RLlib and returns the environment steps that it took."""
    import ray
    from ray.rllib.algorithms.appo import APPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    ray.init(num_cpus=settings["samplers"] + 1, include_dashboard=False, log_to_driver=False)
    workers, envs = settings["samplers"], settings["num_envs"]
    config = (
        APPOConfig()
        .environment(settings["env_id"])
        .env_runners(
            num_env_runners=workers,
            num_envs_per_env_runner=envs // workers,
            rollout_fragment_length=settings["num_steps"],
        )
        .training(train_batch_size_per_learner=envs * settings["num_steps"], num_epochs=settings["update_epochs"])
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=list(settings["hidden_sizes"])))
    )
    algorithm = config.build_algo()

    def run() -> int:
        steps = 0
        while steps < settings["steps"]:
            steps = int(algorithm.train()["num_env_steps_sampled_lifetime"])
        algorithm.stop()
        return steps

    return run


PEERS = {"sample-factory": sample_factory, "ray": rllib}
"""By the names of their distributions."""


def main() -> None:
    """Train as the settings say and write the seconds, without those of the imports."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    settings = json.loads(options.settings.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        run = PEERS[settings["peer"]](settings, folder)
        started = time.perf_counter()
        steps = run()
        seconds = time.perf_counter() - started
    packages = (settings["peer"], "torch", "gymnasium", "numpy")
    row = {"steps": steps, "seconds": seconds, "versions": {name: version(name) for name in packages}}
    options.output.write_text(json.dumps(row), encoding="utf-8")


if __name__ == "__main__":
    main()

"""Throughput of APPO on this machine: ours with samplers and a lag, beside Sample Factory's and RLlib's.

The peers' requirements do not fit ours, so each lives in an environment of its own:

    python -m venv build/sample-factory
    build/sample-factory/bin/pip install torch==2.13.0 sample-factory==2.1.1 'gymnasium<1.0' box2d==2.3.10 pygame-ce
    python -m venv build/rllib
    build/rllib/bin/pip install torch==2.13.0 'ray[rllib]==2.60.0' box2d==2.3.10 pygame-ce

All have as many workers, environments, layers, and steps per rollout and batch. Starting takes seconds that long
trainings do not notice, so a rate is the difference of a longer and a shorter training.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from peers.side_process import ONE_THREAD
from records import OURS, PEERS
from rl_training.experiment.configuration.config_files import load_config
from rl_training.runtime.workflows import train

SETTINGS: Mapping[str, Any] = {
    "env_id": "LunarLander-v3",
    "samplers": 2,
    "num_envs": 16,
    "num_steps": 64,
    "update_epochs": 1,
    "hidden_sizes": [64, 64],
}
LENGTHS = {OURS: (65_536, 393_216), "sample-factory": (20_480, 102_400), "ray": (20_480, 81_920)}
"""Steps of a shorter and of a longer training, by the distribution: about as long by the clock."""
_FOLDERS = {"sample-factory": "sample-factory", "ray": "rllib"}
_INTERPRETERS = {name: PEERS / folder / "bin" / "python" for name, folder in _FOLDERS.items()}
_SIDE = Path(__file__).parents[1] / "peers" / "appo_side.py"


def why_missing(name: str) -> str | None:
    """Return why a side cannot train here, or None where it can."""
    if name == OURS or _INTERPRETERS[name].exists():
        return None
    return f"{name} has no {_INTERPRETERS[name]}: see benchmarks/workers/worker_peers.py for how to install it"


def rates(rounds: int) -> dict[str, dict[str, Any]]:
    """Return environment steps per second of every side that is there, all sides in turn."""
    sides = [name for name in LENGTHS if why_missing(name) is None]
    found: dict[str, list[float]] = {name: [] for name in sides}
    packages: dict[str, dict[str, str]] = {}
    for _ in range(rounds):
        for name in sides:
            row = rate(lambda steps, name=name: _train(name, steps), LENGTHS[name])  # type: ignore[misc]
            found[name].append(row["steps_per_second"])
            packages[name] = row["versions"]
    return {
        name: {"steps_per_second": values, "median": statistics.median(values), "versions": packages[name]}
        for name, values in found.items()
    }


def rate(run: Callable[[int], Mapping[str, Any]], lengths: tuple[int, int]) -> dict[str, Any]:
    """Return by how many steps the longer training exceeds the shorter one in a second."""
    short, long = (run(steps) for steps in lengths)
    speed = (long["steps"] - short["steps"]) / (long["seconds"] - short["seconds"])
    return {"steps_per_second": speed, "versions": long["versions"]}


def _train(name: str, steps: int) -> Mapping[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        return _train_ours(steps, folder) if name == OURS else _train_peer(name, steps, Path(folder))


def _train_ours(steps: int, folder: str) -> dict[str, Any]:
    algo_kwargs = {key: SETTINGS[key] for key in ("num_steps", "update_epochs", "hidden_sizes")}
    base = {
        "algo": "appo",
        "seed": 1,
        "policy_lag": 1,
        "torch_threads": 1,
        "eval_episodes": 0,
        "total_timesteps": steps,
        "output_dir": folder,
        **{key: SETTINGS[key] for key in ("env_id", "samplers", "num_envs")},
        "algo_kwargs": {**algo_kwargs, "minibatch_size": SETTINGS["num_envs"] * SETTINGS["num_steps"]},
    }
    started = time.perf_counter()
    result = train(load_config(base=base))
    return {"steps": result.metrics["global_step"], "seconds": time.perf_counter() - started, "versions": {}}


def _train_peer(name: str, steps: int, folder: Path) -> dict[str, Any]:
    given, output = folder / "settings.json", folder / "result.json"
    given.write_text(json.dumps({**SETTINGS, "peer": name, "steps": steps}), encoding="utf-8")
    words = [str(word) for word in (_INTERPRETERS[name], _SIDE, "--settings", given, "--output", output)]
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | ONE_THREAD
    done = subprocess.run(words, cwd=folder, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{name} failed:\n{done.stderr}")
    row: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
    return row

"""Acting with an exported policy against `load_policy(...).predict`, one observation per call; and loading it.

Two small runs are trained for the purpose: how well they act does not matter for how long it takes.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from rl_training import load_config, load_policy, train
from rl_training.deploy import load_exported
from rl_training.install_hint import install_hint
from rl_training.runtime.export.export import export_policy
from speed_cases.speed_parts import Effort, Outcome, alternate, quotients

RUNS: dict[str, dict[str, Any]] = {
    "ppo, 2x64, normalised": {
        "algo": "ppo",
        "env_id": "CartPole-v1",
        "total_timesteps": 2_048,
        "env_kwargs": {"normalize_observation": True},
    },
    "sac, 2x256": {
        "algo": "sac",
        "env_id": "Pendulum-v1",
        "total_timesteps": 300,
        "algo_kwargs": {"learning_starts": 100},
    },
}
CLOCK = "the clock, medians of many calls"
TORCH = "import torch"
LOADING = "loading"
STATEMENT = "from rl_training.deploy import load_exported; load_exported({path!r})"


def settings(effort: Effort) -> str:
    """Return what is measured, in words."""
    return (
        "one observation per call; for loading, how many times as long `import torch` takes, in processes of their own"
    )


def measure(effort: Effort) -> Outcome:
    """Let both act in turn on the same observations and compare their times per call."""
    if find_spec("onnxruntime") is None or find_spec("onnxscript") is None:
        return Outcome({}, missing=[f"onnxruntime and onnxscript are not installed: {install_hint('export')}"])
    with tempfile.TemporaryDirectory() as folder:
        sides: dict[str, Callable[[int], float]] = {}
        for name, run in RUNS.items():
            base = {**run, "output_dir": str(Path(folder) / run["algo"]), "eval_episodes": 0}
            run_dir = train(load_config(base=base)).run_dir
            path = export_policy(run_dir, episodes=1).path
            policy, exported = load_policy(run_dir), load_exported(path)
            shape = policy.observation_space.shape or ()
            observations = list(np.random.default_rng(0).normal(size=(64, *shape)).astype(np.float32))
            calls = effort.choose(3_000, 200)
            sides[f"{name}: policy"] = partial(_seconds_per_call, policy.predict, observations, calls)
            sides[f"{name}: exported"] = partial(_seconds_per_call, exported.predict, observations, calls)
        sides |= {TORCH: partial(_seconds, TORCH), LOADING: partial(_seconds, STATEMENT.format(path=str(path)))}
        rows = alternate(sides, effort.rounds)
    ratios = {name: quotients(rows, f"{name}: policy", f"{name}: exported") for name in RUNS}
    ratios[f"{LOADING}: {TORCH}"] = quotients(rows, TORCH, LOADING)
    return Outcome(ratios, details={"rounds": rows}, clocks={f"{LOADING}: {TORCH}": "processor time"})


def _seconds_per_call(act: Callable[[Any], Any], observations: list[np.ndarray], calls: int, _: int) -> float:
    """Return the median time of one call."""
    times = []
    for number in range(calls):
        observation = observations[number % len(observations)]
        started = time.perf_counter()
        act(observation)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def _seconds(statement: str, _: int) -> float:
    """Return the processor time of a statement in a new process."""
    program = f"import time; t = time.process_time(); {statement}; print(time.process_time() - t)"
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True)
    return float(done.stdout)

"""The datasets of the offline benchmark, made by the commands that docs/datasets.md shows.

A source is one online run that keeps all of its checkpoints. Its datasets are those of D4RL: `random`; `medium`, by
the first checkpoint whose evaluation reached a third of the way from the random score to the final one;
`medium-replay`, what the run had seen until then; `expert`, by the final policy. Scores may be negative, which is why
the way counts and not the score.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from learning_suites import ZOO_SAC
from records import RESULTS, ROOT
from rl_training.data.datasets.columns import load_columns
from rl_training.data.datasets.dataset import open_dataset
from rl_training.data.datasets.location import datasets_root
from rl_training.experiment.runs import METRICS

MEDIUM = 1 / 3
"""How far from the random score to the final one the medium policy is."""
KINDS = ("random", "medium", "medium-replay", "expert")


@dataclass(frozen=True)
class Source:
    """An online run, and the steps of each of its datasets."""

    name: str
    """The datasets are `<name>/<kind>-v0`."""
    algo: str
    env_id: str
    train: tuple[str, ...]
    """What follows `axiomrl train`."""
    steps: int
    """Steps of each recorded dataset."""
    seed: int = 1

    def dataset(self, kind: str) -> str:
        """Return the id of a dataset."""
        return f"{self.name}/{kind}-v0"


def _checkpoints(interval: int) -> tuple[str, ...]:
    each = (f"eval_interval={interval}", f"checkpoint_interval={interval}", "keep_checkpoints=null")
    return tuple(word for setting in each for word in ("--set", setting))


SOURCES = {
    source.name: source
    for source in (
        # SAC learns this task in 15 episodes. Four steps for each update make four times as many, of which a tenth is
        # more than one. Checkpoints are where episodes end: an unfinished one would have the highest return.
        Source(
            "pendulum",
            "sac",
            "Pendulum-v1",
            (
                *("--preset", "sac-pendulum", "--total-timesteps", "40000", "--num-envs", "4"),
                *("--set", "algo_kwargs.train_interval=4", *_checkpoints(1_600)),
            ),
            steps=20_000,
        ),
        Source(
            "hopper",
            "sac",
            "Hopper-v5",
            (
                *("--preset", "sac-hopper", "--total-timesteps", "200000"),
                *(word for change in ZOO_SAC for word in ("--set", change)),
                *_checkpoints(10_000),
            ),
            steps=50_000,
        ),
        # The preset stores sums of five rewards, which are no steps of a dataset.
        Source(
            "cartpole",
            "dqn",
            "CartPole-v1",
            ("--preset", "dqn-cartpole", "--set", "algo_kwargs.n_step=1", *_checkpoints(2_500)),
            steps=20_000,
        ),
    )
}


def make_datasets(source: Source, output_dir: Path, kinds: Sequence[str] = KINDS) -> None:
    """Make the datasets that are not there yet, and train the run that they come from if it is not."""
    missing = [kind for kind in kinds if not (datasets_root() / source.dataset(kind)).exists()]
    if not missing:
        return
    run_dir = find_run(source, output_dir)
    if run_dir is None:
        words = ("train", *source.train, "--seed", str(source.seed), "--output-dir", str(output_dir), "--quiet")
        axiomrl(*words)
        run_dir = find_run(source, output_dir)
        assert run_dir is not None
    for kind in missing:
        axiomrl(*dataset_command(source, kind, run_dir))


def dataset_command(source: Source, kind: str, run_dir: Path) -> tuple[str, ...]:
    """Return what follows `axiomrl` in the command that makes one dataset."""
    medium = run_dir / "checkpoints" / f"step_{medium_step(source, run_dir)}"
    name = ("--name", source.dataset(kind), "--quiet")
    if kind == "medium-replay":
        return ("dataset", "replay", str(medium), *name)
    place = medium if kind == "medium" else run_dir
    behaviour = "--random" if kind == "random" else "--stochastic"
    return ("dataset", "record", "--checkpoint", str(place), "--steps", str(source.steps), behaviour, *name)


def find_run(source: Source, output_dir: Path) -> Path | None:
    """Return the finished run of a source, the newest of several."""
    pattern = f"{source.algo}__{source.env_id}__seed{source.seed}__*"
    for run_dir in sorted(output_dir.glob(pattern), reverse=True):
        metadata = json.loads((run_dir / "metadata.json").read_text(encoding="utf-8"))
        if metadata["status"] == "completed":
            return run_dir
    return None


def medium_step(source: Source, run_dir: Path) -> int:
    """Return the step of the first evaluation that reached a third of the way from the random to the final score."""
    lines = (run_dir / METRICS).read_text(encoding="utf-8").splitlines()
    rows = [row for row in map(json.loads, lines) if row["event"] == "eval"]
    random, final = random_score(source.env_id), rows[-1]["eval_return_mean"]
    wanted = random + MEDIUM * (final - random)
    return next(int(row["global_step"]) for row in rows if row["eval_return_mean"] >= wanted)


def random_score(env_id: str) -> float:
    """Return the stored mean return of random actions."""
    scores = json.loads((RESULTS / "random-scores.json").read_text(encoding="utf-8"))["scores"]
    return float(scores[env_id]["mean"])


def describe(source: Source, kind: str) -> dict[str, Any]:
    """Return what results say of a dataset."""
    dataset = open_dataset(source.dataset(kind))
    returns = load_columns(dataset).episode_returns
    return {
        "dataset": dataset.name,
        "fingerprint": dataset.fingerprint,
        "episodes": dataset.total_episodes,
        "steps": dataset.total_steps,
        "return_mean": float(returns.mean()),
        "return_min": float(returns.min()),
        "return_max": float(returns.max()),
    }


def axiomrl(*words: str) -> None:
    """Run a command as a user does, and print it."""
    print("axiomrl", *words, flush=True)
    path = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    subprocess.run(
        [sys.executable, "-m", "rl_training.cli", *words], env={**os.environ, "PYTHONPATH": path}, check=True
    )

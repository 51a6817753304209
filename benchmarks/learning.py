"""Train presets over several seeds, by this package and by stable-baselines3 with the same settings, and compare.

    python benchmarks/learning.py --preset ppo-cartpole --seeds 1,2,3,4,5      # ours alone
    python benchmarks/learning.py --suite full --jobs 2                        # side by side, under 6 hours
    python benchmarks/learning.py --suite quick                                # the same in minutes, with few steps

A seed that is stored already is not trained again, so an interrupted suite goes on where it stopped. The score of a
seed is the mean over fresh evaluation episodes of the final policy, never of the best checkpoint; both sides play the
episodes of the same seeds.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from clock import Clock
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.config_files import load_config
from rl_training.experiment.files import write_json_atomically
from rl_training.experiment.runs import METRICS, dependency_versions
from rl_training.experiment.statistics import (
    bootstrap_interval,
    interquartile_mean,
    probability_of_improvement,
    probability_of_improvement_interval,
)
from rl_training.runtime.run_utils import serialize_train_config
from rl_training.runtime.streams import derive_seeds
from rl_training.runtime.workflows import evaluate, train

RESULTS = Path(__file__).parent / "results"
EVALUATION_EPISODES = 100
OURS, PEER = "ours", "stable_baselines3"
PER_RUN = ("seed", "output_dir")


@dataclass(frozen=True)
class Cell:
    """One comparison: a preset, and what is changed so that both sides can do it within the suite's time."""

    preset: str
    changes: tuple[str, ...] = ()
    """As `--set` writes them."""
    label: str = ""
    """Tells the changed preset from the packaged one."""
    sides: tuple[str, ...] = (OURS, PEER)


# Smaller networks and batches than the presets', so that a short budget learns something in little time.
SHORT_LANDER = (
    "total_timesteps=30_000",
    "eval_interval=3_000",
    "algo_kwargs.learning_starts=2_000",
    "algo_kwargs.hidden_sizes=[64,64]",
    "algo_kwargs.batch_size=128",
)
CELLS = (
    Cell("ppo-cartpole"),
    Cell("ppo-pendulum"),
    Cell("ppo-mountaincar"),
    # With the preset's rollouts of 16,384 steps a fifth of its budget would be over before anything is learned.
    Cell(
        "ppo-lunarlander",
        ("total_timesteps=200_000", "eval_interval=20_000", "algo_kwargs.num_steps=128"),
        "short",
    ),
    Cell("dqn-cartpole"),
    # Random actions that last are ours alone; without them the settings are nearly RL Zoo's.
    Cell("dqn-mountaincar", ("algo_kwargs.repeat_exponent=null",), "plain"),
    Cell("dqn-lunarlander", ("total_timesteps=50_000", "eval_interval=5_000"), "short"),
    Cell("sac-pendulum"),
    Cell("sac-lunarlandercontinuous", SHORT_LANDER, "short"),
    Cell("td3-pendulum"),
    Cell("td3-lunarlandercontinuous", SHORT_LANDER, "short"),
    Cell("muzero-cartpole", sides=(OURS,)),
    Cell("gumbel_muzero-cartpole", sides=(OURS,)),
    Cell("efficientzero-cartpole", sides=(OURS,)),
)
QUICK = (
    Cell("ppo-cartpole", ("total_timesteps=20_000",), "quick"),
    Cell("dqn-cartpole", ("total_timesteps=10_000",), "quick"),
    Cell("sac-pendulum", ("total_timesteps=2_500",), "quick"),
)
QUICK_SEEDS, QUICK_EPISODES = [1, 2], 10


@dataclass(frozen=True)
class Job:
    """One training of one side."""

    cell: Cell
    side: str
    seed: int
    output_dir: Path
    episodes: int

    def run(self) -> tuple[Job, dict[str, Any]]:
        """Train and evaluate, and return the row to store."""
        logging.getLogger("rl_training").setLevel(logging.ERROR)
        config = self.config()
        if self.side == OURS:
            row = train_ours(config, self.episodes)
        else:
            from peers import train_peer

            row = train_peer(config, derive_seeds(self.seed, "evaluation", "command", count=self.episodes))
        return self, {"seed": self.seed, **row}

    def config(self) -> TrainConfig:
        """Return the configuration, which is the same for both sides."""
        fixed = {"seed": self.seed, "output_dir": str(self.output_dir)}
        return load_config(preset=self.cell.preset, overrides=fixed, set_values=self.cell.changes)


def result_path(cell: Cell, side: str, results: Path) -> Path:
    """Return where a side's results are: what is trained as the preset says is everybody's."""
    name = f"{cell.preset}-{cell.label}" if cell.label else cell.preset
    return results / (f"{name}.json" if side == OURS else f"{side}-{name}.json")


def train_ours(config: TrainConfig, episodes: int = EVALUATION_EPISODES) -> dict[str, Any]:
    """Train with this package and return what is stored of it."""
    clock = Clock()
    result = train(config)
    times = clock.read()
    if result.status != "completed":
        raise SystemExit(
            f"{config.algo} on {config.env_id}, seed {config.seed}, was {result.status}: nothing is stored"
        )
    scores = evaluate(result.run_dir, num_episodes=episodes).metrics
    return {
        "steps": result.metrics["global_step"],
        **times,
        "resume_mode": result.resume_mode,
        "final_evaluation": result.metrics["eval_return_mean"],
        "evaluations": evaluation_curve(result.run_dir),
        **{key: scores[key] for key in ("eval_return_mean", "eval_return_std", "eval_episodes")},
    }


def evaluation_curve(run_dir: Path) -> list[list[float]]:
    """Return step and mean return of every evaluation during training."""
    rows = map(json.loads, (run_dir / METRICS).read_text(encoding="utf-8").splitlines())
    return [[row["global_step"], round(row["eval_return_mean"], 2)] for row in rows if row["event"] == "eval"]


def stored(path: Path) -> dict[str, Any]:
    """Return the file of results, or an empty one."""
    if not path.exists():
        return {"runs": []}
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def store(path: Path, job: Job, row: dict[str, Any]) -> None:
    """Add a seed to its file."""
    cell, side = job.cell, job.side
    path.parent.mkdir(parents=True, exist_ok=True)
    summary = stored(path)
    runs = sorted([*summary["runs"], row], key=lambda run: run["seed"])
    seeds = ",".join(str(run["seed"]) for run in runs)
    plain = {key: value for key, value in serialize_train_config(job.config()).items() if key not in PER_RUN}
    command = f"python benchmarks/learning.py --preset {cell.preset} --seeds {seeds}"
    if side == PEER or cell.changes:
        command = "python benchmarks/learning.py --suite full"
    summary |= {
        ("preset" if side == OURS and not cell.changes else "comparison"): cell.preset,
        "side": side,
        "changes": cell.changes,
        "runs": runs,
        "command": command,
        "config": plain,
        "versions": {**dependency_versions(), **({PEER: version(PEER)} if side == PEER else {})},
        "machine": {"python": platform.python_version(), "processor": platform.machine()},
    }
    write_json_atomically(path, summary)


def run_jobs(jobs: Sequence[Job], processes: int) -> Iterator[tuple[Job, dict[str, Any]]]:
    """Return the rows of jobs as they end, one after another or in processes of their own."""
    if processes == 1:
        yield from map(Job.run, jobs)
        return
    with multiprocessing.get_context("spawn").Pool(processes, maxtasksperchild=1) as pool:
        yield from pool.imap_unordered(Job.run, jobs)


def report(cells: Sequence[Cell], results: Path) -> Iterator[str]:
    """Return a line per comparison: the interquartile means with intervals, and the probability of improvement."""
    for cell in cells:
        scores = {
            side: [run["eval_return_mean"] for run in stored(result_path(cell, side, results))["runs"]]
            for side in cell.sides
        }
        parts = [f"{cell.preset}:"]
        for side, values in scores.items():
            if not values:
                parts.append(f"{side} nothing yet")
                continue
            spread = ""
            if len(values) > 1:
                low, high = bootstrap_interval(values)
                spread = f" [{low:.1f}, {high:.1f}]"
            parts.append(f"{side} {interquartile_mean(values):.1f}{spread} over {len(values)} seeds")
        if all(len(values) > 1 for values in scores.values()) and len(scores) == len((OURS, PEER)):
            ours, peer = scores[OURS], scores[PEER]
            low, high = probability_of_improvement_interval(ours, peer)
            chance = probability_of_improvement(ours, peer)
            parts.append(f"probability of improvement {chance:.2f} [{low:.2f}, {high:.2f}]")
        yield ", ".join(parts).replace(":,", ":", 1)


def main() -> None:
    """Parse arguments and run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", action="append", default=[], help="preset to train by this package; repeatable")
    parser.add_argument("--suite", choices=("full", "quick"), help="compare with stable-baselines3")
    parser.add_argument("--seeds", default="1,2,3,4,5", help="comma-separated seeds")
    parser.add_argument("--total-timesteps", type=int, help="another budget than the preset's")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at the same time")
    parser.add_argument("--output-dir", type=Path, default=Path("runs/learning"), help="where the run directories go")
    arguments = parser.parse_args()
    logging.getLogger("rl_training").setLevel(logging.ERROR)
    seeds, episodes, results = [int(seed) for seed in arguments.seeds.split(",")], EVALUATION_EPISODES, RESULTS
    steps = arguments.total_timesteps
    changes = () if steps is None else (f"total_timesteps={steps}",)
    label = "" if steps is None else str(steps)
    cells = tuple(Cell(preset, changes, label, (OURS,)) for preset in arguments.preset)
    if arguments.suite == "quick":
        # Not worth keeping: it shows that everything runs.
        cells, seeds, episodes = QUICK, QUICK_SEEDS, QUICK_EPISODES
        results = arguments.output_dir / "results"
    elif arguments.suite == "full":
        cells = CELLS
    jobs = [
        Job(cell, side, seed, arguments.output_dir, episodes)
        for cell in cells
        for seed in seeds
        for side in cell.sides
        if seed not in {row["seed"] for row in stored(result_path(cell, side, results))["runs"]}
    ]
    for job, row in run_jobs(jobs, arguments.jobs):
        store(result_path(job.cell, job.side, results), job, row)
        score, steps, seconds = row["eval_return_mean"], row["steps"], row["seconds"]
        print(f"{job.cell.preset} {job.side} seed {job.seed}: {score:.1f}, {steps} steps, {seconds} s", flush=True)
    for line in report(cells, results):
        print(line)


if __name__ == "__main__":
    main()

"""Train a preset over several seeds and store what the policies score, as one small JSON file per preset.

    python benchmarks/learning.py --preset ppo-cartpole --seeds 1,2,3,4,5

A seed that the file already holds is not trained again, so an interrupted suite goes on where it stopped. The score
of a seed is the mean over fresh evaluation episodes of the final policy, never of the best checkpoint.
"""

from __future__ import annotations

import argparse
import json
import logging
import platform
import time
from pathlib import Path
from typing import Any

from rl_training.experiment.config_files import load_config
from rl_training.experiment.files import write_json_atomically
from rl_training.experiment.runs import METRICS, dependency_versions
from rl_training.runtime.run_utils import serialize_train_config
from rl_training.runtime.workflows import evaluate, train

RESULTS = Path(__file__).parent / "results"
EVALUATION_EPISODES = 100


def train_seed(preset: str, seed: int, output_dir: Path, overrides: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """Train one seed and return its row and its configuration."""
    config = load_config(preset=preset, overrides={**overrides, "seed": seed, "output_dir": str(output_dir)})
    started = time.perf_counter()
    result = train(config)
    seconds = time.perf_counter() - started
    if result.status != "completed":
        raise SystemExit(f"{preset} seed {seed} was {result.status}: nothing is stored for it")
    scores = evaluate(result.run_dir, num_episodes=EVALUATION_EPISODES).metrics
    row = {
        "seed": seed,
        "steps": result.metrics["global_step"],
        "seconds": round(seconds, 1),
        "resume_mode": result.resume_mode,
        "final_evaluation": result.metrics["eval_return_mean"],
        "evaluations": evaluation_curve(result.run_dir),
        **{key: scores[key] for key in ("eval_return_mean", "eval_return_std", "eval_episodes")},
    }
    return row, config


def evaluation_curve(run_dir: Path) -> list[list[float]]:
    """Return step and mean return of every evaluation during training."""
    rows = map(json.loads, (run_dir / METRICS).read_text(encoding="utf-8").splitlines())
    return [[row["global_step"], round(row["eval_return_mean"], 2)] for row in rows if row["event"] == "eval"]


def run_preset(preset: str, seeds: list[int], output_dir: Path, overrides: dict[str, Any]) -> Path:
    """Train the seeds that are missing and return the file of results."""
    path = RESULTS / f"{preset}.json"
    summary: dict[str, Any] = {"preset": preset, "runs": []}
    if path.exists():
        summary = json.loads(path.read_text(encoding="utf-8"))
    finished = {row["seed"] for row in summary["runs"]}
    for seed in seeds:
        if seed in finished:
            continue
        row, config = train_seed(preset, seed, output_dir, overrides)
        plain = serialize_train_config(config)
        for key in ("seed", "output_dir"):
            del plain[key]
        summary["runs"].append(row)
        summary |= {
            "command": f"python benchmarks/learning.py --preset {preset} --seeds {','.join(map(str, seeds))}",
            "config": plain,
            "versions": dependency_versions(),
            "machine": {"python": platform.python_version(), "processor": platform.machine()},
        }
        write_json_atomically(path, summary)
        score, seconds = row["eval_return_mean"], row["seconds"]
        print(f"{preset} seed {seed}: {score:.1f} after {row['steps']} steps, {seconds} s", flush=True)
    return path


def main() -> None:
    """Parse arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", action="append", required=True, help="preset to train; repeatable")
    parser.add_argument("--seeds", default="1,2,3,4,5", help="comma-separated seeds")
    parser.add_argument("--total-timesteps", type=int, help="another budget than the preset's")
    parser.add_argument("--output-dir", type=Path, default=Path("runs/learning"), help="where the run directories go")
    arguments = parser.parse_args()
    logging.getLogger("rl_training").setLevel(logging.ERROR)
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    for preset in arguments.preset:
        run_preset(preset, seeds, arguments.output_dir, {"total_timesteps": arguments.total_timesteps})


if __name__ == "__main__":
    main()

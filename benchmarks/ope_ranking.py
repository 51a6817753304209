"""Does off-policy evaluation rank policies as episodes in the environment do?

    python benchmarks/ope_ranking.py --seeds 0,1,2

For each seed, SAC is trained on Pendulum-v1 while it learns (5,000 steps), and its eight checkpoints from step 1,500 on
are ranked twice: by fitted Q evaluation on one recorded dataset, and by their mean returns of episodes in the
environment. The dataset is mixed: episodes of random actions, and sampled ones of four of the checkpoints.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from records import RESULTS, ROOT, origin
from rl_training.data.datasets.dataset import open_dataset
from rl_training.data.datasets.editing import merge
from rl_training.experiment.configuration.config_files import load_config
from rl_training.experiment.storage.files import write_json_atomically
from rl_training.runtime.datasets.behaviour import Behaviour
from rl_training.runtime.datasets.recording import RecordRequest, record
from rl_training.runtime.workflows import evaluate, evaluate_offline, train

PRESET = "sac-pendulum"
INTERVAL, FIRST, LAST = 500, 1_500, 5_000
SOURCES = (2_000, 3_000, 4_000, 5_000)
"""Checkpoints whose sampled episodes are in the dataset, besides random ones."""
RESULT = RESULTS / "ope-ranking.json"
PAGE = ROOT / "docs" / "off-policy-evaluation.md"
BEGIN, END = "<!-- ranking: begin -->", "<!-- ranking: end -->"
SHOWN = ("fqe_value", "fqe_low", "fqe_high", "support", "action_agreement", "fqe_residual")


def ranks(values: Sequence[float]) -> np.ndarray:
    """Return the ranks of values, from 1; equal ones share the mean of theirs."""
    array = np.asarray(values, dtype=np.float64)
    below = (array[None, :] < array[:, None]).sum(axis=1)
    alike = (array[None, :] == array[:, None]).sum(axis=1)
    return below + (alike + 1) / 2


def spearman(one: Sequence[float], other: Sequence[float]) -> float:
    """Return Spearman's rank correlation: that of Pearson between the ranks."""
    return float(np.corrcoef(ranks(one), ranks(other))[0, 1])


def train_run(seed: int, output_dir: Path) -> Path:
    """Train and return the run directory; all checkpoints are kept."""
    overrides = {
        "seed": seed,
        "total_timesteps": LAST,
        "output_dir": str(output_dir),
        "checkpoint_interval": INTERVAL,
        "eval_episodes": 0,
    }
    return train(load_config(preset=PRESET, overrides=overrides, set_values=["keep_checkpoints=null"])).run_dir


def checkpoint(run_dir: Path, step: int) -> Path:
    """Return the checkpoint of a step."""
    return run_dir / "checkpoints" / f"step_{step}"


def record_mixture(run_dir: Path, seed: int, episodes: int) -> str:
    """Record the dataset, as many episodes of each source, and return its name."""
    parts = []
    for step in (None, *SOURCES):
        behaviour = Behaviour("random" if step is None else "stochastic")
        name = f"pendulum/seed{seed}-{'random' if step is None else f'step{step}'}-v0"
        place = checkpoint(run_dir, LAST if step is None else step)
        parts.append(record(RecordRequest(place, episodes=episodes, behaviour=behaviour, name=name), quiet=True).name)
    mixed = f"pendulum/seed{seed}-mixed-v0"
    merge([open_dataset(name) for name in parts], mixed)
    return mixed


def rank(seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return both rankings of the checkpoints of one run."""
    run_dir = train_run(seed, arguments.output_dir)
    dataset = record_mixture(run_dir, seed, arguments.dataset_episodes)
    rows = []
    for step in range(FIRST, LAST + 1, INTERVAL):
        place = checkpoint(run_dir, step)
        true = evaluate(place, num_episodes=arguments.episodes, device="cpu").metrics
        started = time.process_time()
        metrics = evaluate_offline(place, dataset, updates=arguments.updates, device="cpu").metrics
        row = {
            "step": step,
            "true_return": true["eval_return_mean"],
            **{name: metrics[name] for name in SHOWN},
            "cpu_seconds": round(time.process_time() - started, 1),
        }
        rows.append(row)
        print(seed, row, flush=True)
    behaviour = {name: metrics[name] for name in ("behaviour_value", "behaviour_return_mean", "dataset_episodes")}
    correlation = spearman([row["fqe_value"] for row in rows], [row["true_return"] for row in rows])
    print(f"seed {seed}: Spearman correlation {correlation:.3f}", flush=True)
    return {"seed": seed, "spearman": correlation, **behaviour, "checkpoints": rows}


def render(content: dict[str, Any]) -> str:
    """Return what the page says about a stored result."""
    runs = content["runs"]
    correlations = ", ".join(f"{run['spearman']:.2f}" for run in runs)
    lines = [
        f"SAC with the preset `{content['preset']}` was trained for {LAST:,} steps, the time in which it learns the "
        f"task, with {len(runs)} seed{'s' if len(runs) > 1 else ''}. The eight checkpoints from step {FIRST:,} on were "
        f"evaluated on {runs[0]['dataset_episodes']} recorded episodes: random ones, and sampled ones of the "
        f"checkpoints at {', '.join(f'{step:,}' for step in SOURCES)} steps. Between `fqe_value` and the mean return "
        f"of {content['true_episodes']} episodes in the environment, Spearman's rank correlation is {correlations}.",
        "",
        "| seed | step | true return | `fqe_value` | interval | `support` |",
        "|---|---|---|---|---|---|",
    ]
    for run in runs:
        for row in run["checkpoints"]:
            interval = f"{row['fqe_low']:.0f} to {row['fqe_high']:.0f}"
            cells = (run["seed"], f"{row['step']:,}", f"{row['true_return']:.0f}", f"{row['fqe_value']:.0f}", interval)
            lines.append(f"| {' | '.join(map(str, cells))} | {row['support']} |")
    return "\n".join(lines)


def write_page() -> None:
    """Write the stored result into the page."""
    text = render(json.loads(RESULT.read_text(encoding="utf-8")))
    section = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", flags=re.DOTALL)
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(section.sub(lambda _: f"{BEGIN}\n{text}\n{END}", page), encoding="utf-8")


def main() -> None:
    """Parse arguments, train, record, rank, store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2", help="seeds of the trained runs, separated by commas")
    parser.add_argument("--episodes", type=int, default=50, help="episodes of each true return")
    parser.add_argument("--dataset-episodes", type=int, default=12, help="episodes of each source in the dataset")
    parser.add_argument("--updates", type=int, default=10_000, help="gradient steps of fitted Q evaluation")
    parser.add_argument("--output-dir", type=Path, default=Path("runs/ope"), help="where runs and datasets go")
    parser.add_argument("--render-only", action="store_true", help="write the page from the stored results")
    arguments = parser.parse_args()
    if arguments.render_only:
        write_page()
        return
    logging.getLogger("rl_training").setLevel(logging.ERROR)
    datasets = arguments.output_dir / "datasets"
    shutil.rmtree(datasets, ignore_errors=True)  # of an earlier call
    os.environ["MINARI_DATASETS_PATH"] = str(datasets.resolve())
    runs = []
    for seed in [int(text) for text in arguments.seeds.split(",")]:
        runs.append(rank(seed, arguments))
        content = {
            "benchmark": "ope_ranking",
            "preset": PRESET,
            "true_episodes": arguments.episodes,
            "dataset_episodes_per_source": arguments.dataset_episodes,
            "updates": arguments.updates,
            "spearman_mean": float(np.mean([run["spearman"] for run in runs])),
            "spearman_least": min(run["spearman"] for run in runs),
            "runs": runs,
            **origin(),
        }
        write_json_atomically(RESULT, content)
    write_page()


if __name__ == "__main__":
    main()

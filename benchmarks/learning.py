"""Train presets over several seeds, by this package and by stable-baselines3 with the same settings, and compare.

    python benchmarks/learning.py --preset ppo-cartpole --seeds 1,2,3,4,5      # ours alone
    python benchmarks/learning.py --suite full --jobs 2                        # side by side, under 6 hours
    python benchmarks/learning.py --suite full --only sac-pendulum             # one comparison of it
    python benchmarks/learning.py --suite quick                                # the same in minutes, with few steps
    python benchmarks/learning.py --suite acceleration                         # ours, with and without kernels
    python benchmarks/learning.py --suite proof --output-dir DIR               # at lengths that count, many hours
    python benchmarks/learning.py --suite memory                               # tasks that need one, with baselines
    python benchmarks/learning.py --suite workers                              # samplers that lag behind the learner

A seed that is stored already is not trained again, and one of ours that was interrupted is resumed exactly, so an
interrupted suite goes on where it stopped; only the quick one keeps nothing. The score of a seed is the mean over fresh
evaluation episodes of the final policy, never of the best checkpoint; both sides play the episodes of the same seeds.
"""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from learning_suites import ACCELERATION, CELLS, MEMORY, PROOF, QUICK, WORKERS, Cell
from peers.clock import SavedClock
from records import D3RLPY, OURS, RESULTS, SB3, SB3_CONTRIB, machine, versions, why_missing
from rl_training.envs.lookup import find_spec
from rl_training.envs.workers.processes import fresh_processes
from rl_training.errors import MissingExtraError
from rl_training.experiment.checkpoints import CHECKPOINTS, LATEST
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.configuration.config_files import load_config
from rl_training.experiment.runs import CONFIG, METRICS, dependency_versions, read_metadata
from rl_training.experiment.statistics import (
    bootstrap_interval,
    interquartile_mean,
    probability_of_improvement,
    probability_of_improvement_interval,
)
from rl_training.experiment.storage.files import write_json_atomically
from rl_training.runtime.run_utils import serialize_train_config
from rl_training.runtime.session import TrainResult
from rl_training.runtime.setup.streams import derive_seeds
from rl_training.runtime.workflows import evaluate, resume, train
from rl_training.zoo.leaderboard import SEEDS_FOR_INTERVAL

SUITES = {"full": CELLS, "acceleration": ACCELERATION, "proof": PROOF, "memory": MEMORY, "workers": WORKERS}
EVALUATION_EPISODES, QUICK_EPISODES = 100, 10
PER_RUN = ("seed", "output_dir")
CONTRIBUTED = ("tqc", "crossq")
"""Algorithms of the peer's package of contributions."""
STORED_SCORES = ("eval_return_mean", "eval_return_std", "eval_episodes", "eval_env_success")


def only_errors() -> None:
    """Let this process say nothing of its trainings but what goes wrong."""
    logging.getLogger("rl_training").setLevel(logging.ERROR)


@dataclass(frozen=True)
class Job:
    """One training of one side."""

    cell: Cell
    side: str
    seed: int
    output_dir: Path
    episodes: int

    def run(self) -> dict[str, Any]:
        """Train and evaluate, and return the row to store."""
        config = self.config()
        if self.side == OURS:
            row = train_ours(config, self.episodes)
        else:
            peers = import_module({SB3: "peers.stable_baselines3_models", D3RLPY: "peers.d3rlpy_models"}[self.side])
            row = peers.train_peer(config, derive_seeds(self.seed, "evaluation", "command", count=self.episodes))
        return {"seed": self.seed, **row}

    def run_alone(self) -> dict[str, Any]:
        """Do so in a process of its own, whose end takes no other training with it."""
        context = fresh_processes("rl_training.runtime.session")
        with ProcessPoolExecutor(1, mp_context=context, initializer=only_errors) as process:
            return process.submit(self.run).result()

    def config(self) -> TrainConfig:
        """Return the configuration, which is the same for both sides."""
        fixed = {"seed": self.seed, "output_dir": str(self.output_dir / self.cell.name)}
        return load_config(preset=self.cell.preset, overrides=fixed, set_values=self.cell.changes)

    def stored_config(self) -> dict[str, Any]:
        """Return the configuration as it is stored, without what differs from seed to seed."""
        plain = {key: value for key, value in serialize_train_config(self.config()).items() if key not in PER_RUN}
        content: dict[str, Any] = json.loads(json.dumps(plain))
        return content

    def lacks(self) -> list[str]:
        """Return which packages are missing to train, and how to get them."""
        needs = [SB3] if self.side == SB3 else []
        config = self.config()
        if self.side == SB3 and (config.algo_kwargs.get("recurrent") is not None or config.algo in CONTRIBUTED):
            needs.append(SB3_CONTRIB)
        try:
            if "box2d" in str(find_spec(config.task_name).entry_point):
                needs.append("Box2D")
        except MissingExtraError as error:
            return [str(error)]
        reasons = [reason for reason in map(why_missing, needs) if reason is not None]
        if self.side == D3RLPY:
            from peers.d3rlpy_models import why_missing as why_no_d3rlpy

            reasons += filter(None, [why_no_d3rlpy()])
        return reasons


def result_path(cell: Cell, side: str, results: Path) -> Path:
    """Return where a side's results are: what is trained as the preset says is everybody's."""
    return results / (f"{cell.name}.json" if side == OURS else f"{side}-{cell.name}.json")


def train_ours(config: TrainConfig, episodes: int = EVALUATION_EPISODES) -> dict[str, Any]:
    """Train with this package and return what is stored of it."""
    clock = SavedClock()
    result = train_to_the_end(config, clock)
    times = clock.read()
    scores = evaluate(result.run_dir, num_episodes=episodes).metrics
    return {
        "steps": result.metrics["global_step"],
        **times,
        "resume_mode": result.resume_mode,
        "resumed_at_steps": read_metadata(result.run_dir)["resumed_at_steps"],
        "final_evaluation": result.metrics["eval_return_mean"],
        "evaluations": evaluation_curve(result.run_dir),
        **{key: scores[key] for key in STORED_SCORES if key in scores},
    }


def train_to_the_end(config: TrainConfig, clock: SavedClock) -> TrainResult:
    """Train or resume, and return what the completed training left; one that stopped before its end is an error."""
    result = train_or_resume(config, clock)
    if result.status == "interrupted":
        raise KeyboardInterrupt
    if result.status != "completed":
        raise RuntimeError(f"the training was {result.status}")
    return result


def train_or_resume(config: TrainConfig, clock: SavedClock) -> TrainResult:
    """Train, or go on with the training of this seed by these settings that an earlier process left unfinished."""
    wanted = serialize_train_config(config)
    pattern = f"{config.algo}__*__seed{config.seed}__*"
    for run_dir in sorted(Path(config.output_dir).glob(pattern), reverse=True):
        if not (run_dir / CHECKPOINTS / LATEST).exists() or read_metadata(run_dir)["status"] == "completed":
            continue
        begun = yaml.safe_load((run_dir / CONFIG).read_text(encoding="utf-8"))
        if not list(differences(begun, json.loads(json.dumps(wanted)))):
            return resume(run_dir, callbacks=[clock])
    return train(config, callbacks=[clock])


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


def differences(one: Mapping[str, Any], other: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the keys whose values differ; a key that came later than an older result is not in it."""
    for key in sorted(one.keys() & other.keys()):
        if isinstance(one[key], dict) and isinstance(other[key], dict):
            yield from differences(one[key], other[key], f"{prefix}{key}.")
        elif one[key] != other[key]:
            yield f"{prefix}{key}"


def store(path: Path, job: Job, row: dict[str, Any]) -> None:
    """Add a seed to its file, or put it in the place of an older row."""
    cell, side = job.cell, job.side
    path.parent.mkdir(parents=True, exist_ok=True)
    summary = stored(path)
    others = [run for run in summary["runs"] if run["seed"] != row["seed"]]
    runs = sorted([*others, row], key=lambda run: run["seed"])
    peers = versions([SB3, SB3_CONTRIB] if side == SB3 else [])
    summary |= {
        ("preset" if side == OURS and not cell.changes else "comparison"): cell.preset,
        "side": side,
        "changes": cell.changes,
        "runs": runs,
        "command": command(cell, side, [run["seed"] for run in runs]),
        "config": job.stored_config(),
        "versions": {**dependency_versions(), **peers, **row.pop("versions", {})},
        "machine": machine(),
    }
    write_json_atomically(path, summary)


def command(cell: Cell, side: str, seeds: Sequence[int]) -> str:
    """Return what trains these seeds again."""
    if cell.suite == "offline":
        return f"python benchmarks/offline.py --only {cell.name}"
    of_the_suite = cell.changes and cell.total_timesteps is None
    if side == SB3 or of_the_suite:
        return f"python benchmarks/learning.py --suite {cell.suite}"
    words = f"python benchmarks/learning.py --preset {cell.preset} --seeds {','.join(map(str, seeds))}"
    return words if cell.total_timesteps is None else f"{words} --total-timesteps {cell.total_timesteps}"


def plan(cells: Sequence[Cell], episodes: int, output_dir: Path, results: Path) -> tuple[list[Job], list[str]]:
    """Return the trainings that are not stored yet, and a sentence for each side that cannot be trained here."""
    jobs: list[Job] = []
    skipped: list[str] = []
    for cell in cells:
        of_sides = {
            side: [Job(cell, side, seed, output_dir, episodes) for seed in cell.seeds_of(side)] for side in cell.sides
        }
        for side, planned in of_sides.items():
            path = result_path(cell, side, results)
            known = stored(path)
            changed = list(differences(known.get("config", {}), planned[0].stored_config()))
            if changed:
                raise SystemExit(f"{path} was trained with another {', '.join(changed)}: move it away to train anew")
            reasons = planned[0].lacks()
            skipped += [f"{cell.preset} {side} is left out: {reason}" for reason in reasons]
            of_sides[side] = [] if reasons else [job for job in planned if job.seed not in seeds_of(known)]
        # Sides in turn, so that an interrupted suite has as many seeds of both.
        missing = [job for planned in of_sides.values() for job in planned]
        jobs += sorted(missing, key=lambda job: job.cell.seeds.index(job.seed))
    return jobs, skipped


def seeds_of(summary: Mapping[str, Any]) -> set[int]:
    """Return the seeds that a file of results holds."""
    return {run["seed"] for run in summary["runs"]}


def run_jobs(jobs: Sequence[Job], processes: int) -> Iterator[tuple[Job, dict[str, Any] | BaseException]]:
    """Return the rows of jobs, or what ended them, as they end: one after another or in processes of their own."""
    if processes == 1:
        for job in jobs:
            try:
                yield job, job.run()
            except Exception as error:
                yield job, error
        return
    threads = ThreadPoolExecutor(processes)
    try:
        running = {threads.submit(job.run_alone): job for job in jobs}
        for ended in as_completed(running):
            yield running[ended], ended.exception() or ended.result()
    finally:
        threads.shutdown(cancel_futures=True)


def report(cells: Sequence[Cell], results: Path) -> Iterator[str]:
    """Return a line per comparison: the interquartile means with intervals, and the probability of improvement."""
    for cell in cells:
        scores = {
            side: [run["eval_return_mean"] for run in stored(result_path(cell, side, results))["runs"]]
            for side in cell.sides
        }
        parts = [f"{cell.name}:"]
        for side, values in scores.items():
            if not values:
                parts.append(f"{side} nothing yet")
                continue
            spread = ""
            if len(values) >= SEEDS_FOR_INTERVAL:
                low, high = bootstrap_interval(values)
                spread = f" [{low:.1f}, {high:.1f}]"
            parts.append(f"{side} {interquartile_mean(values):.1f}{spread} over {len(values)} seeds")
        if len(scores) > 1 and all(len(values) >= SEEDS_FOR_INTERVAL for values in scores.values()):
            ours, peer = scores.values()
            low, high = probability_of_improvement_interval(ours, peer)
            chance = probability_of_improvement(ours, peer)
            parts.append(f"probability of improvement {chance:.2f} [{low:.2f}, {high:.2f}]")
        yield ", ".join(parts).replace(":,", ":", 1)


def compare(cells: Sequence[Cell], episodes: int, results: Path, options: Any) -> int:
    """Train what is not stored yet, report what is, and return the exit status."""
    jobs, skipped = plan(cells, episodes, options.output_dir, results)
    for sentence in skipped:
        print(sentence)
    failed: list[str] = []
    for job, outcome in run_jobs(jobs, options.jobs):
        name = f"{job.cell.name} {job.side} seed {job.seed}"
        if isinstance(outcome, BaseException):
            failed.append(f"{name} failed, so nothing of it is stored: {type(outcome).__name__}: {outcome}")
            print(failed[-1], flush=True)
            continue
        store(result_path(job.cell, job.side, results), job, outcome)
        score, steps, seconds = outcome["eval_return_mean"], outcome["steps"], outcome["seconds"]
        print(f"{name}: {score:.1f}, {steps} steps, {seconds} s", flush=True)
    for line in [*report(cells, results), *failed]:
        print(line)
    return 1 if failed else 0


def main(arguments: Sequence[str] | None = None, results: Path = RESULTS) -> int:
    """Run what is asked for and return the exit status."""
    options = _parse(arguments)
    if options.suite == "quick":
        # Not worth keeping: it shows that everything runs.
        with tempfile.TemporaryDirectory() as folder:
            return compare(QUICK, QUICK_EPISODES, Path(folder), options)
    suite = SUITES.get(options.suite, ())
    cells = tuple(cell for cell in suite if not options.only or {cell.preset, cell.name} & set(options.only))
    if options.preset:
        steps = options.total_timesteps
        changes, label = ((), "") if steps is None else ((f"total_timesteps={steps}",), str(steps))
        cells = tuple(Cell(preset, changes, label, (OURS,), steps) for preset in options.preset)
    if options.side:
        cells = tuple(replace(cell, sides=(options.side,)) for cell in cells if options.side in cell.sides)
    if options.seeds:
        cells = tuple(replace(cell, seeds=options.seeds, peer_seeds=None) for cell in cells)
    return compare(cells, EVALUATION_EPISODES, results, options)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", action="append", default=[], help="preset to train by this package; repeatable")
    parser.add_argument("--suite", choices=("quick", *SUITES), help="what to compare")
    parser.add_argument(
        "--only",
        action="append",
        choices=sorted({name for suite in SUITES.values() for cell in suite for name in (cell.preset, cell.name)}),
        default=[],
        metavar="NAME",
        help="one comparison of a suite, or all of one preset; repeatable",
    )
    parser.add_argument("--side", choices=(OURS, SB3), help="train only this side of a suite")
    parser.add_argument("--seeds", type=_seeds, help="comma-separated seeds; 1 to 5, or the suite's own, by default")
    parser.add_argument("--total-timesteps", type=int, help="another budget than the preset's")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at the same time")
    parser.add_argument("--output-dir", type=Path, default=Path("runs/learning"), help="where the run directories go")
    options = parser.parse_args(arguments)
    if not options.preset and options.suite is None:
        parser.error(f"say what to train: --preset NAME, or --suite quick, {', '.join(SUITES)}")
    if options.suite is not None and (options.preset or options.total_timesteps is not None):
        parser.error("--suite has presets and budgets of its own: leave out --preset and --total-timesteps")
    if options.suite == "quick" and (options.seeds is not None or options.only):
        parser.error("--suite quick has presets and seeds of its own: leave out --only and --seeds")
    if options.only and options.suite is None:
        parser.error("--only chooses from a suite: add --suite full, or train by this package alone with --preset")
    if options.jobs < 1:
        parser.error("--jobs must be at least 1")
    return options


def _seeds(text: str) -> tuple[int, ...]:
    return tuple(int(seed) for seed in text.split(","))


if __name__ == "__main__":
    only_errors()
    raise SystemExit(main())

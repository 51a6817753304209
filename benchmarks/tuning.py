"""Tune for real, and store what fresh seeds said: a start that is bad on purpose, settings that do not matter, presets.

    python benchmarks/tuning.py --study bad-start      # one study; repeatable
    python benchmarks/tuning.py                        # all of them, which takes hours
    python benchmarks/tuning.py --render-only          # write docs/tuning.md from the stored results

A study that was interrupted goes on. What is stored is what `axiomrl tune` came to, whatever it is.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from records import RESULTS, ROOT, origin
from rl_training.experiment.storage.files import write_json_atomically
from rl_training.experiment.tuning.journal import read_trials
from rl_training.experiment.tuning.study import CONFIRMATION
from speed_cases.speed_parts import COMMAND_LINE

PAGE = ROOT / "docs" / "tuning.md"
BEGIN, END = "<!-- studies: begin -->", "<!-- studies: end -->"


@dataclass(frozen=True)
class Case:
    """A study to make."""

    what: str
    """What it shows, in a few words."""
    command: str
    """The arguments of `axiomrl tune`."""
    space: str = ""
    """The search space, if it is not the algorithm's own."""


CARTPOLE = "--preset ppo-cartpole --total-timesteps 20000 --trials 20 --seeds-per-trial 2 --confirm-seeds 10"
CASES = {
    "bad-start": Case(
        "ppo-cartpole from a learning rate of 1e-5 and a discount of 0.8",
        f"{CARTPOLE} --set algo_kwargs.learning_rate=1e-5 --set algo_kwargs.gamma=0.8",
    ),
    "flat": Case(
        "ppo-cartpole, two settings that make no difference",
        CARTPOLE,
        "optimizer_eps: {log: [1e-9, 1e-6]}\nlog_std_init: {uniform: [-1, 1]}\n",
    ),
    "ppo-lunarlander": Case(
        "ppo-lunarlander at a fifth of its length",
        "--preset ppo-lunarlander --total-timesteps 200000 --trials 8 --seeds-per-trial 2 --confirm-seeds 5",
    ),
    "dqn-lunarlander": Case(
        "dqn-lunarlander at its own length",
        "--preset dqn-lunarlander --trials 8 --seeds-per-trial 1 --finalists 1 --confirm-seeds 5",
    ),
}


def tune(name: str, output_dir: Path, jobs: int) -> None:
    """Make a study, or go on with it, and store its result."""
    case, place = CASES[name], output_dir / name
    place.mkdir(parents=True, exist_ok=True)
    words = shlex.split(case.command)
    if case.space:
        (place / "space.yaml").write_text(case.space, encoding="utf-8")
        words += ["--space", str(place / "space.yaml")]
    known = sorted(place.glob("study__*"))
    arguments = ["--continue", str(known[-1])] if known else [*words, "--output-dir", str(place)]
    subprocess.run([*COMMAND_LINE, "tune", *arguments, "--jobs", str(jobs), "--quiet"], check=True)
    (study,) = place.glob("study__*")
    write_json_atomically(RESULTS / f"tune-{name}.json", summary(name, study))


def summary(name: str, study: Path) -> dict[str, Any]:
    """Return what is stored of a study."""
    trials = read_trials(study)
    return {
        "benchmark": "tune",
        "study": name,
        "command": f"axiomrl tune {CASES[name].command}",
        "space": CASES[name].space or None,
        "confirmation": json.loads((study / CONFIRMATION).read_text(encoding="utf-8")),
        "trials": [
            {"number": one.number, "status": one.status, "value": one.value, "settings": dict(one.settings)}
            for one in trials
        ],
        "seconds_of_trials": round(sum(one.duration_seconds or 0.0 for one in trials)),
        **origin(),
    }


def render(results: Path = RESULTS) -> str:
    """Return the table of all stored studies."""
    lines = [
        "| study | trials | best in the search | confirmed | the start, confirmed | probability of improvement | "
        "optimism | better |",
        "|---|---|---|---|---|---|---|---|",
    ]
    verdicts = []
    for name, case in CASES.items():
        path = results / f"tune-{name}.json"
        if not path.exists():
            continue
        found = json.loads(path.read_text(encoding="utf-8"))
        told = found["confirmation"]
        low, high = told["probability_of_improvement_interval"]
        chance = f"{told['probability_of_improvement']:.2f} ({low:.2f} to {high:.2f})"
        sides = [f"{told[side]['iqm']:.1f} ({_span(told[side])})" for side in ("best", "baseline")]
        cells = (
            case.what,
            told["trials"],
            f"{told['best']['searched']:.1f}",
            *sides,
            chance,
            f"{told['optimism']:.1f}",
        )
        lines.append(f"| {' | '.join(map(str, cells))} | {'yes' if told['improved'] else 'not shown'} |")
        verdicts.append(f"- `{found['command']}`, {len(told['best']['scores'])} fresh seeds: {told['verdict']}.")
    return "\n".join([*lines, "", *verdicts])


def _span(side: dict[str, Any]) -> str:
    low, high = side["interval"]
    return f"{low:.1f} to {high:.1f}"


def write_page() -> None:
    """Write the stored results into the page."""
    section = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", flags=re.DOTALL)
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(section.sub(lambda _: f"{BEGIN}\n{render()}\n{END}", page), encoding="utf-8")


def main() -> None:
    """Parse arguments, tune, store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--study", action="append", choices=list(CASES), help="what to tune; repeatable")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time; with 1 the trials can be repeated")
    parser.add_argument("--output-dir", type=Path, default=Path("runs/tune"), help="where studies go")
    parser.add_argument("--render-only", action="store_true", help="write the page from the stored results")
    options = parser.parse_args()
    for name in () if options.render_only else options.study or CASES:
        tune(name, options.output_dir, options.jobs)
    write_page()


if __name__ == "__main__":
    main()

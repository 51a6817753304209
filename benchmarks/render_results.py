"""Write the tables of verified results into the documentation, from the files in `benchmarks/results/`.

    python benchmarks/render_results.py

Only what is stored is shown: a preset without a file has no line, and no number comes from anywhere else.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pages.long_trainings import long_training_blocks
from pages.render_games import game_blocks, write_pictures
from pages.render_offline import relation_blocks
from pages.render_suites import suite_blocks
from pages.result_tables import heading, repeat_command, score_text, span, versions
from records import RESULTS, ROOT

ALGORITHM_PAGES = ROOT / "docs" / "algorithms"
# Which algorithms each page of `docs/algorithms/` shows.
PAGES = {
    "bc": ("bc",),
    "cql": ("cql", "discrete_cql"),
    "dqn": ("dqn", "double_dqn", "c51", "qr_dqn", "rainbow"),
    "efficientzero": ("efficientzero",),
    "gumbel_muzero": ("gumbel_muzero",),
    "iql": ("iql",),
    "muzero": ("muzero",),
    "ppo": ("ppo", "a2c", "appo", "impala"),
    "pqn": ("pqn",),
    "sac": ("sac", "tqc", "crossq", "redq", "droq", "discrete_sac"),
    "scalezero": ("scalezero",),
    "td3": ("td3", "ddpg"),
    "td3_bc": ("td3_bc", "rebrac"),
}
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
_SPEEDS = {
    "speed-search": "Search",
    "learner_speed": "Learner",
    "scalezero_speed": "Search with and without the transformer's cache, and updates",
}


def render_results(results_dir: Path, algorithms: Sequence[str]) -> str:
    """Return the section between the markers: learning results, then speed, then how to repeat them."""
    stored = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(results_dir.glob("*.json"))]
    presets = [
        entry
        for entry in stored
        if "preset" in entry and entry.get("runs") and entry.get("config", {}).get("algo") in algorithms
    ]
    speeds = [entry for entry in stored if entry.get("sides") and entry["algo"] in algorithms]
    games = [entry for entry in stored if entry.get("games") and entry["config"]["algo"] in algorithms]
    blocks: list[list[str]] = []
    if presets:
        blocks += _learning(presets)
    blocks += long_training_blocks(results_dir, algorithms)
    blocks += relation_blocks(results_dir, algorithms)
    if games:
        blocks += game_blocks(games)
    suites = [entry for entry in stored if entry.get("suite") and entry["config"]["algo"] in algorithms]
    blocks += suite_blocks(suites)
    if suites:
        blocks.append(versions(suites))
    blocks += [block for entry in stored for block in _planning_speed(entry, algorithms)]
    if speeds:
        blocks += _speed(speeds)
    return "\n\n".join("\n".join(block) for block in blocks or [["No results are stored yet."]])


def render_page(name: str, results_dir: Path) -> str:
    """Return the section of one page of `PAGES`."""
    return render_results(results_dir, PAGES[name])


def write_page(page: Path, section: str) -> None:
    """Replace what stands between the markers of a page."""
    page.write_text(with_section(page.read_text(encoding="utf-8"), section), encoding="utf-8")


def with_section(text: str, section: str) -> str:
    """Return the page's text with another section between its markers."""
    pattern = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", flags=re.DOTALL)
    if not pattern.search(text):
        raise ValueError(f"the page has no section between {BEGIN} and {END}")
    return pattern.sub(lambda _: f"{BEGIN}\n{section}\n{END}", text)


def _learning(presets: Sequence[dict[str, Any]]) -> list[list[str]]:
    scores_shown = ("mean", "std", "min", "median", "max")
    steps = "updates" if all(entry["config"].get("dataset") for entry in presets) else "steps"
    table = heading("preset", "environment", steps, "seeds", *scores_shown, "episodes", "minutes")
    for entry in presets:
        runs = entry["runs"]
        scores = [run["eval_return_mean"] for run in runs]
        cells = (
            f"`{entry['preset']}`",
            entry["config"]["env_id"],
            span([run["steps"] for run in runs]),
            str(len(runs)),
            *(
                score_text(value)
                for value in (
                    statistics.fmean(scores),
                    statistics.pstdev(scores),
                    min(scores),
                    statistics.median(scores),
                    max(scores),
                )
            ),
            span([run["eval_episodes"] for run in runs]),
            f"{statistics.median(run['seconds'] for run in runs) / 60:.1f}",
        )
        table.append(f"| {' | '.join(cells)} |")
    explanation = [
        "The score of a seed is the mean return of its final policy, never of its best checkpoint, over fresh",
        "evaluation episodes. The table shows these scores over the seeds (std: population), the evaluation episodes",
        "per seed, and the median minutes of training per seed.",
    ]
    commands = ["```text", *(repeat_command(entry) for entry in presets), "```"]
    return [explanation, table, *_curves(presets), versions(presets), ["To repeat them:"], commands]


def _curves(presets: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Return the evaluations during training, where they are stored."""
    runs = [(entry["preset"], run) for entry in presets for run in entry["runs"] if run.get("evaluations")]
    if not runs:
        return []
    table = heading("preset", "seed", "first at step", "mean returns of the evaluations during training, evenly spaced")
    for preset, run in sorted(runs, key=lambda pair: (pair[0], pair[1]["seed"])):
        returns = ", ".join(f"{score:.0f}" if abs(score) >= 10 else f"{score:.2f}" for _, score in run["evaluations"])
        if "best_checkpoint" in run:
            best = run["best_checkpoint"]
            score, episodes = best["eval_return_mean"], best["eval_episodes"]
            returns += f"; the checkpoint at {best['step']:,}: {score:.1f} over {episodes} fresh episodes"
        table.append(f"| `{preset}` | {run['seed']} | {run['evaluations'][0][0]:,} | {returns} |")
    return [table]


def _speed(speeds: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Return every comparison of training speed, and how to measure it."""
    names = [entry["benchmark"].removeprefix("speed-") for entry in speeds]
    several = len(speeds) > 1
    first = ("benchmark",) if several else ()
    table = heading(
        *first, "compared with", "ratio", "from", "to", "rounds", "steps per round", "steps/s", "its steps/s"
    )
    for benchmark, entry in zip(names, speeds, strict=True):
        for name, ratio in entry["ratios"].items():
            rate = "steps_per_second_of_the_clock" if name in entry.get("clocks", {}) else "steps_per_second"
            rates = [statistics.median(row[side][rate] for row in entry["rounds"]) for side in entry["sides"][name]]
            cells = (
                *((benchmark,) if several else ()),
                name,
                *(f"{ratio[key]:.2f}" for key in ("median", "smallest", "largest")),
                str(len(entry["rounds"])),
                f"{entry['total_timesteps']:,}",
                *(f"{rate:,.0f}" for rate in rates),
            )
            table.append(f"| {' | '.join(cells)} |")
    clocks = " and ".join(sorted({entry["clock"] for entry in speeds}))
    if any(entry.get("clocks") for entry in speeds):
        clocks += " (the clock where a line says so)"
    settings = [
        f"{name}: {entry['settings']}" if several else entry["settings"]
        for name, entry in zip(names, speeds, strict=True)
    ]
    explanation = [
        "Training speed with equal settings, the sides alternating. Ratios and rates are medians over the rounds; a",
        f"ratio above 1 means faster than the peer. Times: {clocks}. Settings: {'; '.join(settings)}.",
    ]
    reasons = dict.fromkeys(reason for entry in speeds for reason in entry.get("missing", []))
    missing = [[reason[0].upper() + reason[1:] + "."] for reason in reasons]
    # What measured them stands in the stored file; an older one may name options that are gone.
    commands = ["```text", *(f"python benchmarks/speed.py --only {name}" for name in names), "```"]
    return [explanation, table, *missing, versions(speeds), ["To measure them anew:"], commands]


def _planning_speed(entry: dict[str, Any], algorithms: Sequence[str]) -> list[list[str]]:
    """Return the table of a benchmark of the search or of the learner, as far as it is about these algorithms."""
    names = {"muzero": "muzero", "gumbel": "gumbel_muzero"}
    cases = [case for case in entry.get("cases", []) if names.get(case.get("rule"), case.get("algo")) in algorithms]
    what = _SPEEDS.get(entry.get("benchmark", ""))
    if what is None or not cases:
        return []
    command = entry.get("command", f"python benchmarks/{entry['benchmark']}.py")
    explanation = [f"{what}: {entry['settings']} (`{command}`)."]
    further = [_cases_table(entry["updates"])] if "updates" in entry else []
    return [explanation, _cases_table(cases), *further, versions([entry])]


def _cases_table(cases: Sequence[dict[str, Any]]) -> list[str]:
    columns = [name for name in cases[0] if name not in ("rule", "algo")]
    table = heading(*(name.replace("_", " ") for name in columns))
    return table + [f"| {' | '.join(f'{case[name]:,}' for name in columns)} |" for case in cases]


def main() -> None:
    """Write every page."""
    from learning_suites import MEMORY, SHOWN
    from pages.headlines import README, render_headlines
    from pages.render_comparison import write_comparison
    from pages.render_memory import PAGE as ENVIRONMENTS
    from pages.render_memory import render_memory
    from pages.render_offline import PAGE as DATASETS
    from pages.render_offline import render_datasets
    from pages.render_performance import PAGE, render_performance
    from pages.render_workers import PAGE as SCALING
    from pages.render_workers import render_workers

    for name in PAGES:
        write_page(ALGORITHM_PAGES / f"{name}.md", render_page(name, RESULTS))
    docs = ALGORITHM_PAGES.parent
    write_page(ROOT / README, render_headlines(RESULTS))
    write_page(docs / PAGE, render_performance(RESULTS))
    write_page(docs / DATASETS, render_datasets(RESULTS))
    write_page(docs / SCALING, render_workers(RESULTS))
    write_page(docs / ENVIRONMENTS, render_memory(MEMORY, RESULTS))
    write_comparison(SHOWN, RESULTS, docs)
    write_pictures(RESULTS, docs)


if __name__ == "__main__":
    main()

"""The section of the README that shows what is learned: long trainings, the peer's beside them, and what others say."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from learning_suites import PROOF, SHOWN
from pages.aggregate import read_aggregate
from pages.comparisons import Comparison, read_comparisons
from pages.published import mean_text, published_beside, published_text, read_published
from pages.result_tables import heading, row

README = "README.md"
_EXPLANATION = """\
Means and standard deviations over seeds of final policies, each over 100 fresh episodes; both sides have the same
settings. Published figures are of older versions of the environments. The [results page](docs/results.md) shows curves,
intervals, every seed, and settings that were tried and did worse, with the commands that repeat them."""
_OVER_ALL = """\
Over {tasks} comparisons with stable-baselines3 and {runs} runs, short ones too, a run of ours scores above one of the
peer's with a probability of {chance}: 0.5 means no difference, brackets hold the 95 % interval."""


def render_headlines(results: Path) -> str:
    """Return the section."""
    table = heading("environment", "algorithm", "steps", "AxiomRL", "stable-baselines3", "published")
    published = read_published()
    for one in headlines(read_comparisons(PROOF, results)):
        ours, *others = one.entries
        peer = next((entry for entry in others if entry.runs), None)
        table.append(
            row(
                one.env_id,
                ours.algorithm,
                f"{one.steps:,}",
                mean_text(ours.scores),
                "-" if peer is None else mean_text(peer.scores),
                published_text(published_beside(one, published)),
            )
        )
    blocks = [_EXPLANATION, "\n".join(table)]
    aggregate = read_aggregate(read_comparisons(SHOWN, results))
    if aggregate is not None:
        counts = {"tasks": len(aggregate.comparisons), "runs": aggregate.run_count}
        blocks.append(_OVER_ALL.format(**counts, chance=aggregate.improvement().text("{:.2f}".format)))
    return "\n\n".join(blocks)


def headlines(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Return the first training of each algorithm on each environment that has results, in the order of the suite."""
    found: dict[tuple[str, str], Comparison] = {}
    for one in comparisons:
        if one.entries[0].runs:
            found.setdefault((one.algo, one.env_id), one)
    return list(found.values())

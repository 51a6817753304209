"""Training by this package, by its peers and by itself at an earlier commit: the same work and settings in turn.

Every training has a process of its own. Start-up, the random warm-up of a replay, the first updates (which import and
compile) and evaluation are left out; how long that took is stored. Times are of the processor, so that other programs
on the machine disturb less; the clock's are stored beside them, and compared where a side may take several threads.
Evaluations afterwards show whether all learned the same.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from peers import cleanrl_scripts, older_checkout
from peers.side_process import measure_alone
from records import SB3, why_missing
from speed_cases.speed_parts import Effort, Outcome, alternate
from speed_cases.training_cases import BEFORE, CASES, CLEANRL, SBX, Case, Ratio, Side

_SCRIPT = Path(__file__).with_name("training_side.py")
_PROCESSOR, _CLOCK = "steps_per_second", "steps_per_second_of_the_clock"


def settings(name: str, effort: Effort) -> str:
    """Return what is measured in a case, in words."""
    case = CASES[name]
    return f"{case.words}, {effort.choose(case.steps, case.quick_steps):,} steps, one torch thread"


def measure(name: str, effort: Effort) -> Outcome:
    """Let the sides of a case train in turn, one seed per round."""
    case = CASES[name]
    sides, missing = _present(case, effort)
    ratios = {ratio: pair for ratio, pair in case.ratios.items() if {*pair.ours, *pair.peer} <= set(sides)}
    # Without its peer there is nothing to compare a side with.
    sides = {key: side for key, side in sides.items() if any(key in (*r.ours, *r.peer) for r in ratios.values())}
    rows = alternate({key: partial(_train, name, key, effort) for key in sides}, effort.rounds)
    chosen = {ratio: _chosen(pair, rows) for ratio, pair in ratios.items()} if rows else {}
    return Outcome(
        ratios={
            ratio: [row[ours][_key(ratios[ratio])] / row[peer][_key(ratios[ratio])] for row in rows]
            for ratio, (ours, peer) in chosen.items()
        },
        missing=missing,
        details={
            "algo": case.algo,
            "total_timesteps": effort.choose(case.steps, case.quick_steps),
            "sides": {ratio: list(pair) for ratio, pair in chosen.items()},
            "rounds": [{"seed": seed, **row} for seed, row in enumerate(rows, start=1)],
            **({"before": older_checkout.commit(effort.before)} if "before" in sides else {}),
        },
        clocks={ratio: "the clock" for ratio in chosen if ratios[ratio].by_clock},
    )


def _key(ratio: Ratio) -> str:
    return _CLOCK if ratio.by_clock else _PROCESSOR


def _chosen(ratio: Ratio, rows: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Return the two sides that a ratio compares."""

    def speed(side: str) -> float:
        return statistics.median(row[side][_key(ratio)] for row in rows)

    return max(ratio.ours, key=speed), max(ratio.peer, key=speed)


def _present(case: Case, effort: Effort) -> tuple[dict[str, Side], list[str]]:
    """Return the sides that can train here, and why the others cannot."""
    lacking = [reason for reason in map(why_missing, case.needs) if reason is not None]
    if lacking:
        return {}, lacking
    reasons = {
        SB3: lambda: why_missing(SB3),
        SBX: lambda: why_missing(SBX),
        CLEANRL: lambda: cleanrl_scripts.why_missing(case.algo),
        BEFORE: lambda: older_checkout.why_missing(effort.before),
    }
    took_part = {side.who for side in case.sides.values()}
    absent = {who: reason for who, ask in reasons.items() if who in took_part and (reason := ask()) is not None}
    return {key: side for key, side in case.sides.items() if side.who not in absent}, list(absent.values())


def _train(name: str, key: str, effort: Effort, seed: int) -> dict[str, float]:
    """Train one side and return what is stored of it."""
    case, side = CASES[name], CASES[name].sides[key]
    if side.who == CLEANRL:
        with tempfile.TemporaryDirectory() as directory:
            config = case.config(side, seed, effort, directory)
            return dict(zip((_PROCESSOR, _CLOCK), cleanrl_scripts.run(config, Path(directory)), strict=True))
    words = [name, key, str(seed), *(["--quick"] if effort.quick else [])]
    source = effort.before if side.who == BEFORE else None
    found: dict[str, float] = measure_alone(_SCRIPT, words, one_thread=side.one_thread, source=source)
    return found

"""Offline algorithms against d3rlpy's: the same networks, batches of the same size, from the same dataset.

Every training has a process of its own (`offline_side.py`), on one thread of one core.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from peers import d3rlpy_learners
from peers.side_process import measure_alone
from speed_cases.offline_side import ACTION, EPISODES, LENGTH, OBSERVATION, QUICK_UPDATES, UPDATES
from speed_cases.speed_parts import Effort, Outcome, alternate

CASES = ("td3_bc", "iql")
_SCRIPT = Path(__file__).with_name("offline_side.py")
_SIDES = ("ours", "d3rlpy")


def settings(effort: Effort) -> str:
    """Return what is measured, in words."""
    sizes = f"{OBSERVATION.shape[0]} observed numbers, {ACTION.shape[0]} actions"
    updates = effort.choose(UPDATES, QUICK_UPDATES)
    data = f"{sizes}, {EPISODES * LENGTH:,} random steps, observations normalised"
    return f"{data}, 256x256, batch 256, {updates:,} updates, one torch thread"


def measure(algo: str, effort: Effort) -> Outcome:
    """Let the two learn in turn and compare their updates per second."""
    reason = d3rlpy_learners.why_missing()
    if reason is not None:
        return Outcome({}, [reason])
    rows = alternate({side: partial(_learn, algo, side, effort) for side in _SIDES}, effort.rounds)
    return Outcome(
        ratios={"d3rlpy": [row["ours"]["steps_per_second"] / row["d3rlpy"]["steps_per_second"] for row in rows]},
        details={
            "algo": algo,
            "total_timesteps": effort.choose(UPDATES, QUICK_UPDATES),
            "sides": {"d3rlpy": list(_SIDES)},
            "rounds": [{"seed": seed, **row} for seed, row in enumerate(rows, start=1)],
        },
    )


def _learn(algo: str, side: str, effort: Effort, seed: int) -> dict[str, Any]:
    words = [algo, side, str(seed), *(["--quick"] if effort.quick else [])]
    found: dict[str, Any] = measure_alone(_SCRIPT, words)
    return found

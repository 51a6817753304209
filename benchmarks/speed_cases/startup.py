"""How long commands take to start, beside `python -c "import torch"`."""

from __future__ import annotations

import resource
import subprocess
import sys
from functools import partial

from speed_cases.speed_parts import COMMAND_LINE, Effort, Outcome, alternate, quotients

PEER = "import torch"


def settings(effort: Effort) -> str:
    """Return what is measured, in words."""
    return f"processes of their own; how many times as long `{PEER}` takes"


def commands() -> dict[str, list[str]]:
    """Return what is measured, by name."""
    return {
        PEER: [sys.executable, "-c", PEER],
        "import rl_training": [sys.executable, "-c", "import rl_training"],
        "axiomrl --version": [*COMMAND_LINE, "--version"],
        "axiomrl --help": [*COMMAND_LINE, "--help"],
        "axiomrl train --help": [*COMMAND_LINE, "train", "--help"],
    }


def measure(effort: Effort) -> Outcome:
    """Start every command in turn and say how many times each would fit into the peer's time."""
    rows = alternate({name: partial(_seconds, command) for name, command in commands().items()}, effort.rounds)
    return Outcome(
        ratios={name: quotients(rows, PEER, name) for name in commands() if name != PEER},
        details={"rounds": rows},
    )


def _seconds(command: list[str], _: int) -> float:
    """Return the time that the processor spent on a command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime

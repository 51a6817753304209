"""How long commands take to start, beside `python -c "import torch"`."""

from __future__ import annotations

import resource
import subprocess
import sys
from functools import partial

from speed_parts import Effort, Outcome, alternate, quotients

PEER = "import torch"


def commands() -> dict[str, list[str]]:
    """Return what is measured, by name."""
    command_line = "import sys; from rl_training.cli import main; sys.exit(main())"
    return {
        PEER: [sys.executable, "-c", PEER],
        "import rl_training": [sys.executable, "-c", "import rl_training"],
        "axiomrl --version": [sys.executable, "-c", command_line, "--version"],
        "axiomrl --help": [sys.executable, "-c", command_line, "--help"],
        "axiomrl train --help": [sys.executable, "-c", command_line, "train", "--help"],
    }


def measure(effort: Effort) -> Outcome:
    """Start every command in turn and say how many times each would fit into the peer's time."""
    rows = alternate({name: partial(_seconds, command) for name, command in commands().items()}, effort.rounds)
    return Outcome(
        settings=f"processes of their own; how much longer `{PEER}` takes",
        clock="processor time",
        ratios={name: quotients(rows, PEER, name) for name in commands() if name != PEER},
        details={"rounds": rows},
    )


def _seconds(command: list[str], _: int) -> float:
    """Return the time that the processor spent on a command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime

"""Start-up times as ratios to `python -c "import torch"`, alternating, each the median over the rounds.

python benchmarks/startup.py --rounds 9
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

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


def measure(rounds: int) -> dict[str, float]:
    """Return the median time of every command as a share of the peer's."""
    times: dict[str, list[float]] = {name: [] for name in commands()}
    for _ in range(rounds):
        for name, command in commands().items():
            started = time.perf_counter()
            subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
            times[name].append(time.perf_counter() - started)
    medians = {name: statistics.median(values) for name, values in times.items()}
    return {name: median / medians[PEER] for name, median in medians.items() if name != PEER}


def main() -> None:
    """Parse arguments, measure, print, store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="measurements of each")
    parser.add_argument("--output", type=Path, help="write the ratios as JSON")
    arguments = parser.parse_args()
    ratios = measure(arguments.rounds)
    for name, ratio in ratios.items():
        print(f"{name}: {ratio:.3f} of `{PEER}`")
    if arguments.output is not None:
        summary = {"benchmark": "startup", "peer": PEER, "rounds": arguments.rounds, "ratios": ratios}
        arguments.output.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

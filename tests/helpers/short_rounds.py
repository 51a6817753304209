"""`axiomrl` with short rounds of recordings, for processes that tests kill."""

from __future__ import annotations

import sys

from rl_training import cli
from rl_training.runtime.datasets import recording


def main(arguments: list[str]) -> int:
    """Run a command."""
    recording.ROUND_STEPS = 60
    return cli.main(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

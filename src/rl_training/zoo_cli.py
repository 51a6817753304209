"""The command `axiomrl-zoo`: what `axiomrl zoo` does."""

from __future__ import annotations

import sys

from rl_training.cli_output import add_command, make_app, run_app
from rl_training.cli_zoo import zoo

app = make_app("Packaged presets.")
add_command(app, zoo, name="zoo")


def main(argv: list[str] | None = None) -> int:
    """Run `axiomrl-zoo` with the given arguments and return the exit status."""
    return run_app(app, sys.argv[1:] if argv is None else argv, name="axiomrl-zoo")


if __name__ == "__main__":
    sys.exit(main())

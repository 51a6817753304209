"""The command `axiomrl-zoo`: the same as `axiomrl zoo`, with the reports as separate commands."""

from __future__ import annotations

import sys

from rl_training.cli_output import add_command, make_app, run_app
from rl_training.cli_report import compare, leaderboard, plot, report
from rl_training.cli_zoo import zoo

app = make_app("Packaged presets and what their runs show; without a command: `zoo`.")
for command in (zoo, report, leaderboard, compare, plot):
    add_command(app, command, name=command.__name__)


def main(argv: list[str] | None = None) -> int:
    """Run `axiomrl-zoo` with the given arguments and return the exit status."""
    arguments = sys.argv[1:] if argv is None else argv
    named = bool(arguments) and (not arguments[0].startswith("-") or arguments[0] == "--help")
    return run_app(app, arguments if named else ["zoo", *arguments], name="axiomrl-zoo")


if __name__ == "__main__":
    sys.exit(main())

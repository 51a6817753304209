"""The command `watch`: runs while they go on."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from rl_training.cli_output import Output
from rl_training.cli_report import DEFAULT_RUNS
from rl_training.errors import ConfigError


def watch(
    output: Output,
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[RUN|DIR]...", help="A run, or a directory with runs; `runs` by default."),
    ] = None,
    interval: Annotated[
        float, typer.Option("--interval", metavar="SECONDS", help="Time between two looks at the files.")
    ] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Show the runs as they are now, and end.")] = False,
    metric: Annotated[
        list[str] | None,
        typer.Option("--metric", metavar="NAME", help="One more curve: any metric in `metrics.jsonl`; repeatable."),
    ] = None,
) -> int:
    """Show runs while they go on: progress, curves, and where the time goes. Ctrl-C ends it, not the runs."""
    if not 0.1 <= interval <= 3600:
        raise ConfigError(f"--interval: must lie between 0.1 and 3600 seconds, got {interval:g}")
    from rl_training.zoo.live.watching import Watch, show_once, watch_lines, watch_screen

    watched = Watch(paths or [DEFAULT_RUNS], metrics=metric or ())
    terminal = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    if output.json:
        output.show({"runs": [run.as_record() for run in watched.refresh()]}, ())
    elif once:
        show_once(watched, sys.stdout, terminal=terminal)
    else:
        with contextlib.suppress(KeyboardInterrupt):  # the way to stop watching
            if terminal:
                watch_screen(watched, interval, sys.stdout)
            else:
                watch_lines(watched, interval, lambda line: output.show({}, [line]))
    return 0

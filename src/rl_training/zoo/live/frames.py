"""Frames of `axiomrl watch`: plain lines for a pipe, panels for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rl_training.experiment.runs import SCORE, SUITE_SCORE
from rl_training.experiment.storage.printing import duration, number, printable
from rl_training.zoo.live.followed import TRAIN_RETURN, FollowedRun, shown_name
from rl_training.zoo.live.plots import plot

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

_PLOT_LINES = 4
_NAMES = {SCORE: "eval return", SUITE_SCORE: "eval score (normalised)", TRAIN_RETURN: "train return"}
_COLOURS = {"running": "blue", "completed": "green", "silent": "yellow", "interrupted": "yellow", "failed": "red"}
_STAGES = ("green", "blue", "magenta", "cyan", "white")


# -- plain lines -------------------------------------------------------------------------------------


def line_of(run: FollowedRun) -> str:
    """Return the state of a run on one line."""
    if run.problem is not None:
        return f"{shown_name(run)}: cannot be read: {printable(run.problem)}"
    parts = [f"{shown_name(run)}: {run.status}", steps_text(run), rate_text(run)]
    parts += [f"ETA {duration(run.remaining)}"] if run.remaining is not None else []
    parts += [f"{name_of(name)} {number(points[-1][1])}" for name, points in run.curves.items() if points]
    parts += [shares_text(run)] if run.shares else []
    return ", ".join(parts)


def name_of(metric: str) -> str:
    """Return the words for a metric."""
    return _NAMES.get(metric, printable(metric))


def steps_text(run: FollowedRun) -> str:
    """Return how far a run has come."""
    if run.total is None:
        return f"step {run.step:,}"
    return f"step {run.step:,}/{run.total:,} ({min(100.0, 100.0 * run.step / run.total):.0f}%)"


def rate_text(run: FollowedRun) -> str:
    """Return steps per second."""
    return "- steps/s" if run.rate is None else f"{run.rate:,.0f} steps/s"


def shares_text(run: FollowedRun) -> str:
    """Return the parts of the time."""
    return "time: " + " ".join(f"{name} {100 * share:.0f}%" for name, share in run.shares.items())


# -- panels ------------------------------------------------------------------------------------------


def frame_of(runs: Sequence[FollowedRun], waiting: str | None, console: Console) -> RenderableType:
    """Return one frame that fits the terminal: panels with curves, or one line per run where there are many."""
    from rich.console import Group
    from rich.text import Text

    if not runs:
        return Text(printable(waiting or ""))
    panels = [_panel(run, console) for run in runs]
    heights = sum(len(console.render_lines(panel, pad=False)) for panel in panels)
    if heights < console.height - 1 or len(runs) == 1:
        return Group(*panels)
    room = max(1, console.height - 5)
    shown = runs if len(runs) <= room else runs[: room - 1]
    left_out = [Text(f"... and {len(runs) - len(shown)} more")] if len(shown) < len(runs) else []
    return Group(_table(shown, console), *left_out)


def _panel(run: FollowedRun, console: Console) -> Panel:
    from rich.console import Group
    from rich.panel import Panel
    from rich.text import Text

    inside = max(20, console.width - 4)
    parts: list[RenderableType] = [Text(printable(run.title), style="bold", no_wrap=True, overflow="ellipsis")]
    if run.problem is not None:
        parts.append(Text(f"cannot be read: {printable(run.problem)}"))
    else:
        parts += [_progress(run, inside, console), Text(_state_text(run), no_wrap=True, overflow="ellipsis")]
        parts += [_curves(run, inside, console)]
        parts += [_shares(run, inside, console)] if run.shares else []
    error = run.metadata.get("error")
    parts += [Text(printable(str(error)), style="red")] if error and run.status != "running" else []
    colour = _COLOURS.get(run.status, "white")
    name = shown_name(run)
    room = max(8, inside - len(run.status) - 6)
    title = Text(name if len(name) <= room else f"{name[: room - 3]}...")
    return Panel(Group(*parts), title=title, subtitle=Text(run.status, style=colour), title_align="left",
                 subtitle_align="right", border_style=colour, width=console.width)  # fmt: skip


def _state_text(run: FollowedRun) -> str:
    parts = [rate_text(run)]
    parts += [f"ETA {duration(run.remaining)}"] if run.remaining is not None else []
    if run.age is not None and run.status in ("running", "silent"):
        parts.append(f"last row {duration(run.age)} ago")
        parts += ["it may have been killed"] if run.status == "silent" else []
    return "   ".join(parts)


def _progress(run: FollowedRun, width: int, console: Console) -> Text:
    from rich.text import Text

    text = steps_text(run)
    if run.total is None:
        return Text(text)
    cells = max(4, width - len(text) - 2)
    done = round(cells * min(1.0, run.step / run.total))
    full, empty = ("#", "-") if _ascii_only(console) else ("━", "─")
    return Text.assemble((full * done, "green"), (empty * (cells - done), "dim"), f"  {text}")


def _curves(run: FollowedRun, width: int, console: Console) -> RenderableType:
    """Return the curves that have points, two beside each other."""
    from rich.table import Table
    from rich.text import Text

    drawn = [(name_of(name), points) for name, points in run.curves.items() if points]
    if not drawn:
        return Text("no row yet", style="dim")
    columns = 2 if width >= 60 and len(drawn) > 1 else 1
    cell = (width - 2 * (columns - 1)) // columns
    grid = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(columns):
        grid.add_column(width=cell, no_wrap=True, overflow="crop")
    cells = [_curve(name, points, cell, console) for name, points in drawn]
    for first in range(0, len(cells), columns):
        grid.add_row(*cells[first : first + columns])
    return grid


def _curve(name: str, points: list[tuple[int, float]], width: int, console: Console) -> Text:
    """Return a heading with the newest value, and the plot with its largest and smallest value at the side."""
    from rich.text import Text

    values = [value for _, value in points]
    high, low = number(max(values)), number(min(values))
    labels = max(len(high), len(low))
    lines = plot(points, max(4, width - labels - 1), _PLOT_LINES, ascii_only=_ascii_only(console))
    text = Text.assemble((name, "bold"), f" {number(values[-1])}")
    for place, line in enumerate(lines):
        side = high if place == 0 else low if place == len(lines) - 1 else ""
        text.append(f"\n{side:>{labels}} ", "dim").append(line, "cyan")
    return text


def _shares(run: FollowedRun, width: int, console: Console) -> Text:
    """Return the parts of the time as words in the colours of a bar below them."""
    from rich.text import Text

    text, bar, left = Text("time ", "bold"), Text(), width
    mark = "=" if _ascii_only(console) else "━"
    for place, (name, share) in enumerate(run.shares.items()):
        colour = _STAGES[place % len(_STAGES)]
        text.append(f" {name} ").append(f"{100 * share:.0f}% ", colour)
        cells = min(left, round(width * share))
        bar.append(mark * cells, colour)
        left -= cells
    return Text("\n").join([text, bar])


def _table(runs: Sequence[FollowedRun], console: Console) -> Table:
    """Return one line per run; narrow terminals get fewer columns."""
    from rich.table import Table
    from rich.text import Text

    wide = console.width >= 100
    table = Table(box=None, width=console.width, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("run", no_wrap=True, overflow="ellipsis", ratio=1)
    for heading in ("status", "done", *(("steps/s",) if wide else ()), "ETA", "return"):
        table.add_column(heading, no_wrap=True, justify="left" if heading == "status" else "right")
    table.add_column("", no_wrap=True, width=24 if wide else 12)
    for run in runs:
        done = "-" if run.total is None else f"{min(100.0, 100.0 * run.step / run.total):.0f}%"
        rate = [Text("-" if run.rate is None else f"{run.rate:,.0f}")] if wide else []
        points = next((points for points in run.curves.values() if len(points) > 1), run.curves[TRAIN_RETURN])
        (curve,) = plot(points, 24 if wide else 12, 1, ascii_only=_ascii_only(console))
        table.add_row(
            Text(f"{printable(run.title)}  {shown_name(run)}"),
            Text(run.status if run.problem is None else "damaged", style=_COLOURS.get(run.status, "white")),
            Text(done), *rate, Text("-" if run.remaining is None else duration(run.remaining)),
            Text(number(points[-1][1]) if points else "-"), Text(curve, "cyan"),
        )  # fmt: skip
    return table


def _ascii_only(console: Console) -> bool:
    return console.options.ascii_only

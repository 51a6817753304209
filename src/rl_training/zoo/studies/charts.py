"""Charts of a study: its course, the importances, slices through the space, and parallel coordinates."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import numpy as np
from markupsafe import Markup

from rl_training.experiment.storage.printing import printable
from rl_training.experiment.sweeps import FAILED
from rl_training.zoo.page.svg_parts import (
    BOTTOM,
    HEIGHT,
    SIDE,
    SIGN,
    TOP,
    WIDTH,
    Scale,
    left_margin,
    mark,
    path_of,
    scale_of,
    series_class,
    svg,
    tick_values,
    x_grid,
    x_label,
    x_tick,
    y_grid,
)
from rl_training.zoo.quantities import Quantity, tick_text
from rl_training.zoo.studies.importances import Importances
from rl_training.zoo.studies.parameters import SearchedParameter, value_text
from rl_training.zoo.studies.report import StudyReport, TrialResult
from rl_training.zoo.tables import score_text

TRIAL, START, BEST = range(3)
"""Positions in the palette."""
OBJECTIVE = "objective"
_CROSS = "M-4,-4L4,4M-4,4L4,-4"
_BELOW = "M-4.6,-3.6H4.6L0,4.8Z"
_FEWEST_TO_CUT = 8
_FENCE = 3.0  # quartile ranges below the quartile
_CUT = 0.6  # of the range, or more, must be left out for a cut to be worth it
_AXIS = 56  # between two axes of parallel coordinates
_ROW, _BARS, _FIGURES = 40, 8, 56  # height of a bar with its name, where bars begin, and the width of their figures
_LETTER = 8.5  # width of a letter, on average
_EDGE = 0.03  # of a slice is free on both sides


def shown_range(objectives: Iterable[float]) -> tuple[float, int]:
    """Return the lowest objective that charts have room for, and how many are lower.

    A few trials that failed badly would otherwise press all others into a line.
    """
    values = np.sort(np.fromiter(objectives, float))
    if values.size < _FEWEST_TO_CUT:
        return (float(values[0]) if values.size else 0.0), 0
    low, high = np.quantile(values, [0.25, 0.75])
    floor = float(values[values >= low - _FENCE * (high - low)][0])
    if values[-1] - floor > (1 - _CUT) * (values[-1] - values[0]):
        floor = float(values[0])
    return floor, int(np.count_nonzero(values < floor))


def history_chart(report: StudyReport) -> Markup:
    """Return the objectives in the order of the trials, and the highest so far as a line."""
    up, floor = _objective_scale(report)
    numbers = np.array([0.0, *(result.number for result in report.trials)])
    across = scale_of(numbers, Quantity("trial"), left_margin(up), WIDTH - SIDE, pad=0.03)
    course = [(point.number, point.best) for point in report.history if point.best is not None]
    steps = [place for (x, y), (later, _) in itertools.pairwise(course) for place in ((x, y), (later, y))]
    line = path_of((across(x), up(max(y, floor))) for x, y in [*steps, *course[-1:]]) if course else ""
    content = [
        _axes(up, across, Quantity("trial")),
        Markup('<g class="{}"><path class="line thin" d="{}"/></g>').format(series_class(BEST), line),
        *(_point(report, result, across(result.number), up, floor) for result in _in_drawing_order(report)),
    ]
    return svg("Objectives of the trials; the table below holds the figures", HEIGHT, Markup("").join(content))


def lineage_chart(report: StudyReport) -> Markup:
    """Return the members of a population by generation, each joined to what it went on from."""
    up, floor = _objective_scale(report)
    label = Quantity("generation", limits=(0.0, float(max(1, report.study.generations - 1))))
    across = scale_of(np.zeros(1), label, left_margin(up) + 10, WIDTH - SIDE - 10, pad=0.0)
    by_number = {result.number: result for result in report.trials}
    best = set() if report.best is None else set(report.lineage(report.best.number))
    places = {
        number: (across(min(result.trial.generation or 0, label.limits[1])), up(max(result.objective, floor)))
        for number, result in by_number.items()
        if result.objective is not None and label.limits is not None
    }
    joins = []
    for number, result in by_number.items():
        parent = result.trial.parent
        if number not in places or parent not in places:
            continue
        ours = number in best and parent in best
        kind = "line" if ours else "line thin"
        copied = ' stroke-dasharray="4 3"' if set(result.scores) != set(by_number[parent].scores) else ""
        joins.append(
            Markup('<g class="{}"><path class="{}"{} d="{}"/></g>').format(
                series_class(BEST if ours else TRIAL), kind, Markup(copied), path_of([places[parent], places[number]])
            )
        )
    ticks = [
        x_tick(across(generation), str(generation), TOP, HEIGHT - BOTTOM)
        for generation in range(0, report.study.generations, max(1, report.study.generations // 8))
    ]
    grid = y_grid(up, left_margin(up), WIDTH - SIDE, OBJECTIVE)
    points = [
        _point(report, result, across(min(result.trial.generation or 0, across.high)), up, floor)
        for result in _in_drawing_order(report)
    ]
    words = x_label("generation", (across.start + across.end) / 2, HEIGHT - BOTTOM)
    return svg(
        "Members of the population by generation", HEIGHT, Markup("").join([*ticks, grid, words, *joins, *points])
    )


def importance_chart(importances: Importances, names: dict[str, str]) -> Markup:
    """Return a bar for each parameter, and the level of chance as a line."""
    assert importances.chance is not None
    bottom = TOP + _ROW * len(importances.found)
    most = max(importances.chance, importances.found[0].share)
    across = Scale(0.0, most * 100, _BARS, WIDTH - _FIGURES)
    rows = []
    for number, importance in enumerate(importances.found):
        top = TOP + _ROW * number
        rows.append(
            Markup(
                '<g class="{}"><text class="name" x="{}" y="{}">{}</text>'
                '<text class="figure" x="{}" y="{}" text-anchor="end">{}</text>'
                '<rect class="share{}" x="{}" y="{}" width="{:.1f}" height="10"/></g>'
            ).format(
                series_class(TRIAL),
                _BARS,
                top + 16,
                _cut(names[importance.key], 30),
                WIDTH - 4,
                top + 16,
                f"{importance.share:.0%}",
                "" if importance.beyond_chance else " by-chance",
                _BARS,
                top + 22,
                max(1.0, across(importance.share * 100) - across.start),
            )
        )
    chance = Markup('<path class="chance" d="M{:.1f},{}V{}"/>').format(across(importances.chance * 100), TOP, bottom)
    grid = x_grid(across, Quantity("share (%); dashed: the level of chance"), TOP, bottom)
    return svg("Importances of the parameters", bottom + BOTTOM, Markup("").join([grid, *rows, chance]))


def slice_chart(report: StudyReport, parameter: SearchedParameter, results: Sequence[TrialResult]) -> Markup:
    """Return the objectives of some trials over the values of one parameter."""
    up, floor = _objective_scale(report)
    across = Scale(-_EDGE, 1 + _EDGE, left_margin(up), WIDTH - SIDE)
    bottom = HEIGHT - BOTTOM
    points = []
    for result in results:
        place = parameter.place(result.values[parameter.key]) if parameter.key in result.values else None
        if place is not None:
            told = f"{parameter.name} {value_text(result.values[parameter.key])}"
            points.append(_point(report, result, across(place), up, floor, told))
    grid = y_grid(up, across.start, across.end, OBJECTIVE)
    words = x_label(_cut(_axis_label(parameter), 40), (across.start + across.end) / 2, bottom)
    ticks = _ticks(parameter, across, TOP, bottom)
    return svg(f"Objective over {parameter.name}", HEIGHT, Markup("").join([*ticks, grid, words, *points]))


def coordinates_chart(
    report: StudyReport, parameters: Sequence[SearchedParameter], results: Sequence[TrialResult]
) -> Markup:
    """Return a line for each completed trial through its values, on one axis below the other, down to the objective."""
    across = Scale(-_EDGE, 1 + _EDGE, 4, WIDTH - 4)
    objective, floor = _objective_scale(report)
    level = Scale(objective.low, objective.high, across(0), across(1))
    rows = [TOP + 24 + _AXIS * number for number in range(len(parameters) + 1)]
    axes = [_row_axis(parameter, across, row) for parameter, row in zip(parameters, rows, strict=False)]
    axes.append(_objective_axis(level, rows[-1]))
    completed = [result for result in results if result.objective is not None]
    order = sorted(completed, key=lambda one: (one is report.best, one.is_start, one.objective, -one.number))
    lines = []
    for number, result in enumerate(order):
        places = [
            parameter.place(result.values[parameter.key]) if parameter.key in result.values else None
            for parameter in parameters
        ]
        xs = [None if place is None else across(place) for place in places]
        assert result.objective is not None
        xs.append(level(max(result.objective, floor)))
        # The more trials there are, the fewer of them may stand out.
        strength = ((number + 1) / len(order)) ** max(2.0, len(order) / 10)
        lines.append(_coordinate_line(report, result, xs, rows, strength))
    title = "Parallel coordinates: a line is a trial, an axis a parameter"
    # Text comes last, on a ground of its own: lines would make it hard to read.
    content = Markup('{}<g class="on-lines">{}</g>').format(Markup("").join(lines), Markup("").join(axes))
    return svg(title, rows[-1] + 34, content)


def mark_sign(position: int) -> Markup:
    """Return a mark as a small drawing for a legend."""
    return Markup('<svg class="sign {}" viewBox="0 0 14 14" width="14" height="14" aria-hidden="true">{}</svg>').format(
        series_class(position), _symbol(position, 7, 7)
    )


def cross_sign() -> Markup:
    """Return the mark of trials without a score for a legend."""
    return Markup(
        '<svg class="sign" viewBox="0 0 14 14" width="14" height="14" aria-hidden="true">'
        '<path class="cross" transform="translate(7,7)" d="{}"/></svg>'
    ).format(_CROSS)


def _objective_scale(report: StudyReport) -> tuple[Scale, float]:
    objectives = [result.objective for result in report.trials if result.objective is not None]
    floor, _ = shown_range(objectives)
    values = np.array([value for value in objectives if value >= floor] or [0.0])
    return scale_of(values, Quantity(OBJECTIVE), HEIGHT - BOTTOM, TOP, pad=0.06), floor


def _axes(up: Scale, across: Scale, x: Quantity) -> Markup:
    return x_grid(across, x, TOP, HEIGHT - BOTTOM) + y_grid(up, across.start, across.end, OBJECTIVE)


def _in_drawing_order(report: StudyReport) -> list[TrialResult]:
    """Return the trials with the start and the best last, so that nothing covers them."""
    return sorted(report.trials, key=lambda one: (one is report.best, one.is_start, one.number))


def _point(report: StudyReport, result: TrialResult, x: float, up: Scale, floor: float, told: str = "") -> Markup:
    """Return the mark of a trial; without a score, or below the axis, at the lower edge."""
    words = f"trial {result.number}{', ' * bool(told)}{told}: "
    if result.objective is None:
        if result.trial.status != FAILED:
            return Markup("")  # pruned trials and those in training have no score that could be compared
        return Markup(
            '<path class="cross" transform="translate({:.1f},{:.1f})" d="{}"><title>{}</title></path>'
        ).format(x, up.start, _CROSS, printable(words + "failed"))
    position = _position(report, result)
    sign = _symbol(position, x, up(result.objective))
    if result.objective < floor:
        below = Markup('<path class="mark" transform="translate({:.1f},{:.1f})" d="{}"/>')
        sign = below.format(x, up.start - 4, _BELOW)
    return Markup('<g class="{}"><title>{}</title>{}</g>').format(
        series_class(position), printable(words + score_text(result.objective)), sign
    )


def _position(report: StudyReport, result: TrialResult) -> int:
    return BEST if result is report.best else START if result.is_start else TRIAL


def _symbol(position: int, x: float, y: float) -> Markup:
    if position == TRIAL:
        return Markup('<circle class="seed" cx="{:.1f}" cy="{:.1f}" r="3.5"/>').format(x, y)
    return mark(position, x, y)


def _ticks(parameter: SearchedParameter, across: Scale, top: float, bottom: float) -> list[Markup]:
    """Return the values on an axis; text that would run into its neighbour is cut or left out."""
    places = [across(place) for place, _ in parameter.ticks]
    gap = min((b - a for a, b in itertools.pairwise(sorted(places))), default=float(WIDTH))
    room = int((across.end - across.start) / max(1, len(places)) / _LETTER) if parameter.scale == "choice" else 12
    every = 1 if parameter.scale == "choice" else max(1, round(4 * SIGN / gap))
    return [
        x_tick(place, _cut(text, max(2, room)) if number % every == 0 else "", top, bottom)
        for number, (place, (_, text)) in enumerate(zip(places, parameter.ticks, strict=True))
    ]


def _row_axis(parameter: SearchedParameter, across: Scale, y: float) -> Markup:
    name = Markup('<text class="name" x="4" y="{}">{}</text><path class="axis" d="M{:.1f},{}H{:.1f}"/>').format(
        y - 8, _cut(parameter.name, 40), across(0), y, across(1)
    )
    return name + Markup("").join(_ticks(parameter, across, y - 3, y - 1))


def _objective_axis(level: Scale, y: float) -> Markup:
    name = Markup('<text class="name" x="4" y="{}">{}</text><path class="axis" d="M{:.1f},{}H{:.1f}"/>').format(
        y - 8, OBJECTIVE, level.start, y, level.end
    )
    ticks = [x_tick(level(value), tick_text(value), y - 3, y - 1) for value in tick_values(level.low, level.high, 6)]
    return name + Markup("").join(ticks)


def _coordinate_line(
    report: StudyReport, result: TrialResult, xs: Sequence[float | None], ys: Sequence[float], strength: float
) -> Markup:
    """Return the line of a trial, with a gap where a parameter is not active; better trials are drawn more strongly."""
    pieces: list[list[tuple[float, float]]] = [[]]
    for x, y in zip(xs, ys, strict=True):
        if x is None:
            pieces.append([])
        else:
            pieces[-1].append((x, y))
    position = _position(report, result)
    opacity = 0.1 + 0.7 * strength if position == TRIAL else 1.0
    assert result.objective is not None
    return Markup('<g class="{}"><title>{}</title><path class="{}" stroke-opacity="{:.2f}" d="{}"/></g>').format(
        series_class(position),
        f"trial {result.number}: {score_text(result.objective)}",
        "line" if position != TRIAL else "line thin",
        opacity,
        "".join(path_of(piece) for piece in pieces if piece),
    )


def _axis_label(parameter: SearchedParameter) -> str:
    scales = {"log": " (log scale)", "one_minus_log": " (log scale of 1 - value)"}
    return parameter.name + scales.get(parameter.scale, "")


def _cut(text: str, most: int) -> str:
    text = printable(text)
    return text if len(text) <= most else f"{text[: most - 1]}…"

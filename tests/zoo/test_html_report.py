"""The page of a report: one file that shows everything, runs nothing, asks for nothing, and fits a phone."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest

from browser import CHROMIUM, NO_CHROMIUM, Browser
from fake_runs import fake_run, fake_runs
from html_pages import HOSTILE, Page
from report_samples import HOSTILE_TAG, sample_runs, write_curve
from rl_training.cli import main
from rl_training.experiment.runs import METADATA, METRICS
from rl_training.zoo.page.html_report import render_page
from rl_training.zoo.page.palette import DARK_PAPER, LIGHT_PAPER, STYLES
from rl_training.zoo.page.svg_parts import WIDTH, shortened, tick_values
from rl_training.zoo.reporting import Report, build_report


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sample")
    sample_runs(folder / "runs")
    return folder


@pytest.fixture(scope="module")
def report(sample: Path) -> Report:
    return build_report([sample / "runs"])


@pytest.fixture(scope="module")
def text(report: Report, sample: Path) -> str:
    return render_page(report, "report", sample)


# -- content ---------------------------------------------------------------------------------------


def test_every_environment_has_curves_over_steps_and_time_and_final_scores(text: str, report: Report) -> None:
    page = Page(text)
    environments = len(report.environments)
    for metric, axis in itertools.product(("of-eval", "of-train"), ("by-steps", "by-time")):
        assert sum(axis in str(figure["class"]) for figure in page.of_class(metric)) == environments
    labels = [str(chart["aria-label"]) for chart in page.of_class("chart")]
    assert sum(label.startswith("Final scores on") for label in labels) == environments
    assert sum(label.startswith("Performance profiles of") for label in labels) == 2
    for place in report.standings:
        assert page.text.count(place.entry.name) >= 4  # legend, two tables and a title inside the chart


def test_bands_are_drawn_from_three_seeds_on_and_other_runs_as_lines(tmp_path: Path) -> None:
    for seeds, bands in ((2, 0), (3, 1)):
        folder = tmp_path / str(seeds)
        for run_dir in fake_runs(folder, [50.0] * seeds, changes={"env_id": "Of-No-Suite-v0"}):
            write_curve(run_dir, {50: 1.0, 100: 50.0})
        page = Page(render_page(build_report([folder]), "report", folder))
        assert len(page.of_class("band")) == bands
        assert len(page.of_class("unfinished")) == 0
    write_curve(fake_run(folder, 9, status="failed", changes={"env_id": "Of-No-Suite-v0"}), {50: 1.0})
    page = Page(render_page(build_report([folder]), "report", folder))
    assert len(page.of_class("unfinished")) == 1


def test_runs_are_shown_with_status_and_reasons(text: str) -> None:
    page = Page(text)
    assert len(page.of_class("status")) == 26
    assert [len(page.of_class(status)) for status in ("completed", "running", "failed")] == [24, 1, 1]
    for words in ("RuntimeError: the floor gave way", "metrics.jsonl is empty: no row was logged", "24 completed"):
        assert words in page.text


def test_settings_in_which_entries_differ_are_shown(text: str, report: Report) -> None:
    rows = re.findall(r"<tr><td>algo_kwargs\.learning_rate</td>(.*?)</tr>", text)
    values = report.differences("CartPole-v1")["algo_kwargs.learning_rate"]
    assert re.findall(r"<td>(.*?)</td>", rows[0]) == [json.dumps(value) for value in values]


def test_a_leaderboard_page_has_no_runs(report: Report, sample: Path) -> None:
    page = Page(render_page(report, "leaderboard", sample))
    assert page.links() == []
    assert "AxiomRL leaderboard" in page.text


def test_without_runs_the_page_says_so(tmp_path: Path) -> None:
    page = Page(render_page(build_report([tmp_path]), "report", tmp_path))
    assert "No runs." in page.text
    assert page.of_class("chart") == []


def test_runs_that_were_never_evaluated_show_their_training(tmp_path: Path) -> None:
    write_curve(fake_run(tmp_path, 1, None), {}, training={50: 1.0, 100: 2.0})
    page = Page(render_page(build_report([tmp_path]), "report", tmp_path))
    checked = [element.get("id") for tag, element in page.elements if tag == "input" and "checked" in element]
    assert checked == ["of-train", "by-steps"]
    assert page.text.count("No run has logged its evaluation return.") == 2
    assert len(page.of_class("chart")) == 2


def test_a_run_whose_rows_are_damaged_is_named(tmp_path: Path) -> None:
    run_dir = fake_run(tmp_path, 1)
    (run_dir / METRICS).write_text('{"event": "train", "global_step": oh}\n' + (run_dir / METRICS).read_text())
    page = Page(render_page(build_report([tmp_path]), "report", tmp_path))
    assert f"{run_dir.name} has no curve:" in page.text


def test_scores_of_any_size_can_be_drawn(tmp_path: Path) -> None:
    for number, score in enumerate([0.0, -0.0, 1e-300, 1e15, -1e15, 1e100, 0.1 + 0.2]):
        for run_dir in fake_runs(tmp_path / str(number), [score, score], changes={"num_envs": number + 2}):
            write_curve(run_dir, {50: 0.0, 100: score}, training={100: score}, seconds_per_step=0.0)
        page = render_page(build_report([tmp_path / str(number)]), "report", tmp_path)
        assert not re.search(r"\b(nan|inf)\b", page)
        assert len(Page(page).of_class("chart")) >= 5


def test_short_curves_beside_long_ones_have_a_chart_of_their_own_length(tmp_path: Path) -> None:
    changes = {"env_id": "Of-No-Suite-v0"}
    for seed, horizon in enumerate((3_000, 3_000, 100_000), start=1):
        rate = {"algo_kwargs.learning_rate": horizon / 1e6}
        points = {step * horizon // 10: float(step) for step in range(11)}
        write_curve(fake_run(tmp_path, seed, changes=changes | rate), points, training=points)
    text = render_page(build_report([tmp_path]), "report", tmp_path)
    figures = re.findall(
        r"<figure class=\"of-eval by-steps\">\s*<figcaption>(.*?)</figcaption>(.*?)</figure>", text, re.S
    )
    assert [caption for caption, _ in figures] == [
        "Evaluation return over environment steps",
        "Evaluation return over environment steps, first 3,000 steps",
    ]
    long, short = ([tick for tick in re.findall(r">([\d.]+k?)<", chart) if "k" in tick] for _, chart in figures)
    assert (long[-1], short[-1]) == ("100k", "3k")
    assert figures[1][1].count('class="line"') == 2  # the long curve's beginning too


def test_losses_and_rates_are_a_second_tab_of_bounded_size(tmp_path: Path) -> None:
    for number in range(14):
        run_dir = fake_run(tmp_path / str(number), 1, rows=100, changes={"algo_kwargs.gamma": number / 20})
        rows = [json.loads(line) for line in (run_dir / METRICS).read_text().splitlines()]
        wide = {f"metric_{number}": 1.0 for number in range(40)} | {"bad\x1b[2J": 1.0, "loss_policy": 1e308}
        (run_dir / METRICS).write_text("".join(json.dumps(row | wide) + "\n" for row in rows))
    text = render_page(build_report([tmp_path]), "report", tmp_path)
    page = Page(text)
    figures = re.findall(r"<figure class=\"of-further\">\s*<figcaption>(.*?)</figcaption>(.*?)</figure>", text, re.S)
    assert [caption for caption, _ in figures][:4] == ["loss_value", "loss_total", "entropy", "gradient_norm"]
    assert all(chart.count('class="line"') == 12 for _, chart in figures[:-1])
    assert len(figures) == 25
    assert "the first 12 of 14 entries and 24 of 51 metrics; `axiomrl plot --metric NAME`" in page.text
    assert ("input", {"type": "radio", "name": "metric", "id": "of-further"}) in page.elements


# -- nothing foreign -------------------------------------------------------------------------------


def hostile_runs(root: Path) -> None:
    """Write runs that are hostile wherever a value can come from outside."""
    changes = {"tags": [HOSTILE], "env_id": f"Env-v0{HOSTILE}", "preset": f"my{HOSTILE}", "num_envs": 2}
    for seed in (1, 2, 3):
        run_dir = fake_run(root / "a", seed, changes={**changes, "algo_kwargs.activation": HOSTILE})
        run_dir.rename(run_dir.with_name(f"{seed} a%20#b?c:{HOSTILE.replace('/', '|')}\x07"))
    failed = fake_run(root / "b", 9, status="failed", changes=changes)
    metadata = (failed / METADATA).read_text()
    (failed / METADATA).write_text(metadata.replace("the floor gave way", f"\x7f {json.dumps(HOSTILE)[1:-1]}"))
    (root / "c" / HOSTILE.replace("/", "|")).mkdir(parents=True)
    (root / "c" / HOSTILE.replace("/", "|") / METADATA).write_text("{")


def test_values_of_runs_are_text_wherever_they_stand(tmp_path: Path) -> None:
    hostile_runs(tmp_path)
    text = render_page(build_report([tmp_path]), "report", tmp_path)
    page = Page(text)
    assert {tag for tag, _ in page.elements}.isdisjoint({"script", "img", "iframe", "object", "embed", "link", "base"})
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
    assert page.text.count(HOSTILE) > 8  # tags, settings, names of entries and environments, errors
    assert text.replace("\n", "").isprintable()
    labels = [str(attributes["aria-label"]) for attributes in page.of_class("chart")]
    assert any(HOSTILE in label for label in labels)


def test_the_sample_tag_shows_as_text(text: str) -> None:
    assert HOSTILE_TAG in Page(text).text
    assert "<script" not in text


def test_the_page_names_no_other_file_but_run_directories(tmp_path: Path) -> None:
    hostile_runs(tmp_path)
    sample_runs(tmp_path / "sample")
    report = build_report([tmp_path])
    text = render_page(report, "report", tmp_path)
    page = Page(text)
    for tag, attributes in page.elements:
        foreign = {"src", "srcset", "xlink:href", "action", "formaction", "data", "poster", "style", "background"}
        assert foreign.isdisjoint(attributes), (tag, attributes)
        assert tag == "a" or "href" not in attributes
    assert not re.search(r"url\(|@import|https?:|javascript:", re.sub(r">[^<]*<", "><", text))
    assert not re.search(r"url\s*\(|@import|https?:", text.split("<style>")[1].split("</style>")[0])
    assert sorted(tmp_path / unquote(link) for link in page.links()) == sorted(run.path for run in report.runs)


def test_links_are_relative_to_the_file(
    sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(sample)
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    for file in (Path("report.html"), folder / "page.html"):
        assert main(["report", "--runs", "runs", "--output", str(file)]) == 0
        links = Page(file.read_text(encoding="utf-8")).links()
        assert len(links) == 26
        for link in links:
            assert not link.startswith(("/", "file:"))
            assert (file.parent / unquote(link) / METADATA).is_file()
        file.unlink()
    assert capsys.readouterr().out.splitlines()[1:4] == ["runs=26", "unreadable=1", "entries=8"]


def test_the_same_runs_give_the_same_page(sample: Path, text: str) -> None:
    assert render_page(build_report([sample / "runs"]), "report", sample) == text


# -- charts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "high", "most", "expected"),
    [
        (0, 100, 5, [0, 20, 40, 60, 80, 100]),
        (-1300, -100, 5, [-1250, -1000, -750, -500, -250]),
        (0.0, 1.0, 6, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (3e6, 5e6, 4, [3e6, 3.5e6, 4e6, 4.5e6, 5e6]),
    ],
)
def test_ticks_are_round_numbers_within_the_axis(low: float, high: float, most: int, expected: list[float]) -> None:
    assert tick_values(low, high, most) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("low", "high"),
    [(0.0, 485.44), (-1213.6, 1213.6), (-110.0, -90.0), (0.0012, 0.00225), (-75e3, 6e4), (12.5e6, 97.5e6)],
)
def test_no_tick_is_clipped_or_covers_the_axis_label(low: float, high: float, tmp_path: Path) -> None:
    for seed, score in enumerate((low, (low + high) / 2, high), start=1):
        write_curve(fake_run(tmp_path, seed), {12_500_000: low, 100_000_000: score})
    charts = re.findall(r'<svg class="chart".*?</svg>', render_page(build_report([tmp_path]), "report", tmp_path))
    ticks = [
        tick
        for chart in charts
        for tick in re.findall(r'<text x="([\d.]+)" y="[\d.]+" text-anchor="(\w+)">(.+?)<', chart)
    ]
    assert {anchor for _, anchor, _ in ticks} == {"middle", "end"}
    sign = 10  # the widest that a digit gets, in the large type of a phone
    for x, anchor, tick in ticks:
        width = sign * len(tick)
        if anchor == "end":
            assert float(x) - width >= 24, f"{tick} covers the label of the axis"
        else:
            assert width / 2 <= float(x) <= WIDTH - width / 2, f"{tick} is clipped"


def test_scores_that_differ_by_rounding_are_drawn_as_one(tmp_path: Path) -> None:
    fake_runs(tmp_path, [99999.9, 99999.9 + 2e-11, 99999.9 - 2e-11])
    page = render_page(build_report([tmp_path]), "report", tmp_path)
    ticks = re.findall(r'text-anchor="middle">([\d.]+k)<', page[page.index("Final scores") :])
    assert ticks == ["90k", "95k", "100k", "105k"]


def test_a_long_name_keeps_its_ends() -> None:
    assert shortened("ppo-cartpole+1f6c0a52") == "ppo-cartpole+1f6c0a52"
    long = shortened("discrete_sac-some-package-Environment-v0+1f6c0a52")
    assert len(long) == 32
    assert long.startswith("discrete_sac-some-")
    assert long.endswith("+1f6c0a52")


# -- colours ---------------------------------------------------------------------------------------

# What the colour-blind see, on linear RGB (Machado, Oliveira and Fernandes 2009, severity 1).
SIGHT = {
    "full": np.eye(3),
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.119192, 0.95030]]
)


def linear(colour: str) -> np.ndarray:
    channels = np.array([int(colour[start : start + 2], 16) for start in (1, 3, 5)]) / 255
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of WCAG 2."""
    dark, light = sorted(float(TO_XYZ[1] @ linear(colour)) for colour in (one, other))
    return (light + 0.05) / (dark + 0.05)


def seen(colour: str, sight: str) -> np.ndarray:
    """Return what somebody sees, in CIELAB."""
    xyz = TO_XYZ @ np.clip(SIGHT[sight] @ linear(colour), 0, 1) / TO_XYZ.sum(axis=1)
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_curves_can_be_told_apart_by_everybody(theme: str) -> None:
    paper = {"light": LIGHT_PAPER, "dark": DARK_PAPER}[theme]
    colours = [getattr(style, theme) for style in STYLES]
    assert min(contrast(colour, paper) for colour in colours) >= 3
    for sight, (one, other) in itertools.product(SIGHT, itertools.combinations(colours, 2)):
        assert np.linalg.norm(seen(one, sight) - seen(other, sight)) > 18, (sight, one, other)
    assert len({style.mark for style in STYLES}) == len(STYLES)


def test_words_have_contrast_in_both_themes(text: str) -> None:
    style = text.split("<style>")[1].split("</style>")[0]
    light, dark = re.findall(r"--text: .*?\}", style, flags=re.DOTALL)
    for block, paper in ((light, LIGHT_PAPER), (dark, DARK_PAPER)):
        colours = dict(re.findall(r"--([a-z]+): (#[0-9a-f]{6})", block))
        for name in ("text", "quiet", "link", "completed", "running", "interrupted", "failed"):
            assert contrast(colours[name], paper) >= 4.5, name
            assert contrast(colours[name], colours["panel"]) >= 4.5, name


# -- in a browser ----------------------------------------------------------------------------------


@pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)
def test_a_browser_shows_the_page_without_a_network(text: str, sample: Path, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(text, encoding="utf-8")
    with Browser(tmp_path / "profile") as browser:
        for width, theme in ((390, "light"), (1200, "dark")):
            browser.open(file, width=width, theme=theme)
            size = browser.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
            assert size[0] <= size[1], f"the page is {size[0]} wide on a screen of {width}"
            charts = "[...document.querySelectorAll('svg.chart')].filter(chart => chart.getBoundingClientRect().height)"
            assert browser.evaluate(f"{charts}.length") == 3 + 3 + 2  # curves, final scores, profiles
            assert browser.evaluate(f"{charts}.every(chart => chart.querySelector('path.line, path.interval, circle'))")
            assert browser.evaluate("document.querySelectorAll('#runs tbody tr').length") == 26
            paper = browser.evaluate("getComputedStyle(document.body).backgroundColor")
            assert paper == ("rgb(255, 255, 255)" if theme == "light" else "rgb(21, 24, 29)")
            line = browser.evaluate("getComputedStyle(document.querySelector('svg.chart .line')).stroke")
            assert line == ("rgb(34, 86, 138)" if theme == "light" else "rgb(79, 144, 248)")
        shown = "[...document.querySelectorAll('figure.of-eval, figure.of-train')].filter(f => f.offsetHeight)"
        assert set(browser.evaluate(f"{shown}.map(f => f.className)")) == {"of-eval by-steps"}
        # The keyboard alone: from the choice of the metric to that of the axis, each changed by an arrow.
        browser.evaluate("document.getElementById('of-eval').focus()")
        for key in ("ArrowRight", "Tab", "ArrowRight"):
            for kind in ("keyDown", "keyUp"):
                browser.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=KEYS[key])
        assert set(browser.evaluate(f"{shown}.map(f => f.className)")) == {"of-train by-time"}
        box = "getBoundingClientRect()"
        outside = "Math.max(...[...document.querySelectorAll('svg.chart')].filter(c => c.clientWidth).flatMap(c =>"
        outside += f" [...c.querySelectorAll('text')].flatMap(t => [t.{box}.right - c.{box}.right,"
        outside += f" c.{box}.left - t.{box}.left])))"
        browser.open(file, width=390)
        assert browser.evaluate(outside) <= 0, "a text of a chart is clipped"
    assert browser.messages == []
    assert set(browser.requests) == {file.as_uri()}


KEYS = {"ArrowRight": 39, "Tab": 9}

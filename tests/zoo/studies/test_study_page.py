"""The page of a study: the verdict first, every chart, nothing foreign, and it fits a phone."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from browser import CHROMIUM, NO_CHROMIUM, Browser
from html_pages import HOSTILE, Page
from noted_studies import noted_study
from rl_training.experiment.tuning.confirmation import Confirmation, Side, write_confirmation
from rl_training.experiment.tuning.domains import Choice, Range
from rl_training.experiment.tuning.space import Parameter
from rl_training.zoo.studies.charts import shown_range
from rl_training.zoo.studies.page import render_study_page
from rl_training.zoo.studies.parameters import SearchedParameter
from rl_training.zoo.studies.report import StudyReport, build_study_report

RATE, GAMMA, EPOCHS = "algo_kwargs.learning_rate", "algo_kwargs.gamma", "algo_kwargs.update_epochs"
SIZES, NORMALIZE = "algo_kwargs.hidden_sizes", "algo_kwargs.normalize_advantage"


def tried(number: int, **notes: Any) -> dict[str, Any]:
    """Return a trial whose score depends on the learning rate."""
    settings = {
        RATE: 10.0 ** (-5 + 3 * (number % 13) / 12),
        GAMMA: 1 - 10.0 ** (-1 - 2 * (number % 5) / 4),
        EPOCHS: 1 + number % 20,
        SIZES: [[64, 64], [256, 256]][number % 2],
        NORMALIZE: number % 3 == 0,
    }
    value = 100.0 - 10 * abs(number % 13 - 8)
    return {"settings": settings, "value": value, "scores": {1: value - 1, 2: value + 1}, **notes}


def whole_study(folder: Path, trials: int = 26, **choices: Any) -> Path:
    """Return a study with a start, completed and failed trials and a confirmation."""
    failed = {"state": "FAIL", "error": "seed 1: it diverged", "settings": tried(12)["settings"]}
    notes = [{"value": 40.0, "scores": {1: 39.0, 2: 41.0}}, *map(tried, range(1, trials - 1)), failed]
    directory = noted_study(folder, notes, **choices)
    best = Side(8, 100.0, {3: 90.0, 4: 91.0, 5: 95.0})
    write_confirmation(directory, Confirmation(best, Side(0, 40.0, {3: 40.0, 4: 41.0, 5: 39.0}), trials))
    return directory


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> StudyReport:
    return build_study_report(whole_study(tmp_path_factory.mktemp("study")))


@pytest.fixture(scope="module")
def text(report: StudyReport) -> str:
    return render_study_page(report, report.directory)


def charts(text: str) -> dict[str, str]:
    """Return the charts by their label."""
    return dict(re.findall(r'<svg class="chart"[^>]*aria-label="([^"]*)">(.*?)</svg>', text, flags=re.DOTALL))


def test_the_verdict_is_on_top_and_says_what_is_a_result_and_what_flatters(text: str) -> None:
    page = Page(text)
    assert page.of_class("verdict") == [{"class": "verdict good"}]
    words = page.text
    order = ("Trial 8 is better than the start on 3 fresh seeds", "these scores are the result", "so they flatter it")
    places = [words.index(sentence) for sentence in order]
    assert places == sorted(places)
    assert "in the search (flattering)" in words
    assert "probability of improvement" in words
    assert "optimism" in words


def test_every_chart_of_a_study_is_there(text: str, report: StudyReport) -> None:
    found = charts(text)
    slices = [f"Objective over {parameter.name}" for parameter in report.parameters]
    assert list(found)[:3] == [
        "Scores on fresh seeds; the table below holds the figures",
        "Objectives of the trials; the table below holds the figures",
        "Importances of the parameters",
    ]
    assert set(slices) <= set(found)
    history = found["Objectives of the trials; the table below holds the figures"]
    assert history.count('class="seed"') == 23  # all but the start, the best and the failed one
    assert history.count('class="mark"') == 2
    assert history.count('class="cross"') == 1
    coordinates = next(chart for label, chart in found.items() if label.startswith("Parallel coordinates"))
    assert coordinates.count('class="line thin"') + coordinates.count('class="line"') == 25
    for name in slices:
        assert found[name].count("<title>") == 26, name
    assert "learning_rate (log scale)" in found["Objective over learning_rate"]
    assert "log scale of 1 - value" in found["Objective over gamma"]


def test_a_population_is_drawn_by_generation(tmp_path: Path) -> None:
    members = [
        {"value": 10.0, "generation": 0, "scores": {1: 10.0}},
        {"value": 30.0, "generation": 0, "scores": {2: 30.0}, "settings": {GAMMA: 0.9}},
        {"value": 90.0, "generation": 1, "parent": 1, "scores": {1: 90.0}, "settings": {GAMMA: 0.91}},
        {"value": 20.0, "generation": 1, "parent": 1, "scores": {2: 20.0}, "settings": {GAMMA: 0.9}},
    ]
    directory = noted_study(tmp_path, members, method="pbt", generations=2, trials=2, space="gamma: {uniform: [0, 1]}")
    text = render_study_page(build_study_report(directory), directory)
    chart = charts(text)["Members of the population by generation"]
    assert chart.count('class="line"') + chart.count('class="line thin"') == 2
    assert chart.count("stroke-dasharray") == 1  # the member that copied another
    assert "Lineage of the best" in Page(text).text
    assert "Importances: none" in Page(text).text


def test_runs_are_linked_from_their_scores(tmp_path: Path) -> None:
    directory = noted_study(
        tmp_path,
        [
            {"value": 1.0, "runs": {"1": {"seed": 1, "run_dir": "/elsewhere/run-a", "metrics": {}}}},
            {"value": 2.0, "runs": {"1": {"seed": 1, "run_dir": "/etc/..", "metrics": {}}}},
            {"value": 3.0, "runs": {"1": {"seed": 1, "run_dir": "/etc", "metrics": {}}}},
        ],
    )
    (directory / "runs" / "run-a").mkdir(parents=True)
    page = Page(render_study_page(build_study_report(directory), directory))
    assert page.links() == ["runs/run-a/"]


def test_a_long_study_has_a_page_of_bounded_size(tmp_path: Path) -> None:
    report = build_study_report(whole_study(tmp_path, trials=350))
    text = render_study_page(report, tmp_path)
    page = Page(text)
    assert "The charts show the 300 best of 350 trials" in page.text
    assert "All trials with a score (349)" in page.text
    assert len(text) < 2_000_000


# -- nothing foreign -------------------------------------------------------------------------------


def hostile_study(folder: Path) -> Path:
    """Write a study that is hostile wherever a value can come from outside."""
    space = f"""
{RATE}: {{log: [1.0e-5, 1.0e-2]}}
{SIZES}: {{choice: [null, [64, 64]]}}
"""
    notes: list[dict[str, Any]] = [{"value": 1.0}]
    for number in range(12):
        settings = {RATE: 1e-4 * (number + 1), SIZES: HOSTILE, HOSTILE: HOSTILE}
        run = {"seed": 1, "run_dir": f"/x/{HOSTILE.replace('/', '|')}", "metrics": {"eval_return_mean": 1.0}}
        notes.append({"value": float(number), "settings": settings, "runs": {"1": {**run, "error": HOSTILE}}})
    notes.append({"state": "FAIL", "error": f"\x1b[2J\x07{HOSTILE}\nforged=1", "settings": {HOSTILE: [HOSTILE]}})
    directory = noted_study(folder, notes, space=space)
    (directory / "runs" / HOSTILE.replace("/", "|")).mkdir(parents=True)
    study = (directory / "study.yaml").read_text()
    quoted = HOSTILE.replace("'", "''")
    study = study.replace("algo: ppo", f"algo: '{quoted}'").replace("env_id: CartPole-v1", f"env_id: '{quoted}'")
    study = study.replace(f"{SIZES}:\n    choice:\n    - null", f"{SIZES}:\n    choice:\n    - '{quoted}'")
    study = study.replace(f"  {RATE}:", f"  '{quoted}':\n    choice:\n    - 1\n    - '{quoted}'\n  {RATE}:")
    study = study.replace("created_at_utc: '", f"created_at_utc: '{quoted} ")
    assert study.count(quoted) == 6
    (directory / "study.yaml").write_text(study)
    return directory


def test_values_of_a_study_are_text_wherever_they_stand(tmp_path: Path) -> None:
    directory = hostile_study(tmp_path)
    text = render_study_page(build_study_report(directory), tmp_path)
    page = Page(text)
    assert {tag for tag, _ in page.elements}.isdisjoint({"script", "img", "iframe", "object", "embed", "link", "base"})
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
    for tag, attributes in page.elements:
        foreign = {"src", "srcset", "xlink:href", "action", "formaction", "data", "poster", "style", "background"}
        assert foreign.isdisjoint(attributes), (tag, attributes)
    assert page.text.count(HOSTILE) > 20
    assert text.replace("\n", "").isprintable()
    assert not re.search(r"url\s*\(|@import|https?:", text.split("<style>")[1].split("</style>")[0])


# -- axes ------------------------------------------------------------------------------------------


def axis(domain: Any, start: Any = dataclasses.MISSING) -> SearchedParameter:
    return SearchedParameter(Parameter("algo_kwargs.x", domain), "x", start)


@pytest.mark.parametrize(
    ("domain", "ticks", "middle"),
    [
        (Range(1e-5, 1e-1, "log"), ["1e-05", "0.0001", "0.001", "0.01", "0.1"], 1e-3),
        (Range(0.9, 0.9999, "one_minus_log"), ["0.9", "0.99", "0.999", "0.9999"], 1 - 10**-2.5),
        (Range(0.8, 0.99, "one_minus_log"), ["0.8", "0.9", "0.95", "0.98", "0.99"], 1 - (0.2 * 0.01) ** 0.5),
        (Range(0, 10), ["0", "2", "4", "6", "8", "10"], 5),
        (Range(16, 256, "log", integer=True), ["20", "50", "100", "200"], 64),
        (Choice((1, None, [64, 64])), ["1", "null", "[64, 64]"], None),
    ],
)
def test_an_axis_has_the_scale_of_its_domain(domain: Any, ticks: list[str], middle: Any) -> None:
    found = axis(domain)
    assert sorted(text for _, text in found.ticks) == sorted(ticks)
    assert found.place(middle) == pytest.approx(0.5)
    assert all(0 <= place <= 1 for place, _ in found.ticks)


def test_an_axis_has_room_for_the_start_outside_of_the_space() -> None:
    assert axis(Range(1.0, 2.0), start=0.0).place(0.0) == 0.0
    assert axis(Range(1e-4, 1e-2, "log"), start=0).place(0) is None  # it has no logarithm
    assert axis(Choice((1, 2)), start=None).place(None) == pytest.approx(5 / 6)
    assert axis(Range(1.0, 2.0), start="linear").place("linear") is None
    assert axis(Range(-1e300, 1e300)).place(2.0) is None  # differences of such numbers may not be finite


def test_a_few_scores_far_below_do_not_press_the_others_into_a_line() -> None:
    assert shown_range([*range(100), -5000.0]) == (0.0, 1)
    assert shown_range([*range(100), -20.0]) == (-20.0, 0)
    assert shown_range([1.0, -5000.0]) == (-5000.0, 0)  # too few to say which is the exception
    assert shown_range([]) == (0.0, 0)


# -- in a browser ----------------------------------------------------------------------------------


@pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)
def test_a_browser_shows_the_page_of_a_study(text: str, tmp_path: Path) -> None:
    file = tmp_path / "study.html"
    file.write_text(text, encoding="utf-8")
    box = "getBoundingClientRect()"
    outside = "Math.max(...[...document.querySelectorAll('svg.chart')].flatMap(c => [...c.querySelectorAll('text')]"
    outside += f".flatMap(t => [t.{box}.right - c.{box}.right, c.{box}.left - t.{box}.left])))"
    with Browser(tmp_path / "profile") as browser:
        for width, theme in ((390, "dark"), (1280, "light")):
            browser.open(file, width=width, theme=theme)
            size = browser.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
            assert size[0] <= size[1], f"the page is {size[0]} wide on a screen of {width}"
            assert browser.evaluate("document.querySelectorAll('svg.chart').length") == 9
            assert browser.evaluate(outside) <= 0, "a text of a chart is clipped"
    assert browser.messages == []
    assert set(browser.requests) == {file.as_uri()}

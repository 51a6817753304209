"""Reports on one model that was trained on several tasks show every task apart, and the suite by its own score."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from fake_runs import fake_run, fake_runs
from rl_training.cli import main
from rl_training.errors import ConfigError
from rl_training.experiment.runs import METRICS
from rl_training.experiment.statistics import bootstrap_interval
from rl_training.zoo.entries import find_entry, group_runs
from rl_training.zoo.leaderboard import Standing
from rl_training.zoo.page.curves import learning_curve, metric_label, read_histories
from rl_training.zoo.rendering import render
from rl_training.zoo.reporting import Filters, Report, build_report
from rl_training.zoo.run_index import RunRecord, index_runs, read_metric_rows
from suite_runs import ACRO, CART, HORIZON, TASKS, suite_run, suite_runs

Capture = pytest.CaptureFixture[str]
SUITE, OF_CART, OF_ACRO = "classic-suite (normalised mean)", f"classic-suite/{CART}", f"classic-suite/{ACRO}"
GOOD = [(420.0, -100.0), (380.0, -140.0), (400.0, -120.0)]  # 1, 0.9 and 0.95 of the way on both tasks
SLOWER = {"algo_kwargs.learning_rate": 1e-5}


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two entries on a suite: B equals A on CartPole and is far worse on Acrobot."""
    suite_runs(tmp_path / "runs" / "a", GOOD)
    suite_runs(tmp_path / "runs" / "b", [(cart, -480.0 + seed) for seed, (cart, _) in enumerate(GOOD)], changes=SLOWER)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


def names(runs: Path) -> tuple[str, str]:
    """Return the names of the entries A and B."""
    a, b = (group_runs(index_runs([runs / side]).runs)[0].name for side in "ab")
    return a, b


def place_of(report: Report, board: str) -> Standing:
    return report.board(board)[0]


# -- boards ----------------------------------------------------------------------------------------


def test_a_suite_has_a_board_of_its_own_and_one_per_task(runs: Path) -> None:
    report = build_report([runs / "a"])
    assert report.environments == [SUITE, OF_ACRO, OF_CART]
    assert [place_of(report, board).entry.scores for board in report.environments] == [
        pytest.approx([1.0, 0.9, 0.95]),
        [-100.0, -140.0, -120.0],
        [420.0, 380.0, 400.0],
    ]
    cart = place_of(report, OF_CART)
    assert cart.summary is not None
    assert (cart.rank, cart.summary.seeds, cart.summary.iqm) == (1, 3, 400.0)
    assert cart.summary.interval == bootstrap_interval([420.0, 380.0, 400.0])
    assert cart.normalized == pytest.approx(0.95)
    assert (len(report.runs), report.notices) == (3, ())
    assert len({place.entry.name for place in report.standings}) == 1


def test_every_board_ranks_by_its_own_scores(runs: Path) -> None:
    a, b = names(runs)
    report = build_report([runs])
    ranks = {board: [(place.entry.name, place.rank) for place in report.board(board)] for board in report.environments}
    assert ranks[SUITE] == ranks[OF_ACRO] == [(a, 1), (b, 2)]
    assert sorted(ranks[OF_CART]) == sorted([(a, 1), (b, 1)])  # the same scores share a rank


def test_the_suite_shows_the_normalised_mean_and_median(tmp_path: Path) -> None:
    tasks = [*TASKS, {"env_id": "corridor_envs:Grid-v0", "name": "grid", "random_return": 0.0, "target_return": 1.0}]
    suite_run(tmp_path, 1, [{CART: 420.0, ACRO: -420.0, "grid": 0.4}], tasks=tasks)  # 1.0, 0.2 and 0.4
    report = build_report([tmp_path])
    place = place_of(report, SUITE)
    assert (place.normalized, place.normalized_median) == (pytest.approx(1.6 / 3), pytest.approx(0.4))
    assert report.environments[-1] == "classic-suite/grid"
    assert place_of(report, "classic-suite/grid").normalized_median is None
    text = render(report, "leaderboard", "text")
    heading, row = (line.split() for line in text.splitlines()[1:3])
    assert " ".join(heading).endswith("max normalised median of tasks drift")
    assert row[-3:] == ["0.533", "0.400", "-"]


def test_without_references_the_suite_is_ranked_by_the_mean_return_and_says_so(tmp_path: Path) -> None:
    bare = [{"env_id": CART, "target_return": 420.0}, {"env_id": ACRO}]
    suite_runs(tmp_path / "bare", GOOD, tasks=bare)
    report = build_report([tmp_path])
    assert report.environments == ["classic-suite (mean return)", OF_ACRO, OF_CART]
    place = place_of(report, "classic-suite (mean return)")
    assert place.entry.scores == [160.0, 120.0, 140.0]
    assert (place.normalized, place.normalized_median) == (None, None)
    assert place_of(report, OF_CART).normalized is None
    suite_runs(tmp_path / "scaled", GOOD)
    both = build_report([tmp_path])  # a return and a share never stand on one board
    assert [len(both.board(board)) for board in both.environments] == [1, 1, 2, 2]
    assert "classic-suite/CartPole-v1 (" not in render(both, "leaderboard", "text")  # its entries differ in references


def test_a_suite_that_is_called_like_an_environment_is_not_ranked_with_it(tmp_path: Path) -> None:
    fake_runs(tmp_path / "ppo", [490.0] * 3)
    suite_runs(tmp_path / "suite", GOOD, changes={"env_id": CART})
    report = build_report([tmp_path])
    assert report.environments == [CART, f"{CART} (normalised mean)", f"{CART}/{ACRO}", f"{CART}/{CART}"]
    assert [place.entry.algo for place in report.board(CART)] == ["ppo"]
    assert [place.suite for place in report.suites] == ["classic-control"]


def test_one_task_is_a_suite_too(tmp_path: Path) -> None:
    suite_run(tmp_path, 1, [{CART: 220.0}], tasks=TASKS[:1])
    report = build_report([tmp_path])
    assert [place.entry.scores for place in report.standings] == [[0.5], [220.0]]


def test_other_tasks_or_references_under_one_name_are_noticed(runs: Path) -> None:
    assert build_report([runs]).notices == ()
    harder = [TASKS[0], {**TASKS[1], "target_return": -60.0}]
    suite_runs(runs / "c", GOOD, tasks=harder)
    (notice,) = build_report([runs]).notices
    assert notice == f"entries on {SUITE} differ in tasks or references; only the boards of tasks compare them"


# -- every format ----------------------------------------------------------------------------------


def test_json_holds_every_board_and_every_run_the_scores_of_its_tasks(runs: Path) -> None:
    record = json.loads(render(build_report([runs / "a"]), "report", "json"))
    of = {entry["env_id"]: entry for entry in record["entries"]}
    assert list(of) == [SUITE, OF_ACRO, OF_CART]
    assert {entry["trained_on"] for entry in record["entries"]} == {"classic-suite"}
    assert (of[SUITE]["metric"], of[OF_ACRO]["metric"]) == ("eval_normalized_mean", f"eval_return_mean/{ACRO}")
    assert of[SUITE]["normalized_median"] == of[SUITE]["normalized_iqm"] == pytest.approx(0.95)
    assert of[OF_ACRO]["scores"] == {"1": -100.0, "2": -140.0, "3": -120.0}
    assert of[OF_ACRO]["interval"] == list(bootstrap_interval([-100.0, -140.0, -120.0]))
    first = record["runs"][0]
    assert (first["env_id"], first["score"], first["metric"]) == ("classic-suite", 1.0, "eval_normalized_mean")
    assert first["task_scores"] == {CART: 420.0, ACRO: -100.0}


def test_csv_has_further_columns_only_where_there_are_suites(runs: Path) -> None:
    ordinary = fake_run(runs / "ppo", 1, 300.0)
    report = build_report([runs])
    by_run = list(csv.DictReader(io.StringIO(render(report, "report", "csv"))))
    assert [row[f"score/{ACRO}"] for row in by_run] == ["-100.0", "-140.0", "-120.0", "-480.0", "-479.0", "-478.0", ""]
    by_entry = list(csv.DictReader(io.StringIO(render(report, "leaderboard", "csv"))))
    assert [(row["env_id"], row["metric"]) for row in by_entry] == [
        (CART, ""),
        *[(SUITE, "eval_normalized_mean")] * 2,
        *[(OF_ACRO, f"eval_return_mean/{ACRO}")] * 2,
        *[(OF_CART, f"eval_return_mean/{CART}")] * 2,
    ]
    alone = build_report([ordinary])
    assert render(alone, "report", "csv").splitlines()[0].endswith(",tags,error")
    assert render(alone, "leaderboard", "csv").splitlines()[0].endswith(",note,drift")
    assert not any(word in render(alone, "report", "json") for word in ("task_scores", "metric", "trained_on"))


@pytest.mark.parametrize("output_format", ["text", "markdown", "html"])
def test_pages_for_people_name_every_board_with_its_references(runs: Path, output_format: str) -> None:
    report = build_report([runs])
    page = render(report, "leaderboard", output_format)
    around = '<h2>{} <span class="quiet">{}</span></h2>' if output_format == "html" else "{} {}"
    assert around.format(OF_CART, "(random 20, target 420)") in page
    assert around.format(OF_ACRO, "(random -500, target -100)") in page
    assert SUITE in page
    assert f"{CART} 420.0, {ACRO} -100.0" in render(report, "report", output_format)


def test_curves_are_those_of_the_board(runs: Path) -> None:
    report = build_report([runs / "a"])
    entries = {place.entry.env_id: place.entry for place in report.standings}
    histories = read_histories(entries.values())
    ends = {}
    for board, entry in entries.items():
        curve = learning_curve(entry, histories, "eval_return_mean", "steps")
        assert (curve.seeds, curve.x.tolist()) == (3, [HORIZON / 2, HORIZON])
        ends[board] = curve.y.tolist()
        assert curve.low is not None
    assert ends == {SUITE: pytest.approx([0.0, 0.95]), OF_ACRO: [-500.0, -120.0], OF_CART: [20.0, 400.0]}
    training = learning_curve(entries[OF_ACRO], histories, "train_return_mean", "time")
    assert (training.x.tolist(), training.y.tolist()) == ([15.0, 30.0], [-250.0, -60.0])
    assert learning_curve(entries[SUITE], histories, "train_return_mean", "steps").empty
    labels = [metric_label(entry, "eval_return_mean") for entry in entries.values()]
    assert labels == ["normalised mean", "evaluation return", "evaluation return"]


def test_the_rows_of_a_run_are_read_once_for_all_its_boards(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []

    def count(run: RunRecord) -> list[dict[str, Any]]:
        read.append(run.path)
        return read_metric_rows(run)

    monkeypatch.setattr("rl_training.zoo.page.curves.read_metric_rows", count)
    read_histories(place.entry for place in build_report([runs]).standings)
    assert (len(read), len(set(read))) == (6, 6)


def test_a_page_says_what_the_curves_of_each_board_show(runs: Path) -> None:
    page = render(build_report([runs]), "leaderboard", "html")
    assert page.count("<figcaption>Normalised mean over environment steps</figcaption>") == 1
    assert page.count("<figcaption>Evaluation return over environment steps</figcaption>") == 2
    assert page.count("No run has logged its training return.") == 2  # of the whole suite, over steps and over time


def test_a_plot_has_one_panel_per_board(runs: Path, capsys: Capture) -> None:
    assert main(["plot", "--output", "curves.svg"]) == 0
    assert "entries=6" in capsys.readouterr().out
    drawing = Path("curves.svg").read_text()
    for text in (SUITE, OF_ACRO, OF_CART, "normalised mean", "evaluation return"):
        assert f"<!-- {text} -->" in drawing
    assert main(["plot", "--output", "training.svg", "--metric", "train_return_mean"]) == 0
    assert "entries=4" in capsys.readouterr().out  # nobody logs a training return of the whole suite


# -- choosing, comparing and gates -----------------------------------------------------------------


def test_a_filter_takes_the_suite_or_one_of_its_tasks(runs: Path, caplog: pytest.LogCaptureFixture) -> None:
    fake_run(runs / "ppo", 1, 300.0)
    boards = {env: build_report([runs], Filters(env=[env])).environments for env in ("classic-suite", SUITE, OF_ACRO)}
    assert boards == {"classic-suite": [SUITE, OF_ACRO, OF_CART], SUITE: [SUITE, OF_ACRO, OF_CART], OF_ACRO: [OF_ACRO]}
    report = build_report([runs], Filters(env=[OF_ACRO, OF_CART]))
    assert (report.environments, len(report.runs)) == ([OF_ACRO, OF_CART], 6)
    assert report.runs[0].score == 1.0  # a run is shown whole
    assert not caplog.records
    build_report([runs], Filters(env=["classic-suite/Acrobat-v1"]))
    assert "no run has it; did you mean `classic-suite/Acrobot-v1`?" in caplog.text


def test_compare_finds_a_regression_on_one_task(runs: Path, capsys: Capture) -> None:
    a, b = names(runs)
    assert main(["compare", b, a, "--json", "--fail-on-regression"]) == 3
    record = json.loads(capsys.readouterr().out)
    assert record["env_id"] == SUITE
    assert (record[f"verdict/{ACRO}"], record[f"verdict/{CART}"]) == ("worse", "no clear difference")
    assert record[f"difference/{ACRO}"] == -359.0  # -479 against -120
    assert [f"on {SUITE}" in record["gates"][0], f"on {OF_ACRO}" in record["gates"][1]] == [True, True]
    assert main(["compare", a, b, "--fail-on-regression"]) == 0
    assert main(["compare", b, a, "--env", OF_CART, "--fail-on-regression"]) == 0
    capsys.readouterr()
    assert main(["compare", "runs/b", "runs/a", "--env", OF_ACRO, "--fail-on-regression"]) == 3
    assert f"sentence=runs/b is worse than runs/a on {OF_ACRO}" in capsys.readouterr().out


def test_a_gain_on_one_task_does_not_hide_the_loss_on_another(tmp_path: Path, capsys: Capture) -> None:
    suite_runs(tmp_path / "before", GOOD)
    # CartPole gains 0.2 of its scale and Acrobot loses as much.
    suite_runs(tmp_path / "after", [(cart + 80, acro - 80) for cart, acro in GOOD])
    before, after = str(tmp_path / "before"), str(tmp_path / "after")
    assert main(["compare", after, before, "--fail-on-regression", "--json"]) == 3
    record = json.loads(capsys.readouterr().out)
    assert (record["verdict"], record[f"verdict/{CART}"]) == ("no clear difference", "better")
    assert [f"on {OF_ACRO}" in reason for reason in record["gates"]] == [True]
    stored = str(tmp_path / "stored.json")
    assert main(["leaderboard", before, "--output", stored]) == 0
    assert main(["leaderboard", before, "--baseline", stored, "--fail-on-regression"]) == 0
    capsys.readouterr()
    arguments = ["leaderboard", after, "--baseline", stored, "--fail-on-regression", "--output-format", "json"]
    assert main(arguments) == 3
    answer = capsys.readouterr()
    verdicts = {pair["env_id"]: pair["verdict"] for pair in json.loads(answer.out)["baseline"]["comparisons"]}
    assert verdicts == {SUITE: "no clear difference", OF_ACRO: "worse", OF_CART: "better"}
    assert answer.err.count("gate fired") == 1
    assert main([*arguments, "--env", OF_CART]) == 0
    assert main([*arguments, "--env", "classic-suite"]) == 3


def test_a_task_that_has_no_score_any_more_is_a_regression(tmp_path: Path, capsys: Capture) -> None:
    suite_runs(tmp_path / "before", GOOD)
    suite_runs(tmp_path / "after", [(cart, None) for cart, _ in GOOD])
    before, after, stored = str(tmp_path / "before"), str(tmp_path / "after"), str(tmp_path / "stored.json")
    assert main(["leaderboard", before, "--output", stored]) == 0
    assert main(["leaderboard", after, "--baseline", stored, "--fail-on-regression"]) == 3
    error = capsys.readouterr().err
    assert error.count("gate fired") == 1
    assert f"on {OF_ACRO} has 3 seeds in the baseline and no score in this report" in error
    assert main(["compare", after, before, "--fail-on-regression"]) == 3
    assert f"{before} has a score on {OF_ACRO}, and {after} has none" in capsys.readouterr().err


def test_the_others_are_compared_with_an_entry_on_every_board(runs: Path, capsys: Capture) -> None:
    a, b = names(runs)
    assert main(["leaderboard", "--baseline", a, "--fail-on-regression", "--output-format", "json"]) == 3
    comparisons = json.loads(capsys.readouterr().out)["baseline"]["comparisons"]
    assert [(pair["a"], pair["env_id"], pair["verdict"]) for pair in comparisons] == [
        (b, SUITE, "worse"),
        (b, OF_CART, "no clear difference"),
        (b, OF_ACRO, "worse"),
    ]


def test_an_entry_on_several_chosen_boards_must_be_narrowed(runs: Path) -> None:
    filters = Filters(env=[OF_CART, OF_ACRO])
    entries = filters.select_entries(group_runs(filters.select_runs(index_runs([runs / "a"]).runs)))
    with pytest.raises(ConfigError, match=rf"is on several boards \({OF_CART}, {OF_ACRO}\); choose one by --env"):
        find_entry(entries, names(runs)[0])


def test_drift_is_named_once_for_all_boards(runs: Path, capsys: Capture) -> None:
    suite_runs(runs / "c", GOOD, changes={"preset": "muzero-cartpole"})
    assert main(["report", "runs/c", "--fail-on-manifest-drift", "--output-format", "json"]) == 3
    reasons = json.loads(capsys.readouterr().out)["gates"][0]["reasons"]
    assert len(reasons) == len(set(reasons))
    assert sum("env_id is classic-suite" in reason for reason in reasons) == 1
    assert render(build_report([runs / "c"]), "report", "text").count("env_id is classic-suite") == 1
    assert main(["report", "runs/a", "--fail-on-manifest-drift"]) == 0  # no manifest knows the suite


# -- damage ----------------------------------------------------------------------------------------

EVERY_FORMAT = ("text", "json", "csv", "markdown", "html")


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), "much", 10**400, True])
def test_a_damaged_score_costs_its_own_board_only(tmp_path: Path, value: Any) -> None:
    *_, last = suite_runs(tmp_path, GOOD)
    *head, final = (last / METRICS).read_text().splitlines()
    (last / METRICS).write_text(
        "\n".join([*head, json.dumps({**json.loads(final), f"eval_return_mean/{CART}": value})])
    )
    report = build_report([tmp_path])
    assert report.unreadable == ()
    assert [len(place.entry.by_seed) for place in report.standings] == [3, 3, 2]
    assert place_of(report, OF_CART).entry.scores == [420.0, 380.0]
    for output_format in EVERY_FORMAT:
        assert render(report, "report", output_format)


def test_a_task_without_any_value_and_a_suite_without_its_score_end_no_report(tmp_path: Path) -> None:
    for run_dir in suite_runs(tmp_path, GOOD):
        rows = [json.loads(line) for line in (run_dir / METRICS).read_text().splitlines()]
        gone = ("eval_normalized_mean", f"eval_return_mean/{CART}", f"train_return_mean/{CART}")
        rows = [{key: value for key, value in row.items() if key not in gone} for row in rows]
        (run_dir / METRICS).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    report = build_report([tmp_path])
    assert [place.entry.scores for place in report.standings] == [[], [-100.0, -140.0, -120.0], []]
    assert [place.rank for place in report.standings] == [None, 1, None]
    for output_format in EVERY_FORMAT:
        assert render(report, "leaderboard", output_format)
    (entry,) = group_runs(report.runs)
    assert build_report([tmp_path], baseline=entry.name).baseline is not None


def test_a_failed_run_is_shown_and_counted_on_no_board(runs: Path) -> None:
    suite_run(runs / "a", 9, [{CART: 420.0, ACRO: -60.0}], status="failed")
    report = build_report([runs / "a"])
    assert [run.status for run in report.runs].count("failed") == 1
    assert [len(place.entry.by_seed) for place in report.standings] == [3, 3, 3]
    entry = place_of(report, OF_ACRO).entry
    (dotted,) = learning_curve(entry, read_histories([entry]), "eval_return_mean", "steps").unfinished
    assert dotted.y.tolist() == [-60.0]


@pytest.mark.parametrize("wrong", ["\x1b[2J", "", 3, ["x"], CART])
def test_tasks_that_are_not_told_apart_by_names_make_a_run_unreadable(tmp_path: Path, wrong: Any) -> None:
    fake_run(tmp_path, 1, changes={"env_kwargs.tasks": [TASKS[0], {**TASKS[1], "name": wrong}]})
    (unreadable,) = build_report([tmp_path]).unreadable
    assert unreadable.reason == "config.yaml does not hold a configuration: its tasks are not told apart by names"


@pytest.mark.parametrize("tasks", [3, "reach", ["reach", "push"], [{"reach": 1}], [], [None], {"env_id": "x"}])
def test_an_argument_that_happens_to_be_called_tasks_makes_no_suite(tmp_path: Path, tasks: Any) -> None:
    fake_run(tmp_path, 1, 7.0, changes={"env_kwargs.tasks": tasks})
    report = build_report([tmp_path])
    assert [(place.entry.env_id, place.entry.scores) for place in report.standings] == [(CART, [7.0])]


def test_references_that_are_no_scale_leave_returns(tmp_path: Path) -> None:
    for number, target in enumerate((float("nan"), float("inf"), 20.0, "high", None)):
        tasks = [{**TASKS[0], "target_return": target}, TASKS[1]]
        suite_run(tmp_path / str(number), 1, [{CART: 100.0, ACRO: -300.0}], tasks=tasks)
    report = build_report([tmp_path])
    assert (report.unreadable, len(report.runs)) == ((), 5)
    assert report.environments == ["classic-suite (mean return)", OF_ACRO, OF_CART]
    assert [place.normalized for place in report.board(OF_CART)] == [None] * 5
    for output_format in EVERY_FORMAT:  # the settings that differ hold what strict JSON cannot
        assert render(report, "report", output_format)


def test_names_of_tasks_are_escaped_on_pages(tmp_path: Path) -> None:
    hostile = "<script>alert('x')</script>&\"|*"
    tasks = [{**TASKS[0], "name": hostile}, TASKS[1]]
    suite_run(tmp_path, 1, [{hostile: 20.0, ACRO: -500.0}, {hostile: 420.0, ACRO: -100.0}], tasks=tasks)
    report = build_report([tmp_path])
    page = render(report, "report", "html")
    assert "<script" not in page
    assert "classic-suite/&lt;script&gt;" in page
    assert r"classic-suite/\<script\>alert('x')\</script\>&" in render(report, "leaderboard", "markdown")
    rows = list(csv.DictReader(io.StringIO(render(report, "report", "csv"))))
    assert rows[0][f"score/{hostile}"] == "420.0"

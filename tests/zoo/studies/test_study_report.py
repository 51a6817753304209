"""What a report on a study says, in every format."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from noted_studies import noted_study
from rl_training.errors import ConfigError, MissingExtraError, NonFiniteError
from rl_training.experiment.benchmarking import SweepSummary, write_summary
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.sweeps import BenchmarkRunRecord
from rl_training.experiment.tuning import journal
from rl_training.experiment.tuning.confirmation import Confirmation, Side, write_confirmation
from rl_training.experiment.tuning.study import FINALS, JOURNAL, read_study, write_study
from rl_training.zoo.rendering import rows_as_csv
from rl_training.zoo.studies.rendering import render_study
from rl_training.zoo.studies.report import StudyReport, build_study_report
from study_parts import ScoredManager, hill, make_study, search

POPULATION = {"method": "pbt", "trials": 2, "generations": 2, "space": "gamma: {uniform: [0.8, 0.999]}"}


def falling(config: TrainConfig) -> float:
    """Return a score for which the learning rate matters, and that fails where it is high."""
    if config.algo_kwargs["learning_rate"] > 3e-3:
        raise NonFiniteError("the loss is not finite at step 1024")
    return hill(config)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    directory = make_study(folder, trials=24, sampler="random", seeds_per_trial=2)
    search(directory, ScoredManager(falling))
    return directory


@pytest.fixture(scope="module")
def report(directory: Path) -> StudyReport:
    return build_study_report(directory)


def side(trial: int, searched: float | None, *scores: float) -> Side:
    return Side(trial, searched, {seed: float(score) for seed, score in enumerate(scores, start=10)})


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


# -- the record ------------------------------------------------------------------------------------


def test_trials_are_ranked_by_their_objective_and_failed_ones_have_no_rank(report: StudyReport) -> None:
    objectives = [result.objective for result in report.ranking if result.objective is not None]
    assert objectives == sorted(objectives, reverse=True)
    assert [result.rank for result in report.ranking] == list(range(1, len(objectives) + 1))
    failed = report.without_score
    assert report.counts == {"completed": 24 - len(failed), "failed": len(failed)}
    assert failed
    assert all(result.rank is None and "not finite" in (result.trial.error or "") for result in failed)
    assert any(f"{len(failed)} of 24 trials failed" in sentence for sentence in report.notices)


def test_the_history_is_the_highest_objective_so_far(report: StudyReport) -> None:
    best = -math.inf
    for point, result in zip(report.history, report.trials, strict=True):
        best = max(best, -math.inf if result.objective is None else result.objective)
        assert (point.number, point.objective, point.best) == (result.number, result.objective, best)


def test_the_start_shows_its_own_values(report: StudyReport) -> None:
    start = report.trials[0]
    assert start.is_start
    assert start.values["algo_kwargs.learning_rate"] == 3e-4
    assert start.values["algo_kwargs.normalize_advantage"] is True
    assert [parameter.name for parameter in report.parameters][:2] == ["learning_rate", "gamma"]


def test_scores_are_those_of_the_seeds_and_runs_are_found_in_the_study(report: StudyReport) -> None:
    best = report.best
    assert best is not None
    rate = best.values["algo_kwargs.learning_rate"]
    assert best.scores == {seed: pytest.approx(100 - 10 * abs(math.log10(rate) + 3) + 0.1 * seed) for seed in (1, 2)}
    assert all(path.parent == report.directory / "runs" for path in best.runs.values())


def test_a_study_that_was_moved_finds_its_runs(directory: Path, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere"
    (moved / "runs").mkdir(parents=True)
    for name in ("study.yaml", JOURNAL):
        (moved / name).write_bytes((directory / name).read_bytes())
    known = next((directory / "runs").iterdir()).name
    (moved / "runs" / known).mkdir()
    found = build_study_report(moved)
    assert [path for result in found.trials for path in result.runs.values()] == [moved / "runs" / known]


def test_a_report_writes_nothing(directory: Path) -> None:
    def content() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in directory.iterdir() if path.is_file()}

    before = content()
    build_study_report(directory)
    assert content() == before


def test_the_same_study_gives_the_same_bytes(directory: Path, report: StudyReport) -> None:
    for output_format in ("text", "markdown", "csv", "json", "html"):
        again = render_study(build_study_report(directory), output_format)
        assert render_study(report, output_format) == again


# -- importances -----------------------------------------------------------------------------------


def test_the_parameter_that_matters_is_beyond_chance_and_the_others_are_not(report: StudyReport) -> None:
    first, *others = report.importances.found
    assert first.key == "algo_kwargs.learning_rate"
    assert first.beyond_chance
    assert first.share > 0.5
    assert not any(other.beyond_chance for other in others)
    assert math.isclose(sum(one.share for one in report.importances.found), 1)
    assert "learning_rate matters beyond chance" in render_study(report, "text")


@pytest.mark.parametrize(
    ("values", "choices", "reason"),
    [
        ([1.0, 2.0, 3.0], {}, "they need at least 10 completed trials, and there are 3"),
        ([7.0] * 12, {}, "all completed trials have the same score"),
        ([1.0] * 12 + [2.0], {}, "most have the same score"),
        ([float(value) for value in range(12)], {"space": "learning_rate: {log: [1e-5, 1]}"}, "a single parameter"),
        ([1.0, 2.0], POPULATION, "a population change their settings"),
    ],
)
def test_there_may_be_no_importances_and_the_report_says_why(
    values: list[float], choices: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    report = build_study_report(noted_study(tmp_path, [{"value": value} for value in values], **choices))
    assert report.importances.found == ()
    assert reason in str(report.importances.reason)
    assert reason in render_study(report, "text")
    assert render_study(report, "html")


# -- the verdict -----------------------------------------------------------------------------------


def test_the_verdict_of_fresh_seeds_comes_first(tmp_path: Path) -> None:
    directory = noted_study(tmp_path, [{"value": 50.0}, {"value": 120.0, "settings": {"algo_kwargs.gamma": 0.9}}])
    confirmation = Confirmation(side(1, 120.0, 100, 101, 102), side(0, 50.0, 48, 49, 50), 2)
    write_confirmation(directory, confirmation)
    report = build_study_report(directory)
    assert report.improved
    for output_format in ("text", "markdown"):
        text = render_study(report, output_format)
        assert text.startswith("Trial 1 is better than the start on 3 fresh seeds")
        assert text.index("Result on fresh seeds") < text.index("which flatters the best")
    record = report.as_record()
    assert record["confirmation"] == confirmation.as_record()
    assert record["confirmation"]["optimism"] == 120.0 - 101.0
    assert record["verdict"] == confirmation.sentence


def test_trials_since_the_confirmation_are_pointed_out(tmp_path: Path) -> None:
    trials = [{"value": value, "settings": {"algo_kwargs.gamma": value / 100}} for value in (10.0, 90.0, 95.0)]
    directory = noted_study(tmp_path, trials)
    write_confirmation(directory, Confirmation(side(1, 90.0, 1, 2, 3), side(0, 10.0, 1, 2, 3), 2))
    text = render_study(build_study_report(directory), "text")
    assert "the confirmed trial is the best of the first 2 of 3 trials" in text


@pytest.mark.parametrize(
    ("trials", "choices", "verdict"),
    [
        ([], {}, "no trial has begun yet; `axiomrl tune --continue"),
        ([{"state": "FAIL", "error": "it diverged"}] * 2, {}, "no trial has a score that could be confirmed: 2 failed"),
        ([{}], {}, "no trial has a score yet: 1 running"),
        ([{"value": 1.0}], {"confirm_seeds": 0}, "nothing is confirmed: the study has no fresh seeds"),
        ([{"value": 1.0}], {}, "nothing is confirmed yet, and the score of the best of 1 trials flatters it"),
    ],
)
def test_without_a_confirmation_the_verdict_says_what_is_missing(
    trials: list[dict[str, Any]], choices: dict[str, Any], verdict: str, tmp_path: Path
) -> None:
    report = build_study_report(noted_study(tmp_path, trials, **choices))
    assert report.verdict.startswith(verdict)
    for output_format in ("text", "markdown", "csv", "json", "html"):
        text = render_study(report, output_format)
        assert output_format == "csv" or verdict[1:20] in text
    if any("error" in trial for trial in trials):
        assert "it diverged" in render_study(report, "text")


# -- finalists -------------------------------------------------------------------------------------


def with_finals(folder: Path) -> Path:
    """Return a study whose first trial in the search does worse than its second on further seeds."""
    gamma = "algo_kwargs.gamma"
    trials = [
        {"value": 50.0, "scores": {1: 50.0, 2: 50.0}},
        {"value": 90.0, "scores": {1: 90.0, 2: 90.0}, "settings": {gamma: 0.9}},
        {"value": 80.0, "scores": {1: 80.0, 2: 80.0}, "settings": {gamma: 0.91}},
    ]
    directory = noted_study(folder, trials, finalists=2)
    for trial, score in ((1, 20.0), (2, 80.0)):
        runs = [BenchmarkRunRecord(seed, metrics={"eval_return_mean": score}) for seed in (3, 4, 5)]
        place = directory / FINALS / f"trial-{trial}"
        place.mkdir(parents=True)
        write_summary(place / "benchmark_summary__ppo.json", SweepSummary(None, tuple(runs), "2026-01-01", "completed"))
    return directory


def test_further_seeds_choose_among_the_finalists(tmp_path: Path) -> None:
    report = build_study_report(with_finals(tmp_path))
    assert [result.number for result in report.finalists] == [1, 2]
    assert [result.over_all_seeds for result in report.finalists] == [pytest.approx(130 / 3), 80.0]
    assert report.best is not None
    assert (report.best.number, report.best.rank) == (2, 2)
    text = render_study(report, "text")
    assert re.search(r"2 +80.00 +3: 80.00, 4: 80.00, 5: 80.00 +80.00 +chosen", text)
    assert "chosen by further seeds" in render_study(report, "html")
    assert [row["score/4"] for row in rows(render_study(report, "csv"))] == ["", "20.0", "80.0"]


def test_finals_that_are_not_complete_or_damaged_decide_nothing(tmp_path: Path) -> None:
    directory = with_finals(tmp_path)
    (summary,) = (directory / FINALS / "trial-2").iterdir()
    whole = summary.read_text()
    for damaged, notice in ((whole.replace('"completed"', '"failed"', 2), ""), ("{", "trial 2 on further seeds: ")):
        summary.write_text(damaged)
        report = build_study_report(directory)
        assert report.best is not None
        assert report.best.number == 1
        assert notice in "".join(report.notices)
        assert render_study(report, "html")


# -- formats ---------------------------------------------------------------------------------------


def test_csv_has_a_row_for_each_trial_and_a_column_for_each_searched_key(report: StudyReport) -> None:
    found = rows(render_study(report, "csv"))
    assert len(found) == 24
    for row, result in zip(found, report.trials, strict=True):
        assert row["trial"] == str(result.number)
        assert float(row["algo_kwargs.gamma"]) == result.values["algo_kwargs.gamma"]
        assert json.loads(row["algo_kwargs.hidden_sizes"]) == result.values["algo_kwargs.hidden_sizes"]
        if result.objective is not None:
            assert float(row["objective"]) == result.objective
            assert (float(row["score/1"]), float(row["score/2"])) == tuple(result.scores.values())
        else:
            assert row["objective"] == ""
            assert "not finite" in row["error"]


def test_no_name_of_a_column_is_a_formula() -> None:
    assert rows_as_csv(["=a()"], [{"=a()": "+b"}, {"=a()": -1}]) == "'=a()\n'+b\n-1\n"


def test_json_has_everything(report: StudyReport) -> None:
    record = json.loads(render_study(report, "json"))
    assert record["kind"] == "study"
    assert len(record["trials"]) == len(record["history"]) == 24
    assert record["space"]["algo_kwargs.gamma"] == {"one_minus_log": [0.8, 0.9999]}
    assert {key: part["scale"] for key, part in record["slices"].items()} == {
        "algo_kwargs.learning_rate": "log",
        "algo_kwargs.gamma": "one_minus_log",
        "algo_kwargs.update_epochs": "uniform",
        "algo_kwargs.hidden_sizes": "choice",
        "algo_kwargs.normalize_advantage": "choice",
    }
    assert [point["trial"] for point in record["slices"]["algo_kwargs.gamma"]["points"]] == list(range(24))
    assert record["importances"]["parameters"][0]["beyond_chance"] is True


def test_text_fits_a_terminal(report: StudyReport) -> None:
    text = re.sub(r"\x1b\[[0-9;]*m", "", render_study(report, "text", width=100))
    assert max(map(len, text.splitlines())) <= 100
    assert "more are left out" in text


def test_a_parameter_that_is_not_active_has_an_empty_cell(tmp_path: Path) -> None:
    space = "use_sde: {choice: [true, false]}\nsde_sample_freq: {int: [1, 64], when: {use_sde: true}}"
    config = {"algo": "ppo", "env_id": "Pendulum-v1", "seed": 1, "total_timesteps": 4096}
    settings = [{}, {"algo_kwargs.use_sde": True, "algo_kwargs.sde_sample_freq": 7}]
    from rl_training.experiment.configuration.config_files import load_config

    directory = noted_study(
        tmp_path,
        [{"value": 1.0, "settings": one} for one in settings],
        space=space,
        config=load_config(base=config, overrides={"output_dir": tmp_path}),
    )
    report = build_study_report(directory)
    first, second = rows(render_study(report, "csv"))
    assert (first["algo_kwargs.use_sde"], first["algo_kwargs.sde_sample_freq"]) == ("false", "")
    assert (second["algo_kwargs.use_sde"], second["algo_kwargs.sde_sample_freq"]) == ("true", "7")
    assert render_study(report, "html")


# -- populations -----------------------------------------------------------------------------------


def population(folder: Path) -> Path:
    gamma = "algo_kwargs.gamma"
    members = [
        {"value": 10.0, "generation": 0, "scores": {1: 10.0}},
        {"value": 30.0, "generation": 0, "scores": {2: 30.0}, "settings": {gamma: 0.9}},
        {"value": 90.0, "generation": 1, "parent": 1, "scores": {1: 90.0}, "settings": {gamma: 0.91}},
        {"value": 20.0, "generation": 1, "parent": 1, "scores": {2: 20.0}, "settings": {gamma: 0.9}},
        {"value": 40.0, "generation": 2, "parent": 2, "scores": {1: 40.0}, "settings": {gamma: 0.91}},
        {"state": "FAIL", "generation": 2, "parent": 2, "error": "it diverged", "settings": {gamma: 0.92}},
    ]
    return noted_study(folder, members, **{**POPULATION, "generations": 3})


def test_a_population_shows_the_lineage_of_its_best_member(tmp_path: Path) -> None:
    report = build_study_report(population(tmp_path))
    assert report.best is not None
    assert report.best.number == 4  # of the latest generation, although an earlier member had a higher score
    assert report.lineage(4) == [1, 2, 4]
    assert report.planned == 6
    assert [point.best for point in report.history] == [10.0, 30.0, 90.0, 90.0, 40.0, 40.0]
    text = render_study(report, "text")
    assert "a population of 2 over 3 generations" in text
    assert "Lineage of the best" in text
    found = rows(render_study(report, "csv"))
    assert [(row["generation"], row["parent"], row["seed"]) for row in found[1:4]] == [
        ("0", "", "2"),
        ("1", "1", "1"),
        ("1", "1", "2"),
    ]
    assert json.loads(render_study(report, "json"))["best_lineage"] == [1, 2, 4]


def test_a_circle_of_parents_ends(tmp_path: Path) -> None:
    members = [
        {"value": 1.0, "generation": 0, "parent": 1, "scores": {1: 1.0}},
        {"value": 2.0, "generation": 0, "parent": 0, "scores": {2: 2.0}},
    ]
    report = build_study_report(noted_study(tmp_path, members, **POPULATION))
    assert report.lineage(1) == [0, 1]
    for output_format in ("text", "json", "html"):
        assert render_study(report, output_format)


# -- mistakes --------------------------------------------------------------------------------------


def test_without_the_extra_the_report_says_how_to_install_it(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise MissingExtraError("tuning", "tune")

    monkeypatch.setattr(journal, "require_optuna", missing)
    with pytest.raises(MissingExtraError, match="tune"):
        build_study_report(directory)


def test_a_space_that_cannot_be_read_is_an_error_of_the_study_file(tmp_path: Path) -> None:
    directory = noted_study(tmp_path, [{"value": 1.0}])
    write_study(directory, dataclasses.replace(read_study(directory), space={"algo_kwargs.gamma": {"magic": [1]}}))
    with pytest.raises(ConfigError, match=r"study.yaml: algo_kwargs.gamma"):
        build_study_report(directory)

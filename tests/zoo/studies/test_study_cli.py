"""`axiomrl report STUDY`: formats, files, what it refuses, and studies that somebody else made or damaged."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fake_runs import fake_run
from noted_studies import noted_study
from rl_training.cli import main
from rl_training.errors import AxiomError
from rl_training.experiment.tuning.confirmation import Confirmation, Side, write_confirmation
from rl_training.experiment.tuning.journal import open_journal
from rl_training.experiment.tuning.study import CONFIRMATION, JOURNAL, STUDY
from rl_training.zoo.live.watching import Watch
from rl_training.zoo.page.live_report import serve_study
from rl_training.zoo.studies.rendering import render_study
from rl_training.zoo.studies.report import build_study_report

Capture = pytest.CaptureFixture[str]
GAMMA = "algo_kwargs.gamma"
FORMATS = ("text", "markdown", "csv", "json", "html")


@pytest.fixture
def study(tmp_path: Path) -> Path:
    trials: list[dict[str, Any]] = [{"value": 50.0}, {"value": 60.0, "settings": {GAMMA: 0.9}}]
    directory = noted_study(tmp_path, [*trials, {"state": "FAIL", "error": "it diverged"}])
    best = Side(1, 60.0, {5: 50.0, 6: 51.0, 7: 49.0})
    write_confirmation(directory, Confirmation(best, Side(0, 50.0, {5: 48.0, 6: 52.0, 7: 50.0}), 3))
    return directory


# -- the command -----------------------------------------------------------------------------------


def test_a_study_is_recognised_and_its_verdict_printed_first(study: Path, capsys: Capture) -> None:
    for arguments in ([str(study)], ["--runs", str(study)]):
        assert main(["report", *arguments]) == 0
        assert capsys.readouterr().out.startswith("Nothing better was shown: on 3 fresh seeds")


def test_the_format_follows_the_name_of_the_file(study: Path, tmp_path: Path, capsys: Capture) -> None:
    begins = {"md": "Nothing better", "csv": "trial,rank", "json": "{", "html": "<!DOCTYPE html>", "txt": "Nothing"}
    for suffix, begin in begins.items():
        file = tmp_path / f"report.{suffix}"
        assert main(["report", str(study), "--output", str(file)]) == 0
        assert file.read_text().startswith(begin)
        out = capsys.readouterr().out.splitlines()
        assert out[:2] == [f"output={file}", "trials=3"]
        assert out[2].startswith("verdict=nothing better")
    assert main(["report", str(study), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "study"


@pytest.mark.parametrize(
    ("further", "message"),
    [
        (["--runs", "other"], r"is a study, which has a report of its own; name it alone, or `axiomrl report .*runs`"),
        (["--algo", "ppo"], r"--algo goes with runs, and .* is a study; leave it out, or `axiomrl report .*runs`"),
        (["--min-seeds", "3"], "--min-seeds goes with runs"),
        (["--fail-on-manifest-drift"], "--fail-on-manifest-drift goes with runs"),
    ],
)
def test_what_does_not_go_with_a_study_is_refused(
    further: list[str], message: str, study: Path, capsys: Capture
) -> None:
    assert main(["report", str(study), *further]) == 2
    out, errors = capsys.readouterr()
    assert out == ""
    assert re.search(message, errors)
    assert errors.count("\n") == 1


def test_the_runs_of_a_study_are_reported_watched_and_found_from_above(study: Path, capsys: Capture) -> None:
    fake_run(study / "runs", 1)
    for path, hint in (
        (study / "runs", ""),
        (study.parent, f"these are runs; `axiomrl report {study}` reports on a study\n"),
    ):
        assert main(["report", str(path), "--json"]) == 0
        out, errors = capsys.readouterr()
        assert len(json.loads(out)["runs"]) == 1
        assert errors == hint
    watch = Watch([study])
    assert watch.refresh() == []
    assert "(1 ended)" in watch.waiting
    running = fake_run(study / "runs", 2, status="running")
    assert [run.path for run in watch.refresh()] == [running]


def test_a_report_imports_no_torch(study: Path) -> None:
    code = f"import sys; from rl_training.cli import main; main(['report', {str(study)!r}, '--output', {str(study)!r}"
    code += "+ '.html']); sys.exit('torch' in sys.modules or 'gymnasium' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def test_a_served_page_follows_the_journal(tmp_path: Path) -> None:
    directory = noted_study(tmp_path, [{"value": 1.0}, {}])
    with serve_study(directory, 0) as server:
        before = server.live.page(still=False)
        assert "1 completed, 1 running" in before
        assert 'http-equiv="refresh"' in before
        assert 'http-equiv="refresh"' not in server.live.page(still=True)
        assert server.live.page(still=False) is before
        open_journal(directory).tell(1, 9.0)
        assert "2 completed" in server.live.page(still=False)


# -- damage and malice -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (JOURNAL, "not json\n{}\n", r"journal.log is damaged .*; restore it from a copy"),
        (JOURNAL, None, "journal.log is missing"),
        (STUDY, "[1, 2]", "schema version None, this release reads 1"),
        (STUDY, "schema_version: 1\n", "study.yaml: "),
        (CONFIRMATION, "{}", r"confirmation.json is damaged .*; delete it"),
        (CONFIRMATION, '{"trials": 1, "best": {"trial": 1, "searched": null, "scores": {"1": 2}}}', "best.searched"),
        (CONFIRMATION, '{"trials": 1, "best": {"trial": 1, "searched": 1, "scores": {}}}', "best.scores"),
        (CONFIRMATION, '{"trials": 1, "best": {"trial": 1, "searched": 1, "scores": {"1": 1e300}}}', "best.scores.1"),
    ],
)
def test_a_damaged_study_is_one_sentence(
    file: str, content: str | None, message: str, study: Path, capsys: Capture
) -> None:
    if content is None:
        (study / file).unlink()
    else:
        (study / file).write_text(content)
    assert main(["report", str(study)]) == 2
    out, errors = capsys.readouterr()
    assert out == ""
    assert re.search(message, errors)
    assert all(line.startswith("axiomrl: error: ") for line in errors.splitlines())
    assert "this is a bug" not in errors


@pytest.mark.parametrize(
    "notes",
    [
        {"settings": "text"},
        {"settings": [1]},
        {"error": 5},
        {"generation": "first"},
        {"parent": -1},
        {"runs": []},
        {"runs": {"x": {}}},
        {"runs": {"1": {"seed": 1, "metrics": 5}}},
        {"runs": {"1": {"seed": 1, "run_dir": 7}}},
        {"settings": {GAMMA: 10**60}},
        {"value": 1e200},
    ],
)
def test_what_a_study_cannot_have_noted_is_refused(notes: dict[str, Any], tmp_path: Path, capsys: Capture) -> None:
    directory = noted_study(tmp_path, [{"value": 1.0, **notes}])
    assert main(["report", str(directory)]) == 2
    assert re.search(r"journal.log is damaged \(ValueError: trial 0.*; restore it", capsys.readouterr().err)


@pytest.mark.parametrize(
    "settings",
    [
        {GAMMA: "=1+1\x1b[2J\nforged=1"},
        {GAMMA: None},
        {GAMMA: [[[]], {"a": {}}]},
        {GAMMA: True},
        {GAMMA: -1e99, "=cmd()": 1},
        {"": {}},
    ],
)
def test_settings_of_any_kind_can_be_shown(settings: dict[str, Any], tmp_path: Path) -> None:
    trials = [{"value": 1.0 + number, "settings": settings} for number in range(12)]
    report = build_study_report(noted_study(tmp_path, [{"value": 1e99}, *trials, {"value": -1e99}]))
    for output_format in FORMATS:
        text = render_study(report, output_format)
        assert all(line.isprintable() for line in text.split("\n")), output_format
        assert not re.search(r"^forged=", text, flags=re.MULTILINE)
        assert not re.search(r"(^|,)=", text, flags=re.MULTILINE) or output_format != "csv"
        assert not re.search(r"\b(nan|inf)\b", text)


def test_random_bytes_in_a_journal_end_no_report_with_a_bug(study: Path) -> None:
    whole, generator = (study / JOURNAL).read_bytes(), random.Random(5)
    shown = 0
    for _ in range(40):
        damaged = bytearray(whole)
        for _ in range(generator.randint(1, 3)):
            damaged[generator.randrange(len(damaged))] = generator.randrange(256)
        (study / JOURNAL).write_bytes(damaged)
        try:
            report = build_study_report(study)
        except AxiomError:
            continue
        shown += 1
        for output_format in FORMATS:
            assert render_study(report, output_format)
    assert shown


@pytest.mark.parametrize("number", ["1e-320", "1e+308", "9" * 400, "-1"])
def test_a_space_of_extreme_numbers_is_drawn_or_refused(number: str, tmp_path: Path) -> None:
    trials = [{"value": float(value), "settings": {GAMMA: 0.8 + value / 100}} for value in range(12)]
    directory = noted_study(tmp_path, trials, space="gamma: {uniform: [0.5, 0.99]}\nent_coef: {uniform: [0, 1]}")
    text = (directory / STUDY).read_text()
    assert "- 0.99\n" in text
    (directory / STUDY).write_text(text.replace("- 0.99\n", f"- {number}\n"))
    try:
        report = build_study_report(directory)
    except AxiomError:
        return
    for output_format in FORMATS:
        assert not re.search(r"\b(nan|inf)\b", render_study(report, output_format))

"""One bad run ends no report, hangs none and writes nothing on a terminal but text."""

from __future__ import annotations

import json
import logging
import random
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from fake_runs import fake_run, fake_runs
from harness import tiny_config
from hostile_runs import ESCAPE, FORGED, VALUES, hostile_run
from rl_training.cli import main
from rl_training.cli_output import key_value_lines
from rl_training.experiment.runs import METADATA, METRICS
from rl_training.experiment.storage.printing import printable, printable_lines
from rl_training.runtime.workflows import train
from rl_training.zoo.rendering import FORMATS, render
from rl_training.zoo.reporting import Report, build_report

Capture = pytest.CaptureFixture[str]
PATIENCE = 120  # seconds after which a report counts as hanging, on however slow a machine


def refuse(constant: str) -> Any:
    raise AssertionError(f"{constant} in JSON")


def check_output(report: Report, folder: Path) -> None:
    """Render a report in every way and check that it is text without anything foreign in it."""
    for kind in ("report", "leaderboard"):
        for output_format in FORMATS:
            text = render(report, kind, output_format, folder=folder)
            assert all(line.isprintable() for line in text.split("\n")), output_format
            assert not re.search(rf"^{FORGED}", text, flags=re.MULTILINE)
            assert "<script>" not in text or output_format != "html"
            if output_format == "json":
                json.loads(text, parse_constant=refuse)
        assert ESCAPE not in render(report, kind, "text", width=100)


def fuzz(root: Path, cases: int, runs: int, seed: int) -> None:
    def hang(*_: Any) -> None:
        raise AssertionError("the report hangs")

    before = signal.signal(signal.SIGALRM, hang)
    try:
        for case in range(cases):
            generator = random.Random(f"{seed} {case}")
            folder = root / str(case)
            sound = fake_run(folder / "sound", 1, 50.0)
            for number in range(runs):
                hostile_run(folder / str(number), number + 2, generator)
            signal.alarm(PATIENCE)
            report = build_report([folder])
            assert sound in {run.path for run in report.runs}, case
            assert len(report.runs) + len(report.unreadable) == runs + 1, case
            check_output(report, folder)
            signal.alarm(0)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def test_fifty_damaged_runs_end_no_report(tmp_path: Path) -> None:
    fuzz(tmp_path, cases=3, runs=17, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_thousands_of_damaged_runs_end_no_report(seed: int, tmp_path: Path) -> None:
    fuzz(tmp_path, cases=60, runs=8, seed=100 + seed)


# -- numbers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [1e308, -1e308, 1e100, -1e100])
def test_numbers_of_any_size_are_reported_in_every_format(value: float, tmp_path: Path) -> None:
    for run_dir in fake_runs(tmp_path / "a", [10.0, 20.0, value, value]):
        rows = [json.loads(line) for line in (run_dir / METRICS).read_text().splitlines()]
        extreme = {"loss_policy": value, "train_return_mean": -value, "time_collect": value, "time_update": value}
        text = "".join(json.dumps(row | (extreme if row["event"] == "train" else {})) + "\n" for row in rows)
        (run_dir / METRICS).write_text(text)
    fake_runs(tmp_path / "b", [-value] * 3, preset="dqn-cartpole")
    report = build_report([tmp_path])
    check_output(report, tmp_path)
    assert not re.search(r"\b(nan|inf)\b", render(report, "report", "html"))
    counted = [place.summary.seeds for place in report.standings if place.summary is not None]
    assert counted == ([2] if abs(value) > 1e100 else counted)
    if abs(value) <= 1e100:
        assert sorted(counted) == [3, 4]
        assert main(["compare", "ppo", "dqn", "--runs", str(tmp_path), "--json"]) == 0


# -- text ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [value for value in VALUES if isinstance(value, str)])
def test_a_value_stays_on_its_line(value: str) -> None:
    (line,) = key_value_lines({"resume_mode": value})
    assert line.isprintable()
    assert line.startswith("resume_mode=")
    assert printable(value) == printable(printable(value))
    _, *others = printable_lines(value).split("\n")
    assert all(line.startswith("  ") and line.isprintable() for line in others)


def test_ordinary_text_is_printed_as_it_is() -> None:
    assert printable("Überraschung 三 ✓ C:\\x") == "Überraschung 三 ✓ C:\\x"
    assert printable_lines("a\n  b") == "a\n    b"


def test_what_is_logged_or_refused_cannot_steer_the_terminal(tmp_path: Path, capsys: Capture) -> None:
    wicked = tmp_path / f"a{ESCAPE}\n{FORGED}"
    assert main(["report", str(wicked)]) == 2
    fake_run(tmp_path / "runs", 1)
    assert main(["report", str(tmp_path / "runs"), "--algo", f"x\n{FORGED}{ESCAPE}"]) == 0
    error = capsys.readouterr().err
    assert ESCAPE not in error
    assert not re.search(rf"^{FORGED}", error, flags=re.MULTILINE)
    assert FORGED in error


def test_a_checkpoint_forges_no_line_of_its_evaluation(tmp_path: Path, capsys: Capture) -> None:
    result = train(tiny_config(tmp_path, total_timesteps=64, eval_episodes=1))
    for file in (result.run_dir / METADATA, *result.run_dir.glob("checkpoints/*/manifest.json")):
        content = json.loads(file.read_text())
        content["resume_mode"] = f"exact\n{FORGED}\n{ESCAPE}"
        content["versions"] = {"torch": f"1\n{FORGED}{ESCAPE}"}
        content["notices"] = [f"x\n{FORGED}{ESCAPE}"]
        file.write_text(json.dumps(content))
    capsys.readouterr()
    for command in (["eval", "--num-episodes", "1"], ["resume", "--total-timesteps", "128"]):
        main([command[0], "--checkpoint", str(result.run_dir), *command[1:]])
        answer = capsys.readouterr()
        for text in (answer.out, answer.err):
            assert ESCAPE not in text
            assert not re.search(rf"^{FORGED}", text, flags=re.MULTILINE)
    assert logging.getLogger("rl_training").handlers == []

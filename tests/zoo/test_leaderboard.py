"""Entries are ranked by what their seeds show, never by luck: figures by hand, shared ranks, suites, baselines."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

from fake_runs import fake_runs
from rl_training.cli import main
from rl_training.experiment.statistics import Interval, bootstrap_interval
from rl_training.zoo.leaderboard import PROFILE_THRESHOLDS, Standing, Summary, shared_ranks
from rl_training.zoo.rendering import render
from rl_training.zoo.reporting import Filters, build_report

Capture = pytest.CaptureFixture[str]


def standings(root: Path) -> dict[str, Standing]:
    return {place.entry.name: place for place in build_report([root]).standings}


# -- one entry -------------------------------------------------------------------------------------


def test_an_entry_is_summarised_over_its_seeds() -> None:
    scores = [10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 800.0]
    summary = Summary.of(scores)
    assert summary.iqm == 45.0  # two of eight are left out at either end
    assert summary.interval == bootstrap_interval(scores)
    assert (summary.seeds, summary.median, summary.mean, summary.low, summary.high) == (8, 45.0, 135.0, 10.0, 800.0)
    assert Summary.of([1.0, 3.0]).std == 1.0
    assert summary.note == ""


@pytest.mark.parametrize(
    ("seeds", "interval", "note"),
    [(1, False, "low n"), (2, False, "low n"), (3, True, "low n"), (4, True, "low n"), (5, True, "")],
)
def test_there_is_no_interval_below_three_seeds_and_a_warning_below_five(seeds: int, interval: bool, note: str) -> None:
    summary = Summary.of([float(score) for score in range(seeds)])
    assert (summary.interval is not None, summary.note) == (interval, note)


def test_a_leaderboard_of_one_seed_shows_no_interval(tmp_path: Path, capsys: Capture) -> None:
    fake_runs(tmp_path, [123.0])
    assert main(["leaderboard", str(tmp_path)]) == 0
    board = capsys.readouterr().out.splitlines()
    assert board[0] == "CartPole-v1 (classic-control: random 22.2, solved 475)"
    cells = board[2].split()
    assert cells[:6] == ["1", "ppo-cartpole", "1", "123.0", "-", "low"]
    assert main(["leaderboard", str(tmp_path), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["entries"][0]["interval"] is None
    assert record["suites"][0]["interval"] is None


# -- ranks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("extents", "ranks"),
    [
        ([], []),
        ([(5, 6), (3, 4), (1, 2)], [1, 2, 3]),
        ([(5, 8), (4, 6), (3, 4)], [1, 1, 3]),  # the third overlaps the second, but not the leader of the rank
        ([(5, 8), (7, 7), (1, 2), (1, 1)], [1, 1, 3, 3]),
        ([(5, 5), (5, 5), (4, 4)], [1, 1, 3]),
        ([(4, 9), (6, 7), (4, 4)], [1, 1, 1]),
    ],
)
def test_overlapping_intervals_share_a_rank(extents: list[tuple[float, float]], ranks: list[int]) -> None:
    assert shared_ranks([Interval(*extent) for extent in extents]) == ranks


def test_the_best_run_of_a_poor_entry_does_not_win(tmp_path: Path) -> None:
    fake_runs(tmp_path / "a", [100.0, 101.0, 102.0, 103.0, 104.0])
    fake_runs(tmp_path / "b", [*range(40, 60), 900.0], preset="dqn-cartpole")
    fake_runs(tmp_path / "c", [99.0, 100.0, 101.0, 102.0, 103.0], preset="a2c-cartpole")
    fake_runs(tmp_path / "d", [400.0], preset="rainbow-cartpole", status="failed")
    board = standings(tmp_path)
    assert [(name, place.rank) for name, place in board.items()] == [
        ("ppo-cartpole", 1),
        ("a2c-cartpole", 1),
        ("dqn-cartpole", 3),
        ("rainbow-cartpole", None),
    ]
    assert board["rainbow-cartpole"].summary is None


def test_environments_have_boards_of_their_own(tmp_path: Path, capsys: Capture) -> None:
    fake_runs(tmp_path / "a", [100.0] * 3)
    fake_runs(tmp_path / "b", [-150.0] * 3, preset="sac-pendulum")
    fake_runs(tmp_path / "c", [-900.0] * 3, preset="td3-pendulum")
    board = standings(tmp_path)
    assert {name: place.rank for name, place in board.items()} == {
        "ppo-cartpole": 1,
        "sac-pendulum": 1,
        "td3-pendulum": 2,
    }
    assert main(["leaderboard", str(tmp_path), "--output-format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(row["env_id"], row["rank"], row["name"], row["interval_low"]) for row in rows] == [
        ("CartPole-v1", "1", "ppo-cartpole", "100.0"),
        ("Pendulum-v1", "1", "sac-pendulum", "-150.0"),
        ("Pendulum-v1", "2", "td3-pendulum", "-900.0"),
    ]


# -- suites ----------------------------------------------------------------------------------------


def test_scores_are_normalised_by_the_manifest_and_not_by_the_runs_at_hand(tmp_path: Path) -> None:
    fake_runs(tmp_path / "a", [475.0])
    fake_runs(tmp_path / "b", [22.2], preset="dqn-cartpole")
    fake_runs(tmp_path / "c", [-155.0], preset="ppo-mountaincar")
    board = standings(tmp_path)
    assert board["ppo-cartpole"].normalized == pytest.approx(1.0)
    assert board["dqn-cartpole"].normalized == pytest.approx(0.0)
    assert board["ppo-mountaincar"].normalized == pytest.approx(0.5)  # halfway from -200 to -110


def test_a_suite_is_aggregated_over_its_environments(tmp_path: Path) -> None:
    fake_runs(tmp_path / "a", [475.0, 475.0, 475.0, 475.0])
    fake_runs(tmp_path / "b", [-200.0, -200.0, -155.0, -65.0], preset="ppo-mountaincar")
    fake_runs(tmp_path / "c", [300.0], preset="sac-pointreach")  # belongs to no suite
    report = build_report([tmp_path])
    (suite,) = report.suites
    assert (suite.suite, suite.algo, suite.seeds) == ("classic-control", "ppo", 4)
    assert suite.environments == ("CartPole-v1", "MountainCar-v0")
    assert suite.suite_size == 5
    # Normalised: 1, 1, 1, 1 and 0, 0, 0.5, 1.5; the two lowest and the two highest of eight are left out.
    assert suite.iqm == pytest.approx((0.5 + 1 + 1 + 1) / 4)
    assert suite.optimality_gap == pytest.approx((1 + 1 + 0.5) / 8)
    profile = dict(zip(PROFILE_THRESHOLDS, suite.profile, strict=True))
    assert (profile[0.0], profile[0.5], profile[1.2], profile[2.0]) == (6 / 8, 5 / 8, 1 / 8, 0.0)
    assert suite.interval is not None
    assert suite.note == "low n"
    text = render(report, "leaderboard", "text")
    profile_line = text.split("Performance profiles\n")[1].splitlines()[1]
    assert profile_line.split() == ["classic-control", "ppo", "0.750", "0.625", "0.625", "0.125"]


def test_runs_under_another_budget_or_of_unclear_choice_stay_out_of_the_suite(tmp_path: Path) -> None:
    fake_runs(tmp_path / "a", [475.0] * 3, changes={"total_timesteps": 999})
    fake_runs(tmp_path / "b", [-110.0] * 3, preset="ppo-mountaincar", changes={"num_envs": 2})
    fake_runs(tmp_path / "c", [-120.0] * 3, preset="ppo-mountaincar", changes={"num_envs": 4})
    report = build_report([tmp_path])
    assert report.suites == ()
    assert [notice.split(":")[0] for notice in report.notices] == [
        "ppo on CartPole-v1 is left out of the suite",
        "ppo on MountainCar-v0 is left out of the suite",
    ]
    fake_runs(tmp_path / "d", [-155.0] * 3, preset="ppo-mountaincar")
    (suite,) = build_report([tmp_path]).suites
    assert suite.iqm == pytest.approx(0.5)  # the preset's own entry is preferred


# -- baselines and gates ---------------------------------------------------------------------------

GOOD = [500.0, 498.0, 499.0, 497.0, 500.0]
BAD = [200.0, 210.0, 190.0, 205.0, 195.0]


def stored(root: Path, scores: list[float], file: Path, **settings: Any) -> Path:
    fake_runs(root, scores, **settings)
    assert main(["leaderboard", str(root), "--quiet", "--output", str(file)]) == 0
    return file


def gated(root: Path, baseline: Path | str, *more: str) -> list[str]:
    return ["leaderboard", str(root), "--baseline", str(baseline), "--fail-on-regression", *more]


def test_a_regression_against_a_stored_leaderboard_exits_with_3(tmp_path: Path, capsys: Capture) -> None:
    baseline = stored(tmp_path / "before", GOOD, tmp_path / "before.json")
    fake_runs(tmp_path / "after", BAD)
    capsys.readouterr()
    assert main(gated(tmp_path / "after", baseline)) == 3
    answer = capsys.readouterr()
    assert "gate fired: regression: ppo-cartpole is worse than ppo-cartpole on CartPole-v1" in answer.err
    assert "worse" in answer.out
    assert main(["leaderboard", str(tmp_path / "after"), "--baseline", str(baseline)]) == 0  # shown, but no gate
    capsys.readouterr()
    assert main(gated(tmp_path / "after", baseline, "--json")) == 3
    (gate,) = json.loads(capsys.readouterr().out)["gates"]
    assert (gate["name"], gate["fired"], len(gate["reasons"])) == ("regression", True, 1)


def test_equal_better_and_indistinguishable_entries_pass(tmp_path: Path) -> None:
    baseline = stored(tmp_path / "before", BAD, tmp_path / "before.json")
    for name, scores in {"same": BAD, "better": GOOD, "noisy": [score - 3 for score in BAD]}.items():
        fake_runs(tmp_path / name, scores)
        assert main(gated(tmp_path / name, baseline)) == 0


def test_an_entry_that_is_gone_or_failed_everywhere_is_a_regression_unless_filtered(
    tmp_path: Path, capsys: Capture
) -> None:
    baseline = stored(tmp_path / "before", GOOD, tmp_path / "before.json")
    fake_runs(tmp_path / "after", GOOD, status="failed")
    fake_runs(tmp_path / "after" / "other", [-150.0] * 3, preset="sac-pendulum")
    assert main(gated(tmp_path / "after", baseline)) == 3
    assert "has 5 seeds in the baseline and no score in this report" in capsys.readouterr().err
    assert main(gated(tmp_path / "after", baseline, "--algo", "sac")) == 0


def test_too_few_seeds_fire_no_gate_and_are_said(tmp_path: Path, capsys: Capture) -> None:
    baseline = stored(tmp_path / "before", GOOD, tmp_path / "before.json")
    fake_runs(tmp_path / "after", BAD[:2])
    assert main(gated(tmp_path / "after", baseline)) == 0
    assert "cannot be told from ppo-cartpole: 2 seeds on one side" in capsys.readouterr().out


def test_an_entry_of_the_report_may_be_the_baseline(tmp_path: Path, capsys: Capture) -> None:
    fake_runs(tmp_path / "a", GOOD)
    fake_runs(tmp_path / "b", BAD, preset="dqn-cartpole")
    fake_runs(tmp_path / "c", BAD, preset="sac-pendulum")  # another environment
    assert main(gated(tmp_path, "ppo-cartpole")) == 3
    assert "dqn-cartpole is worse than ppo-cartpole" in capsys.readouterr().err
    assert main(gated(tmp_path, "dqn-cartpole")) == 0
    report = build_report([tmp_path], baseline="dqn")
    assert report.baseline is not None
    assert [comparison.a.name for comparison in report.baseline.comparisons] == ["ppo-cartpole"]


def test_a_preset_that_changed_is_compared_by_its_name(tmp_path: Path, capsys: Capture) -> None:
    baseline = stored(tmp_path / "before", GOOD, tmp_path / "before.json")
    content = json.loads(baseline.read_text())
    content["entries"][0]["fingerprint"] = "000000000000"
    baseline.write_text(json.dumps(content))
    fake_runs(tmp_path / "after", BAD)
    assert main(gated(tmp_path / "after", baseline)) == 3
    assert "ppo-cartpole is worse than ppo-cartpole" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "cannot be read (No such file or directory)"),
        ("{", "not a stored leaderboard; write one by `axiomrl leaderboard --output-format json --output FILE`"),
        ("[]", "not a stored leaderboard"),
        ("[" * 25_000, "not a stored leaderboard"),
        (
            '{"export_version": 1, "manifests": {}, "entries": [{"name": "a", "algo": "b", "env_id": "c",'
            ' "preset": null, "fingerprint": "d", "scores": {"1": 1e308}}]}',
            "not a stored leaderboard",
        ),
        ('{"export_version": 1, "entries": [{"name": "a"}], "manifests": {}}', "not a stored leaderboard"),
        ('{"export_version": 7, "entries": [], "manifests": {}}', "export version 7; this release reads 1"),
    ],
)
def test_a_baseline_that_is_none_is_a_mistake(
    content: str | None, sentence: str, tmp_path: Path, capsys: Capture
) -> None:
    fake_runs(tmp_path / "runs", GOOD)
    file = tmp_path / "baseline.json"
    if content is not None:
        file.write_text(content)
    assert main(gated(tmp_path / "runs", file)) == 2
    assert sentence in capsys.readouterr().err


def test_a_baseline_that_is_a_pipe_does_not_hang(tmp_path: Path, capsys: Capture) -> None:
    fake_runs(tmp_path / "runs", GOOD)
    os.mkfifo(tmp_path / "baseline.json")
    assert main(gated(tmp_path / "runs", tmp_path / "baseline.json")) == 2
    assert "baseline.json: not a stored leaderboard" in capsys.readouterr().err


def test_a_gate_needs_a_baseline(tmp_path: Path, capsys: Capture) -> None:
    assert main(["leaderboard", str(tmp_path), "--fail-on-regression"]) == 2
    assert "add --baseline FILE or ENTRY" in capsys.readouterr().err


def test_entries_with_few_seeds_can_be_left_out(tmp_path: Path) -> None:
    fake_runs(tmp_path / "a", GOOD)
    fake_runs(tmp_path / "b", [500.0], preset="dqn-cartpole")
    (place,) = build_report([tmp_path], Filters(min_seeds=3)).standings
    assert place.entry.name == "ppo-cartpole"

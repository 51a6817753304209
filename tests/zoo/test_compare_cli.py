"""`axiomrl compare A B` says in one sentence what the seeds show, and its gates exit with 3."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fake_runs import fake_run, fake_runs
from rl_training.cli import main
from rl_training.experiment.statistics import difference_interval, probability_of_improvement_interval

Capture = pytest.CaptureFixture[str]
HIGH, LOW = [490.0, 480.0, 500.0, 470.0, 495.0], [100.0, 120.0, 90.0, 130.0, 110.0]


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    fake_runs(tmp_path / "runs" / "ppo", HIGH)
    fake_runs(tmp_path / "runs" / "dqn", LOW, preset="dqn-cartpole")
    fake_runs(tmp_path / "runs" / "sac", [-150.0] * 3, preset="sac-pendulum")
    fake_runs(tmp_path / "runs" / "a2c", HIGH[:2], preset="a2c-cartpole")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


def test_the_figures_are_those_of_the_statistics(runs: Path, capsys: Capture) -> None:
    assert main(["compare", "ppo-cartpole", "dqn-cartpole", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["iqm_a"] == pytest.approx(1465 / 3)  # one of five is left out at either end
    assert (record["iqm_b"], record["difference"]) == (110.0, record["iqm_a"] - 110.0)
    assert record["difference_interval"] == list(difference_interval(HIGH, LOW))
    assert record["probability_of_improvement"] == 1.0
    assert record["probability_interval"] == list(probability_of_improvement_interval(HIGH, LOW))
    assert (record["verdict"], record["gates"]) == ("better", [])
    low, high = record["difference_interval"]
    assert record["sentence"] == (
        f"ppo-cartpole is better than dqn-cartpole on CartPole-v1: a difference of +378.33 (95% interval {low:+.2f} to "
        f"{high:+.2f}) and a run scores higher with probability 1.00"
    )


def test_people_get_the_verdict_as_a_line(runs: Path, capsys: Capture) -> None:
    assert main(["compare", "dqn-cartpole", "ppo-cartpole"]) == 0
    lines = dict(line.split("=", 1) for line in capsys.readouterr().out.splitlines())
    assert lines["verdict"] == "worse"
    assert lines["sentence"].startswith("dqn-cartpole is worse than ppo-cartpole")
    assert " to " in lines["difference_interval"]
    assert main(["compare", "ppo-cartpole", "ppo-cartpole"]) == 0
    assert "verdict=no clear difference\n" in capsys.readouterr().out


def test_too_few_seeds_give_no_verdict(runs: Path, capsys: Capture) -> None:
    assert main(["compare", "a2c-cartpole", "dqn-cartpole", "--fail-on-regression", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["verdict"] == "too few seeds"
    assert record["difference_interval"] is record["probability_interval"] is None
    assert "2 seeds on one side, and 3 are the least for an interval" in record["sentence"]


def test_directories_of_the_same_configuration_can_be_compared(runs: Path, capsys: Capture) -> None:
    fake_runs(runs.parent / "after", LOW)
    assert main(["compare", "after", "runs/ppo", "--fail-on-regression"]) == 3
    answer = capsys.readouterr()
    assert "sentence=after is worse than runs/ppo on CartPole-v1" in answer.out
    assert "gate fired: after is worse" in answer.err
    assert main(["compare", "runs/ppo", "after", "--fail-on-regression"]) == 0
    fake_run(runs.parent / "after", 9, preset="sac-pendulum")
    capsys.readouterr()
    assert main(["compare", "after", "runs/ppo"]) == 2
    assert "after holds `ppo-cartpole`, `sac-pendulum`, and one entry is needed; narrow it" in capsys.readouterr().err
    assert main(["compare", "after", "runs/ppo", "--env", "CartPole-v1"]) == 0


def test_a_least_probability_of_improvement_is_a_gate(runs: Path, capsys: Capture) -> None:
    assert main(["compare", "ppo-cartpole", "dqn-cartpole", "--min-probability", "0.75"]) == 0
    assert main(["compare", "ppo-cartpole", "ppo-cartpole", "--min-probability", "0.75", "--quiet"]) == 3
    assert "the probability of improvement 0.500 is below 0.75" in capsys.readouterr().err
    assert main(["compare", "ppo", "dqn", "--min-probability", "75"]) == 2
    assert "must lie between 0 and 1, got 75" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("sides", "sentence"),
    [
        (("ppo-cartpole", "sac-pendulum"), "compare entries of one environment"),
        (("nothing", "dqn-cartpole"), "no entry is called `nothing`; there are `a2c-cartpole`"),
    ],
)
def test_what_cannot_be_compared_is_a_mistake(
    sides: tuple[str, str], sentence: str, runs: Path, capsys: Capture
) -> None:
    assert main(["compare", *sides]) == 2
    assert sentence in capsys.readouterr().err


def test_an_entry_without_a_score_cannot_be_compared(runs: Path, capsys: Capture) -> None:
    fake_run(runs / "td3", 1, preset="rainbow-cartpole", status="failed")
    assert main(["compare", "rainbow", "ppo-cartpole"]) == 2
    assert "rainbow-cartpole has no completed run with a final evaluation" in capsys.readouterr().err

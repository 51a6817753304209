"""`axiomrl tune`: a study from the command line, its mistakes, and what is left of it after SIGKILL."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli_parts import CARTPOLE, Command, assert_refused
from processes import Launcher
from rl_training.experiment.tuning.journal import read_trials
from study_parts import make_study, search

QUICK = ["--trials", "3", "--seeds-per-trial", "1", "--confirm-seeds", "3", "--output-dir", "here"]
SPACE = "learning_rate: {log: [1e-4, 1e-2]}\ngamma: {one_minus_log: [0.9, 0.999]}\n"


@pytest.fixture
def space(tmp_path: Path) -> str:
    (tmp_path / "space.yaml").write_text(SPACE)
    return "space.yaml"


def test_a_study_leaves_trials_a_confirmation_and_a_configuration_that_trains(
    axiomrl: Command, tmp_path: Path, space: str
) -> None:
    answer = axiomrl("tune", *CARTPOLE, "--space", space, *QUICK)
    assert answer.status == 0, answer.err
    values = answer.values()
    study = tmp_path / values["study_dir"]
    assert (values["status"], values["trials"], values["trials_completed"]) == ("completed", "3", "3")
    confirmation = json.loads((study / "confirmation.json").read_text())
    assert float(values["confirmed_best"]) == confirmation["best"]["iqm"]
    assert values["verdict"] == confirmation["verdict"]
    settled = yaml.safe_load((study / "study.yaml").read_text())
    assert (settled["finalists"], len(settled["final_seeds"])) == (3, 3)
    assert len(list((study / "finals").glob("trial-*/ppo__*"))) == 9
    seen = {*settled["seeds"], *settled["final_seeds"]}
    assert not seen & {int(seed) for seed in confirmation["best"]["scores"]}
    assert (study / "best.yaml").read_text().startswith(f"# Trial {values['best_trial']} of the study {study.name}")
    trained = axiomrl("train", "--config", str(study / "best.yaml"), "--output-dir", "tuned")
    assert trained.status == 0, trained.err
    again = axiomrl("tune", "--continue", values["study_dir"])
    assert again.status == 0, again.err
    assert again.values() == values, "nothing was left to train"


def test_the_same_command_makes_the_same_study_again(axiomrl: Command, tmp_path: Path, space: str) -> None:
    found = []
    for _ in range(2):
        answer = axiomrl(
            "tune", *CARTPOLE, "--space", space, *QUICK, "--confirm-seeds", "0", "--finalists", "1", "--json"
        )
        record: dict[str, Any] = json.loads(answer.out)
        trials = read_trials(tmp_path / record.pop("study_dir"))
        record.pop("best_path")
        found.append((record, [(trial.settings, trial.value) for trial in trials]))
    assert found[0] == found[1]


def test_a_population_forks_its_better_members(axiomrl: Command, tmp_path: Path, space: str) -> None:
    arguments = ["--method", "pbt", "--trials", "4", "--generations", "2", "--confirm-seeds", "0"]
    answer = axiomrl("tune", *CARTPOLE, "--space", space, *arguments, "--output-dir", "here")
    assert answer.status == 0, answer.err
    trials = read_trials(tmp_path / answer.values()["study_dir"])
    assert [trial.generation for trial in trials] == [0] * 4 + [1] * 4
    later = trials[4:]
    worst = min(trials[:4], key=lambda trial: (trial.value, -trial.number)).number
    best = max(trials[:4], key=lambda trial: (trial.value, -trial.number)).number
    assert [trial.parent for trial in later] == [best if number == worst else number for number in range(4)]
    for trial in later:
        (run,) = trial.runs.values()
        assert run.run_dir is not None
        assert trial.parent is not None
        metadata = json.loads((run.run_dir / "metadata.json").read_text())
        (parent,) = trials[trial.parent].runs.values()
        assert parent.run_dir is not None
        assert parent.run_dir.name in json.dumps(metadata["parent"])
        assert run.metrics["global_step"] > parent.metrics["global_step"]


MISTAKES: dict[str, tuple[list[str], str]] = {
    "no source": ([], "give --config FILE, --preset NAME"),
    "zero seeds per trial": (
        [*CARTPOLE, "--seeds-per-trial", "0"],
        "--seeds-per-trial: must be an integer >= 1, got 0",
    ),
    "zero trials": ([*CARTPOLE, "--trials", "0"], "--trials: must be an integer >= 1, got 0"),
    "negative confirmation": ([*CARTPOLE, "--confirm-seeds", "-1"], "--confirm-seeds: must be an integer >= 0"),
    "no finalist": ([*CARTPOLE, "--finalists", "0"], "--finalists: must be an integer >= 1, got 0"),
    "no time": ([*CARTPOLE, "--hours", "0"], "--hours: must be above 0"),
    "no jobs": ([*CARTPOLE, "--jobs", "0"], "--jobs: must be an integer >= 1 or auto, got 0"),
    "seeds": ([*CARTPOLE, "--seeds", "1,2"], "give their number by --seeds-per-trial"),
    "no such space": ([*CARTPOLE, "--space", "nowhere.yaml"], "nowhere.yaml"),
    "no evaluation": ([*CARTPOLE, "--eval-episodes", "0"], "trials are compared by their evaluations"),
    "wilcoxon with two seeds": ([*CARTPOLE, "--pruner", "wilcoxon"], "give --seeds-per-trial 5 or more"),
    "median without evaluations": (
        [*CARTPOLE, "--pruner", "median", "--set", "eval_interval=null"],
        "set eval_interval to a part of total_timesteps",
    ),
    "generations without a population": ([*CARTPOLE, "--generations", "3"], "--generations goes with --method pbt"),
    "a pruned population": ([*CARTPOLE, "--method", "pbt", "--pruner", "median"], "does not go with --method pbt"),
    "a population of one": ([*CARTPOLE, "--method", "pbt", "--trials", "1"], "at least 2 members"),
    "unknown sampler": ([*CARTPOLE, "--sampler", "magic"], "magic"),
    "no study": (["--continue", "nowhere"], "give the directory that `axiomrl tune` made"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_wrong_arguments_are_refused(axiomrl: Command, mistake: str) -> None:
    arguments, repair = MISTAKES[mistake]
    assert_refused(axiomrl("tune", *arguments), repair)


WRONG_SPACES = {
    "an unknown parameter": ("learning_rat: {log: [1e-5, 1e-2]}\n", "did you mean `learning_rate`"),
    "an empty range": ("learning_rate: {log: [1e-2, 1e-5]}\n", "write the lower end first"),
    "a choice outside the type": ("num_steps: {choice: [32, many]}\n", "num_steps"),
    "a grid without end": ("gamma: {uniform: [0.9, 0.99]}\n", "has no finite number of values"),
}


@pytest.mark.parametrize("mistake", WRONG_SPACES)
def test_a_wrong_space_is_refused(axiomrl: Command, tmp_path: Path, mistake: str) -> None:
    text, repair = WRONG_SPACES[mistake]
    (tmp_path / "space.yaml").write_text(text)
    sampler = ["--sampler", "grid"] if "grid" in mistake else []
    assert_refused(axiomrl("tune", *CARTPOLE, "--space", "space.yaml", *sampler), repair)


def test_a_population_refuses_what_runs_in_progress_cannot_change(axiomrl: Command, tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text("hidden_sizes: {choice: [[8], [16]]}\n")
    answer = axiomrl("tune", *CARTPOLE, "--space", "space.yaml", "--method", "pbt", "--trials", "4")
    assert_refused(answer, "the networks in the checkpoint were built with it; remove it")


def test_what_a_study_has_settled_cannot_be_changed(axiomrl: Command, tmp_path: Path) -> None:
    study = make_study(tmp_path, trials=1, seeds_per_trial=1)
    search(study)
    for flags in (["--seeds-per-trial", "3"], ["--preset", "ppo-cartpole"], ["--set", "num_envs=2"]):
        answer = axiomrl("tune", "--continue", str(study), *flags)
        assert answer.status == 2
        assert f"{flags[0]} does not go with --continue" in answer.err


def test_a_missing_extra_says_how_to_install_it(axiomrl: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert_refused(axiomrl("tune", *CARTPOLE), "needs the extra `tune`")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_study_that_is_killed_again_and_again_ends_as_if_it_had_not(tmp_path: Path, space: str, number: int) -> None:
    launcher = Launcher(tmp_path / "processes")
    arguments = [*CARTPOLE, "--total-timesteps", "2000", "--set", "checkpoint_interval=200", "--space"]
    arguments += [
        str(tmp_path / space),
        "--trials",
        "4",
        "--seeds-per-trial",
        "2",
        "--confirm-seeds",
        "3",
        "--jobs",
        "1",
    ]
    whole = launcher.start(["tune", *arguments, "--output-dir", str(tmp_path / "whole")])
    assert whole.wait(300) == 0
    killed = launcher.start(["tune", *arguments, "--output-dir", str(tmp_path / "killed")])
    for pause in (4.0, 3.0, 3.5, 2.5):
        time.sleep(pause)
        if killed.poll() is not None:
            break
        os.kill(killed.pid, number)
        killed.wait(60)
        (study,) = (tmp_path / "killed").iterdir()
        killed = launcher.start(["tune", "--continue", str(study), "--jobs", "1"])
    assert killed.wait(300) == 0
    found = []
    for name in ("whole", "killed"):
        (study,) = (tmp_path / name).iterdir()
        confirmation = json.loads((study / "confirmation.json").read_text())
        trials = [(trial.number, trial.status, dict(trial.settings), trial.value) for trial in read_trials(study)]
        found.append((trials, confirmation))
    assert found[0] == found[1]

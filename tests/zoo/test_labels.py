"""Entries are called by the user's names or by what differs between them, and `compare` takes names and tags."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from fake_runs import fake_run, fake_runs
from rl_training.cli import main
from rl_training.errors import ConfigError
from rl_training.zoo.entries import find_entry, group_runs
from rl_training.zoo.labels import entry_labels
from rl_training.zoo.reporting import build_report
from rl_training.zoo.run_index import index_runs

Capture = pytest.CaptureFixture[str]
RATE = "algo_kwargs.learning_rate"
HIGH, LOW = [490.0, 480.0, 500.0], [100.0, 120.0, 90.0]


def labels(root: Path) -> set[str]:
    return set(entry_labels(group_runs(index_runs([root]).runs)))


def test_entries_of_one_origin_are_called_by_the_settings_that_differ(tmp_path: Path) -> None:
    fake_run(tmp_path / "a", 1, changes={RATE: 0.003})
    fake_run(tmp_path / "b", 1, changes={RATE: 1e-05})
    assert labels(tmp_path) == {"learning_rate 0.003", "learning_rate 1e-05"}
    fake_run(tmp_path / "c", 1, preset="dqn-cartpole")
    assert labels(tmp_path) == {
        *("ppo-cartpole, learning_rate 0.003", "ppo-cartpole, learning_rate 1e-05", "dqn-cartpole"),
    }


def test_an_entry_alone_is_called_by_how_it_differs_from_its_preset(tmp_path: Path) -> None:
    fake_run(tmp_path / "own", 1, changes={"preset": None, "num_envs": 2})
    assert labels(tmp_path) == {"ppo-CartPole-v1"}
    fake_run(tmp_path / "a", 1, preset="dqn-cartpole", changes={RATE: 0.003})
    assert labels(tmp_path) == {"ppo-CartPole-v1", "dqn-cartpole, learning_rate 0.003"}


def test_many_differences_are_cut_short_and_stay_distinct(tmp_path: Path) -> None:
    for number in range(2):
        changes = {f"algo_kwargs.{key}": number + 2 for key in ("num_steps", "num_epochs", "gamma", "gae_lambda", "z")}
        fake_run(tmp_path / str(number), 1, changes=changes)
    long = [[0] * 50 + [number] for number in range(2)]
    first, second = sorted(labels(tmp_path))
    assert first == "gae_lambda 2, gamma 2, num_epochs 2, 2 more" != second
    for number in range(2):
        fake_run(tmp_path / "long" / str(number), 1, changes={"algo_kwargs.hidden_sizes": long[number]})
    entries = group_runs(index_runs([tmp_path / "long"]).runs)
    cut = "hidden_sizes [0, 0, 0, 0, 0, 0, 0, 0…"
    assert entry_labels(entries) == [f"{cut} ({entry.fingerprint[:8]})" for entry in entries]


def test_the_name_of_all_runs_of_an_entry_comes_first_and_tags_that_tell_apart_are_added(tmp_path: Path) -> None:
    fake_run(tmp_path / "a", 1, changes={"name": "slow", RATE: 0.003, "tags": ["night", "old"]})
    fake_run(tmp_path / "a", 2, changes={"name": "slow", RATE: 0.003, "tags": ["night"]})
    fake_run(tmp_path / "b", 1, changes={"name": "fast", RATE: 0.1, "tags": ["night", "new"]})
    assert labels(tmp_path) == {"slow", "fast [new]"}
    fake_run(tmp_path / "c", 3, changes={"name": "other", RATE: 0.003})  # no common name any more
    assert labels(tmp_path) == {"ppo-cartpole, learning_rate 0.003", "fast [night, new]"}


def test_names_and_labels_are_in_every_format(tmp_path: Path, capsys: Capture) -> None:
    fake_runs(tmp_path / "a", HIGH, changes={"name": "lr3e-4", "tags": ["x"]})
    fake_runs(tmp_path / "b", LOW, changes={RATE: 0.003})
    for output_format in ("text", "markdown", "html"):
        assert main(["leaderboard", str(tmp_path), "--output-format", output_format]) == 0
        shown = capsys.readouterr().out.replace("\\", "")
        assert "lr3e-4 [x]" in shown
        assert "ppo-cartpole, learning_rate 0.003" in shown
    assert main(["report", str(tmp_path), "--output-format", "csv"]) == 0
    assert [row["name"] for row in csv.DictReader(io.StringIO(capsys.readouterr().out))] == ["lr3e-4"] * 3 + [""] * 3
    assert main(["leaderboard", str(tmp_path), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert [(entry["label"], entry["tags"]) for entry in record["entries"]] == [
        ("lr3e-4 [x]", ["x"]),
        ("ppo-cartpole, learning_rate 0.003", []),
    ]


def test_reports_of_runs_that_are_exactly_presets_have_no_labels(tmp_path: Path, capsys: Capture) -> None:
    fake_runs(tmp_path / "a", HIGH)
    fake_runs(tmp_path / "b", LOW, preset="dqn-cartpole")
    for command in ("report", "leaderboard"):
        assert main([command, str(tmp_path)]) == 0
        assert "label" not in capsys.readouterr().out


def test_compare_takes_names_and_tags_also_of_runs_with_the_same_settings(tmp_path: Path, capsys: Capture) -> None:
    fake_runs(tmp_path / "a", HIGH, changes={"name": "before", "tags": ["good"]})
    fake_runs(tmp_path / "b", LOW, changes={"name": "after"})
    fake_runs(tmp_path / "c", LOW, changes={RATE: 0.1, "tags": ["bad"]})
    for sides in (("before", "after"), ("good", "bad"), ("before", "bad")):
        assert main(["compare", *sides, "--runs", str(tmp_path), "--json"]) == 0
        record = json.loads(capsys.readouterr().out)
        assert (record["a"], record["b"], record["verdict"]) == (*sides, "better")
        assert (record["iqm_a"], record["seeds_a"]) == (490.0, 3)
    assert (record["label_a"], record["label_b"]) == ("before [good]", "ppo-cartpole, learning_rate 0.1 [bad]")
    assert main(["compare", "befor", "bad", "--runs", str(tmp_path)]) == 2
    assert "no entry is called `befor`; did you mean `before`" in capsys.readouterr().err


def test_a_name_of_several_entries_must_be_narrowed(tmp_path: Path) -> None:
    fake_run(tmp_path / "a", 1, changes={"name": "mine"})
    fake_run(tmp_path / "b", 1, changes={"name": "mine", RATE: 0.1})
    entries = group_runs(index_runs([tmp_path]).runs)
    with pytest.raises(ConfigError, match="`mine` may mean `ppo-cartpole`, `ppo-cartpole\\+"):
        find_entry(entries, "mine")


def test_a_name_makes_no_other_entry(tmp_path: Path) -> None:
    fake_run(tmp_path / "a", 1, changes={"name": "one"})
    fake_run(tmp_path / "b", 2, changes={"name": "two"})
    (place,) = build_report([tmp_path]).standings
    assert (place.entry.name, place.entry.label, len(place.entry.by_seed)) == ("ppo-cartpole", None, 2)


def test_text_cells_of_csv_are_no_formulas(tmp_path: Path, capsys: Capture) -> None:
    fake_run(tmp_path / "-1", 1, -5.0, changes={"name": "=1+1", "tags": ["@SUM(A1)"], "env_id": "+Env", "preset": "-p"})
    assert main(["report", str(tmp_path), "--output-format", "csv"]) == 0
    (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert (row["name"], row["tags"], row["env_id"], row["score"]) == ("'=1+1", "'@SUM(A1)", "'+Env", "-5.0")
    assert main(["leaderboard", str(tmp_path), "--output-format", "csv"]) == 0
    (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert (row["name"][:3], row["iqm"], row["preset"]) == ("'-p", "-5.0", "'-p")

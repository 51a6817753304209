"""Runs become entries by what they learned under, and a report shows them all, in every format, always the same."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fake_runs import fake_run, fake_runs
from processes import process_environment
from rl_training import zoo_cli
from rl_training.cli import main
from rl_training.errors import ConfigError
from rl_training.experiment.config import config_to_dict
from rl_training.experiment.configuration.config_files import load_config
from rl_training.experiment.runs import METADATA
from rl_training.zoo.entries import Entry, find_entry, flat_settings, group_runs, setting_differences
from rl_training.zoo.rendering import FORMATS, render
from rl_training.zoo.reporting import Filters, build_report
from rl_training.zoo.run_index import index_runs

Capture = pytest.CaptureFixture[str]


def entries(root: Path) -> list[Entry]:
    return group_runs(index_runs([root]).runs)


# -- entries ---------------------------------------------------------------------------------------


def test_three_runs_of_one_seed_count_as_one_seed_the_latest(tmp_path: Path) -> None:
    for second, score in enumerate([10.0, 30.0, 20.0]):
        fake_run(tmp_path, 1, score, created=second)
    fake_run(tmp_path, 2, 40.0)
    (entry,) = entries(tmp_path)
    assert len(entry.runs) == 4
    assert entry.scores == [20.0, 40.0]


def test_a_later_run_that_was_not_completed_or_not_evaluated_does_not_replace_a_seed(tmp_path: Path) -> None:
    kept = fake_run(tmp_path, 1, 10.0, created=1)
    for second, status in enumerate(["failed", "interrupted", "running"], start=2):
        fake_run(tmp_path, 1, 99.0, created=second, status=status)
    fake_run(tmp_path, 1, None, created=9)
    (entry,) = entries(tmp_path)
    assert {run.path for run in entry.by_seed.values()} == {kept}
    assert entry.status_counts == {"completed": 2, "running": 1, "interrupted": 1, "failed": 1}


def test_failed_interrupted_and_running_runs_are_shown_and_never_averaged(tmp_path: Path) -> None:
    fake_runs(tmp_path, [100.0, 110.0, 120.0])
    for seed, status in enumerate(["failed", "interrupted", "running"], start=11):
        fake_run(tmp_path, seed, 9999.0, status=status)
    report = build_report([tmp_path])
    assert sorted(run.status for run in report.runs if run.path not in report.counted) == [
        "failed",
        "interrupted",
        "running",
    ]
    (place,) = report.standings
    assert place.summary is not None
    assert (place.summary.seeds, place.summary.mean, place.summary.high) == (3, 110.0, 120.0)


@pytest.mark.parametrize(
    "changes",
    [
        {"algo_kwargs.learning_rate": 0.01},
        {"total_timesteps": 5_000},
        {"env_kwargs.normalize_observation": True},
        {"num_envs": 4},
        {"eval_episodes": 20},
    ],
)
def test_other_settings_are_another_entry(changes: dict[str, Any], tmp_path: Path) -> None:
    fake_run(tmp_path / "a", 1)
    fake_run(tmp_path / "b", 2, changes=changes)
    plain, changed = entries(tmp_path)
    assert plain.name == "ppo-cartpole"
    assert changed.name == f"ppo-cartpole+{changed.fingerprint[:8]}"
    (key,) = changes
    assert list(setting_differences([plain, changed])) == [key]
    assert setting_differences([plain, changed])[key] == [plain.settings.get(key), changes[key]]


@pytest.mark.parametrize(
    "changes",
    [
        {"tags": ["again"]},
        {"name": "again"},
        {"device": "cuda"},
        {"execution_backend": "local_sync"},
        {"torch_threads": 2},
        {"log_interval": 10},
        {"keep_checkpoints": None},
        {"tracking": {"tensorboard": False}},
        {"benchmark": {"seeds": [1, 2]}},
        {"env_kwargs.num_workers": 2},
        {"algo_kwargs.an_option_of_a_later_release": None},
        {"preset": None},
    ],
)
def test_how_a_run_is_carried_out_makes_no_other_entry(changes: dict[str, Any], tmp_path: Path) -> None:
    fake_run(tmp_path / "a", 1)
    fake_run(tmp_path / "b", 2, changes=changes)
    (entry,) = entries(tmp_path)
    assert (entry.name, len(entry.by_seed)) == ("ppo-cartpole", 2)


def test_a_configuration_without_a_preset_is_named_by_algorithm_environment_and_fingerprint(tmp_path: Path) -> None:
    fake_run(tmp_path, 1, preset="ppo-pong", changes={"preset": None, "total_timesteps": 77})
    (entry,) = entries(tmp_path)
    assert entry.name == f"ppo-ALE-Pong-v5+{entry.fingerprint[:8]}"
    assert entry.preset is None


def test_the_preset_of_a_configuration_is_kept_through_files_and_links(tmp_path: Path) -> None:
    assert load_config(preset="ppo-cartpole").preset == "ppo-cartpole"
    assert load_config(preset="ppo-pong").preset == "ppo-pong"  # not that of the base it links
    (tmp_path / "mine.yaml").write_text("config: preset:ppo-cartpole\nseed: 5\n")
    config = load_config(tmp_path / "mine.yaml")
    assert config.preset == "ppo-cartpole"
    assert load_config(base={"algo": "ppo", "env_id": "CartPole-v1"}).preset is None
    assert flat_settings(config_to_dict(config)) == flat_settings(config_to_dict(load_config(preset="ppo-cartpole")))


def test_an_entry_is_found_by_name_fingerprint_preset_algorithm_or_beginning(tmp_path: Path) -> None:
    fake_run(tmp_path / "a", 1)
    fake_run(tmp_path / "b", 1, preset="dqn-cartpole")
    fake_run(tmp_path / "c", 1, changes={"num_envs": 2})
    found = entries(tmp_path)
    assert find_entry(found, "ppo-cartpole").name == "ppo-cartpole"
    assert find_entry(found, "dqn").name == "dqn-cartpole"
    changed = next(entry for entry in found if "+" in entry.name)
    for text in (changed.name, changed.fingerprint, changed.name[:14]):
        assert find_entry(found, text) is changed
    with pytest.raises(ConfigError, match="`ppo` may mean `ppo-cartpole`, `ppo-cartpole\\+"):
        find_entry(found, "ppo")
    with pytest.raises(ConfigError, match="no entry is called `dqm-cartpole`; did you mean `dqn-cartpole`"):
        find_entry(found, "dqm-cartpole")
    with pytest.raises(ConfigError, match="there are no entries"):
        find_entry([], "zzz")


# -- filters ---------------------------------------------------------------------------------------


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    fake_runs(tmp_path / "a", [1.0, 2.0, 3.0], changes={"tags": ["nightly"]})
    fake_runs(tmp_path / "b", [4.0], preset="sac-pendulum")
    fake_runs(tmp_path / "c", [5.0], preset="ppo-lunarlander", changes={"tags": ["nightly", "big"]})
    fake_run(tmp_path / "d", 9, 6.0, status="failed")
    return tmp_path


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (Filters(algo=["sac"]), ["sac-pendulum"]),
        (Filters(env=["CartPole-v1", "Pendulum-v1"]), ["ppo-cartpole", "sac-pendulum"]),
        (Filters(preset=["ppo-lunarlander"]), ["ppo-lunarlander"]),
        (Filters(suite=["box2d"]), ["ppo-lunarlander"]),
        (Filters(tag=["nightly"]), ["ppo-cartpole", "ppo-lunarlander"]),
        (Filters(tag=["nightly"], algo=["ppo"], suite=["classic-control"]), ["ppo-cartpole"]),
        (Filters(status=["failed"]), ["ppo-cartpole"]),
        (Filters(min_seeds=2), ["ppo-cartpole"]),
    ],
)
def test_filters_narrow_the_report(filters: Filters, expected: list[str], mixed: Path) -> None:
    report = build_report([mixed], filters)
    assert sorted(place.entry.name for place in report.standings) == expected
    assert {run.path for run in report.runs} == {run.path for place in report.standings for run in place.entry.runs}


def test_a_filter_that_nothing_passes_is_warned_of_with_the_nearest_value(mixed: Path, capsys: Capture) -> None:
    assert main(["report", str(mixed), "--env", "CartPole-v0"]) == 0
    answer = capsys.readouterr()
    assert answer.out == "no runs\n"
    assert "axiomrl: warning: --env CartPole-v0: no run has it; did you mean `CartPole-v1`?" in answer.err
    assert main(["report", str(mixed), "--status", "done"]) == 2
    assert "--status done: no such status; use completed, running" in capsys.readouterr().err


# -- formats ---------------------------------------------------------------------------------------


def test_a_text_report_shows_runs_groups_and_what_is_unreadable(mixed: Path, capsys: Capture) -> None:
    damaged = fake_run(mixed / "e", 1)
    (damaged / METADATA).write_text("")
    assert main(["report", str(mixed)]) == 0
    shown = capsys.readouterr().out
    runs, unreadable, groups = shown.split("\n\n")
    assert [line.split()[3] for line in runs.splitlines()[2:]] == ["completed"] * 5 + ["failed"]
    assert "RuntimeError: the floor gave way" in runs
    assert unreadable.splitlines()[2].split(None, 1) == [str(damaged), "metadata.json is empty"]
    cartpole = next(line for line in groups.splitlines() if line.startswith("ppo-cartpole"))
    assert cartpole.split() == [
        *("ppo-cartpole", "CartPole-v1", "3", "2.00", "1.00", "to", "3.00", "low", "n"),
        *("3", "completed,", "1", "failed", "-"),
    ]


def test_csv_has_a_row_per_run_and_json_holds_everything(mixed: Path, capsys: Capture) -> None:
    (fake_run(mixed / "e", 1) / METADATA).unlink()
    assert main(["report", str(mixed), "--output-format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["status"] for row in rows].count("unreadable") == 1
    assert [row["counted"] for row in rows].count("True") == 5
    assert {row["tags"] for row in rows} == {"", "nightly", "nightly big"}
    assert main(["report", str(mixed), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert len(record["runs"]) == 6
    assert record["unreadable"][0]["reason"] == "metadata.json is missing"
    cartpole = next(entry for entry in record["entries"] if entry["name"] == "ppo-cartpole")
    assert cartpole["scores"] == {"1": 1.0, "2": 2.0, "3": 3.0}
    assert cartpole["runs"] == {"completed": 3, "failed": 1}
    assert set(record["manifests"]) == {"box2d", "classic-control"}


def test_values_of_runs_are_shown_as_text_and_cannot_steer_a_terminal_or_a_page(tmp_path: Path) -> None:
    tag = "a|b\x1b[31m\n<script>*x*"
    fake_run(tmp_path, 1, changes={"tags": [tag]})
    report = build_report([tmp_path])
    text = render(report, "report", "text")
    assert "a|b\\x1b[31m\\n<script>*x*" in text
    for output in (text, render(report, "report", "markdown"), render(report, "report", "text", width=300)):
        assert "\x1b[31m" not in output
    markdown = render(report, "report", "markdown")
    assert "a\\|b\\\\x1b\\[31m\\\\n\\<script\\>\\*x\\*" in markdown
    assert len({line.replace("\\|", "").count("|") for line in markdown.splitlines()[2:5]}) == 1
    assert json.loads(render(report, "report", "json"))["runs"][0]["tags"] == [tag]


def test_text_that_no_encoding_holds_is_spelled_out(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run_dir = fake_run(tmp_path, 1, status="failed", changes={"algo_kwargs.max_grad_norm": float("inf")})
    (run_dir / METADATA).write_text((run_dir / METADATA).read_text().replace("the floor", "the \\ud800 floor"))
    for output_format in FORMATS:
        assert main(["report", str(tmp_path), "--output-format", output_format]) == 0
        assert "\\ud800" in capfd.readouterr().out
    (entry,) = entries(tmp_path)
    assert entry.settings["algo_kwargs.max_grad_norm"] == "inf"


def test_a_terminal_gets_tables_that_fit_its_width(mixed: Path) -> None:
    wide, narrow = (render(build_report([mixed]), "report", "text", width=width) for width in (200, 60))
    assert "ppo__CartPole-v1__seed1__20260101T000000Z" in wide
    plain = narrow.replace("\x1b[1m", "").replace("\x1b[0m", "").splitlines()
    assert max(map(len, plain)) <= 60


def test_a_report_is_written_to_a_file_in_the_format_of_its_name(mixed: Path, capsys: Capture) -> None:
    for name, beginning in {"r.json": "{", "r.csv": "run_dir,", "r.md": "## Runs", "r.txt": "Runs\n"}.items():
        assert main(["report", str(mixed), "--output", str(mixed / name)]) == 0
        assert (mixed / name).read_text().startswith(beginning)
        assert capsys.readouterr().out.splitlines()[:2] == [f"output={mixed / name}", "runs=6"]
    assert main(["report", str(mixed), "--output", str(mixed / "r.txt"), "--output-format", "json", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["entries"] == 3
    assert (mixed / "r.txt").read_text() == (mixed / "r.json").read_text()
    assert main(["report", str(mixed), "--output", str(mixed / "nowhere" / "r.txt")]) == 2
    assert "cannot be written (No such file or directory); name another" in capsys.readouterr().err


def test_the_same_runs_give_the_same_bytes(mixed: Path) -> None:
    lines = [
        [kind, str(mixed), "--output-format", output_format]
        for kind in ("report", "leaderboard")
        for output_format in FORMATS
    ]
    first, second = (
        run_commands(lines, PYTHONHASHSEED=hash_seed, COLUMNS=width) for hash_seed, width in (("1", "40"), ("2", "200"))
    )
    assert first.stdout == second.stdout
    assert first.stdout.count("ppo-lunarlander") > 2 * len(FORMATS)


def test_an_empty_directory_is_a_report_without_runs_and_a_missing_one_a_mistake(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report"]) == 2
    assert "runs: no such directory" in capsys.readouterr().err
    (tmp_path / "runs").mkdir()
    assert main(["report"]) == 0
    assert capsys.readouterr().out == "no runs\n"
    assert main(["leaderboard", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["entries"] == []


def test_reading_commands_import_neither_torch_nor_gymnasium(mixed: Path) -> None:
    runs = ["--runs", str(mixed)]
    reading = [["report", *runs], ["leaderboard", *runs], ["compare", "ppo-cartpole", "ppo-cartpole", *runs], ["zoo"]]
    assert run_commands(reading).stderr == ""


def run_commands(lines: list[list[str]], **environment: str) -> subprocess.CompletedProcess[str]:
    """Run commands in one new process and check that all went well and nothing heavy was imported."""
    program = (
        f"import sys\nfrom rl_training.cli import main\nfailed = [line for line in {lines!r} if main(line) != 0]\n"
        "sys.exit(repr((failed, loaded)) if (loaded := {'torch', 'gymnasium'} & set(sys.modules)) or failed else 0)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=process_environment(**environment),
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    return answer


# -- the zoo's own command -------------------------------------------------------------------------


def test_the_zoo_reports_on_runs_of_presets_only(mixed: Path, capsys: Capture) -> None:
    fake_run(mixed / "own", 1, 7.0, changes={"preset": None, "num_envs": 3})
    for start in (["zoo", "--format", "report"], ["report"]):
        assert main([*start, "--runs", str(mixed), "--json"]) == 0
        names = [entry["name"] for entry in json.loads(capsys.readouterr().out)["entries"]]
        assert any("+" in name for name in names) is (start == ["report"])


def test_axiomrl_zoo_has_the_same_commands(mixed: Path, capsys: Capture) -> None:
    for arguments in (
        ["zoo", "--format", "table"],
        ["zoo", "--format", "leaderboard", "--runs", str(mixed)],
        ["report", str(mixed)],
        ["leaderboard", str(mixed), "--json"],
    ):
        assert main(arguments) == 0
        expected = capsys.readouterr().out
        assert zoo_cli.main(arguments) == 0
        assert capsys.readouterr().out == expected
        if arguments[0] == "zoo":
            assert zoo_cli.main(arguments[1:]) == 0
            assert capsys.readouterr().out == expected
    assert zoo_cli.main(["--help"]) == 0
    assert "leaderboard" in capsys.readouterr().out

"""Run directories are found and read; what cannot be read is listed with its reason and ends nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from fake_runs import fake_run
from harness import tiny_config
from processes import process_environment
from rl_training.errors import AxiomError, ConfigError
from rl_training.experiment.runs import CONFIG, METADATA, METRICS
from rl_training.runtime.workflows import train
from rl_training.zoo import run_index
from rl_training.zoo.reporting import build_report
from rl_training.zoo.run_files import STATUSES
from rl_training.zoo.run_index import index_runs, read_metric_rows

SCHEMA = Path(run_index.__file__).parents[1] / "experiment" / "metadata.schema.json"


def test_a_real_run_is_read_as_it_was(tmp_path: Path) -> None:
    result = train(tiny_config(tmp_path, name="lr3e-4", tags=["first", "second"]))
    (run,) = index_runs([tmp_path]).runs
    assert run.path == result.run_dir
    assert (run.algo, run.env_id, run.seed, run.status) == ("ppo", "CartPole-v1", 7, "completed")
    assert (run.steps, run.score) == (320, result.metrics["eval_return_mean"])
    assert [evaluation.step for evaluation in run.evaluations] == [128, 256, 320]
    assert run.evaluations[-1].episodes == 2
    assert (run.label, run.tags, run.preset) == ("lr3e-4", ("first", "second"), None)
    assert run.counts
    rows = read_metric_rows(run)
    assert rows[-1]["eval_return_mean"] == run.score
    assert len(rows) == len((run.path / METRICS).read_text().splitlines())


def test_the_runs_that_these_tests_make_up_keep_to_the_schema(tmp_path: Path) -> None:
    schema = json.loads(SCHEMA.read_text())
    for number, status in enumerate(STATUSES):
        run_dir = fake_run(tmp_path, number, status=status)
        jsonschema.validate(json.loads((run_dir / METADATA).read_text()), schema)
    index = index_runs([tmp_path])
    assert {run.status for run in index.runs} == set(STATUSES)
    assert [run.status for run in index.runs if run.counts] == ["completed"]


# -- what cannot be read ---------------------------------------------------------------------------


def change_metadata(**changes: Any) -> Callable[[Path], None]:
    def change(run_dir: Path) -> None:
        content = json.loads((run_dir / METADATA).read_text())
        (run_dir / METADATA).write_text(json.dumps({**content, **changes}))

    return change


def write(name: str, content: str | bytes) -> Callable[[Path], None]:
    def change(run_dir: Path) -> None:
        (run_dir / name).write_bytes(content.encode() if isinstance(content, str) else content)

    return change


def cut(name: str, length: int) -> Callable[[Path], None]:
    return lambda run_dir: os.truncate(run_dir / name, (run_dir / name).stat().st_size + length)


def drop_last_rows(run_dir: Path) -> None:
    lines = (run_dir / METRICS).read_text().splitlines(keepends=True)
    (run_dir / METRICS).write_text("".join(lines[:-2]))


def make_pipe(name: str) -> Callable[[Path], None]:
    def change(run_dir: Path) -> None:
        (run_dir / name).unlink()
        os.mkfifo(run_dir / name)

    return change


def link(name: str, target: str) -> Callable[[Path], None]:
    def change(run_dir: Path) -> None:
        (run_dir / name).unlink()
        (run_dir / name).symlink_to(target)

    return change


DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "no metadata": (lambda run_dir: (run_dir / METADATA).unlink(), "metadata.json is missing"),
    "empty metadata": (write(METADATA, ""), "metadata.json is empty"),
    "truncated metadata": (cut(METADATA, -40), "metadata.json is not valid JSON"),
    "foreign metadata": (
        write(METADATA, '{"name": "package"}'),
        "not that of an AxiomRL run: it has no schema_version",
    ),
    "metadata of another shape": (write(METADATA, "[1, 2]"), "metadata.json does not hold an object"),
    "metadata without a seed": (change_metadata(seed="1"), "its seed is '1'"),
    "metadata with a boolean seed": (change_metadata(seed=True), "its seed is True"),
    "an environment that steers the terminal": (change_metadata(env_id="\x1b[2J"), "its env_id is '\\x1b[2J'"),
    "unknown status": (change_metadata(status="paused"), "unknown status 'paused'"),
    "later schema": (change_metadata(schema_version=9), "has schema version 9; this release reads 1"),
    "bytes for metadata": (write(METADATA, b"\xff\xfe{}"), "byte 0 is not text"),
    "deeply nested metadata": (write(METADATA, '{"a":' * 100_000), "nested more than 100 levels deep"),
    "metadata is a pipe": (make_pipe(METADATA), "metadata.json is not a regular file"),
    "metadata with an integer of any size": (change_metadata(seed=10**60), "integer of more than 128 bits"),
    "metadata with a number that is none": (change_metadata(latest_metrics={"a": float("nan")}), "NaN is not a number"),
    "config is a pipe": (make_pipe(CONFIG), "config.yaml is not a regular file"),
    "metrics are a pipe": (make_pipe(METRICS), "metrics.jsonl is not a regular file"),
    "metrics are a device": (link(METRICS, "/dev/zero"), "metrics.jsonl is not a regular file"),
    "deeply nested config": (write(CONFIG, "a: " + "[" * 25_000 + "]" * 25_000), "nested too deeply"),
    "config that merges without end": (
        write(
            CONFIG,
            "a: &a {"
            + ",".join(f"k{number}: 1" for number in range(50))
            + "}\n"
            + "".join(
                f"{b}: &{b} {{<<: [{','.join([f'*{a}'] * 50)}]}}\n" for a, b in zip("abcde", "bcdef", strict=True)
            ),
        ),
        "too large",
    ),
    "a name that steers the terminal": (
        write(CONFIG, 'algo: ppo\nenv_id: CartPole-v1\nname: "a\\e[2J"\n'),
        "its name is not printable text",
    ),
    "a step before the first": (
        write(METRICS, '{"event": "eval", "global_step": -1}\n'),
        "line 1: not a row of an AxiomRL run",
    ),
    "no metrics": (lambda run_dir: (run_dir / METRICS).unlink(), "metrics.jsonl is missing"),
    "empty metrics": (write(METRICS, ""), "metrics.jsonl is empty: no row was logged (status completed)"),
    "truncated row": (cut(METRICS, -9), "metrics.jsonl, line 11 is cut off"),
    "rows are missing": (drop_last_rows, "it ends at step 90000, and the run had reached step 100000"),
    "foreign metrics": (write(METRICS, '{"loss": 1.0}\n'), "line 1: not a row of an AxiomRL run"),
    "metrics of another format": (write(METRICS, "step,loss\n1,2\n"), "line 1 is not JSON"),
    "zeros in metrics": (write(METRICS, b'{"event": "train"\0\0\0}\n'), "it holds zero bytes"),
    "no config": (lambda run_dir: (run_dir / CONFIG).unlink(), "config.yaml is missing"),
    "empty config": (write(CONFIG, ""), "config.yaml is empty"),
    "config of another run": (write(CONFIG, "algo: dqn\nenv_id: CartPole-v1\n"), "its algo is 'dqn', not ppo"),
    "config that would run code": (write(CONFIG, "!!python/object/apply:os.abort []"), "is refused"),
    "config that is a list": (write(CONFIG, "[1]"), "does not hold a configuration"),
    "tags of another type": (write(CONFIG, "algo: ppo\ntags: 3\n"), "its tags are not a list of texts"),
    "config that explodes": (
        write(
            CONFIG,
            "a: &a [1,1,1,1,1,1,1,1,1]\n"
            + "".join(f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefg", "bcdefgh", strict=True)),
        ),
        "too large",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_run_is_listed_with_the_reason_and_the_others_are_read(damage: str, tmp_path: Path) -> None:
    harm, reason = DAMAGE[damage]
    fake_run(tmp_path, 1, 10.0, rows=10)
    damaged = fake_run(tmp_path, 2, 20.0, rows=10)
    harm(damaged)
    report = build_report([tmp_path])
    assert [run.seed for run in report.runs] == [1]
    (unreadable,) = report.unreadable
    assert unreadable.path == damaged
    assert reason in unreadable.reason
    assert report.standings[0].entry.scores == [10.0]


def test_a_row_without_its_line_end_is_complete_when_it_is_json(tmp_path: Path) -> None:
    cut(METRICS, -1)(fake_run(tmp_path, 1, 12.0))
    assert index_runs([tmp_path]).runs[0].score == 12.0


def test_a_directory_that_was_named_for_a_run_and_holds_nothing_is_listed(tmp_path: Path) -> None:
    (tmp_path / "ppo__CartPole-v1__seed3__20260101T000000Z").mkdir()
    (tmp_path / "notes").mkdir()
    index = index_runs([tmp_path])
    assert [(run.path.name, run.reason) for run in index.unreadable] == [
        ("ppo__CartPole-v1__seed3__20260101T000000Z", "metadata.json is missing")
    ]


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may list everything")
def test_a_directory_that_may_not_be_listed_is_said(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0)
    assert "cannot be listed" in index_runs([tmp_path]).unreadable[0].reason


# -- where runs are found --------------------------------------------------------------------------


def test_runs_are_found_at_any_depth_once_and_not_in_hidden_directories(tmp_path: Path) -> None:
    first = fake_run(tmp_path / "a", 1)
    second = fake_run(tmp_path / "b" / "c", 2)
    fake_run(tmp_path / ".trash", 3)
    fake_run(first / "copies", 4)  # inside a run nothing is looked for
    (tmp_path / "link").symlink_to(tmp_path / "b", target_is_directory=True)
    index = index_runs([tmp_path, second, tmp_path / "link"])
    assert [run.path for run in index.runs] == [first, second]
    assert index.unreadable == ()


def test_a_path_that_is_not_there_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such directory; name where run directories are"):
        index_runs([tmp_path / "nowhere"])


# -- scores ----------------------------------------------------------------------------------------


def test_only_an_evaluation_of_the_final_policy_is_a_score(tmp_path: Path) -> None:
    never = fake_run(tmp_path, 1, None)
    early = fake_run(tmp_path, 2, 50.0)
    (training, evaluation) = (early / METRICS).read_text().splitlines()
    earlier = evaluation.replace('"global_step": 100000', '"global_step": 50000')
    (early / METRICS).write_text(f"{earlier}\n{training}\n")
    unknown = fake_run(tmp_path, 3, 50.0)
    text = (unknown / METRICS).read_text().replace('"eval_return_mean": 50.0', '"eval_return_mean": null')
    (unknown / METRICS).write_text(text)
    runs = {run.path: run for run in index_runs([tmp_path]).runs}
    assert [runs[path].score for path in (never, early, unknown)] == [None, None, None]
    assert not any(run.counts for run in runs.values())
    assert runs[early].evaluations[0].score == 50.0


@pytest.mark.parametrize("value", ["true", '"12"', "1" + "0" * 400, "NaN", "Infinity", "1e308", "-1e308", "1.1e100"])
def test_a_score_is_a_finite_number(value: str, tmp_path: Path) -> None:
    run_dir = fake_run(tmp_path, 1, 50.0)
    text = (run_dir / METRICS).read_text().replace('"eval_return_mean": 50.0', f'"eval_return_mean": {value}')
    (run_dir / METRICS).write_text(text)
    assert index_runs([tmp_path]).runs[0].score is None


def test_a_folded_output_directory_does_not_touch_the_next_key(tmp_path: Path) -> None:
    run_dir = fake_run(tmp_path, 1)
    text = (run_dir / CONFIG).read_text()
    (run_dir / CONFIG).write_text("output_dir: a long\n  path that is\n  folded\n" + text.split("\n", 2)[2])
    other = fake_run(tmp_path, 2)
    first, second = index_runs([tmp_path]).runs
    assert first.config is second.config  # equal content is decoded once
    assert first.config["algo"] == "ppo"
    assert "output_dir" not in first.config
    assert other == second.path


def test_rows_that_cannot_be_read_are_an_error_for_curves(tmp_path: Path) -> None:
    run_dir = fake_run(tmp_path, 1)
    (run,) = index_runs([tmp_path]).runs
    (run_dir / METRICS).write_text("{")
    with pytest.raises(AxiomError, match="cannot be read: line 1 is not JSON"):
        read_metric_rows(run)


# -- many runs -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """500 runs of 200 rows: 50 configurations of 10 seeds."""
    root = tmp_path_factory.mktemp("many")
    for number in range(50):
        for seed in range(10):
            changes = {"algo_kwargs.gamma": 0.9 + number / 1000}
            fake_run(root / str(number), seed, 100.0 + seed, rows=182, changes=changes)
    return root


def test_500_runs_are_reported_without_torch_or_gymnasium(many: Path) -> None:
    program = (
        "import sys\nfrom rl_training.cli import main\n"
        f"status = main(['report', {str(many)!r}, '--quiet'])\n"
        "loaded = {'torch', 'gymnasium'} & set(sys.modules)\n"
        "sys.exit(status or f'imported {loaded}' if loaded else status)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=process_environment(), check=False
    )
    assert answer.returncode == 0, answer.stderr
    lines = answer.stdout.splitlines()
    assert sum("completed" in line and "__seed" in line for line in lines) == 500
    assert sum("10 completed" in line for line in lines) == 50


def test_a_report_on_500_runs_takes_no_longer_than_decoding_their_rows(many: Path) -> None:
    files = list(many.rglob(METRICS))
    assert len(files) == 500
    assert len(files[0].read_text().splitlines()) == 201

    def decode() -> None:
        for file in files:
            for line in file.read_text().splitlines():
                json.loads(line)

    def seconds(work: Callable[[], object]) -> float:
        started = time.process_time()
        work()
        return time.process_time() - started

    assert seconds(lambda: build_report([many])) < seconds(decode)


# -- interrupted runs and names --------------------------------------------------------------------


def test_the_steps_of_an_interrupted_run_are_those_of_its_last_checkpoint(tmp_path: Path) -> None:
    for seed, status in enumerate(("interrupted", "failed", "completed")):
        run_dir = fake_run(tmp_path, seed, status=status)
        change_metadata(latest_checkpoint="checkpoints/step_54321")(run_dir)
    change_metadata(latest_checkpoint="checkpoints/step_x")(fake_run(tmp_path, 9, status="interrupted"))
    runs = index_runs([tmp_path]).runs
    assert [(run.status, run.steps) for run in runs] == [
        ("interrupted", 54_321),
        ("failed", 50_000),
        ("completed", 100_000),
        ("interrupted", 50_000),
    ]


def test_a_run_is_labelled_by_the_name_that_the_user_gave(tmp_path: Path) -> None:
    fake_run(tmp_path, 1, changes={"name": "lr3e-4"})
    fake_run(tmp_path, 2)
    assert [run.label for run in index_runs([tmp_path]).runs] == ["lr3e-4", None]

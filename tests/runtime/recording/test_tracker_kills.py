"""MLflow and trackio themselves, in processes that are killed: every row arrives once, and the run is the same."""

from __future__ import annotations

import re
import signal
import sqlite3
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from harness import assert_same_run, json_rows, tiny_config
from processes import command, process_environment, train_arguments
from rl_training.experiment.checkpoints import checkpoint_step, list_checkpoints
from rl_training.experiment.runs import METRICS, read_metadata
from rl_training.runtime.recording.trackers.tracker import ROW_NUMBER, numbers_of
from rl_training.runtime.workflows import train
from sweep_runs import sweep_config

pytestmark = pytest.mark.slow

# Rows often, checkpoints seldom: most kills come after rows that the resumed run makes again.
CHANGES: dict[str, Any] = {
    "total_timesteps": 2560,
    "log_interval": 32,
    "eval_interval": 640,
    "checkpoint_interval": 640,
    "eval_episodes": 2,
    "env_kwargs": {"max_episode_steps": 40},
}
HAS_VIDEO = find_spec("imageio_ffmpeg") is not None

Points = Counter[tuple[str, int, float]]
"""How often a dashboard holds a metric with a step and a value."""


class Store:
    """The rows of a dashboard, read without its own package."""

    def __init__(self, name: str, folder: Path) -> None:
        pytest.importorskip(name)
        self.name = name
        self.output_dir = folder / "runs"
        self.file = {"mlflow": self.output_dir / "mlflow" / "mlflow.db", "trackio": folder / "trackio" / "axiomrl.db"}[
            name
        ]
        self.environment = process_environment(TRACKIO_DIR=str(folder / "trackio"))

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        connection = sqlite3.connect(f"file:{self.file}?mode=ro", uri=True)
        try:
            return connection.execute(sql).fetchall()
        finally:
            connection.close()

    def points(self) -> dict[str, Points]:
        """Return what each run of the dashboard holds."""
        if self.name == "mlflow":
            found = self.rows("select run_uuid, key, step, value from metrics")
        else:
            found = self.rows("select run_id, key, step, value from metrics, json_each(metrics)")
        by_run: dict[str, Points] = {}
        for run, key, step, value in found:
            by_run.setdefault(run, Counter())[key, step, float(value)] += 1
        return by_run

    def highest_row(self) -> int:
        """Return the number of the newest row that it holds."""
        try:
            runs = self.points()
        except sqlite3.OperationalError:  # there is no file yet, or no table in it
            return 0
        return max((int(value) for points in runs.values() for key, _, value in points if key == ROW_NUMBER), default=0)


def expected(run_dir: Path) -> Points:
    rows = json_rows(run_dir / METRICS)
    return Counter(
        (name, row["global_step"], float(value))
        for number, row in enumerate(rows, start=1)
        for name, value in {ROW_NUMBER: number, **numbers_of(row)}.items()
    )


@pytest.fixture(params=["mlflow", "trackio"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return Store(request.param, tmp_path)


def the_run(output_dir: Path) -> Path | None:
    found = list(output_dir.glob("*__seed*")) if output_dir.is_dir() else []
    return found[0] if found else None


def kill_when(process: subprocess.Popen[bytes], condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 600
    while process.poll() is None and not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
    assert process.poll() is None, "the run ended before it was killed"
    process.send_signal(signal.SIGKILL)
    process.wait()


def test_after_kills_every_row_is_there_once_and_the_run_is_the_same(store: Store, tmp_path: Path) -> None:
    video = {"video": {"interval": 1000}} if HAS_VIDEO else {}
    straight = train(tiny_config(tmp_path / "straight", **CHANGES)).run_dir
    arguments = train_arguments(tiny_config(store.output_dir, **CHANGES, **video, tracking={store.name: {}}), tmp_path)
    beyond = 0
    for row in (9, 35, 57):
        process = subprocess.Popen(command(*arguments, "--quiet"), env=store.environment, stdout=subprocess.DEVNULL)
        kill_when(process, lambda row=row: store.highest_row() >= row)  # type: ignore[misc]
        run_dir = the_run(store.output_dir)
        assert run_dir is not None
        kept = checkpoint_step(list_checkpoints(run_dir)[0])
        assert kept is not None
        beyond += any(
            key == ROW_NUMBER and step > kept for points in store.points().values() for key, step, _ in points
        )
        arguments = ["resume", "--checkpoint", str(run_dir)]
    assert beyond, "no kill came after rows beyond a checkpoint: the test shows nothing"
    subprocess.run(command(*arguments, "--quiet"), env=store.environment, stdout=subprocess.DEVNULL, check=True)
    assert run_dir is not None
    assert_same_run(straight, run_dir)
    (points,) = store.points().values()
    rows = json_rows(run_dir / METRICS)
    assert [points[ROW_NUMBER, row["global_step"], float(n)] for n, row in enumerate(rows, 1)] == [1] * len(rows)
    assert max(points.values()) == 1
    clock = ("steps_per_second", "time_")  # of the process that made a row first
    held, wanted = ({key for key in found if not key[0].startswith(clock)} for found in (points, expected(run_dir)))
    assert held == wanted
    assert read_metadata(run_dir)["trackers"][store.name]["error"] is None
    if HAS_VIDEO:
        assert [path.name.split("__")[0] for path in sorted((run_dir / "videos").iterdir())] == [
            "step_1024",
            "step_2016",
        ]


def test_a_sweep_has_a_run_per_seed(store: Store) -> None:
    config = sweep_config(store.output_dir, 11, 13, tracking={store.name: {}}, benchmark={"jobs": 2})
    arguments = train_arguments(config, store.output_dir.parent)
    subprocess.run(command(*arguments, "--quiet"), env=store.environment, stdout=subprocess.DEVNULL, check=True)
    by_id = {read_metadata(path)["trackers"][store.name]["run_id"]: path for path in store.output_dir.glob("*__seed*")}
    assert len(by_id) == 2
    assert store.points() == {run_id: expected(path) for run_id, path in by_id.items()}


def test_a_store_that_is_deleted_is_made_again_with_all_rows(store: Store, tmp_path: Path) -> None:
    arguments = train_arguments(tiny_config(store.output_dir, tracking={store.name: {}}), tmp_path)
    subprocess.run(command(*arguments, "--quiet"), env=store.environment, stdout=subprocess.DEVNULL, check=True)
    for file in store.file.parent.glob(f"{store.file.name}*"):
        file.unlink()
    run_dir = the_run(store.output_dir)
    assert run_dir is not None
    arguments = ["resume", "--checkpoint", str(run_dir), "--total-timesteps", "384", "--quiet"]
    subprocess.run(command(*arguments), env=store.environment, stdout=subprocess.DEVNULL, check=True)
    (points,) = store.points().values()
    assert points == expected(run_dir)


def test_a_server_that_does_not_answer_stops_nothing(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    tracking = {"mlflow": {"uri": "http://127.0.0.1:9"}}
    arguments = train_arguments(tiny_config(tmp_path / "runs", tracking=tracking), tmp_path)
    answer = subprocess.run(
        command(*arguments), env=process_environment(), capture_output=True, text=True, check=True, timeout=120
    )
    assert answer.stderr.count("tracking.mlflow: could not start") == 1
    run_dir = the_run(tmp_path / "runs")
    assert run_dir is not None
    assert "could not start" in str(read_metadata(run_dir)["trackers"]["mlflow"]["error"])


def test_a_store_that_cannot_be_written_stops_nothing(store: Store, tmp_path: Path) -> None:
    store.file.parent.mkdir(parents=True)
    store.file.write_text("not a database, and long enough to be taken for one by nobody")
    arguments = train_arguments(tiny_config(store.output_dir, tracking={store.name: {}}), tmp_path)
    answer = subprocess.run(command(*arguments), env=store.environment, capture_output=True, text=True, check=True)
    assert answer.stderr.count(f"warning: tracking.{store.name}: ") == 1
    assert "Traceback" not in answer.stderr
    run_dir = the_run(store.output_dir)
    assert run_dir is not None
    assert read_metadata(run_dir)["trackers"][store.name]["error"] is not None


def test_results_have_stdout_for_themselves(store: Store, tmp_path: Path) -> None:
    arguments = train_arguments(tiny_config(store.output_dir, tracking={store.name: {}}), tmp_path)
    answer = subprocess.run(command(*arguments), env=store.environment, capture_output=True, text=True, check=True)
    assert all(re.match(r"[a-z_]+=", line) for line in answer.stdout.splitlines())
    assert f"tracking.{store.name}: run_id " in answer.stderr
    assert "\x1b" not in answer.stderr

"""`axiomrl watch`: what it reads while a run writes, and frames for pipes and terminals of any width."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fake_runs import fake_run
from processes import command, process_environment
from rl_training.cli import main
from rl_training.experiment.runs import METADATA, METRICS
from rl_training.zoo.live.followed import FollowedRun
from rl_training.zoo.live.frames import frame_of, line_of
from rl_training.zoo.live.plots import plot
from rl_training.zoo.live.watching import Watch


def write_rows(run_dir: Path, steps: range, *, mode: str = "a", **further: Any) -> None:
    """Append training rows of 1,000 steps per second, three quarters of which is collecting and learning."""
    with (run_dir / METRICS).open(mode, encoding="utf-8") as file:
        for step in steps:
            times = {"time_collect": step / 2000, "time_update": step / 4000, "time_eval": 0.0}
            row = {"event": "train", "global_step": step, "train_return_mean": step / 10, "steps_per_second": 1000.0}
            file.write(json.dumps({**row, **times, **further}) + "\n")


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run of 100,000 steps that has come to 10,000."""
    path = fake_run(tmp_path, 1, status="running")
    write_rows(path, range(1000, 10_001, 1000), mode="w")
    with (path / METRICS).open("a") as file:
        file.write(json.dumps({"event": "eval", "global_step": 10_000, "eval_return_mean": 321.5}) + "\n")
    return path


def followed(path: Path, **settings: Any) -> FollowedRun:
    run = FollowedRun(path, **settings)
    run.refresh()
    return run


def test_progress_rate_time_split_and_estimate(run_dir: Path) -> None:
    run = followed(run_dir)
    assert (run.step, run.total, run.status) == (10_000, 100_000, "running")
    assert run.rate == pytest.approx(1000)
    assert run.remaining == pytest.approx(90, abs=5)
    assert run.shares == pytest.approx({"collect": 0.5, "update": 0.25, "eval": 0.0, "other": 0.25})
    assert run.curves["eval_return_mean"] == [(10_000, 321.5)]
    assert run.curves["train_return_mean"][-1] == (10_000, 1000.0)


def test_new_rows_are_added_and_an_unfinished_one_waits(run_dir: Path) -> None:
    run = followed(run_dir)
    with (run_dir / METRICS).open("a") as file:
        file.write('{"event": "train", "global_')
    run.refresh()
    assert (run.step, run.problem) == (10_000, None)
    with (run_dir / METRICS).open("a") as file:
        file.write('step": 12000}\n')
    run.refresh()
    assert run.step == 12_000


def test_rows_that_a_resumed_run_cuts_off_are_forgotten(run_dir: Path) -> None:
    run = followed(run_dir)
    write_rows(run_dir, range(1000, 3001, 1000), mode="w")
    run.refresh()
    assert (run.step, len(run.curves["train_return_mean"]), run.curves["eval_return_mean"]) == (3000, 3, [])
    write_rows(run_dir, range(500, 30_001, 500), mode="w")  # cut off and longer than before
    run.refresh()
    assert len(run.curves["train_return_mean"]) == 60


def test_a_fork_is_timed_from_the_step_of_its_parent(tmp_path: Path) -> None:
    path = fake_run(tmp_path, 1, status="running")
    content = json.loads((path / METADATA).read_text())
    content["parent"] = {"kind": "fork", "step": 50_000}
    (path / METADATA).write_text(json.dumps(content))
    write_rows(path, range(51_000, 53_001, 1000), mode="w")
    assert followed(path).seconds == pytest.approx(3.0)


def test_a_run_without_news_for_long_may_have_been_killed(run_dir: Path) -> None:
    run = followed(run_dir, clock=lambda: time.time() + 3600)
    assert run.status == "silent"
    assert run.remaining is None


def test_damaged_and_foreign_files_are_named_and_stop_nothing(tmp_path: Path) -> None:
    paths = [fake_run(tmp_path, seed, status="running") for seed in range(4)]
    (paths[0] / METRICS).write_text("{}\nno json\n")
    (paths[1] / METADATA).write_text("[]")
    (paths[2] / METRICS).write_text('{"event": "train", "global_step": 1e400}\n')
    runs = Watch([tmp_path]).refresh()
    assert [(run.path, run.problem is None) for run in runs] == [(paths[0], False), (paths[2], False), (paths[3], True)]
    (named,) = Watch([paths[1]]).refresh()
    assert named.problem == "metadata.json does not hold an object"
    assert all(line_of(run).isprintable() for run in [*runs, named])


def test_a_name_with_control_characters_is_escaped(tmp_path: Path) -> None:
    path = fake_run(tmp_path, 1, status="running")
    hostile = tmp_path / "\x1b[31mred\n"
    path.rename(hostile)
    assert line_of(followed(hostile)).isprintable()


def test_a_directory_shows_the_runs_that_go_on_and_those_that_ended_meanwhile(tmp_path: Path, run_dir: Path) -> None:
    fake_run(tmp_path, 2)
    watch = Watch([tmp_path])
    assert [run.path for run in watch.refresh()] == [run_dir]
    assert not watch.over
    content = json.loads((run_dir / METADATA).read_text())
    (run_dir / METADATA).write_text(json.dumps({**content, "status": "completed", "finished_at_utc": "now"}))
    later = fake_run(tmp_path, 3, status="running")
    assert [(run.path, run.status) for run in watch.refresh()] == [(run_dir, "completed"), (later, "running")]
    (ended,) = Watch([run_dir]).refresh()
    assert ended.status == "completed"


# -- pictures --------------------------------------------------------------------------------------


def test_a_rising_line_rises_from_corner_to_corner() -> None:
    lines = plot([(0, 0.0), (100, 1.0)], 8, 4)
    assert [len(line) for line in lines] == [8] * 4
    assert lines[0].rstrip("\u2800") != ""
    assert lines[0][0] == lines[-1][-1] == "\u2800"
    assert plot([(0, 0.0), (100, 1.0)], 8, 2, ascii_only=True) == [" " * 8, "_.-=+*#@"]


@pytest.mark.parametrize(
    "points", [[], [(5, 1.0)], [(0, 2.0), (9, 2.0)], [(0, -1e100), (1, 1e100)], [(3, 1.0), (3, 2.0)]]
)
def test_any_points_can_be_drawn(points: list[tuple[int, float]]) -> None:
    for width, height in ((1, 1), (7, 3)):
        assert [len(line) for line in plot(points, width, height)] == [width] * height
        assert [len(line) for line in plot(points, width, height, ascii_only=True)] == [width] * height


def shown(runs: list[FollowedRun], width: int, height: int, encoding: str = "utf-8") -> list[str]:
    from rich.console import Console

    content = io.BytesIO()
    stream = io.TextIOWrapper(content, encoding=encoding)
    console = Console(
        file=stream, width=width, height=height, force_terminal=True, color_system=None, legacy_windows=False
    )
    console.print(frame_of(runs, "none", console))
    stream.flush()
    return content.getvalue().decode(encoding).splitlines()


@pytest.mark.parametrize("width", [40, 80, 120, 200])
def test_a_panel_fits_its_terminal(run_dir: Path, width: int) -> None:
    lines = shown([followed(run_dir)], width, 30)
    assert {len(line) for line in lines} == {width}
    text = "\n".join(lines)
    for words in ("ppo on CartPole-v1, seed 1", "1,000 steps/s", "ETA 0:01:", "collect 50%", "eval return 321.5"):
        assert words in text
    assert "running" in lines[-1]


def test_a_terminal_without_unicode_gets_ascii(run_dir: Path) -> None:
    text = "\n".join(shown([followed(run_dir)], 80, 30, encoding="ascii"))
    assert text.isascii()
    assert "_.-=+*#@"[-1] in text


def test_many_runs_become_a_table_that_fits(tmp_path: Path) -> None:
    for seed in range(40):
        write_rows(fake_run(tmp_path, seed, status="running"), range(1000, 4000, 1000), mode="w")
    runs = Watch([tmp_path]).refresh()
    for width in (80, 120):
        lines = shown(runs, width, 24)
        assert len(lines) < 24
        assert max(map(len, lines)) <= width
        assert "more" in lines[-1]
    assert len([line for line in shown(runs, 80, 60) if "running" in line]) == 40


# -- the command -----------------------------------------------------------------------------------


def test_once_prints_a_line_per_run_to_a_pipe(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", str(run_dir.parent), "--once", "--metric", "steps_per_second"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert re.fullmatch(
        r"ppo__CartPole-v1__seed1__\w+: running, step 10,000/100,000 \(10%\), 1,000 steps/s, ETA 0:01:\d\d, "
        r"eval return 321.5, train return 1,000.0, steps_per_second 1,000.0, "
        r"time: collect 50% update 25% eval 0% other 25%",
        line,
    )


def test_json_is_one_object(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", str(run_dir), "--json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert (run["step"], run["total_timesteps"], run["metrics"]["eval_return_mean"]) == (10_000, 100_000, 321.5)


def test_nothing_to_watch_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fake_run(tmp_path)
    assert main(["watch", str(tmp_path), "--once"]) == 0
    assert capsys.readouterr().out == f"no run is going on in {tmp_path} (1 ended)\n"


def test_mistakes_are_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, sentence in (
        ([str(tmp_path / "nowhere")], "nowhere: no such directory; name a run"),
        ([str(tmp_path), "--interval", "0"], "--interval: must lie between 0.1 and 3600 seconds, got 0"),
    ):
        assert main(["watch", *arguments]) == 2
        (said,) = capsys.readouterr().err.splitlines()
        assert sentence in said


def test_a_pipe_gets_a_line_per_change_until_the_run_ends_and_nothing_heavy_is_imported(run_dir: Path) -> None:
    program = "import sys\nfrom rl_training.cli import main\nstatus = main(sys.argv[1:])\n"
    program += "sys.exit('torch' in sys.modules or 'gymnasium' in sys.modules or status)"
    process = subprocess.Popen(
        [sys.executable, "-c", program, "watch", str(run_dir), "--interval", "0.1"],
        stdout=subprocess.PIPE,
        text=True,
        env=process_environment(),
    )
    assert process.stdout is not None
    assert "step 10,000/" in process.stdout.readline()
    write_rows(run_dir, range(11_000, 12_001, 1000))
    assert re.search(r"step 1[12],000/", process.stdout.readline())
    content = json.loads((run_dir / METADATA).read_text())
    temporary = run_dir / "next.json"
    temporary.write_text(json.dumps({**content, "status": "completed", "finished_at_utc": "now"}))
    os.replace(temporary, run_dir / METADATA)
    rest, _ = process.communicate(timeout=20)
    assert "completed, step 12,000/" in rest.splitlines()[-1]
    assert process.returncode == 0


def test_ctrl_c_ends_watching_quietly(run_dir: Path) -> None:
    process = subprocess.Popen(
        command("watch", run_dir.parent),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=process_environment(),
    )
    assert process.stdout is not None
    process.stdout.readline()
    os.kill(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=20)
    assert (process.returncode, said) == (0, "")

"""`axiomrl plot` draws the curves of the page into a picture, and says what it needs where it cannot."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fake_runs import fake_run
from processes import process_environment
from report_samples import sample_runs, write_curve
from rl_training import zoo_cli
from rl_training.cli import main
from rl_training.install_hint import install_hint
from rl_training.zoo.page.curves import Curve, Line
from rl_training.zoo.page.plot import draw_panel

Capture = pytest.CaptureFixture[str]
BEGINNINGS = {".png": b"\x89PNG\r\n", ".svg": b"<?xml ", ".pdf": b"%PDF-"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    sample_runs(folder)
    return folder


@pytest.mark.parametrize("suffix", BEGINNINGS)
def test_the_name_of_the_file_decides_what_it_is(suffix: str, runs: Path, tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / f"curves{suffix}"
    assert main(["plot", "--runs", str(runs), "--env", "Pendulum-v1", "--output", str(file)]) == 0
    assert file.read_bytes().startswith(BEGINNINGS[suffix])
    answer = capsys.readouterr()
    assert answer.out.splitlines() == [f"output={file}", "runs=11", "unreadable=1", "entries=3"]
    assert "cannot be read: metrics.jsonl is empty" in answer.err


def test_the_same_runs_give_the_same_picture_and_torch_is_not_imported(runs: Path, tmp_path: Path) -> None:
    lines = [
        ["plot", str(runs), "--env", "CartPole-v1", "--x", x, "--metric", metric, "--output", f"{x}-{metric}.svg"]
        for x, metric in (("steps", "eval_return_mean"), ("time", "train_return_mean"))
    ]
    program = (
        f"import sys\nfrom rl_training.cli import main\nassert [main(line) for line in {lines!r}] == [0, 0]\n"
        "assert {'torch', 'gymnasium'}.isdisjoint(sys.modules)"
    )
    for hash_seed in ("1", "2"):
        folder = tmp_path / hash_seed
        folder.mkdir()
        environment = process_environment(PYTHONHASHSEED=hash_seed)
        subprocess.run([sys.executable, "-c", program], check=True, cwd=folder, env=environment, capture_output=True)
    first, second = ([file.read_bytes() for file in sorted((tmp_path / seed).iterdir())] for seed in ("1", "2"))
    assert first == second
    assert first[0] != first[1]


def test_a_panel_shows_curves_bands_and_unfinished_runs() -> None:
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    x = np.array([60.0, 7200.0])
    unfinished = (Line(np.array([600.0]), np.array([4.0])),)
    curves = [
        Curve("a$b$", 3, x, np.array([1.0, 2.0]), np.array([0.5, 1.5]), np.array([1.5, 2.5])),
        Curve("single", 1, x[:1], np.array([3.0])),
        Curve("nothing", 0, np.array([]), np.array([])),
        Curve("failed", 0, np.array([]), np.array([]), unfinished=unfinished),
    ]
    draw_panel(axes, "Env-v0", curves, "eval_return_mean", "time")
    assert (axes.get_title(), axes.get_xlabel()) == ("Env-v0", "training time (minutes)")
    drawn = [(line.get_xdata().tolist(), line.get_ydata().tolist()) for line in axes.lines]  # type: ignore[union-attr]
    assert drawn == [([1, 120], [1, 2]), ([1], [3]), ([], []), ([10], [4])]
    assert len(axes.collections) == 1
    legend = axes.get_legend()
    assert legend is not None
    labels = [text.get_text() for text in legend.get_texts()]
    assert labels == ["a$b$ (3 seeds)", "single (1 seed)", "failed (no completed run)"]


def test_a_missing_matplotlib_is_named_with_the_repair(
    runs: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["plot", str(runs), "--output", str(tmp_path / "a.png")]) == 2
    assert f"a plot needs the extra `plot`: {install_hint('plot')}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--output", "curves.gif"], "--output curves.gif: a picture is a file that ends in .png, .svg, .pdf"),
        (["--output", "nowhere/curves.png"], "cannot be written (No such file or directory); name another"),
        (["--output", "a.png", "--algo", "rainbow"], "there is nothing to draw: no run that was chosen has logged"),
        (["--output", "a.png", "--metric", "eval_retrun"], "has logged eval_retrun; did you mean `eval_return_mean`"),
        (["--output", "a.png", "--metric", "zz"], "has logged zz; there are eval_episodes, eval_return_mean"),
        ([], "Missing option '--output'"),
    ],
)
def test_mistakes_are_answered_by_a_sentence(
    arguments: list[str], sentence: str, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_curve(fake_run(tmp_path / "runs", 1), {50: 1.0, 100: 2.0})
    monkeypatch.chdir(tmp_path)
    assert main(["plot", *arguments]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert "Traceback" not in error


@pytest.mark.parametrize("metric", ["loss_policy", "steps_per_second", "eval_length_mean", "time_eval"])
def test_any_metric_of_the_rows_can_be_drawn(metric: str, tmp_path: Path, capsys: Capture) -> None:
    fake_run(tmp_path / "runs", 1, rows=20)
    assert main(["plot", str(tmp_path / "runs"), "--metric", metric, "--output", str(tmp_path / "a.svg")]) == 0
    assert "entries=1" in capsys.readouterr().out
    assert f"<!-- {metric} -->" in (tmp_path / "a.svg").read_text()


def test_a_metric_that_nobody_logged_is_answered_by_the_nearest(tmp_path: Path, capsys: Capture) -> None:
    fake_run(tmp_path, 1, rows=20)
    assert main(["plot", str(tmp_path), "--metric", "loss_polcy", "--output", str(tmp_path / "a.svg")]) == 2
    assert "has logged loss_polcy; did you mean `loss_policy`" in capsys.readouterr().err


def test_legends_name_what_differs_in_lines_that_fit(tmp_path: Path) -> None:
    for number in range(2):
        changes = {f"algo_kwargs.{key}": number + 2 for key in ("num_steps", "num_epochs", "gae_lambda")}
        write_curve(fake_run(tmp_path / str(number), 1, changes=changes), {50: 1.0, 100: 2.0})
    assert main(["plot", str(tmp_path), "--output", str(tmp_path / "a.svg")]) == 0
    assert "<!-- gae_lambda 2, num_epochs 2, num_steps 2 (1 seed) -->" in (tmp_path / "a.svg").read_text()


def test_the_zoo_draws_too(runs: Path, tmp_path: Path) -> None:
    file = tmp_path / "curves.png"
    assert zoo_cli.main(["plot", str(runs), "--env", "HalfCheetah-v5", "--output", str(file)]) == 0
    assert file.exists()


def test_names_are_no_mathematics(tmp_path: Path) -> None:
    changes = {"env_id": r"Env$\frac$-v0", "preset": None}
    write_curve(fake_run(tmp_path, 1, changes=changes), {50: 1.0, 100: 2.0})
    assert main(["plot", str(tmp_path), "--output", str(tmp_path / "curves.svg")]) == 0

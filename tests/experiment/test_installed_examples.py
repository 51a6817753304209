"""The examples of algorithms from an installed wheel: in an empty directory, swept, killed, resumed and reported."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import venv
from pathlib import Path

import pytest

from harness import assert_same_run
from own_algorithms import EXAMPLES, SMALL, SMALL_PPO
from processes import newest_run, newest_step
from rl_training.experiment.runs import read_metadata
from sweep_runs import only_summary, run_dirs
from wheels import wheel as wheel

LONG = ["--total-timesteps", "4000", "--set", "checkpoint_interval=160", "--set", "eval_interval=1000"]


@pytest.fixture(scope="module")
def scripts(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with this wheel, which takes its dependencies from the one that runs the tests."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    python = folder / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", wheel], check=True)
    theirs = [entry for entry in sys.path if entry.endswith("site-packages")]
    # Plain directories on the path: the `.pth` file of an editable install in them is not read.
    (packages / "dependencies.pth").write_text("".join(f"{entry}\n" for entry in theirs))
    return folder / "bin"


@pytest.mark.slow
@pytest.mark.parametrize("example", ["reinforce.py", "ppo_with_penalty.py"])
def test_an_example_is_swept_killed_resumed_and_reported(example: str, scripts: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    shutil.copy(EXAMPLES / example, work / example)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= {"OMP_NUM_THREADS": "1", "AXIOMRL_STATE_DIR": str(tmp_path / "state")}
    train = ["train", "--algo", f"{example}:SPEC", *(SMALL_PPO if "ppo" in example else SMALL), *LONG]

    def start(*arguments: str | Path) -> subprocess.Popen[str]:
        command = [str(scripts / "axiomrl"), *map(str, arguments)]
        return subprocess.Popen(
            command, cwd=work, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def run(*arguments: str | Path) -> str:
        process = start(*arguments)
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0, output
        return output

    run(*train, "--seeds", "1,2", "--jobs", "2", "--output-dir", "swept")
    swept = run_dirs_in(work, "swept")
    process = start(*train, "--seed", "1", "--output-dir", "killed")
    deadline = time.monotonic() + 240
    while newest_step(work / "killed") < 800:
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    killed = newest_run(work / "killed")
    assert killed is not None
    assert read_metadata(killed)["status"] == "running"
    run("resume", "--checkpoint", killed)
    assert_same_run(swept[1], killed)
    for seed_dir in swept.values():
        assert read_metadata(seed_dir)["user_code"][0]["file"] == str(work / example)
    reported = run("report", "--runs", "swept", "--runs", "killed")
    assert f"{example.replace('_', '-')}-SPEC-CartPole-v1" in reported
    assert "completed" in reported


def run_dirs_in(work: Path, name: str) -> dict[int, Path]:
    """Return the runs of the one sweep in a directory, whose summary has paths relative to `work`."""
    return {seed: work / path for seed, path in run_dirs(only_summary(work / name)).items()}

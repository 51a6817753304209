"""`axiomrl doctor` reports what works in stable lines and never fails."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from rl_training import __version__
from rl_training.cli import main
from rl_training.experiment import doctor

KEYS = [
    "axiomrl",
    "python",
    "platform",
    "torch",
    "gymnasium",
    "numpy",
    "cpu_count",
    "free_disk_gb",
    "extra_atari",
    "extra_boardgames",
    "extra_box2d",
    "extra_minatar",
    "extra_mujoco",
    "extra_plot",
    "extra_ray",
    "extra_video",
    "extra_wandb",
    "tracker_tensorboard",
    "tracker_wandb",
    "env_classic_control",
    "env_toy_text",
    "env_box2d",
    "env_mujoco",
    "env_atari",
    "env_minatar",
    "cuda",
    "devices",
    "torch_threads",
]


def test_lines_are_key_value_with_stable_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition("=")[0] for line in lines] == KEYS
    found = dict(line.split("=", 1) for line in lines)
    assert found["axiomrl"] == __version__
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert found["env_classic_control"] == found["env_toy_text"] == "works"
    assert found["tracker_tensorboard"] == "works"
    assert re.match(r"yes|no", found["cuda"])
    assert found["devices"].startswith("cpu")
    assert int(found["torch_threads"]) >= 1
    assert float(found["free_disk_gb"]) > 0


def test_json_is_one_object_with_the_same_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)) == KEYS


def test_missing_extra_names_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_is_there", lambda module: module != "ale_py")
    assert doctor._extra("atari") == "missing ale_py: pip install 'axiomrl[atari]'"
    assert doctor._extra("mujoco") == "installed"
    monkeypatch.setattr(doctor, "_is_there", lambda module: False)
    assert doctor._tracker("wandb") == "missing: pip install 'axiomrl[wandb]'"


def test_environment_that_does_not_work_is_a_finding_on_one_line() -> None:
    finding = doctor._environment("NoSuchEnvironment-v0")
    assert finding.startswith("fails: ")
    assert "\n" not in finding


def test_torch_that_cannot_be_imported_is_a_finding(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["doctor"]) == 0
    assert "devices=none: torch cannot be imported" in capsys.readouterr().out


def test_torch_is_probed_after_everything_else() -> None:
    program = (
        "import sys, rl_training.cli, rl_training.experiment.doctor as doctor\n"
        "assert not {'torch', 'gymnasium', 'numpy'} & set(sys.modules)\n"
        "doctor._torch = lambda: {'imported_before': 'torch' in sys.modules}\n"
        "assert doctor.examine()['imported_before'] is False\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)

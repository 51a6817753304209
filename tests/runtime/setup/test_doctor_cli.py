"""`axiomrl doctor` reports what works in stable lines and never fails."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import version

import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

from rl_training import __version__
from rl_training.cli import main
from rl_training.install_hint import install_hint
from rl_training.runtime.setup import doctor

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
    "extra_dmc",
    "extra_envpool",
    "extra_export",
    "extra_highway",
    "extra_minatar",
    "extra_minigrid",
    "extra_mlflow",
    "extra_mujoco",
    "extra_offline",
    "extra_pettingzoo",
    "extra_plot",
    "extra_popgym",
    "extra_ray",
    "extra_robotics",
    "extra_trackio",
    "extra_video",
    "extra_wandb",
    "tracker_tensorboard",
    "tracker_wandb",
    "tracker_mlflow",
    "tracker_trackio",
    "env_classic_control",
    "env_toy_text",
    "env_box2d",
    "env_mujoco",
    "env_atari",
    "env_minatar",
    "env_boardgames",
    "env_robotics",
    "env_pointmaze",
    "env_dmc",
    "env_minigrid",
    "env_highway",
    "env_popgym",
    "env_pettingzoo",
    "cuda",
    "devices",
    "torch_threads",
]


def test_lines_are_key_value_with_stable_keys(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for package in ("gymnasium_robotics", "shimmy", "highway_env"):
        monkeypatch.setitem(sys.modules, package, None)
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition("=")[0] for line in lines] == KEYS
    found = dict(line.split("=", 1) for line in lines)
    assert found["axiomrl"] == __version__
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert found["env_classic_control"] == found["env_toy_text"] == f"works with gymnasium {version('gymnasium')}"
    assert found["env_mujoco"] == f"works with mujoco {version('mujoco')}"
    assert found["env_boardgames"] == f"works with pettingzoo {version('pettingzoo')}"
    assert found["env_robotics"] == f"missing: {install_hint('robotics')}"
    assert found["env_dmc"] == f"missing: {install_hint('dmc')}"
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
    assert doctor._extra("atari") == f"missing ale_py: {install_hint('atari')}"
    assert doctor._extra("mujoco") == "installed"
    monkeypatch.setattr(doctor, "_is_there", lambda module: False)
    assert doctor._tracker("wandb") == f"missing: {install_hint('wandb')}"
    assert doctor._tracker("tensorboard") == "missing: run `pip install tensorboard`"


def test_environment_that_does_not_work_is_a_finding_on_one_line() -> None:
    finding = doctor._environment("NoSuchEnvironment-v0", ["gymnasium"])
    assert finding.startswith("fails: ")
    assert "\n" not in finding


def test_environment_that_fails_in_its_first_step_does_not_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(env: CartPoleEnv, action: int) -> None:
        raise RuntimeError("a wheel came off\nat full speed")

    monkeypatch.setattr(CartPoleEnv, "step", step)
    assert doctor._environment("CartPole-v1", ["gymnasium"]) == "fails: RuntimeError: a wheel came off"


def test_torch_that_cannot_be_imported_is_a_finding(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["doctor"]) == 0
    assert "devices=none: torch cannot be imported" in capsys.readouterr().out


def test_torch_is_probed_after_everything_else() -> None:
    program = (
        "import sys, rl_training.cli, rl_training.runtime.setup.doctor as doctor\n"
        "assert not {'torch', 'gymnasium', 'numpy'} & set(sys.modules)\n"
        "doctor._torch = lambda: {'imported_before': 'torch' in sys.modules}\n"
        "assert doctor.examine()['imported_before'] is False\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)

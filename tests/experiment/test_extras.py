"""Every extra for environments installs into an empty environment, and its preset trains there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from documents.docs_pages import ROOT, marked_table
from rl_training.zoo.catalogue import list_presets
from wheels import wheel as wheel

WORLDS = marked_table(ROOT / "docs" / "environments.md", "worlds")
EXTRAS = sorted({extra for extra, _ in WORLDS})


def test_each_command_names_a_preset_of_its_extra() -> None:
    extra_of = {f"axiomrl train --preset {preset.name}": preset.extra for preset in list_presets()}
    assert {command: extra_of.get(command) for _, command in WORLDS} == {command: extra for extra, command in WORLDS}


@pytest.mark.slow
@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_installs_into_an_empty_environment_and_trains(extra: str, wheel: Path, tmp_path: Path) -> None:
    binaries = tmp_path / "venv" / "bin"
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}

    def run(*command: str | Path) -> str:
        answer = subprocess.run(
            [str(part) for part in command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert answer.returncode == 0, answer.stdout + answer.stderr
        return answer.stdout

    run(sys.executable, "-m", "venv", tmp_path / "venv")
    run(binaries / "pip", "install", "-q", "-c", ROOT / "constraints.txt", f"{wheel}[{extra}]")
    findings = dict(line.split("=", 1) for line in run(binaries / "axiomrl", "doctor").splitlines())
    assert findings[f"extra_{extra}"] == "installed"
    assert findings[f"env_{extra}"].startswith("works with")
    for command in [command for one, command in WORLDS if one == extra]:
        _, *arguments = command.split()
        short = ("--total-timesteps", "2000", "--eval-episodes", "1", "--seed", "1")
        assert "status=completed" in run(binaries / "axiomrl", *arguments, *short)

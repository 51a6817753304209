"""A hint installs an extra into this installation and never asks an index for the name of this project.

PyPI has another project called `axiomrl`: whoever follows a wrong hint loses this package.
"""

from __future__ import annotations

import json
import re
import shutil
from importlib.metadata import PathDistribution
from pathlib import Path
from typing import Any

import pytest

from paths import ROOT
from rl_training.errors import MissingExtraError
from rl_training.install_hint import Installation, find_installation, install_hint

METADATA = """\
Metadata-Version: 2.4
Name: axiomrl
Version: 1.0
Requires-Dist: numpy>=2.0
Provides-Extra: bench
Requires-Dist: axiomrl[box2d,plot]; extra == 'bench'
Requires-Dist: stable-baselines3>=2.7; extra == 'bench'
Provides-Extra: box2d
Requires-Dist: gymnasium[box2d]; extra == 'box2d'
Provides-Extra: everything
Requires-Dist: axiomrl[bench,wandb]; extra == 'everything'
Requires-Dist: old-thing; (python_version < '3.0') and extra == 'everything'
Provides-Extra: plot
Requires-Dist: matplotlib>=3.9; extra == 'plot'
Provides-Extra: wandb
Requires-Dist: wandb<1,>=0.19; extra == 'wandb'
"""


def record(site: Path, direct_url: dict[str, Any] | None) -> PathDistribution:
    """Write what pip records of an installation into a directory of packages."""
    directory = site / "axiomrl-1.0.dist-info"
    directory.mkdir(parents=True)
    (directory / "METADATA").write_text(METADATA, encoding="utf-8")
    if direct_url is not None:
        (directory / "direct_url.json").write_text(json.dumps(direct_url), encoding="utf-8")
    return PathDistribution(directory)


def installed(site: Path, direct_url: dict[str, Any] | None) -> Installation:
    return Installation(site / "rl_training", record(site, direct_url))


def checkout(path: Path) -> Path:
    path.mkdir(parents=True)
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, path)
    return path


def test_an_installed_checkout_is_installed_again_with_its_constraints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = checkout(tmp_path / "my checkout")
    found = installed(tmp_path / "site", {"url": place.as_uri(), "dir_info": {}})
    assert found.command("wandb") == f"pip install -c '{place}/constraints.txt' '{place}[wandb]'"
    monkeypatch.chdir(place)
    assert found.command("wandb") == "pip install -c constraints.txt '.[wandb]'"
    (place / "constraints.txt").unlink()
    assert found.command("wandb") == "pip install '.[wandb]'"


def test_code_that_runs_in_a_checkout_stays_editable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = checkout(tmp_path / "checkout")
    found = Installation(place / "src" / "rl_training", None)
    assert found.command("box2d") == f"pip install -c {place}/constraints.txt -e '{place}[box2d]'"
    monkeypatch.chdir(place)
    assert found.command("box2d") == "pip install -c constraints.txt -e '.[box2d]'"


def test_a_wheel_is_named_by_its_path_while_it_exists(tmp_path: Path) -> None:
    wheel = tmp_path / "dist" / "axiomrl-1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    wheel.touch()
    found = installed(tmp_path / "site", {"url": wheel.as_uri(), "archive_info": {}})
    assert found.command("wandb") == f"pip install '{wheel}[wandb]'"
    wheel.unlink()
    again = installed(tmp_path / "later", {"url": wheel.as_uri(), "archive_info": {}})
    assert again.command("wandb") == "pip install 'wandb<1,>=0.19'"


@pytest.mark.parametrize(
    "direct_url",
    [
        None,
        {"url": "https://example.org/axiomrl-1.0-py3-none-any.whl", "archive_info": {}},
        {"url": "https://example.org/axiomrl.git", "vcs_info": {"vcs": "git", "commit_id": "0" * 40}},
        {"url": "file:///no/such/checkout", "dir_info": {"editable": True}},
        {"dir_info": {}},
    ],
    ids=["index", "remote wheel", "repository", "checkout that is gone", "damaged record"],
)
def test_otherwise_the_packages_of_the_extra_are_named_with_their_bounds(
    direct_url: dict[str, Any] | None, tmp_path: Path
) -> None:
    found = installed(tmp_path, direct_url)
    assert found.command("wandb") == "pip install 'wandb<1,>=0.19'"
    assert found.command("bench") == "pip install 'gymnasium[box2d]' 'matplotlib>=3.9' 'stable-baselines3>=2.7'"
    assert found.command("everything") == (
        "pip install 'gymnasium[box2d]' 'matplotlib>=3.9' 'stable-baselines3>=2.7' 'wandb<1,>=0.19'"
    )


def test_without_a_record_there_is_no_command_to_guess(tmp_path: Path) -> None:
    assert Installation(tmp_path / "rl_training", None).command("wandb") is None


def test_packages_of_a_version_that_an_extra_cannot_use_are_found(tmp_path: Path) -> None:
    place = checkout(tmp_path / "checkout")
    project = place / "pyproject.toml"
    found = Installation(place / "src" / "rl_training", None)
    assert found.unmet("dev") == []
    project.write_text('[project.optional-dependencies]\nold = ["packaging<2", "no-such-package-here"]\n')
    (problem,) = found.unmet("old")
    assert re.fullmatch(r"it needs packaging<2, [\d.]+ is installed", problem)


def test_the_error_of_a_missing_extra_carries_the_hint() -> None:
    hint = install_hint("wandb")
    assert str(MissingExtraError("tracking.wandb", "wandb")) == f"tracking.wandb needs the extra `wandb`: {hint}"


def test_the_other_project_of_this_name_is_not_taken_for_this_one(tmp_path: Path) -> None:
    ours, theirs = record(tmp_path / "ours", None), record(tmp_path / "theirs", None)
    package = tmp_path / "ours" / "rl_training"
    assert find_installation(package, [theirs]).command("wandb") is None
    assert find_installation(package, [theirs, ours]).command("wandb") == "pip install 'wandb<1,>=0.19'"


@pytest.mark.parametrize("place", ["src", "docs", "zoo", "benchmarks", "examples", "configs", "tests", ".ci", "."])
def test_nothing_asks_an_index_for_the_name_of_this_project(place: str) -> None:
    suffixes = {".py", ".md", ".yaml", ".toml", ".txt", ".jinja", ""}
    found = (ROOT / place).glob("*") if place == "." else (ROOT / place).rglob("*")
    files = [file for file in found if file.suffix in suffixes and file.is_file() and file != Path(__file__)]
    assert files
    asking = re.compile(r"pip\S* install\b[^`\n]*[\s'\"]axiomrl\b(?!-)", re.IGNORECASE)
    assert [str(file) for file in files if asking.search(file.read_text(encoding="utf-8"))] == []

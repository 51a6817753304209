"""docs/architecture.md: every name on it exists, and every walk is one that a run takes."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

import rl_training
from documents.docs_pages import ROOT, blocks, code_spans, read_page
from harness import tiny_config
from offline_runs import write_datasets
from rl_training.runtime.workflows import train

PAGE = ROOT / "docs" / "architecture.md"
PACKAGE = Path(rl_training.__file__).parent
ROOMS = sorted(path.name for path in PACKAGE.iterdir() if path.is_dir() and any(path.glob("*.py")))
FACADES = {"core", "contrib", "experimental"}  # re-export names of the rooms
SMALL_PLANNING = {"hidden_size": 8, "latent_size": 8, "num_simulations": 2, "support_size": 5, "batch_size": 4}
WALKS: dict[str, dict[str, Any]] = {
    "PPO": {},
    "DQN": {
        "algo": "dqn",
        "algo_kwargs": {"hidden_sizes": [8], "learning_starts": 32, "batch_size": 8, "buffer_size": 200},
    },
    "Gumbel MuZero": {
        "algo": "gumbel_muzero",
        "algo_kwargs": {**SMALL_PLANNING, "learning_starts": 32, "buffer_size": 50, "reanalyze_ratio": 1.0},
    },
    "IQL": {
        "algo": "iql",
        "env_id": None,
        "dataset": "cartpole/random-v0",
        "num_envs": 1,
        "execution_backend": "auto",
        "algo_kwargs": {"hidden_sizes": [8], "batch_size": 8},
    },
}


def dotted_names(text: str) -> list[str]:
    """Return the code spans that name something below the package."""
    rooms = "|".join([*ROOMS, "errors", "cli", "zoo_cli"])
    return [span for span in code_spans(text) if re.fullmatch(rf"({rooms})(\.\w+)+", span) and not span.endswith(".py")]


def resolve(name: str) -> Any:
    """Return the module, class or function that a dotted name means."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(["rl_training", *parts[:length]]))
        except ModuleNotFoundError as error:
            if not (error.name or "").startswith("rl_training"):
                raise
            continue
        for part in parts[length:]:
            found = getattr(found, part)
        return found
    raise AssertionError(f"{name} is nothing")


def walk(name: str) -> str:
    """Return the numbered steps of a walk."""
    section = read_page(PAGE).split(f"## One step through {name}\n")[1].split("\n## ")[0]
    return section[section.index("1. ") :].split("\n\n")[0]


def test_every_name_on_the_page_exists() -> None:
    names = dotted_names(read_page(PAGE))
    assert len(set(names)) > 80
    missing = []
    for name in names:
        try:
            resolve(name)
        except (AssertionError, AttributeError) as error:
            missing.append(f"{name}: {error}")
    assert not missing


def test_every_room_is_in_the_picture() -> None:
    picture = next(block.code for block in blocks(read_page(PAGE)) if block.language == "text")
    words = set(re.findall(r"\w+", picture))
    assert set(ROOMS) - FACADES <= words


def functions(text: str) -> Iterator[tuple[str, CodeType]]:
    for name in dotted_names(text):
        found = inspect.unwrap(resolve(name))
        if inspect.isfunction(found):
            yield name, found.__code__


@pytest.mark.parametrize("name", WALKS)
def test_a_run_calls_every_function_of_its_walk(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "dataset" in WALKS[name]:
        write_datasets(tmp_path / "datasets", monkeypatch)
    config = tiny_config(
        tmp_path, total_timesteps=48, eval_interval=None, eval_episodes=1, acceleration="off", **WALKS[name]
    )
    seen: set[CodeType] = set()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            seen.add(frame.f_code)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        train(config)
    finally:
        sys.setprofile(before)
    named = dict(functions(walk(name)))
    assert len(named) >= 12
    assert [name for name, code in named.items() if code not in seen] == []


def test_import_linter_covers_every_module() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    named = {
        name.split(".")[1]
        for contract in settings["contracts"]
        for entry in (*contract.get("layers", ()), *contract.get("source_modules", ()))
        for name in entry.split(" | ")
    }
    there = {path.stem for path in PACKAGE.glob("*.py") if path.name != "__init__.py"} | set(ROOMS)
    assert there == named
    assert all(len(contract.get("ignore_imports", ())) <= 2 for contract in settings["contracts"])


def test_no_room_is_crowded() -> None:
    for folder in {path.parent for root in (PACKAGE, ROOT / "tests") for path in root.rglob("*.py")}:
        files = [path for path in folder.glob("*.py") if not path.name.endswith("_trainer.py")]
        assert len(files) <= (40 if folder.name == "helpers" else 17), folder

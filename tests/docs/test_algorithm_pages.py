"""Every algorithm has its page, and each page shows the stored results of its own algorithms only."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from documents.docs_pages import ROOT, marked_section, read_page
from rl_training.experiment.registry import list_algorithms

FOLDER = ROOT / "docs" / "algorithms"


@pytest.fixture(scope="module")
def renderer() -> Any:
    spec = importlib.util.spec_from_file_location("render_results", ROOT / "benchmarks" / "render_results.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_algorithm_is_on_one_page(renderer: Any) -> None:
    shown = [algorithm for algorithms in renderer.PAGES.values() for algorithm in algorithms]
    assert sorted(shown) == list_algorithms()
    assert sorted(renderer.PAGES) == sorted(page.stem for page in FOLDER.glob("*.md"))
    readme = read_page(ROOT / "README.md")
    for page, algorithms in renderer.PAGES.items():
        assert f"docs/algorithms/{page}.md" in readme
        text = read_page(FOLDER / f"{page}.md")
        assert all(f"`{algorithm}`" in text or f"axiomrl algos {algorithm}" in text for algorithm in algorithms)


def test_the_results_on_every_page_are_the_stored_ones(renderer: Any) -> None:
    for name in renderer.PAGES:
        stored = renderer.render_page(name, ROOT / "benchmarks" / "results")
        shown = marked_section(FOLDER / f"{name}.md", "results")
        assert shown == stored, f"{name}.md is out of date; run: python benchmarks/render_results.py"


def test_a_page_shows_its_own_algorithms_only(renderer: Any, tmp_path: Path) -> None:
    run = {"seed": 1, "steps": 1000, "seconds": 60.0, "eval_episodes": 100, "eval_return_mean": 500.0}
    for algo in list_algorithms():
        stored = {
            "preset": f"{algo}-cartpole",
            "runs": [run],
            "command": "python benchmarks/learning.py",
            "config": {"algo": algo, "env_id": "CartPole-v1", "total_timesteps": 1000},
            "versions": {"torch": "2.13.0"},
            "machine": {"python": "3.11.7", "processor": "x86_64"},
        }
        (tmp_path / f"{algo}-cartpole.json").write_text(json.dumps(stored))
    for name, algorithms in renderer.PAGES.items():
        lines = renderer.render_page(name, tmp_path).splitlines()
        presets = [line.split("`")[1] for line in lines if line.startswith("| `")]
        assert sorted(presets) == sorted(f"{algo}-cartpole" for algo in algorithms)
        assert not any("speed" in line for line in lines)

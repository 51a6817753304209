"""Variants of ScaleZero's suites: what each changes, and which seeds are trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import scalezero
from learning import differences
from rl_training.experiment.config import config_to_dict
from rl_training.experiment.tasks import tasks_of

PAIR = "scalezero-pair"


def config_of(variant: str) -> dict[str, Any]:
    return config_to_dict(scalezero.variant_config(PAIR, variant, 3, Path("runs")))


@pytest.mark.parametrize(
    ("variant", "changed"),
    [
        ("preset", {}),
        ("dense", {"experts": 1}),
        ("no-scaling", {"parameter_scaling": False}),
        ("large-adapters", {"adapter_rank": 32}),
        ("long-first-stage", {"first_stage_steps": 24_000}),
    ],
)
def test_a_variant_changes_nothing_but_what_it_is_named_after(variant: str, changed: dict[str, Any]) -> None:
    preset, config = config_of("preset"), config_of(variant)
    assert preset["seed"] == 3
    assert config["algo_kwargs"] == {**preset["algo_kwargs"], **changed}
    assert set(differences(preset, config)) <= {f"algo_kwargs.{key}" for key in changed}


def test_a_single_task_gets_its_share_of_steps_and_of_the_warm_up() -> None:
    config = scalezero.variant_config(PAIR, "single-KeyDoor", 3, Path("runs"))
    assert [task.name for task in tasks_of(config)] == ["KeyDoor"]
    assert (config.total_timesteps, config.eval_interval) == (18_000, 1_500)
    assert config.algo_kwargs["learning_starts"] == 1_000


def test_all_variants_are_those_of_the_whole_suite_and_each_task_alone() -> None:
    assert scalezero.variants_of(PAIR) == [*scalezero.WHOLE, "single-CartPole-v1", "single-KeyDoor"]


def test_all_targets_must_be_reached_by_one_evaluation() -> None:
    tasks = tasks_of(scalezero.variant_config(PAIR, "preset", 3, Path("runs")))

    def row(step: int, cart: float, door: float) -> dict[str, Any]:
        return {"global_step": step, "eval_return_mean/CartPole-v1": cart, "eval_return_mean/KeyDoor": door}

    apart = [row(10, 500.0, 0.0), row(20, 100.0, 0.9)]
    assert scalezero.first_step_with_all_targets(apart, tasks) is None
    assert scalezero.first_step_with_all_targets([*apart, row(30, 450.0, 0.85), row(40, 500.0, 0.9)], tasks) == 30


def test_a_stored_cell_is_not_trained_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scalezero, "RESULTS", tmp_path)
    assert not scalezero.is_stored(PAIR, "dense", 1)
    config = scalezero.variant_config(PAIR, "dense", 1, tmp_path)
    scalezero.store(PAIR, {"variant": "dense", "seed": 1}, config)
    scalezero.store(PAIR, {"variant": "dense", "seed": 4}, config)
    assert scalezero.is_stored(PAIR, "dense", 1)
    assert scalezero.is_stored(PAIR, "dense", 4)
    assert not scalezero.is_stored(PAIR, "preset", 1)
    scalezero.store(PAIR, {"variant": "preset", "seed": 4}, config)
    command = json.loads((tmp_path / f"{PAIR}.json").read_text())["command"]
    assert command == f"python benchmarks/scalezero.py --preset {PAIR} --seeds 1,4 --variants preset,dense"

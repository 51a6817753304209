"""`axiomrl eval --offline`: what it prints and stores, what it leaves out, and what it refuses."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from cli_parts import Command, assert_refused
from dataset_parts import random_episode, write_dataset
from documents.docs_pages import ROOT, marked_table
from rl_training.runtime.acting.policy import Policy

OBSERVATIONS = spaces.Box(-10, 10, (4,), np.float32)
ACTIONS = spaces.Discrete(2)
FEW = ("--updates", 60, "--quiet")


@pytest.fixture(autouse=True)
def _own_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))


def _write(name: str, *, episodes: int = 12, log_prob: float | None = -0.7) -> str:
    """Write random episodes; `log_prob` is that of every action."""
    random = np.random.default_rng(0)
    steps = [random_episode(random, OBSERVATIONS, ACTIONS, 6, terminated=bool(i % 2)) for i in range(episodes)]
    infos = {} if log_prob is None else {"log_prob": np.full(6, log_prob, np.float32)}
    write_dataset(name, [dataclasses.replace(one, infos=infos) for one in steps], OBSERVATIONS, ACTIONS)
    return name


def _stored(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "offline_evaluations.jsonl").read_text().splitlines()]


def test_estimates_are_printed_and_stored_beside_the_run(axiomrl: Command, own_run: Path) -> None:
    name = _write("cartpole/random-v0")
    answer = axiomrl("eval", "--offline", name, "--checkpoint", own_run, *FEW)
    assert answer.status == 0, answer.err
    values = answer.values()
    assert list(values)[:4] == ["run_dir", "checkpoint_path", "dataset", "global_step"]
    for estimate in ("fqe", "per_decision_is", "weighted_is", "doubly_robust", "weighted_doubly_robust", "behaviour"):
        low, value, high = (float(values[f"{estimate}_{end}"]) for end in ("low", "value", "high"))
        assert low <= value <= high, estimate
    assert (values["dataset_episodes"], values["dataset_steps"], values["fqe_updates"]) == ("12", "72", "60")
    assert float(values["gamma"]) == 0.99
    (row,) = _stored(own_run)
    assert row["fqe_value"] == float(values["fqe_value"])
    assert (row["dataset"], row["checkpoint"], row["updates"], row["seed"]) == (name, "step_256", 60, 3)
    assert len(row["dataset_sha256"]) == 64


def test_the_same_seed_gives_the_same_estimates_and_another_one_others(axiomrl: Command, own_run: Path) -> None:
    name = _write("cartpole/random-v0")
    for seed in (3, 3, 4):
        assert axiomrl("eval", "--offline", name, "--checkpoint", own_run, "--seed", seed, *FEW).status == 0
    first, again, other = _stored(own_run)
    times = {"evaluated_at_utc"}
    assert {**first, **dict.fromkeys(times)} == {**again, **dict.fromkeys(times)}
    assert first["fqe_value"] != other["fqe_value"]
    assert first["behaviour_value"] == other["behaviour_value"]


def test_json_names_doubts_and_what_was_left_out(axiomrl: Command, own_run: Path) -> None:
    name = _write("cartpole/plain-v0", episodes=3, log_prob=None)
    answer = axiomrl("eval", "--offline", name, "--checkpoint", own_run, "--json", "--updates", 20)
    record = json.loads(answer.out)
    assert record["metrics"]["support"] == "thin"
    assert any("only 3 episodes" in sentence for sentence in record["doubts"])
    assert "axiomrl: warning: do not rely on this: the dataset has only 3 episodes" in answer.err
    (sentence,) = record["left_out"]
    assert "`axiomrl dataset record --stochastic` records them" in sentence
    assert f"left out: {sentence}" in answer.err
    assert "per_decision_is_value" not in record["metrics"]
    assert "effective_episodes" not in record["metrics"]


def test_one_episode_has_no_interval(axiomrl: Command, own_run: Path) -> None:
    name = _write("cartpole/one-v0", episodes=1)
    answer = axiomrl("eval", "--offline", name, "--checkpoint", own_run, "--json", *FEW)
    metrics = json.loads(answer.out)["metrics"]
    assert metrics["fqe_low"] is metrics["behaviour_high"] is metrics["doubly_robust_low"] is None
    assert metrics["fqe_value"] is not None


def test_a_run_directory_that_cannot_be_written_to_keeps_no_row_and_says_so(axiomrl: Command, own_run: Path) -> None:
    (own_run / "offline_evaluations.jsonl").mkdir()
    answer = axiomrl("eval", "--offline", _write("cartpole/random-v0"), "--checkpoint", own_run, *FEW)
    assert answer.status == 0
    assert "fqe_value" in answer.values()
    assert "warning: the result is not stored: cannot write offline_evaluations.jsonl" in answer.err


def test_a_planning_policy_is_evaluated_without_search(
    axiomrl: Command, own_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Policy, "plans", True)
    answer = axiomrl("eval", "--offline", _write("cartpole/random-v0"), "--checkpoint", own_run, "--json", *FEW)
    assert answer.status == 0, answer.err
    (sentence,) = json.loads(answer.out)["left_out"]
    assert sentence == "the search: a planning policy is evaluated by its policy network alone"


def test_the_documented_names_are_those_that_are_written(axiomrl: Command, own_run: Path) -> None:
    assert axiomrl("eval", "--offline", _write("cartpole/random-v0"), "--checkpoint", own_run, *FEW).status == 0
    (row,) = _stored(own_run)
    fields = [cells[0] for cells in marked_table(ROOT / "docs" / "run-artifacts.md", "offline evaluations")]
    estimates = [cells[0] for cells in marked_table(ROOT / "docs" / "off-policy-evaluation.md", "estimates")]
    named = [name for name in row if not name.endswith(("_low", "_high"))]
    place = fields.index("...")
    assert named[:place] == fields[:place]
    assert named[-2:] == fields[place + 1 :]
    assert {*named[place:-2], "gamma"} == set(estimates)


@pytest.mark.parametrize(
    ("options", "repair"),
    [
        (("--offline", "cartpole/randm-v0"), "cartpole/random-v0"),
        (("--offline", "cartpole/random-v0", "--video"), "--video: --offline plays no episodes"),
        (("--offline", "cartpole/random-v0", "--num-episodes", 3), "--num-episodes: --offline plays no episodes"),
        (("--offline", "cartpole/random-v0", "--gamma", 1), "--gamma: a policy's value needs a discount"),
        (("--offline", "cartpole/random-v0", "--gamma", "nan"), "below 1, got nan"),
        (("--offline", "cartpole/random-v0", "--updates", 0), "--updates: must be an integer >= 1, got 0"),
        (("--offline", "cartpole/random-v0", "--seed", -1), "--seed: must be an integer >= 0"),
        (("--updates", 100), "--updates: belongs to an evaluation on a dataset; add --offline DATASET"),
        (("--gamma", 0.9), "--gamma: belongs to an evaluation on a dataset"),
    ],
)
def test_mistakes_are_refused_with_their_repair(
    axiomrl: Command,
    finished_run: Path,
    options: tuple[object, ...],
    repair: str,
) -> None:
    _write("cartpole/random-v0", episodes=2)
    assert_refused(axiomrl("eval", "--checkpoint", finished_run, *options), repair)
    assert not (finished_run / "offline_evaluations.jsonl").exists()


@pytest.mark.parametrize(
    ("observations", "actions", "kind"),
    [
        (spaces.Box(-10, 10, (3,), np.float32), ACTIONS, "observation"),
        (OBSERVATIONS, spaces.Discrete(3), "action"),
    ],
)
def test_a_dataset_of_other_spaces_is_refused(
    axiomrl: Command,
    finished_run: Path,
    observations: Any,
    actions: Any,
    kind: str,
) -> None:
    episode = random_episode(np.random.default_rng(0), observations, actions, 4)
    write_dataset("other/spaces-v0", [episode], observations, actions)
    answer = axiomrl("eval", "--offline", "other/spaces-v0", "--checkpoint", finished_run)
    assert_refused(answer, f"the {kind} space of the dataset other/spaces-v0 is")
    assert "give a dataset of the policy's environment" in answer.err


def test_log_probabilities_that_are_no_numbers_are_refused(axiomrl: Command, finished_run: Path) -> None:
    name = _write("cartpole/nan-v0", log_prob=float("nan"))
    answer = axiomrl("eval", "--offline", name, "--checkpoint", finished_run, "--quiet")
    assert_refused(answer, "the dataset's infos `log_prob` hold NaN or infinity")

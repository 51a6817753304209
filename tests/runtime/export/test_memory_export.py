"""Policies with a memory are exported: the file takes and returns the state, and acts alike over whole episodes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import off_policy_runs
from harness import tiny_config
from rl_training.deploy import ExportedPolicy, ExportError, load_exported, open_policy
from rl_training.errors import AxiomError
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.acting.policy import load_policy
from rl_training.runtime.export.export import ParityError, export_policy
from rl_training.runtime.export.playing import evaluate_exported
from rl_training.runtime.export.policy_module import PolicyModule
from rl_training.runtime.workflows import evaluate, train
from short_runs import SHORT

LSTM = {"size": 6, "sequence_length": 5}
GRU = {"type": "gru", "size": 5, "layers": 2, "sequence_length": 4}
CASES: dict[str, Callable[[Path], TrainConfig]] = {
    "ppo_lstm": lambda folder: tiny_config(folder, algo_kwargs={"recurrent": LSTM}, **SHORT),
    "ppo_gru": lambda folder: tiny_config(
        folder,
        env_id="Pendulum-v1",
        algo_kwargs={"recurrent": {**GRU, "separate_critic": False}},
        env_kwargs={"normalize_observation": True, "max_episode_steps": 30},
        **SHORT,
    ),
    "ppo_masked": lambda folder: tiny_config(
        folder, env_id="toy_envs:Toy/MaskedDiscrete-v0", algo_kwargs={"recurrent": LSTM}, **SHORT
    ),
    "dqn_lstm": lambda folder: off_policy_runs.tiny_run(
        folder, "dqn", "CartPole-v1", algo_kwargs={"recurrent": LSTM}, **SHORT
    ),
    "rainbow_gru_dict": lambda folder: off_policy_runs.tiny_run(
        folder, "rainbow", "toy_envs:Toy/Dict-v0", algo_kwargs={"recurrent": GRU}, **SHORT
    ),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Trained runs, by the name of their case."""
    made: dict[str, Path] = {}

    def run(case: str) -> Path:
        if case not in made:
            made[case] = train(CASES[case](tmp_path_factory.mktemp(case))).run_dir
        return made[case]

    return run


@pytest.mark.parametrize(
    ("case", "format"), [*((case, "onnx") for case in CASES), ("ppo_lstm", "pt2"), ("rainbow_gru_dict", "pt2")]
)
def test_the_file_remembers_like_the_policy(runs: Any, case: str, format: Any, tmp_path: Path) -> None:
    if format == "onnx":
        pytest.importorskip("onnxscript")
    run = runs(case)
    result = export_policy(run, format=format, episodes=2, output=tmp_path / f"policy.{format}")
    parity = result.record["parity"]
    assert parity["passed"]
    assert parity["recorded"]["largest_state_difference"] < 1e-5
    policy, exported = load_policy(run), load_exported(result.path, trust_code=True)
    assert exported.memory_size == policy.memory_size == result.record["next_state"]["shape"][0]
    space = policy.observation_space
    space.seed(1)
    state, other = None, None
    for step in range(6):
        starts = [step == 3, False]
        samples = [space.sample() for _ in range(2)]
        batch: Any = np.stack(samples)
        if isinstance(samples[0], dict):
            batch = {key: np.stack([sample[key] for sample in samples]) for key in samples[0]}
        action, state = policy.predict(batch, state, starts)
        found, other = exported.predict(batch, other, starts)
        np.testing.assert_allclose(found, action, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(other, state, rtol=1e-4, atol=1e-5)


def test_an_exported_memory_is_evaluated_like_its_checkpoint(runs: Any, tmp_path: Path) -> None:
    result = export_policy(runs("dqn_lstm"), format="pt2", episodes=2, output=tmp_path / "policy.pt2")
    expected = evaluate(runs("dqn_lstm"), num_episodes=3, seed=5)
    found = evaluate_exported(result.path, num_episodes=3, seed=5, trust_code=True)
    assert [one.episode_return for one in found.episodes] == [one.episode_return for one in expected.episodes]


def test_sampled_actions_of_a_memory_are_exported(runs: Any, tmp_path: Path) -> None:
    result = export_policy(runs("ppo_lstm"), format="pt2", episodes=1, stochastic=True, output=tmp_path / "policy.pt2")
    exported = load_exported(result.path, trust_code=True)
    batch = np.zeros((64, 4), np.float32)
    drawn, state = exported.predict(batch, deterministic=False, seed=1)
    assert len(set(drawn.tolist())) == 2
    again, _ = exported.predict(batch, state, np.ones(64, bool), deterministic=False, seed=1)
    assert drawn.tolist() == again.tolist()


@pytest.fixture(scope="module")
def exported(runs: Any, tmp_path_factory: pytest.TempPathFactory) -> ExportedPolicy:
    path = tmp_path_factory.mktemp("exported") / "policy.pt2"
    return load_exported(export_policy(runs("dqn_lstm"), format="pt2", episodes=1, output=path).path, trust_code=True)


def test_a_state_of_another_form_is_refused(exported: ExportedPolicy) -> None:
    one = np.zeros(4, np.float32)
    _, state = exported.predict(one)
    assert state.shape == (12,)
    with pytest.raises(AxiomError, match="give back what predict returned last"):
        exported.predict(np.stack([one, one]), state)
    with pytest.raises(AxiomError, match="holds NaN"):
        exported.predict(one, np.full(12, np.nan))
    with pytest.raises(AxiomError, match="episode_start has 3 entries"):
        exported.predict(one, state, [True, False, True])
    actions, states = exported.predict(np.zeros((0, 4), np.float32))
    assert (actions.shape, states.shape) == ((0,), (0, 12))


def test_a_record_with_half_a_memory_is_refused(exported: ExportedPolicy) -> None:
    inputs = [entry for entry in exported.record["inputs"] if entry["kind"] != "episode_start"]
    with pytest.raises(ExportError, match="a memory has one state"):
        open_policy(b"", {**exported.record, "inputs": inputs}, "policy.pt2")


def test_a_file_that_forgets_is_not_written(runs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proof can fail: a file whose state stays zero acts alike at the start of an episode only."""
    original = PolicyModule.forward

    def forgetful(self: PolicyModule, *arrays: torch.Tensor) -> Any:
        action, state = original(self, *arrays)
        return action, torch.zeros_like(state)

    monkeypatch.setattr(PolicyModule, "forward", forgetful)
    path = tmp_path / "policy.pt2"
    with pytest.raises(ParityError, match="what it remembers differs by up to"):
        export_policy(runs("dqn_lstm"), format="pt2", episodes=1, output=path)
    assert not path.exists()

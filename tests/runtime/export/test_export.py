"""`axiomrl export`: what the file and its record hold, the proof of parity, and mistakes."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from cli_parts import Command
from exporting.exports import CASES, case_config, export_case, toy
from harness import tiny_config
from rl_training import load_policy
from rl_training.cli import main
from rl_training.deploy import load_exported
from rl_training.experiment.storage.files import sha256_of
from rl_training.runtime.export import export as export_module
from rl_training.runtime.export import parity
from rl_training.runtime.export.export import ExportResult, ParityError, export_policy
from rl_training.runtime.export.policy_module import PolicyModule
from rl_training.runtime.export.writers import exported_content
from rl_training.runtime.workflows import evaluate, train

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run with normalised observations and action masks."""
    return train(toy(tmp_path_factory.mktemp("run"), "MaskedMultiDiscrete")).run_dir


@pytest.fixture(scope="module")
def exported(run: Path) -> ExportResult:
    return export_policy(run, episodes=3)


def test_the_record_describes_inputs_spaces_versions_and_hashes(run: Path, exported: ExportResult) -> None:
    record = json.loads(exported.record_path.read_text())
    assert exported.record_path.name == f"{exported.path.name}.json"
    assert record["sha256"] == sha256_of(exported.path)
    assert record["checkpoint"]["sha256"] == sha256_of(run / "checkpoints" / "latest" / "manifest.json")
    assert [(one["name"], one["dtype"]) for one in record["inputs"]] == [
        ("observation", "float32"),
        ("action_mask", "bool"),
    ]
    assert record["output"] == {"name": "action", "shape": [2], "dtype": "int64"}
    assert record["env_id"] == "toy_envs:Toy/MaskedMultiDiscrete-v0"
    assert {"torch", "onnx", "onnxruntime", "axiomrl"} <= record["versions"].keys()
    parity = record["parity"]
    assert parity["passed"]
    assert parity["batches"] == [1, 2, 17]
    assert parity["recorded"]["observations"] > 0
    assert parity["random"]["largest_difference"] == 0
    assert parity["returns"]["policy"] == parity["returns"]["exported"]


def test_the_file_names_its_inputs_and_leaves_the_batch_open(exported: ExportResult) -> None:
    graph = onnx.load(exported.path).graph
    names = [one.name for one in (*graph.input, *graph.output)]
    assert names == ["observation", "action_mask", "action"]
    assert {one.type.tensor_type.shape.dim[0].dim_param for one in (*graph.input, *graph.output)} == {"batch"}


def test_returns_in_the_record_are_those_of_eval(run: Path, exported: ExportResult) -> None:
    episodes = evaluate(run, num_episodes=3).episodes
    assert exported.record["parity"]["returns"]["exported"] == [episode.episode_return for episode in episodes]


def test_masks_change_the_exported_action_as_they_change_the_policys(run: Path, exported: ExportResult) -> None:
    policy, file = load_policy(run), load_exported(exported.path)
    observation = np.array([1.0, 2.0], np.float32)
    for choices in ((0, 3), (1, 4), (2, 6)):
        mask = np.zeros(7, bool)
        mask[list(choices)] = True
        expected = policy.predict(observation, action_mask=mask)
        np.testing.assert_array_equal(file.predict(observation, action_mask=mask), expected)
        assert expected.tolist() == [choices[0], choices[1] - 3]


@pytest.mark.parametrize("case", ["toy_Dict", "toy_DictWithImage", "muzero", "discrete_observation", "scalezero"])
def test_a_program_of_torch_acts_like_its_policy(case: str, tmp_path: Path) -> None:
    result = export_case(case, tmp_path, format="pt2")
    assert result.record["parity"]["passed"]
    assert result.record["parity"]["random"]["largest_difference"] == 0
    assert ("without its search" in result.record["policy"]) == (case in ("muzero", "scalezero"))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_every_algorithm_and_space_exports_to_onnx(case: str, tmp_path: Path) -> None:
    result = export_case(case, tmp_path)
    assert result.record["parity"]["passed"]
    assert all(result.record["parity"][place]["different"] == 0 for place in ("recorded", "random"))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_every_algorithm_and_space_exports_to_a_program_of_torch(case: str, tmp_path: Path) -> None:
    assert export_case(case, tmp_path, format="pt2").record["parity"]["passed"]


def _with_other_mean(content: bytes) -> bytes:
    """Return an exported file whose normaliser subtracts other means."""
    model = onnx.load_from_string(content)
    (subtraction,) = [node for node in model.graph.node if node.op_type == "Sub"]
    for tensor in model.graph.initializer:
        if tensor.name in subtraction.input:
            changed = onnx.numpy_helper.to_array(tensor) + 5.0
            tensor.CopyFrom(onnx.numpy_helper.from_array(changed, tensor.name))
            return model.SerializeToString()
    raise AssertionError("no statistics in the graph")


def test_a_normaliser_changed_after_export_is_caught_and_no_file_is_left(
    run: Path,
    exported: ExportResult,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    axiomrl: Command,
) -> None:
    changed = _with_other_mean(exported.path.read_bytes())
    monkeypatch.setattr(export_module, "exported_content", lambda module, format: changed)
    answer = axiomrl("export", "--checkpoint", run, "--output", "policy.onnx", "--episodes", 2, "--quiet")
    assert answer.status == 1
    assert "policy.onnx was not written, its actions differ" in answer.err
    assert answer.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_failed_proof_removes_an_earlier_file_of_that_name(
    run: Path, exported: ExportResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in (exported.path, exported.record_path):
        shutil.copy(path, tmp_path)
    changed = _with_other_mean(exported.path.read_bytes())
    monkeypatch.setattr(export_module, "exported_content", lambda module, format: changed)
    with pytest.raises(ParityError):
        export_policy(run, output=tmp_path / exported.path.name, episodes=1)
    assert list(tmp_path.iterdir()) == []


def test_returns_that_differ_fail_the_proof(
    run: Path, exported: ExportResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = _with_other_mean(exported.path.read_bytes())
    monkeypatch.setattr(export_module, "exported_content", lambda module, format: changed)
    monkeypatch.setattr(parity, "_compare", lambda *arguments: {"passed": True})
    with pytest.raises(ParityError, match="returns differ by up to"):
        export_policy(run, output=tmp_path / "policy.onnx", episodes=4)


def test_sampling_by_noise_has_the_policys_distribution(tmp_path: Path) -> None:
    run = train(toy(tmp_path, "Discrete")).run_dir
    result = export_policy(run, format="pt2", episodes=1, stochastic=True)
    assert [(one["name"], one.get("distribution")) for one in result.record["inputs"]] == [
        ("observation", None),
        ("noise_0", "exponential"),
    ]
    policy, file = load_policy(run), load_exported(result.path, trust_code=True)
    batch = np.full((4000, 1), 2.0, np.float32)
    counts = [
        np.bincount(one.predict(batch, deterministic=False, seed=5), minlength=5) / len(batch) for one in (policy, file)
    ]
    np.testing.assert_allclose(counts[0], counts[1], atol=0.04)
    np.testing.assert_array_equal(file.predict(batch[:3]), policy.predict(batch[:3]))
    same = [file.predict(batch, deterministic=False, seed=1) for _ in range(2)]
    np.testing.assert_array_equal(*same)


def test_random_actions_that_depend_on_values_are_refused(tmp_path: Path) -> None:
    run = train(case_config("dqn", tmp_path)).run_dir
    assert main(["export", "--checkpoint", str(run), "--format", "pt2", "--stochastic", "--episodes", "1"]) == 2


OWN_ENCODER = """
import torch
from torch import nn


class Tower(nn.Module):
    def __init__(self, space):
        super().__init__()
        self.width = 5
        self.layer = nn.Linear(space.shape[0], 5)
        self.norm = nn.LayerNorm(5)

    def forward(self, observation):
        {body}
        return torch.sin(self.norm(self.layer(observation)))
"""


def _own_run(folder: Path, body: str) -> Path:
    (folder / "tower.py").write_text(OWN_ENCODER.format(body=body))
    config = tiny_config(
        folder / "runs",
        algo_kwargs={"num_steps": 16, "encoder": f"{folder / 'tower.py'}:Tower"},
        total_timesteps=32,
        eval_episodes=0,
    )
    return train(config).run_dir


def test_an_encoder_of_the_users_own_is_exported(tmp_path: Path) -> None:
    assert export_policy(_own_run(tmp_path, "pass"), format="pt2", episodes=1).record["parity"]["passed"]


def test_a_network_that_depends_on_values_is_refused_in_a_sentence(tmp_path: Path, axiomrl: Command) -> None:
    run = _own_run(tmp_path, "observation = observation if observation.sum() > 0 else observation + 1e-3")
    answer = axiomrl("export", "--checkpoint", run, "--format", "pt2", "--episodes", "1", "--quiet")
    assert answer.status == 2
    assert "must not depend on the values of tensors" in answer.err
    assert answer.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--episodes", "0"], "--episodes: must be an integer >= 1"),
        (["--output", "policy.pt2"], "does not end in .onnx"),
        (["--output", "nowhere/policy.onnx"], "create nowhere first"),
        (["--task", "Pong"], "task"),
    ],
)
def test_mistakes_are_one_sentence(run: Path, axiomrl: Command, arguments: list[str], words: str) -> None:
    answer = axiomrl("export", "--checkpoint", run, "--quiet", *arguments)
    assert answer.status == 2
    assert words in answer.err
    assert answer.err.count("\n") == 1


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_a_missing_package_names_the_extra(
    run: Path,
    axiomrl: Command,
    monkeypatch: pytest.MonkeyPatch,
    package: str,
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    answer = axiomrl("export", "--checkpoint", run, "--quiet")
    assert answer.status == 2
    assert "needs the extra `export`" in answer.err


def test_the_exporters_are_silent(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    exported_content(PolicyModule(load_policy(run)), "pt2")
    assert capfd.readouterr() == ("", "")
    assert torch.is_grad_enabled()


@pytest.mark.slow
@pytest.mark.parametrize(("preset", "steps", "episodes"), [("ppo-cartpole", 20_000, 100), ("sac-pendulum", 2_000, 50)])
def test_many_episodes_through_onnxruntime_have_the_returns_of_eval(
    preset: str, steps: int, episodes: int, tmp_path: Path
) -> None:
    from rl_training import load_config
    from rl_training.runtime.export.playing import evaluate_exported

    overrides = {"total_timesteps": steps, "output_dir": tmp_path, "eval_episodes": 0}
    run = train(load_config(preset=preset, overrides=overrides)).run_dir
    file = export_policy(run, episodes=2).path
    expected = [one.episode_return for one in evaluate(run, num_episodes=episodes).episodes]
    found = [one.episode_return for one in evaluate_exported(file, num_episodes=episodes).episodes]
    if preset == "ppo-cartpole":
        assert found == expected
    else:
        np.testing.assert_allclose(found, expected, rtol=1e-3)

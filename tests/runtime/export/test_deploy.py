"""`rl_training.deploy`: acting without torch, with the conventions of `load_policy`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli_parts import Command
from exporting.exports import toy
from harness import tiny_config
from rl_training import load_policy
from rl_training.deploy import ExportedPolicy, Input, load_exported
from rl_training.errors import AxiomError, MissingExtraError
from rl_training.experiment.storage.files import sha256_of
from rl_training.runtime.export.export import export_policy
from rl_training.runtime.workflows import evaluate, train

pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = tiny_config(
        tmp_path_factory.mktemp("run"),
        algo_kwargs={"num_steps": 16, "hidden_sizes": [8]},
        env_kwargs={"normalize_observation": True},
        total_timesteps=64,
        eval_episodes=0,
    )
    return train(config).run_dir


@pytest.fixture(scope="module")
def file(run: Path) -> Path:
    return export_policy(run, episodes=1).path


@pytest.fixture
def own_file(file: Path, tmp_path: Path) -> Path:
    """A copy of the exported file that a test may change."""
    for path in (file, file.with_name(f"{file.name}.json")):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path / file.name


OBSERVATIONS = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)


def test_predict_has_the_conventions_of_load_policy(run: Path, file: Path) -> None:
    policy, exported = load_policy(run), load_exported(file)
    for observation in (OBSERVATIONS, OBSERVATIONS[:1], OBSERVATIONS[0], OBSERVATIONS[3].tolist(), np.zeros((0, 4))):
        expected, found = policy.predict(observation), exported.predict(observation)
        np.testing.assert_array_equal(found, expected)
        assert type(found) is type(expected)
        assert found.dtype == expected.dtype


@pytest.mark.parametrize(
    "observation",
    [
        np.zeros(3, np.float32),
        np.zeros((2, 2, 4), np.float32),
        np.zeros(4, complex),
        np.full(4, np.nan, np.float32),
        "four",
        [[1.0], [1.0, 2.0]],
        None,
    ],
)
def test_wrong_observations_are_refused_in_the_same_sentence_as_by_load_policy(
    run: Path, file: Path, observation: Any
) -> None:
    sentences = []
    for policy in (load_policy(run), load_exported(file)):
        with pytest.raises(AxiomError) as error:
            policy.predict(observation)
        sentences.append(str(error.value))
    assert sentences[0] == sentences[1]


def test_options_that_the_file_does_not_have_are_refused(file: Path) -> None:
    exported = load_exported(file)
    with pytest.raises(AxiomError, match="without an action mask"):
        exported.predict(OBSERVATIONS[0], action_mask=[True, True])
    with pytest.raises(AxiomError, match="--stochastic"):
        exported.predict(OBSERVATIONS[0], deterministic=False)


def _stub(*inputs: Input) -> ExportedPolicy:
    """Return a policy that returns its first array."""
    return ExportedPolicy(lambda arrays: [next(iter(arrays.values()))], inputs, {})


def test_dict_observations_must_have_the_keys_and_one_length() -> None:
    parts = [Input(f"observation.{key}", "observation", (2,), np.dtype(np.float32), key) for key in ("one", "two")]
    policy = _stub(*parts)
    assert policy.predict({"two": [1, 2], "one": [3, 4]}).tolist() == [3, 4]
    with pytest.raises(AxiomError, match="the keys one, two"):
        policy.predict({"one": [3, 4]})
    with pytest.raises(AxiomError, match="not as many each"):
        policy.predict({"two": [[1, 2]], "one": [3, 4]})
    with pytest.raises(AxiomError, match="`two` has shape"):
        policy.predict({"two": [1], "one": [3, 4]})


def test_a_discrete_observation_beyond_its_space_is_refused() -> None:
    policy = _stub(Input("observation", "observation", (), np.dtype(np.int64), low=np.array(1), high=np.array(4)))
    assert policy.predict([1, 4]).tolist() == [1, 4]
    for number in (0, 5):
        with pytest.raises(AxiomError, match="beyond what the policy knows, 1 to 4"):
            policy.predict(number)


PROGRAM = """
import sys
from rl_training.deploy import load_exported
policy = load_exported(sys.argv[1])
print(policy.predict([0.1, 0.2, 0.3, 0.4]))
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


def test_acting_imports_neither_torch_nor_gymnasium_nor_pydantic(file: Path) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(file)], capture_output=True, text=True, check=True)
    action, modules = done.stdout.splitlines()
    assert action in ("0", "1")
    loaded = set(modules.split())
    assert {"numpy", "onnxruntime"} <= loaded
    assert not {"torch", "gymnasium", "pydantic", "typer", "yaml", "onnx", "safetensors", "scipy"} & loaded


@pytest.mark.slow
def test_loading_takes_less_than_a_tenth_of_torchs_import(file: Path) -> None:
    def seconds(statement: str) -> float:
        program = f"import time; t = time.process_time(); {statement}; print(time.process_time() - t)"
        done = [
            subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
            for _ in range(9)
        ]
        return min(float(one.stdout) for one in done)

    loading = f"from rl_training.deploy import load_exported; load_exported({str(file)!r})"
    assert seconds(loading) < 0.1 * seconds("import torch")


def test_the_exported_file_plays_the_episodes_of_eval(
    run: Path,
    file: Path,
    axiomrl: Command,
) -> None:
    answer = axiomrl("eval", "--exported", file, "--num-episodes", 20, "--seed", 4, "--json")
    assert answer.status == 0
    expected = evaluate(run, num_episodes=20, seed=4)
    played = json.loads(answer.out)
    assert played["episodes"] == [episode.as_row() for episode in expected.episodes]
    assert played["metrics"] == expected.metrics
    assert played["exported_path"] == str(file)


def test_another_environment_of_the_same_spaces_may_be_named(file: Path, axiomrl: Command) -> None:
    assert axiomrl("eval", "--exported", file, "--env", "CartPole-v0", "--num-episodes", 1).status == 0
    answer = axiomrl("eval", "--exported", file, "--env", "Acrobot-v1", "--num-episodes", 1, "--quiet")
    assert answer.status == 2
    assert "the observation space of Acrobot-v1 is" in answer.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "one of --checkpoint PATH and --exported FILE"),
        (["--exported", "a.onnx", "--checkpoint", "b"], "one of --checkpoint PATH and --exported FILE"),
        (["--exported", "a.onnx"], "a.onnx is missing"),
        (["--exported", "a.onnx", "--video"], "--video does not go with --exported"),
        (["--checkpoint", "b", "--env", "CartPole-v1"], "--env goes with --exported"),
    ],
)
def test_mistakes_of_eval_are_one_sentence(axiomrl: Command, arguments: list[str], words: str) -> None:
    answer = axiomrl("eval", *arguments, "--quiet")
    assert answer.status == 2
    assert words in answer.err
    assert answer.err.count("\n") == 1


def _sealed(file: Path, content: bytes | None = None, **changes: Any) -> None:
    """Change a file and its record so that the hash is right."""
    path = file.with_name(f"{file.name}.json")
    if content is not None:
        file.write_bytes(content)
    path.write_text(json.dumps({**json.loads(path.read_text()), "sha256": sha256_of(file), **changes}))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda file: file.write_bytes(file.read_bytes()[:-9]), "is not the file that"),
        (lambda file: _sealed(file, b"not a graph"), "cannot be read as an ONNX file"),
        (lambda file: _sealed(file, file.read_bytes()[:200]), "cannot be read as an ONNX file"),
        (lambda file: file.unlink(), "is missing"),
        (lambda file: file.with_name(f"{file.name}.json").unlink(), ".onnx.json is missing"),
        (lambda file: file.with_name(f"{file.name}.json").write_text("{"), "is not valid JSON"),
        (lambda file: file.with_name(f"{file.name}.json").write_text("[]"), "is not the record of an exported policy"),
        (lambda file: _sealed(file, format_version=2), "another release"),
        (lambda file: _sealed(file, inputs=[]), "does not describe its inputs"),
        (lambda file: _sealed(file, inputs=[{"name": "x"}]), "does not describe its inputs"),
        (lambda file: _sealed(file, output={"shape": "x"}), "does not describe its inputs and output"),
        (
            lambda file: _sealed(file, inputs=[{"name": "x", "kind": "observation", "shape": [4], "dtype": "float32"}]),
            "does not have the inputs",
        ),
        (lambda file: _sealed(file, observation_space={"type": "Sphere"}), "describes no spaces"),
        (lambda file: _sealed(file, env_id=None), "names no environment"),
        (lambda file: _sealed(file, env_kwargs={"frame_stack": "many"}), "frame_stack"),
        (lambda file: _sealed(file, format="pt2"), "torch executes code while it loads a pt2 file"),
    ],
)
def test_a_damaged_export_is_refused_in_a_sentence(
    own_file: Path,
    axiomrl: Command,
    damage: Any,
    words: str,
) -> None:
    damage(own_file)
    answer = axiomrl("eval", "--exported", own_file, "--num-episodes", 1, "--quiet")
    assert answer.status == 2
    assert words in answer.err
    assert answer.err.count("\n") == 1


def test_an_environment_that_only_the_file_names_is_not_imported(
    own_file: Path,
    tmp_path: Path,
    axiomrl: Command,
) -> None:
    (tmp_path / "strange.py").write_text("raise SystemExit('executed')")
    _sealed(own_file, env_id=f"{tmp_path / 'strange.py'}:Env")
    answer = axiomrl("eval", "--exported", own_file, "--num-episodes", 1, "--quiet")
    assert answer.status == 2
    assert "executed" not in answer.err


def test_a_missing_onnxruntime_names_the_extra(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtraError, match="needs the extra `export`"):
        load_exported(file)


def test_a_program_of_torch_needs_trust(tmp_path: Path) -> None:
    result = export_policy(train(toy(tmp_path, "Box")).run_dir, format="pt2", episodes=1)
    with pytest.raises(AxiomError, match="trust_code"):
        load_exported(result.path)
    assert load_exported(result.path, trust_code=True).predict([0.5, -0.5]).shape == (2,)

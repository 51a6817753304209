"""Run directories, devices, plain configs, checkpoints, and `metadata.json` against its schema."""

from __future__ import annotations

import json
import re
import subprocess
from importlib import resources
from pathlib import Path

import jsonschema
import pytest
import torch
import yaml

from harness import assert_same_run, only_run, stopped_after, tiny_config
from processes import uninterrupted
from rl_training.envs.spaces import space_to_json
from rl_training.errors import AxiomError, ConfigError, EnvironmentFailure
from rl_training.experiment import runs
from rl_training.experiment.checkpoints import LATEST, pointed, verify_checkpoint
from rl_training.experiment.config import validate_config
from rl_training.experiment.configuration.config_files import load_config
from rl_training.experiment.runs import git_state, read_metadata, sanitize
from rl_training.experiment.storage.files import sha256_of
from rl_training.experiment.storage.state_files import read_state, write_state
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.run_utils import (
    create_training_run,
    resolve_device,
    save_training_checkpoint,
    serialize_train_config,
)
from rl_training.runtime.workflows import resume, train

SCHEMA = json.loads(resources.files("rl_training.experiment").joinpath("metadata.schema.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def valid_metadata(run_dir):
    """Return a run's metadata after holding it against the schema."""
    metadata = read_metadata(run_dir)
    VALIDATOR.validate(metadata)
    return metadata


# -- devices ---------------------------------------------------------------------------------------


def test_auto_takes_a_gpu_where_there_is_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert resolve_device("auto") == torch.device("cuda")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("gpu", "'gpu' is not a device; use auto, cpu, cuda, cuda:N or mps"),
        ("cuda:7", "cuda:7 is not there, 1 CUDA devices are; use auto or cpu"),
        ("mps", "mps is not available"),
        ("meta", "'meta' is not supported; use auto, cpu, cuda, cuda:N or mps"),
    ],
)
def test_a_device_that_cannot_be_used_is_refused(name, sentence, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        resolve_device(name)


@pytest.mark.parametrize("name", ["cuda", "cuda:1"])
def test_a_torch_without_cuda_says_so(name, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    sentence = f"device: {name} cannot be used, this torch ({torch.__version__}) was built without CUDA; install"
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        resolve_device(name)


def test_cpu_is_always_there():
    assert resolve_device("cpu") == torch.device("cpu")


# -- configurations --------------------------------------------------------------------------------


def test_a_serialized_config_is_plain_data_and_comes_back_equal(tmp_path):
    config = tiny_config(tmp_path, tags=("a", "b"))
    plain = serialize_train_config(config)
    assert plain["output_dir"] == str(tmp_path)
    assert plain["tags"] == ["a", "b"]
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert validate_config(plain) == config


# -- run directories -------------------------------------------------------------------------------


def test_a_run_directory_has_its_config_and_metadata_at_once(tmp_path):
    config = tiny_config(tmp_path / "deep" / "runs")
    run_dir = create_training_run(config)
    assert re.fullmatch(r"ppo__CartPole-v1__seed7__\d{8}T\d{6}Z", run_dir.name)
    assert yaml.safe_load((run_dir / "config.yaml").read_text()) == serialize_train_config(config)
    metadata = valid_metadata(run_dir)
    assert metadata["status"] == "running"
    assert (metadata["algo"], metadata["env_id"], metadata["seed"]) == ("ppo", "CartPole-v1", 7)
    assert not list(run_dir.glob(".*.tmp"))


def test_the_name_of_a_run_stands_in_its_config_and_metadata(tmp_path):
    run_dir = create_training_run(tiny_config(tmp_path, name="lr 3e-4 ✓"))
    assert valid_metadata(run_dir)["name"] == "lr 3e-4 ✓"
    assert load_config(run_dir / "config.yaml").name == "lr 3e-4 ✓"
    assert valid_metadata(create_training_run(tiny_config(tmp_path)))["name"] is None


@pytest.mark.parametrize("name", ["", "x" * 81, "two\nlines", "\x1b[2J", 3])
def test_a_name_is_one_printable_line(tmp_path, name):
    with pytest.raises(ConfigError, match="name: must be printable text of at most 80 characters or null, got"):
        tiny_config(tmp_path, name=name)


def test_the_saved_config_repeats_the_run(tmp_path):
    first = uninterrupted(tiny_config(tmp_path / "first"))
    again = load_config(first / "config.yaml", overrides={"output_dir": str(tmp_path / "again")})
    assert_same_run(uninterrupted(again), first)


def test_runs_that_start_in_the_same_second_get_different_names(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "run_name", lambda *parts: "ppo__X__seed1__20300101T000000Z")
    config = tiny_config(tmp_path)
    names = [create_training_run(config).name for _ in range(3)]
    base = "ppo__X__seed1__20300101T000000Z"
    assert names == [base, f"{base}-2", f"{base}-3"]


@pytest.mark.parametrize(
    ("env_id", "name"),
    [
        ("CartPole-v1", "CartPole-v1"),
        ("ALE/Breakout-v5", "ALE-Breakout-v5"),
        ("my_package.module:Ns/Env-v0", "my-package.module-Ns-Env-v0"),
        ("../../etc/passwd", "etc-passwd"),
        ("/home/me/some place/my_envs.py:MyEnv", "my-envs.py-MyEnv"),
        ("envs/my_envs.py:Ns/Env-v0", "my-envs.py-Ns-Env-v0"),
        ("a\\b:c*d?e", "a-b-c-d-e"),
        ("Ünïcode-v0", "n-code-v0"),
        ("..", "env"),
        ("", "env"),
    ],
)
def test_environment_ids_are_sanitised(env_id, name):
    assert sanitize(env_id) == name


def test_a_module_environment_runs_in_one_directory_below_the_output(tmp_path):
    run_dir = uninterrupted(tiny_config(tmp_path, env_id="run_samples:Run/Script-v0", total_timesteps=32))
    assert run_dir.parent == tmp_path
    assert "/" not in run_dir.name
    assert valid_metadata(run_dir)["env_id"] == "run_samples:Run/Script-v0"


# -- metadata --------------------------------------------------------------------------------------


def test_the_schema_is_strict():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["additionalProperties"] is False
    later = {
        "name",
        "user_code",
        "acceleration",
        "dataset",
        "trackers",
        "resumed_at_steps",
    }  # runs of the first releases lack them
    assert set(SCHEMA["required"]) == set(SCHEMA["properties"]) - later


def test_metadata_of_a_running_and_a_completed_run(tmp_path):
    seen = []

    class Look(Callback):
        def on_train_start(self, event):
            seen.append(valid_metadata(event.run_dir))

        def on_checkpoint(self, event):
            seen.append(valid_metadata(event.run_dir))

    result = train(tiny_config(tmp_path), callbacks=[Look()])
    assert {metadata["status"] for metadata in seen} == {"running"}
    assert seen[0]["latest_checkpoint"] is None
    metadata = valid_metadata(result.run_dir)
    assert metadata["status"] == "completed"
    assert metadata["latest_metrics"]["global_step"] == 320
    assert "event" not in metadata["latest_metrics"]
    assert result.checkpoint_path == result.run_dir / metadata["latest_checkpoint"]
    assert result.best_checkpoint_path == result.run_dir / metadata["best_checkpoint"]["path"]
    assert metadata["versions"]["torch"] == torch.__version__


def test_metadata_of_an_interrupted_and_a_resumed_run(tmp_path):
    with stopped_after(20):
        result = train(tiny_config(tmp_path))
    interrupted = valid_metadata(result.run_dir)
    assert interrupted["status"] == "interrupted"
    resume(result.run_dir)
    completed = valid_metadata(result.run_dir)
    assert completed["status"] == "completed"
    assert completed["created_at_utc"] == interrupted["created_at_utc"]
    assert interrupted["resumed_at_steps"] == []
    assert completed["resumed_at_steps"] == [int(interrupted["latest_checkpoint"].rpartition("_")[2])]


def test_metadata_of_a_failed_run(tmp_path):
    config = tiny_config(
        tmp_path, env_id="run_samples:Run/Faulty-v0", env_kwargs={"training": {"fault": "raise", "at": 20}}
    )
    with pytest.raises(EnvironmentFailure):
        train(config)
    metadata = valid_metadata(only_run(tmp_path))
    assert metadata["status"] == "failed"
    assert "the floor gave way" in metadata["error"]


def test_metadata_of_a_fork(tmp_path):
    parent = uninterrupted(tiny_config(tmp_path, total_timesteps=64))
    fork = resume(parent, fork=True, total_timesteps=128).run_dir
    assert valid_metadata(fork)["parent"] == {
        "kind": "fork",
        "run_dir": str(parent),
        "checkpoint": "step_64",
        "step": 64,
        "sha256": sha256_of(parent / "checkpoints" / "step_64" / "manifest.json"),
        "changed": {"total_timesteps": [64, 128]},
    }


@pytest.mark.parametrize("moment", ["rl_training.experiment.storage.files.sync_file", "os.replace"])
def test_metadata_is_replaced_at_once(moment, tmp_path, monkeypatch):
    """A crash while writing leaves the old content."""
    run_dir = create_training_run(tiny_config(tmp_path))
    before = (run_dir / "metadata.json").read_text()

    def crash(*paths):
        raise KeyboardInterrupt

    monkeypatch.setattr(moment, crash)
    with pytest.raises(KeyboardInterrupt):
        runs.write_metadata(run_dir, {"status": "failed"})
    assert (run_dir / "metadata.json").read_text() == before
    assert {path.name for path in run_dir.iterdir()} == {"metadata.json", "config.yaml"}


@pytest.mark.parametrize("content", ["", "{", "[]"])
def test_broken_metadata_is_said(content, tmp_path):
    (tmp_path / "metadata.json").write_text(content)
    with pytest.raises(AxiomError, match=r"metadata\.json"):
        read_metadata(tmp_path)


# -- git -------------------------------------------------------------------------------------------


def test_without_git_a_run_is_fine(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_state() is None
    assert valid_metadata(create_training_run(tiny_config(tmp_path / "runs")))["git"] is None


def test_outside_of_a_repository_a_run_is_fine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert valid_metadata(create_training_run(tiny_config(tmp_path / "runs")))["git"] is None


def test_commit_and_changes_of_a_repository_are_recorded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def git(*arguments):
        identity = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *identity, *arguments], check=True, capture_output=True)

    try:
        git("init")
    except OSError:
        pytest.skip("git is not installed")
    assert git_state() is None  # nothing is committed yet
    Path("file").write_text("one")
    git("add", "file")
    git("commit", "-m", "first")
    state = git_state()
    assert state is not None
    assert re.fullmatch(r"[0-9a-f]{40}", state["commit"])
    assert not state["dirty"]
    Path("file").write_text("two")
    assert git_state() == {**state, "dirty": True}


# -- checkpoints -----------------------------------------------------------------------------------


def test_a_training_checkpoint_is_verified_pointed_to_and_read_back(tmp_path):
    config = tiny_config(tmp_path)
    run_dir = create_training_run(config)
    state = {"algorithm": {"weight": torch.arange(3.0)}, "best": float("-inf"), "counts": [1, 2**70], "none": None}
    path = save_training_checkpoint(
        run_dir,
        step=12,
        config=config,
        state=state,
        resume_mode="exact",
        spaces={"observation": space_to_json(torch_box()), "action": space_to_json(torch_box())},
        torch_threads=1,
    )
    assert path == pointed(run_dir, LATEST) == run_dir / "checkpoints" / "step_12"
    manifest = verify_checkpoint(path).manifest
    assert (manifest["step"], manifest["algo"], manifest["resume_mode"]) == (12, "ppo", "exact")
    assert manifest["config"] == serialize_train_config(config)
    assert set(manifest["files"]) == {"state.json", "tensors.safetensors"}
    restored = read_state(path)
    assert torch.equal(restored["algorithm"].pop("weight"), torch.arange(3.0))
    assert restored == {**state, "algorithm": {}}


def torch_box():
    from gymnasium.spaces import Box

    return Box(-1.0, 1.0, (2,))


@pytest.mark.parametrize("value", [object(), {1: 2}, {"__tensor__": "x"}, {"a": {3}}, b"bytes"])
def test_a_state_that_is_not_plain_data_is_refused(value, tmp_path):
    with pytest.raises(TypeError, match="state at"):
        write_state(tmp_path, {"part": value})


def test_states_keep_types_shapes_and_shared_tensors(tmp_path):
    import numpy as np

    shared = torch.arange(12.0).view(3, 4)
    state = {
        "transposed": shared.T,
        "row": shared[1],
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros((0, 3)),
        "flags": torch.tensor([True, False]),
        "bytes": torch.arange(5, dtype=torch.uint8),
        "array": np.arange(4, dtype=np.uint32),
        "zero_dim": np.array(3.5),
        "floats": [0.1, float("inf"), 1e-300],
    }
    write_state(tmp_path, state)
    restored = read_state(tmp_path)
    for name, value in state.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(restored[name], value)
            assert restored[name].dtype == value.dtype
        elif isinstance(value, np.ndarray):
            np.testing.assert_array_equal(restored[name], value)
            assert (restored[name].dtype, restored[name].shape) == (value.dtype, value.shape)
        else:
            assert restored[name] == value

"""Exports the policy of a checkpoint as a file with a record, after a proof that the file acts alike."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gymnasium import Space

from rl_training.deploy import ACTION, FORMAT_VERSION, NEXT_STATE, open_policy, record_path
from rl_training.envs.spaces import space_to_json
from rl_training.errors import AxiomError, RunFailure
from rl_training.experiment.checkpoints import MANIFEST, Checkpoint, resolve_checkpoint, verify_checkpoint
from rl_training.experiment.config import TrainConfig, config_to_dict
from rl_training.experiment.own_code.run_code import (
    USER_CODE,
    admit_code,
    checkpoint_config,
    loaded_from,
    recorded_code,
    warn_of_changed_code,
)
from rl_training.experiment.runs import dependency_versions, sanitize
from rl_training.experiment.storage.files import (
    make_directory,
    sha256_of,
    storage_errors,
    sync_directory,
    sync_file,
    write_json_atomically,
)
from rl_training.experiment.tasks import Task, choose_task, is_suite
from rl_training.runtime.acting.evaluator import evaluate_policy
from rl_training.runtime.acting.policy import policies_from_checkpoint
from rl_training.runtime.export.parity import PlayedPolicy, describe, measure_parity
from rl_training.runtime.export.policy_module import PolicyModule, input_record
from rl_training.runtime.export.writers import Format, check_packages, exported_content
from rl_training.runtime.setup.size_limits import check_episodes, check_observation_size
from rl_training.runtime.setup.streams import derive_seeds
from rl_training.runtime.setup.threads import threads_of
from rl_training.runtime.setup.torch_setup import TorchSetup

DEFAULT_EPISODES = 10
EXPORTS = "exports"
PRIOR = "the policy network of a planning algorithm, without its search"


class ParityError(RunFailure):
    """An exported file does not act like its policy."""


@dataclass(frozen=True)
class ExportResult:
    """An exported policy."""

    path: Path
    record_path: Path
    checkpoint_path: Path
    record: Mapping[str, Any]


def export_policy(
    checkpoint: str | Path,
    *,
    format: Format = "onnx",
    output: str | Path | None = None,
    episodes: int = DEFAULT_EPISODES,
    task: str | None = None,
    stochastic: bool = False,
    trust_code: bool = False,
) -> ExportResult:
    """Export a checkpoint's policy and prove that the file acts alike; `episodes` are played with both.

    A mismatch raises a `ParityError`, and no file is left.
    """
    check_packages(format)
    if episodes < 1:
        raise AxiomError(f"the proof needs at least 1 episode, got {episodes}; leave --episodes out for the default")
    check_episodes("episodes", episodes)
    sound = verify_checkpoint(resolve_checkpoint(Path(checkpoint)))
    config = checkpoint_config(sound, trust_code=trust_code)
    admit_code(config, loaded_from(sound, trust_code=trust_code), callbacks=False)
    warn_of_changed_code(config, sound)
    policies = policies_from_checkpoint(sound, config, device="cpu", trust_code=trust_code)
    chosen = choose_task(list(policies), task)
    check_observation_size(chosen)
    path = _output_path(sound, chosen, format, output, suite=is_suite(config))
    policy = PlayedPolicy(policies[chosen])
    seeds = derive_seeds(config.seed, "evaluation", "command", count=episodes)
    with TorchSetup(threads=threads_of(sound), deterministic=config.deterministic, device=policy.actor.device):
        played = evaluate_policy(policy, chosen, seeds)
        module = PolicyModule(policy, masked=policy.masked, stochastic=stochastic)
        content = exported_content(module, format)
        record = _record(sound, config, chosen, module, policy.action_space, format)
        record["sha256"] = hashlib.sha256(content).hexdigest()
        with _written(path, content) as unfinished:
            exported = open_policy(unfinished.read_bytes(), record, str(path))
            record["parity"] = measure_parity(policy, exported, chosen, played)
            if not record["parity"]["passed"]:
                raise ParityError(f"{path.name} was not written, {describe(record['parity'])}")
            with storage_errors("the export", path.parent):
                os.replace(unfinished, path)
                write_json_atomically(Path(record_path(path)), record)
    return ExportResult(path, Path(record_path(path)), sound.path, record)


def _output_path(checkpoint: Checkpoint, task: Task, format: Format, output: str | Path | None, *, suite: bool) -> Path:
    if output is not None:
        path = Path(output)
        if path.suffix != f".{format}":
            raise AxiomError(f"--output: {path.name} does not end in .{format}; name it so, or choose another --format")
        if path.is_dir() or not path.parent.is_dir():
            raise AxiomError(f"--output: {path} is not a file in a directory that exists; create {path.parent} first")
        return path
    directory = checkpoint.run_dir / EXPORTS
    with storage_errors("the export", directory):
        make_directory(directory)
    label = f"__{sanitize(task.name)}" if suite else ""
    return directory / f"step_{checkpoint.step}{label}.{format}"


@contextlib.contextmanager
def _written(path: Path, content: bytes) -> Any:
    """Write a file under a temporary name and yield it; after an error no file is left, under either name."""
    unfinished = path.with_name(f".{path.stem}.unfinished-{os.getpid()}{path.suffix}")
    try:
        with storage_errors("the export", path.parent):
            unfinished.write_bytes(content)
            sync_file(unfinished)
        yield unfinished
        with storage_errors("the export", path.parent):
            sync_directory(path.parent)
    except BaseException:
        for leftover in (unfinished, path, Path(record_path(path))):  # an earlier export is not of this checkpoint
            leftover.unlink(missing_ok=True)
        raise


def _record(
    checkpoint: Checkpoint,
    config: TrainConfig,
    task: Task,
    module: PolicyModule,
    action_space: Space[Any],
    format: Format,
) -> dict[str, Any]:
    """Return the record of an exported file, without its hash and parity."""
    plain = config_to_dict(config)
    prior = getattr(module.policy.actor, "plans", False)
    size = module.policy.memory_size
    return {
        "format_version": FORMAT_VERSION,
        "format": format,
        "algo": config.algo,
        "policy": PRIOR if prior else "the trained policy",
        "searches": False,
        "env_id": task.env_id,
        "env_kwargs": plain["env_kwargs"] if not is_suite(config) else dict(task.env_kwargs),
        "seed": config.seed,
        "eval_episodes": config.eval_episodes,
        "observation_space": space_to_json(module.policy.observation_space),
        "action_space": space_to_json(action_space),
        "inputs": [input_record(one) for one in module.inputs],
        "output": {"name": ACTION, "shape": list(action_space.shape or ()), "dtype": str(action_space.dtype)},
        **({"next_state": {"name": NEXT_STATE, "shape": [size], "dtype": "float32"}} if size else {}),
        "batch": "dynamic",
        "stochastic": module.generator is not None,
        "normalizer": module.policy.normalizer is not None,
        "checkpoint": {
            "run": checkpoint.run_dir.resolve().name,
            "step": checkpoint.step,
            "sha256": sha256_of(checkpoint.path / MANIFEST),
        },
        "versions": dict(dependency_versions()) | _exporter_versions(format),
        USER_CODE: [dict(entry) for entry in recorded_code(checkpoint.manifest)],
    }


def _exporter_versions(format: Format) -> dict[str, str]:
    from importlib import metadata

    return {name: metadata.version(name) for name in ("onnx", "onnxscript", "onnxruntime")} if format == "onnx" else {}

"""Evaluation of an exported policy: the same episodes and metrics as those of its checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.deploy import ExportError, load_exported, read_record, record_path
from rl_training.envs.spaces import space_from_json
from rl_training.errors import AxiomError, CheckpointError, ConfigError
from rl_training.experiment.configuration.env_params import check_env_kwargs
from rl_training.experiment.configuration.validation import raise_problems
from rl_training.experiment.own_code.run_code import recorded_code
from rl_training.experiment.own_code.user_code import LoadedFrom, admit, split_name
from rl_training.experiment.tasks import Task
from rl_training.runtime.acting.evaluator import EpisodeResult, evaluate_policy, summarize
from rl_training.runtime.export.export import DEFAULT_EPISODES
from rl_training.runtime.export.parity import ExportedActor
from rl_training.runtime.setup.size_limits import check_episodes, check_observation_size
from rl_training.runtime.setup.streams import derive_seeds


@dataclass(frozen=True)
class ExportedEvaluation:
    """The result of an evaluation of an exported policy."""

    path: Path
    step: int | None
    episodes: tuple[EpisodeResult, ...]
    metrics: dict[str, Any]


def evaluate_exported(
    path: str | Path,
    *,
    env_id: str | None = None,
    num_episodes: int | None = None,
    seed: int | None = None,
    trust_code: bool = False,
) -> ExportedEvaluation:
    """Evaluate an exported policy on the episodes that `evaluate` plays with its checkpoint.

    `env_id` names another environment with the same spaces. `trust_code` permits the execution of other people's code
    that the file names, or contains (pt2).
    """
    file = Path(path)
    record = read_record(file)
    exported = load_exported(file, trust_code=trust_code)
    task = _task(record, env_id, file, trust_code=trust_code)
    count = num_episodes if num_episodes is not None else _whole(record, "eval_episodes") or DEFAULT_EPISODES
    base = seed if seed is not None else _whole(record, "seed") or 0
    if count < 1 or base < 0:
        raise AxiomError(f"an evaluation needs at least 1 episode and a seed of at least 0, got {count} and {base}")
    check_episodes("num_episodes", count)
    check_observation_size(task)
    try:
        spaces = [space_from_json(record[name]) for name in ("observation_space", "action_space")]
    except (CheckpointError, KeyError) as error:
        raise ExportError(f"the record of {file} describes no spaces ({error!s:.200}); export again") from None
    seeds = derive_seeds(base, "evaluation", "command", count=count)
    episodes = evaluate_policy(ExportedActor(exported, *spaces), task, seeds)
    checkpoint = record.get("checkpoint")
    step = _whole(checkpoint, "step") if isinstance(checkpoint, dict) else None
    metrics = ({} if step is None else {"global_step": step}) | summarize(episodes)
    return ExportedEvaluation(file, step, tuple(episodes), metrics)


def _task(record: dict[str, Any], env_id: str | None, file: Path, *, trust_code: bool) -> Task:
    """Return the environment of an exported policy, after importing the code that its name refers to."""
    chosen = env_id if env_id is not None else record.get("env_id")
    kwargs = record.get("env_kwargs", {})
    if not isinstance(chosen, str) or not isinstance(kwargs, dict):
        raise ConfigError(f"the record of {file} names no environment; name it by --env ID")
    if split_name(chosen)[0]:
        loaded = LoadedFrom(f"export {file}", recorded_code(record), trust_code) if env_id is None else None
        admit(chosen, place="env_id", loaded=loaded)
    checked, problems = check_env_kwargs(kwargs)
    raise_problems(problems, lambda path: record_path(file))
    return Task(chosen, chosen, checked)


def _whole(record: dict[str, Any], key: str) -> int | None:
    value = record.get(key)
    return value if type(value) is int and value >= 0 else None

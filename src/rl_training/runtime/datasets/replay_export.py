"""Writes the replay of an off-policy run as a dataset: its transitions, put together to episodes again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import Space, spaces

from rl_training.data.datasets.episode import ACTION_MASK, Episode
from rl_training.data.datasets.location import check_id, datasets_root
from rl_training.data.datasets.safe_hdf5 import import_h5py
from rl_training.data.datasets.writer import Description, check_new, new_dataset, temporary_directory
from rl_training.data.mask_store import MaskStore
from rl_training.data.observation_store import ObservationStore
from rl_training.errors import AxiomError, CheckpointError
from rl_training.experiment.checkpoints import Checkpoint, resolve_checkpoint, verify_checkpoint
from rl_training.experiment.config import TrainConfig, algorithm_params
from rl_training.experiment.configuration.env_params import env_params
from rl_training.experiment.machine import available_memory
from rl_training.experiment.own_code.run_code import admit_code, checkpoint_config, loaded_from
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.experiment.storage.segments import read_segment
from rl_training.experiment.tasks import tasks_of
from rl_training.runtime.acting.policy import Policy, policies_from_checkpoint
from rl_training.runtime.datasets.origin import default_stem, environment_spec, minari_entries, origin_of
from rl_training.runtime.datasets.progress import progress_of
from rl_training.runtime.datasets.recording import Recorded, recorded
from rl_training.runtime.ranks.share import Share
from rl_training.runtime.setup.restored_state import check_replay_counts, checkpoint_fits, read_checked_state

_IN_MEMORY = 0.25  # part of the free memory; a larger replay is read into files
_COLUMNS = ("observation", "successor", "action", "reward", "discount", "env")
_OBSERVATION, _MASK, _TRANSITION = "observation/", "mask/", "transition/"  # prefixes of saved columns


def export_replay(path: Path, name: str | None, *, quiet: bool = False, trust_code: bool = False) -> Recorded:
    """Write the transitions in a run's replay as a dataset of episodes, the oldest first.

    The oldest episode of each environment may lack its beginning, and the newest is cut off where the run is.
    """
    import_h5py()
    if name is not None:
        check_new(check_id(name))
    checkpoint = verify_checkpoint(resolve_checkpoint(path), to_resume=True)
    config = checkpoint_config(checkpoint, trust_code=trust_code)
    _check_kind(checkpoint, config)
    admit_code(config, loaded_from(checkpoint, trust_code=trust_code), callbacks=False)
    (task,) = tasks_of(config)
    policies = policies_from_checkpoint(checkpoint, config, device="cpu", trust_code=trust_code)
    policy = next(iter(policies.values()))
    name = name or _free_name(default_stem(config, task, "replay"))
    with _room(checkpoint) as directory, checkpoint_fits(checkpoint):
        replays = _read_replays(checkpoint, config, policy.observation_space, directory)
        described = (
            f"the replay of {config.algo} on {task.env_id} (run {checkpoint.run_dir.name}, step {checkpoint.step}): "
            "what it did while it learned, with the rewards of training"
        )
        description = Description(
            name,
            policy.observation_space,
            policy.action_space,
            origin_of("replay", checkpoint, config, task, "training"),
            environment_spec(task, "training"),
            minari_entries(config, task, described),
        )
        with (
            new_dataset(description) as file,
            progress_of(f"writing {name}", sum(len(rows.columns["env"]) for rows in replays), quiet=quiet) as progress,
        ):
            for rows in replays:
                for transitions in episodes_in(rows.columns):
                    file.add(_episode(rows, transitions, policy))
                    progress.add(len(transitions))
    return recorded(name)


def _check_kind(checkpoint: Checkpoint, config: TrainConfig) -> None:
    """Raise an error for a run whose replay cannot be written as episodes."""
    entries = checkpoint.manifest.get("segments", ())
    instead = (
        f"`axiomrl dataset record --checkpoint {checkpoint.run_dir} --episodes 100` records new episodes of its policy"
    )
    if not entries:
        raise AxiomError(f"run {checkpoint.run_dir} keeps no replay: {config.algo} forgets its rollouts; {instead}")
    if get_algorithm_spec(config.algo).many_tasks:
        raise AxiomError(
            f"run {checkpoint.run_dir} has a replay for each of its tasks, which are not written; {instead}"
        )
    n_step = getattr(algorithm_params(config), "stored_steps", 1)
    if n_step > 1:
        raise AxiomError(
            f"the replay of {checkpoint.run_dir} holds sums of {n_step} rewards, not the rewards of steps; train with "
            f"--set algo_kwargs.n_step=1 for a dataset of its replay, or {instead}"
        )
    if not all(entry.get("raw", False) for entry in entries):
        raise CheckpointError(f"the replay of {checkpoint.run_dir} was written by an earlier version; {instead}")


class _Rows(NamedTuple):
    """The transitions of a replay, the oldest first, and the observations that they refer to."""

    columns: Mapping[str, np.ndarray]
    observations: ObservationStore
    masks: MaskStore
    stack: int


def _read_replays(
    checkpoint: Checkpoint, config: TrainConfig, space: Space[Any], directory: Path | None
) -> list[_Rows]:
    """Return the rows of a checkpoint's replays, one of each learner, that can still be sampled."""
    state = read_checked_state(checkpoint, config)
    shares = [Share(rank, config.devices or 1) for rank in range(config.devices or 1)]
    stack = env_params(config, "training").frame_stack
    return [
        _read_rows(share.of_state(state, checkpoint)["collector"], share.rank, checkpoint, space, stack, directory)
        for share in shares
    ]


def _read_rows(
    state: Mapping[str, Any],
    number: int,
    checkpoint: Checkpoint,
    space: Space[Any],
    stack: int,
    directory: Path | None,
) -> _Rows:
    """Return the rows of one replay, given the state of its collector."""
    entries = [entry for entry in checkpoint.manifest["segments"] if entry.get("replay", 0) == number]
    check_replay_counts(state, entries, number)
    oldest, count = int(state["replay"]["oldest"]), int(state["replay"]["count"])
    first = min(entry["observations"][0] for entry in entries)
    last = max(entry["observations"][1] for entry in entries)
    observations = ObservationStore(space, last - first, stack=stack, directory=directory, keep_double=True)
    masks = MaskStore(last - first, directory=directory)
    parts: dict[str, list[np.ndarray]] = {column: [] for column in _COLUMNS}
    for entry in sorted(entries, key=lambda entry: entry["transitions"][0]):
        arrays = read_segment(checkpoint.run_dir, entry)
        begin = entry["observations"][0]
        observations.restore_rows(begin, _below(_OBSERVATION, arrays))
        masks.restore_rows(begin, _below(_MASK, arrays))
        wanted = slice(max(oldest - entry["transitions"][0], 0), None)
        for column in _COLUMNS:
            parts[column].append(arrays[f"{_TRANSITION}{column}"][wanted])
    observations.count = last
    columns = {column: np.concatenate(arrays) for column, arrays in parts.items()}
    if len(columns["env"]) != count - oldest or not count - oldest:
        raise CheckpointError(
            f"the segments of {checkpoint.path} do not hold the {count - oldest:,} rows of its replay"
        )
    for column in ("observation", "successor"):
        if columns[column].min() < first or columns[column].max() >= last:
            raise CheckpointError(f"the segments of {checkpoint.path} lack observations of its transitions")
    return _Rows(columns, observations, masks, stack)


def episodes_in(columns: Mapping[str, np.ndarray]) -> Iterator[np.ndarray]:
    """Return the rows of each episode in the order of their steps, the episode that began first at first.

    A transition continues the one before it in its environment if it begins with the observation that that one led to.
    """
    found: list[np.ndarray] = []
    for env in np.unique(columns["env"]):
        rows = np.flatnonzero(columns["env"] == env)
        left, entered = columns["successor"][rows[:-1]], columns["observation"][rows[1:]]
        same = (left == entered).reshape(len(left), -1).all(axis=1)
        breaks = np.flatnonzero(~same | (columns["discount"][rows[:-1]] == 0.0)) + 1
        found += np.split(rows, breaks)
    yield from sorted(found, key=lambda rows: int(rows[0]))


def _episode(rows: _Rows, transitions: np.ndarray, policy: Policy) -> Episode:
    columns = rows.columns
    serials = np.concatenate([columns["observation"][transitions], columns["successor"][transitions[-1:]]])
    observations: Any = rows.observations.get(serials)
    space = policy.observation_space
    if isinstance(space, spaces.Dict):
        observations = {key: observations[key].astype(part.dtype, copy=False) for key, part in space.items()}
    else:
        observations = observations.astype(space.dtype, copy=False)
    last = np.arange(1, len(transitions) + 1) == len(transitions)
    terminated = columns["discount"][transitions[-1]] == 0.0
    mask = rows.masks.get(serials if rows.stack == 1 else serials[:, -1])
    actions = policy.actor.env_action(torch.as_tensor(columns["action"][transitions]))
    return Episode(
        observations,
        np.asarray(actions, policy.action_space.dtype),
        columns["reward"][transitions],
        last & terminated,
        last & ~terminated,  # by the environment, or because the replay ends here
        {} if mask is None else {ACTION_MASK: mask},
        None,
    )


@contextmanager
def _room(checkpoint: Checkpoint) -> Iterator[Path | None]:
    """Give a directory for a replay that is too large for memory, else None."""
    size = sum(int(entry["size"]) for entry in checkpoint.manifest["segments"])
    if size <= available_memory() * _IN_MEMORY:
        yield None
        return
    with temporary_directory() as directory:
        yield directory


def _free_name(stem: str) -> str:
    version = 0
    while (datasets_root() / f"{stem}-v{version}").exists():
        version += 1
    return f"{stem}-v{version}"


def _below(prefix: str, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {key.removeprefix(prefix): array for key, array in arrays.items() if key.startswith(prefix)}

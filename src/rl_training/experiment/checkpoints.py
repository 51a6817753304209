"""Checkpoint directories: durable writing, verification by hash, and search for the newest undamaged one.

`checkpoints/step_<n>/` contains `manifest.json` and the files it lists. A checkpoint is written under a temporary name,
synced to disk and renamed; only then do the pointers `latest` and `best` move to it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl_training.errors import CheckpointError, StorageError
from rl_training.experiment.named_callbacks import CALLBACKS, kept_states
from rl_training.experiment.runs import METADATA
from rl_training.experiment.storage.files import (
    GONE,
    is_own_directory,
    make_directory,
    sha256_of,
    storage_errors,
    sync_directory,
    sync_file,
)
from rl_training.experiment.storage.segments import check_segment, remove_unused
from rl_training.experiment.storage.state_files import STATE_FILE, TENSORS_FILE
from rl_training.experiment.storage.untrusted import UntrustedFileError, read_json

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
CHECKPOINTS = "checkpoints"
LATEST, BEST = "latest", "best"
_REPLACED = ".replaced"
_STEP_NAME = re.compile(rf"step_([0-9]{{1,19}})({re.escape(_REPLACED)})?")
_TEMPORARY = ".writing-"
_TEMPORARY_NAME = re.compile(rf"{re.escape(_TEMPORARY)}(step_[0-9]+|{LATEST}|{BEST})-[0-9]+")
_FILES = (MANIFEST, STATE_FILE, TENSORS_FILE)
"""The files of a checkpoint; the manifest is removed first, so that a partly removed one is never taken as complete."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose files were verified."""

    path: Path
    manifest: Mapping[str, Any]

    @property
    def step(self) -> int:
        """Environment step at which it was written."""
        return int(self.manifest["step"])

    @property
    def config(self) -> dict[str, Any]:
        """The run's configuration as plain data."""
        return dict(self.manifest["config"])

    @property
    def run_dir(self) -> Path:
        """The run directory that contains it."""
        return self.path.parent.parent


@dataclass(frozen=True)
class ResumePoint:
    """Where training continues: a verified checkpoint, in its own run or as the start of a new one (fork)."""

    checkpoint: Checkpoint
    fork: bool = False
    notices: tuple[str, ...] = ()
    """Messages to the user about the choice of checkpoint."""
    changed: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    """Settings that differ from the checkpoint's: key -> (before, after)."""
    trust_code: bool = False
    """Whether the user trusts the code named in the checkpoint's configuration."""

    def lineage(self) -> dict[str, Any]:
        """Return the entry about the parent in the metadata of a forked run."""
        changed = {key: list(values) for key, values in self.changed.items()}
        return {**checkpoint_lineage(self.checkpoint, "fork"), "changed": changed}

    def asks_for_more(self, total_timesteps: int) -> bool:
        """Return whether a run that a callback had stopped should continue: with a new horizon or changed settings."""
        return total_timesteps != self.checkpoint.config["total_timesteps"] or (self.fork and bool(self.changed))

    def kept_callbacks(self, states: Mapping[str, Any]) -> dict[str, Any]:
        """Return the saved states of callbacks, without those that changed settings of callbacks invalidate."""
        kept = kept_states(*self.changed[CALLBACKS], states) if CALLBACKS in self.changed else dict(states)
        if not any(key.startswith("early_stopping.") for key in self.changed):
            return kept
        return {name: state for name, state in kept.items() if not name.startswith("EarlyStopping-")}


def checkpoint_lineage(checkpoint: Checkpoint, kind: str) -> dict[str, Any]:
    """Return the metadata entry about the checkpoint that a run started from."""
    return {
        "kind": kind,
        "run_dir": str(checkpoint.run_dir),
        "checkpoint": checkpoint.path.name,
        "step": checkpoint.step,
        "sha256": sha256_of(checkpoint.path / MANIFEST),
    }


def checkpoint_step(path: Path) -> int | None:
    """Return the step in a checkpoint directory's name, or None for any other name."""
    match = _STEP_NAME.fullmatch(path.name)
    return int(match.group(1)) if match else None


def list_checkpoints(run_dir: Path) -> list[Path]:
    """Return a run's checkpoint directories, newest first, without incomplete ones."""
    directory = run_dir / CHECKPOINTS
    if not directory.is_dir():
        return []
    found = [
        (step, path.suffix != _REPLACED, path)
        for path in directory.iterdir()
        if (step := checkpoint_step(path)) is not None and is_own_directory(path)
    ]
    return [path for _, _, path in sorted(found, reverse=True)]


def write_checkpoint(
    run_dir: Path, step: int, write_files: Callable[[Path], None], manifest: Mapping[str, Any]
) -> Path:
    """Write `checkpoints/step_<step>` durably and return it; a failure leaves earlier checkpoints untouched."""
    directory = run_dir / CHECKPOINTS
    target = directory / f"step_{step}"
    temporary = directory / f"{_TEMPORARY}{target.name}-{os.getpid()}"
    with storage_errors("a checkpoint", directory):
        try:
            make_directory(directory)
            _remove_unfinished(directory)
            temporary.mkdir()
            write_files(temporary)
            files = {}
            for path in sorted(temporary.iterdir()):
                sync_file(path)
                files[path.name] = {"size": path.stat().st_size, "sha256": sha256_of(path)}
            content = {"format_version": FORMAT_VERSION, "step": step, **manifest, "files": files}
            (temporary / MANIFEST).write_text(json.dumps(content, indent=2, allow_nan=False) + "\n", encoding="utf-8")
            sync_file(temporary / MANIFEST)
            sync_directory(temporary)
            replaced = target.with_suffix(_REPLACED)
            if is_own_directory(target):  # a second save at this step: keep the first until the new one has its name
                _remove_checkpoint(replaced)
                os.rename(target, replaced)
            os.rename(temporary, target)
            sync_directory(directory)
            _remove_checkpoint(replaced)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return target


def check_still_there(checkpoint: Path) -> None:
    """Raise an error if the latest checkpoint of a run was removed by somebody else."""
    if not (checkpoint / MANIFEST).is_file():
        raise StorageError(f"cannot write a checkpoint in {checkpoint.parent}: {checkpoint.name} is missing; {GONE}")


def point(run_dir: Path, name: str, checkpoint: Path) -> None:
    """Move the pointer `latest` or `best` to a checkpoint atomically."""
    directory = run_dir / CHECKPOINTS
    temporary = directory / f"{_TEMPORARY}{name}-{os.getpid()}"
    with storage_errors(f"the pointer `{name}`", directory):
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(checkpoint.name)
        _remove_copied_pointer(directory / name)
        os.replace(temporary, directory / name)
        sync_directory(directory)


def prune_checkpoints(run_dir: Path, keep: int | None) -> None:
    """Delete all but the newest `keep` checkpoints; those that a pointer names are kept too."""
    if keep is None:
        return
    protected = {target for name in (LATEST, BEST) if (target := pointed(run_dir, name)) is not None}
    for path in list_checkpoints(run_dir)[keep:]:
        if path not in protected:
            _remove_checkpoint(path)
    _remove_unused_segments(run_dir)


def _remove_unused_segments(run_dir: Path) -> None:
    """Delete the segments that no checkpoint lists; if any checkpoint is unreadable, all are kept."""
    used: set[str] = set()
    for path in list_checkpoints(run_dir):
        try:
            used |= {str(entry["name"]) for entry in read_json(path / MANIFEST).get("segments", ())}
        except FileNotFoundError:
            continue  # the remains of a removed checkpoint: it can never be resumed
        except (UntrustedFileError, KeyError, TypeError, AttributeError):
            return
    remove_unused(run_dir, used)


def _remove_checkpoint(path: Path) -> None:
    """Delete a checkpoint's own files, and its directory if it is then empty."""
    if is_own_directory(path):
        with contextlib.suppress(OSError):  # remaining files are listed as damaged and do no harm
            for name in _FILES:
                (path / name).unlink(missing_ok=True)
            path.rmdir()


def go_back_to(checkpoint: Checkpoint, *, best: Path | None) -> tuple[Path, Path | None, list[Path]]:
    """Restore a run's checkpoints and pointers to the time when `checkpoint` was written.

    Returns the checkpoint under its proper name, the best one if it still exists, and the checkpoints that were deleted
    because they belong to an abandoned continuation.
    """
    run_dir, path = checkpoint.run_dir, checkpoint.path
    if path.suffix == _REPLACED:  # the process was killed while replacing it
        with storage_errors("a checkpoint", path.parent):
            _remove_checkpoint(path.with_suffix(""))
            path = path.rename(path.with_suffix(""))
    newer = [other for other in list_checkpoints(run_dir) if (checkpoint_step(other) or 0) > checkpoint.step]
    for other in newer:
        _remove_checkpoint(other)
    _remove_unused_segments(run_dir)
    point(run_dir, LATEST, path)
    if best is None or not is_own_directory(best):
        with storage_errors(f"the pointer `{BEST}`", run_dir / CHECKPOINTS):
            _remove_copied_pointer(run_dir / CHECKPOINTS / BEST)
            (run_dir / CHECKPOINTS / BEST).unlink(missing_ok=True)
        return path, None, newer
    point(run_dir, BEST, best)
    return path, best, newer


def pointed(run_dir: Path, name: str) -> Path | None:
    """Return the checkpoint that a pointer names; None if it is missing, dangling or leads out of the run."""
    pointer = run_dir / CHECKPOINTS / name
    try:
        target = pointer.with_name(os.readlink(pointer))
    except ValueError:  # a path; a pointer contains only a name
        return None
    except OSError:
        target = _original_of(pointer)
    return target if checkpoint_step(target) is not None and is_own_directory(target) else None


def _original_of(pointer: Path) -> Path:
    """Return the checkpoint of which a pointer is a copy: `scp -r` and `cp -L` copy symbolic links as directories."""
    try:
        step = read_json(pointer / MANIFEST)["step"]
    except (FileNotFoundError, UntrustedFileError, KeyError, TypeError):
        return pointer
    return pointer.with_name(f"step_{step}") if type(step) is int else pointer


def _remove_copied_pointer(pointer: Path) -> None:
    """Remove a copied pointer, so that a symbolic link can take its place."""
    _remove_checkpoint(pointer)
    if is_own_directory(pointer):
        raise StorageError(f"cannot write in {pointer}: it holds files of somebody else; move them away")


def verify_checkpoint(path: Path, *, to_resume: bool = False) -> Checkpoint:
    """Check every file of a checkpoint and return it; raise an error that names the damage.

    The segments of a replay are only needed, and checked, with `to_resume`.
    """
    manifest = _read_manifest(path)
    files = manifest["files"]
    for name in (STATE_FILE, TENSORS_FILE):
        if name not in files:
            raise CheckpointError(f"checkpoint {path} is damaged: {MANIFEST} does not list {name}")
    for name, entry in files.items():
        file, size, sha256 = path / name, entry["size"], entry["sha256"]
        if Path(name).name != name or name in ("", ".."):
            raise CheckpointError(f"checkpoint {path} is unsafe: its manifest lists the file {name!r} outside of it")
        if not file.is_file():
            raise CheckpointError(f"checkpoint {path} is damaged: {name} is missing")
        if file.stat().st_size != size:
            raise CheckpointError(
                f"checkpoint {path} is damaged: {name} has {file.stat().st_size} bytes instead of {size}"
            )
        if sha256_of(file) != sha256:
            raise CheckpointError(f"checkpoint {path} is damaged: the content of {name} does not match its hash")
    for entry in manifest.get("segments", ()) if to_resume else ():
        try:
            check_segment(path.parent.parent, entry)
        except CheckpointError as error:
            raise CheckpointError(f"checkpoint {path} is damaged: {error}") from error
    return Checkpoint(path, manifest)


def _read_manifest(path: Path) -> dict[str, Any]:
    """Return the manifest of a checkpoint, checked against its schema."""
    # pydantic takes a moment to import
    from rl_training.experiment.storage.schemas import Manifest, OtherVersionError, read_checked

    try:
        return read_checked(path / MANIFEST, Manifest, version_key="format_version", version=FORMAT_VERSION)
    except FileNotFoundError as error:
        raise CheckpointError(f"checkpoint {path} is damaged: {MANIFEST} is missing") from error
    except OtherVersionError as error:
        raise CheckpointError(
            f"checkpoint {path} has format version {error.version}, this release reads {FORMAT_VERSION}; "
            "install the release that wrote it (its version is in the manifest)"
        ) from error
    except UntrustedFileError as error:
        raise CheckpointError(f"checkpoint {path} is damaged: {MANIFEST} cannot be read ({error})") from error


def resolve_checkpoint(path: Path) -> Path:
    """Return the checkpoint directory that a checkpoint, a pointer or a run directory refers to."""
    if not path.exists() and not path.is_symlink():
        raise CheckpointError(f"no checkpoint at {path}: give a run directory, or a directory in its `{CHECKPOINTS}`")
    if path.is_file():
        raise CheckpointError(
            f"{path} is a file: a checkpoint is a directory with a {MANIFEST}; "
            f"give a run directory or a directory in its `{CHECKPOINTS}`"
        )
    path = Path(os.path.abspath(path))  # `.` and `step_5` have no parent that names the run
    if path.name in (LATEST, BEST) and path.parent.name == CHECKPOINTS:
        target = pointed(path.parent.parent, path.name)
        if target is None:
            raise CheckpointError(f"{path} leads nowhere: give a directory in {path.parent}")
        return target
    if path.is_symlink():  # a link made by the user
        path = path.resolve()
    if (path / CHECKPOINTS).is_dir() or (path / METADATA).is_file():
        target = pointed(path, LATEST) or next(iter(list_checkpoints(path)), None)
        if target is None:
            raise CheckpointError(f"run {path} has no complete checkpoint: start it anew with its config.yaml")
        return target
    if checkpoint_step(path) is None and not (path / MANIFEST).exists():
        raise CheckpointError(f"{path} is neither a checkpoint nor a run directory")
    return path


def newest_sound_checkpoint(path: Path) -> tuple[Checkpoint, list[str]]:
    """Return the checkpoint to resume from, and messages about damaged ones.

    The checkpoint that `path` refers to is tried first, then the older ones of its run, newest first.
    """
    first = resolve_checkpoint(path)
    step = checkpoint_step(first)
    candidates = [first]
    if step is not None:
        older = list_checkpoints(first.parent.parent)
        candidates += [other for other in older if (checkpoint_step(other) or 0) < step]
    damaged: list[str] = []
    for candidate in candidates:
        try:
            return verify_checkpoint(candidate, to_resume=True), damaged
        except CheckpointError as error:
            damaged.append(str(error))
    raise CheckpointError("\n".join([*damaged, "no sound checkpoint is left; start the run anew with its config.yaml"]))


def _remove_unfinished(directory: Path) -> None:
    """Delete the remains of interrupted saves."""
    for path in directory.iterdir():
        if not _TEMPORARY_NAME.fullmatch(path.name):
            continue
        if is_own_directory(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)

"""Reads a model that Stable-Baselines3 saved, without unpickling: its settings from JSON, its weights as tensors.

Everything that a file may contain to harm its reader is refused before it is read: huge or compressed entries, names
that lead elsewhere, tensors larger than their data, and any pickle that is more than a list of tensors.
"""

from __future__ import annotations

import io
import math
import pickle
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch import Tensor

from rl_training.errors import AxiomError
from rl_training.experiment.storage.files import sha256_of
from rl_training.experiment.storage.untrusted import UntrustedFileError, parse_json

MAX_BYTES = 1 << 30
MAX_DATA_BYTES = 64 << 20
MAX_ENTRIES = 64
MAX_RATIO = 200  # of an entry's size to its compressed size; deflated weights have about 1
DATA, POLICY, VARIABLES, VERSION = "data", "policy.pth", "pytorch_variables.pth", "_stable_baselines3_version"
SERIALIZED = ":serialized:"
"""Marks a value that only Stable-Baselines3 can read, by unpickling it."""


class ModelError(AxiomError):
    """A file is not a model that can be imported."""


@dataclass(frozen=True)
class SavedModel:
    """The content of a model's file."""

    path: Path
    sha256: str
    version: str
    data: dict[str, Any]
    """Settings; values that need unpickling are dicts with the key `SERIALIZED`."""
    weights: dict[str, Tensor]
    variables: dict[str, Tensor]


def read_model(path: Path) -> SavedModel:
    """Return the content of a model's file, read without executing anything."""
    if not path.is_file():
        raise ModelError(f"{path} is not a file; give the zip that model.save(...) wrote")
    try:
        with zipfile.ZipFile(path) as archive:
            entries = _checked_entries(archive, path)
            for name in (DATA, POLICY):
                if name not in entries:
                    raise ModelError(f"{path} holds no `{name}`; give the zip that model.save(...) wrote")
            data = _json(_read(archive, entries[DATA], path, MAX_DATA_BYTES), path)
            weights = _tensors(_read(archive, entries[POLICY], path, MAX_BYTES), f"{path}: {POLICY}")
            variables = {}
            if VARIABLES in entries:
                variables = _tensors(_read(archive, entries[VARIABLES], path, MAX_BYTES), f"{path}: {VARIABLES}")
            version = "unknown"
            if VERSION in entries:
                version = _read(archive, entries[VERSION], path, 1 << 10).decode("utf-8", "replace").strip()
    except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError, RuntimeError) as error:
        raise ModelError(
            f"{path} cannot be read as a zip ({error!s:.100}); give the zip that model.save(...) wrote"
        ) from error
    return SavedModel(path, sha256_of(path), version, data, weights, variables)


def _checked_entries(archive: zipfile.ZipFile, path: Path) -> dict[str, zipfile.ZipInfo]:
    """Return the entries by name, or raise an error for a file that no program has saved as a model."""
    found = archive.infolist()
    if len(found) > MAX_ENTRIES:
        raise ModelError(f"{path} has {len(found)} entries, a model has at most {MAX_ENTRIES}; it is not read")
    entries: dict[str, zipfile.ZipInfo] = {}
    for entry in found:
        parts = PurePosixPath(entry.filename.replace("\\", "/")).parts
        if not parts or parts[0] == "/" or ".." in parts or ":" in parts[0]:
            raise ModelError(f"{path} holds an entry that leads elsewhere, {entry.filename!r:.100}; it is not read")
        if entry.filename in entries:
            raise ModelError(f"{path} holds `{entry.filename:.100}` twice; it is not read")
        if entry.file_size > MAX_BYTES or entry.file_size > MAX_RATIO * max(entry.compress_size, 1 << 10):
            raise ModelError(
                f"{path}: `{entry.filename:.100}` would take {entry.file_size:,} bytes from "
                f"{entry.compress_size:,}; it is not read"
            )
        entries[entry.filename] = entry
    return entries


def _read(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, path: Path, limit: int) -> bytes:
    """Return an entry's content; the size in the directory may be wrong, so that the limit holds here too."""
    with archive.open(entry) as file:
        content = file.read(min(limit, entry.file_size) + 1)
    if len(content) > min(limit, entry.file_size):
        raise ModelError(f"{path}: `{entry.filename:.100}` has more bytes than a model has; it is not read")
    return content


def _json(content: bytes, path: Path) -> dict[str, Any]:
    try:
        data = parse_json(content.decode("utf-8"), f"{path}: {DATA}")
    except (UntrustedFileError, UnicodeDecodeError) as error:
        raise ModelError(f"{error!s:.200}; give the zip that model.save(...) wrote") from None
    if not isinstance(data, dict):
        raise ModelError(f"{path}: `{DATA}` is not a mapping; give the zip that model.save(...) wrote")
    return data


def _tensors(content: bytes, name: str) -> dict[str, Tensor]:
    """Return the named tensors of a file of torch, by the loader that knows tensors only."""
    _check_torch_file(content, name)
    try:
        # With `weights_only` nothing but tensors and plain values can be built: no other function is ever called.
        loaded = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ModelError(
            f"{name} holds a pickle with more than tensors, which might execute code; it is not read: save the model "
            "again with a current Stable-Baselines3, without objects of your own"
        ) from error
    except Exception as error:  # torch raises errors of many kinds for damaged files
        raise ModelError(f"{name} is damaged ({' '.join(str(error).split()):.100}); save the model again") from error
    if not isinstance(loaded, dict):
        raise ModelError(f"{name} holds no named tensors; give the zip that model.save(...) wrote")
    for key, tensor in loaded.items():
        if not isinstance(key, str) or not _is_plain(tensor):
            raise ModelError(f"{name} holds `{key!s:.100}`, which is no plain tensor of finite numbers; it is not read")
    return dict(loaded)


def _check_torch_file(content: bytes, name: str) -> None:
    """Raise an error for other formats of torch, which are pickles, and for compressed entries."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            entries = archive.infolist()
    except zipfile.BadZipFile as error:
        raise ModelError(
            f"{name} is a bare pickle or damaged, not torch's zip of tensors; it is not read: save the model again "
            "with a current Stable-Baselines3"
        ) from error
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries) or sum(
        entry.file_size for entry in entries
    ) > len(content):
        raise ModelError(f"{name} is larger inside than outside, as no file of torch is; it is not read")


def _is_plain(tensor: Any) -> bool:
    if not isinstance(tensor, Tensor) or tensor.layout != torch.strided or tensor.is_quantized:
        return False
    # A tensor may claim to be larger than its data.
    if math.prod(tensor.shape) * tensor.element_size() > max(tensor.untyped_storage().nbytes(), 0):
        return False
    return not tensor.is_floating_point() or bool(torch.isfinite(tensor).all())

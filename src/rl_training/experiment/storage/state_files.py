"""A state tree on disk: tensors in safetensors, everything else in strict JSON, nothing executable.

A state is a nested dict or list of tensors, NumPy arrays and plain values. `state.json` contains the tree; an array is
replaced by a reference to its entry in `tensors.safetensors`.
"""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rl_training.errors import CheckpointError
from rl_training.experiment.storage.files import safetensors_errors
from rl_training.experiment.storage.untrusted import UntrustedFileError, read_json

if TYPE_CHECKING:
    from torch import Tensor

TENSORS_FILE = "tensors.safetensors"
STATE_FILE = "state.json"
_TENSOR, _ARRAY, _FLOAT = "__tensor__", "__array__", "__float__"
_MARKS = (_TENSOR, _ARRAY, _FLOAT)


def write_state(directory: Path, state: Any) -> None:
    """Write a state tree into a directory."""
    from safetensors.torch import save_file

    tensors: dict[str, Tensor] = {}
    tree = _encode(state, "", tensors)
    with safetensors_errors():
        save_file(tensors, directory / TENSORS_FILE)
    (directory / STATE_FILE).write_text(json.dumps(tree, allow_nan=False), encoding="utf-8")
    # The library makes its file private; use the umask instead.
    shutil.copymode(directory / STATE_FILE, directory / TENSORS_FILE)


def read_state(directory: Path) -> Any:
    """Read the state tree that `write_state` wrote."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = load_file(directory / TENSORS_FILE)
        return _decode(read_json(directory / STATE_FILE), tensors)
    except (OSError, SafetensorError, UntrustedFileError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{directory} cannot be read as a checkpoint's state: {error!s:.300}") from error


def _encode(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    import torch

    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        number = float(value)
        return number if math.isfinite(number) else {_FLOAT: repr(number)}
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, torch.Tensor):
        # A copy, because the storage may be shared or larger than the tensor.
        tensors[path] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
        return {_TENSOR: path}
    if isinstance(value, np.ndarray):
        tensors[path] = torch.from_numpy(np.ascontiguousarray(value).copy()).reshape(value.shape)
        return {_ARRAY: path}
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value) or any(mark in value for mark in _MARKS):
            raise TypeError(f"state at {path or 'the root'} has a key that is not a plain string")
        return {key: _encode(item, f"{path}/{key}" if path else key, tensors) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_encode(item, f"{path}/{index}" if path else str(index), tensors) for index, item in enumerate(value)]
    raise TypeError(f"state at {path or 'the root'} holds a {type(value).__name__}, which is not plain data")


def _decode(tree: Any, tensors: dict[str, Tensor]) -> Any:
    """Return the tree with its arrays; each array may be referenced once."""
    if isinstance(tree, list):
        return [_decode(item, tensors) for item in tree]
    if not isinstance(tree, dict):
        return tree
    # A copy: the library returns views into the file at any multiple of four bytes, and rounding in products depends on
    # the alignment of the operands. Restored tensors must be aligned like newly allocated ones.
    if _TENSOR in tree:
        return tensors.pop(tree[_TENSOR]).clone()
    if _ARRAY in tree:
        return tensors.pop(tree[_ARRAY]).clone().numpy()
    if _FLOAT in tree:
        return float(tree[_FLOAT])
    return {key: _decode(item, tensors) for key, item in tree.items()}

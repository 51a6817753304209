"""Acting with an exported policy, without torch and Gymnasium: only NumPy and onnxruntime are imported.

`axiomrl export` writes a file and its record, `<file>.json`; docs/export.md describes both.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import numpy as np

from rl_training.envs.arrays import as_batch, as_mask, as_memory
from rl_training.errors import AxiomError, MissingExtraError
from rl_training.experiment.storage.untrusted import UntrustedFileError, read_bytes, read_json

if TYPE_CHECKING:
    from pathlib import Path

FORMAT_VERSION = 1
FORMATS = ("onnx", "pt2")
MAX_RECORD_BYTES = 64 << 20
MAX_FILE_BYTES = 4 << 30
ACTION = "action"
MASK = "action_mask"
OBSERVATION = "observation"
STATE = "state"
EPISODE_START = "episode_start"
NEXT_STATE = "next_state"
_KINDS = (OBSERVATION, MASK, STATE, EPISODE_START, "noise")
NEUTRAL = {"normal": 0.0, "exponential": 1.0, "uniform": 0.5}
"""The noise with which a sampled action is the most likely one, by distribution."""


class ExportError(AxiomError):
    """An exported file or its record is missing, damaged or does not fit."""


class Input(NamedTuple):
    """One input of an exported policy, an array [batch, *shape]."""

    name: str
    kind: Literal["observation", "action_mask", "state", "episode_start", "noise"]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    key: str | None = None
    """The key of a Dict observation."""
    low: np.ndarray | None = None
    """Smallest number of a Discrete or MultiDiscrete observation."""
    high: np.ndarray | None = None
    distribution: str | None = None
    """The distribution from which noise is drawn, independently for each number."""


class Runner(Protocol):
    """Computes actions from the arrays of all inputs."""

    def __call__(self, arrays: dict[str, np.ndarray]) -> Sequence[np.ndarray]:
        """Return the actions [batch, ...], and the states [batch, size] after them if the policy has a memory."""


class ExportedPolicy:
    """Acts on raw observations of the environment, like the policy that was exported."""

    def __init__(self, runner: Runner, inputs: Sequence[Input], record: Mapping[str, Any]) -> None:
        self.record = record
        """The content of `<file>.json`."""
        self._runner = runner
        self._observed = [one for one in inputs if one.kind == "observation"]
        self._mask = next((one for one in inputs if one.kind == "action_mask"), None)
        self._state = next((one for one in inputs if one.kind == "state"), None)
        self._noise = [one for one in inputs if one.kind == "noise"]
        self._plain = self._observed[0] if self._observed[0].key is None else None

    @property
    def takes_mask(self) -> bool:
        """Whether `predict` accepts an action mask."""
        return self._mask is not None

    @property
    def memory_size(self) -> int:
        """Numbers that the policy remembers from step to step of an episode; 0: nothing."""
        return 0 if self._state is None else self._state.shape[0]

    @property
    def samples(self) -> bool:
        """Whether the policy can sample actions."""
        return bool(self._noise)

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        *,
        action_mask: Any = None,
        deterministic: bool = True,
        seed: int | None = None,
    ) -> Any:
        """Return the action for one observation, or the actions for a batch of observations.

        With `deterministic=False` actions are sampled, if the policy was exported so; equal seeds then give equal
        actions.

        A policy with a memory returns the action and its new state, which the next call takes as `state`; None, and
        `episode_start` true for an episode, start anew.
        """
        arrays, single = self._as_batch(observation)
        rows = len(next(iter(arrays.values())))
        mask = None
        if action_mask is not None:
            if self._mask is None:
                raise AxiomError("this policy was exported without an action mask; leave action_mask out")
            mask = as_mask(action_mask, self._mask.shape[0], rows, single=single)
        generator = None
        if not deterministic:
            generator = np.random.default_rng(seed)
        if not self.memory_size:
            if state is not None or episode_start is not None:
                raise AxiomError("this policy has no memory; leave state and episode_start out")
            actions, _ = self.run(arrays, mask, generator)
            return actions[0] if single else actions
        memory = as_memory(state, episode_start, self.memory_size, rows, single=single)
        actions, after = self.run(arrays, mask, generator, *memory)
        assert after is not None
        return (actions[0], after[0]) if single else (actions, after)

    def act(
        self,
        observation: np.ndarray | Mapping[str, np.ndarray],
        mask: np.ndarray | None = None,
        memory: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the best actions [B, ...] for raw observations [B, ...] that were checked before.

        With a memory also the states after them, from `memory` [B, size], the states before; None if there is none.
        """
        arrays = {
            one.name: np.asarray(observation if one.key is None else observation[one.key], one.dtype)
            for one in self._observed
        }
        return self.run(arrays, mask, None, memory)

    def run(
        self,
        arrays: dict[str, np.ndarray],
        mask: np.ndarray | None,
        generator: np.random.Generator | None,
        memory: np.ndarray | None = None,
        episode_start: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the actions for checked arrays of the observation, sampled if a generator is given, and the states."""
        rows = len(arrays[self._observed[0].name])
        if self._mask is not None:
            arrays[self._mask.name] = np.ones((rows, *self._mask.shape), bool) if mask is None else mask
        if generator is not None and not self._noise:
            raise AxiomError("this policy was exported without sampling; export it with --stochastic")
        if self._state is not None:
            arrays[STATE] = np.zeros((rows, *self._state.shape), np.float32) if memory is None else memory
            arrays[EPISODE_START] = np.zeros(rows, bool) if episode_start is None else episode_start
        for one in self._noise:
            arrays[one.name] = _noise(one, rows, generator)
        outputs = self._runner(arrays) if rows else self._nothing()
        return outputs[0], outputs[1] if self._state is not None else None

    def _nothing(self) -> list[np.ndarray]:
        """Return actions and states for no observations, of which onnxruntime does not know the shape."""
        output = self.record["output"]
        return [np.zeros((0, *output["shape"]), output["dtype"]), np.zeros((0, self.memory_size), np.float32)]

    def _as_batch(self, observation: Any) -> tuple[dict[str, np.ndarray], bool]:
        """Return the observation's arrays by the name of their input, and whether it was a single one."""
        if self._plain is not None:
            array, single = _checked(observation, self._plain)
            return {self._plain.name: array}, single
        keys = [one.key for one in self._observed]
        if not isinstance(observation, dict) or set(observation) != set(keys):
            raise AxiomError(f"the policy expects a dict with the keys {', '.join(map(str, keys))}")
        parts = {one.name: _checked(observation[one.key], one) for one in self._observed}
        if len({(len(array), single) for array, single in parts.values()}) > 1:
            raise AxiomError("the observation's entries are not as many each: give one observation, or one batch")
        return {name: array for name, (array, _) in parts.items()}, next(single for _, single in parts.values())


def load_exported(path: str | Path, *, trust_code: bool = False, threads: int = 1) -> ExportedPolicy:
    """Return the policy of an exported file, ready to `predict`.

    `threads` is the number of onnxruntime's threads. A file of the format pt2 may execute code when it is loaded, so
    that it needs `trust_code`, and torch.
    """
    file = os.fspath(path)
    record = read_record(file)
    try:
        content = read_bytes(file, max_bytes=MAX_FILE_BYTES)
    except FileNotFoundError:
        raise ExportError(f"{file} is missing; export the policy again") from None
    if hashlib.sha256(content).hexdigest() != record["sha256"]:
        raise ExportError(f"{file} is not the file that {record_path(file)} describes; export the policy again")
    if record["format"] == "pt2" and not trust_code:
        raise ExportError(
            f"{file}: torch executes code while it loads a pt2 file; if you made the file yourself pass trust_code "
            "(--trust-code), else have it exported as onnx, which is data only"
        )
    return open_policy(content, record, file, threads=threads)


def open_policy(content: bytes, record: Mapping[str, Any], name: str, *, threads: int = 1) -> ExportedPolicy:
    """Return the policy of an exported file's content; `name` is its source in messages."""
    try:
        inputs = [_input(entry) for entry in record["inputs"]]
        if not any(one.kind == "observation" for one in inputs):
            raise ValueError("no observation among the inputs")
        _check_memory(inputs)
        np.zeros((0, *record["output"]["shape"]), record["output"]["dtype"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ExportError(
            f"the record of {name} does not describe its inputs and output ({error!s:.200}); export again"
        ) from None
    outputs = [ACTION, NEXT_STATE] if any(one.kind == "state" for one in inputs) else [ACTION]
    if record["format"] == "onnx":
        return ExportedPolicy(_onnx(content, inputs, outputs, name, threads), inputs, record)
    return ExportedPolicy(_program(content, inputs, outputs, name), inputs, record)


def record_path(file: str | Path) -> str:
    """Return the path of an exported file's record."""
    return f"{os.fspath(file)}.json"


def read_record(file: str | Path) -> dict[str, Any]:
    """Return the record of an exported file."""
    path = record_path(file)
    try:
        record = read_json(path, max_bytes=MAX_RECORD_BYTES)
    except FileNotFoundError:
        missing = path if os.path.exists(file) else file
        raise ExportError(f"{missing} is missing; `axiomrl export` writes a file and its record beside it") from None
    except UntrustedFileError as error:
        raise ExportError(f"{error}; export the policy again") from None
    if not isinstance(record, dict) or record.get("format") not in FORMATS or not isinstance(record.get("sha256"), str):
        raise ExportError(f"{path} is not the record of an exported policy; export the policy again")
    if record.get("format_version") != FORMAT_VERSION:
        raise ExportError(f"{path} was written by another release of axiomrl; export the policy again")
    return record


def _check_memory(inputs: Sequence[Input]) -> None:
    """Raise an error if the inputs of a memory are not both there, in the form that they are given in."""
    found = [(one.name, one.kind, len(one.shape)) for one in inputs if one.kind in (STATE, EPISODE_START)]
    if found and sorted(found) != [(EPISODE_START, EPISODE_START, 0), (STATE, STATE, 1)]:
        raise ValueError("a memory has one state, a vector, and one start of an episode")


def _input(entry: Mapping[str, Any]) -> Input:
    shape = tuple(entry["shape"])
    if not all(type(size) is int and size >= 0 for size in shape) or entry["kind"] not in _KINDS:
        raise ValueError(f"{entry!s:.100}")
    dtype = np.dtype(entry["dtype"])
    low, high = (None if entry.get(side) is None else np.array(entry[side], dtype) for side in ("low", "high"))
    distribution = entry.get("distribution")
    if entry["kind"] == "noise" and distribution not in NEUTRAL:
        raise ValueError(f"noise of the distribution {distribution!s:.50}")
    return Input(str(entry["name"]), entry["kind"], shape, dtype, entry.get("key"), low, high, distribution)


def _checked(value: Any, one: Input) -> tuple[np.ndarray, bool]:
    name = "" if one.key is None else f" `{one.key}`"
    batch, single = as_batch(value, one.shape, one.dtype, name)
    if one.low is not None and one.high is not None and not ((batch >= one.low) & (batch <= one.high)).all():
        raise AxiomError(
            f"the observation{name} holds a number beyond what the policy knows, {one.low.tolist()} to "
            f"{one.high.tolist()}"
        )
    return batch, single


def _noise(one: Input, rows: int, generator: np.random.Generator | None) -> np.ndarray:
    shape = (rows, *one.shape)
    if generator is None:
        return np.full(shape, NEUTRAL[str(one.distribution)], one.dtype)
    drawn = {
        "normal": lambda: generator.standard_normal(shape),
        "exponential": lambda: generator.standard_exponential(shape),
        "uniform": lambda: generator.random(shape),
    }[str(one.distribution)]()
    return np.asarray(drawn, one.dtype)


def _onnx(content: bytes, inputs: Sequence[Input], outputs: list[str], name: str, threads: int) -> Runner:
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtraError("an exported policy", "export") from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # errors are raised
    try:
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has many classes of errors
        cause = " ".join(str(error).split())
        raise ExportError(f"{name} cannot be read as an ONNX file ({cause:.200}); export the policy again") from error
    if {one.name for one in session.get_inputs()} != {one.name for one in inputs}:
        raise ExportError(f"{name} does not have the inputs that its record describes; export the policy again")
    if [one.name for one in session.get_outputs()] != outputs:
        raise ExportError(f"{name} does not have the outputs that its record describes; export the policy again")

    def run(arrays: dict[str, np.ndarray]) -> Sequence[np.ndarray]:
        try:
            action, *after = session.run(outputs, arrays)
        except Exception as error:
            cause = " ".join(str(error).split())
            raise ExportError(f"{name} cannot be run ({cause:.200}); export the policy again") from error
        # onnxruntime's integers are C's `long long`, equal to int64 but of another class.
        return [action.view(np.int64) if action.dtype.char == "q" else action, *after]

    return run


def _program(content: bytes, inputs: Sequence[Input], outputs: list[str], name: str) -> Runner:
    import torch

    try:
        module: Any = torch.export.load(io.BytesIO(content)).module()
    except Exception as error:  # torch raises errors of many kinds
        cause = " ".join(f"{type(error).__name__}: {error}".split())
        raise ExportError(f"{name} cannot be read as a pt2 file ({cause:.200}); export the policy again") from error
    names = [one.name for one in inputs]

    def run(arrays: dict[str, np.ndarray]) -> Sequence[np.ndarray]:
        with torch.no_grad():
            made = module(*(torch.from_numpy(arrays[name].copy()) for name in names))
        return [output.numpy() for output in (made if len(outputs) > 1 else (made,))]

    return run

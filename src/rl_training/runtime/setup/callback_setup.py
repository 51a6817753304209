"""Makes the callbacks named under `callbacks:`."""

from __future__ import annotations

import inspect
from typing import Any

from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.named_callbacks import named_callbacks
from rl_training.experiment.own_code.named_objects import NamedObject
from rl_training.experiment.own_code.user_code import load_object
from rl_training.runtime.callbacks import Callback


def check_named_callbacks(config: TrainConfig) -> None:
    """Raise an error for names that are not callbacks and for arguments that they do not take; none is made."""
    for entry in named_callbacks(config.callbacks):
        _load_class(entry)


def make_named_callbacks(config: TrainConfig) -> dict[str, Callback]:
    """Make the callbacks of a run, by their keys in the configuration."""
    made = {}
    for entry in named_callbacks(config.callbacks):
        kind = _load_class(entry)
        try:
            made[entry.place] = kind(**entry.arguments)
        except Exception as error:
            reason = str(error) if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}"
            raise ConfigError(f"{entry.place}: `{entry.name}` cannot be made with its arguments: {reason}") from error
    return made


def _load_class(entry: NamedObject) -> type[Callback]:
    loaded = load_object(entry.name, place=entry.place, fits=_is_callback, wanted="callback class")
    if not _is_callback(loaded):
        what = "a class" if isinstance(loaded, type) else f"a {type(loaded).__name__}"
        raise ConfigError(
            f"{entry.place}: `{entry.name}` is {what} that is no callback; name a subclass of rl_training.Callback"
        )
    kind: type[Callback] = loaded
    try:
        inspect.signature(kind).bind(**entry.arguments)
    except TypeError as error:
        raise ConfigError(
            f"{entry.place}: `{entry.name}` does not take these arguments: {error}; it is made by "
            f"{kind.__name__}{inspect.signature(kind)}"
        ) from error
    return kind


def _is_callback(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, Callback)

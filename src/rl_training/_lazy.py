"""Exports that are imported on first use, so that importing the package is fast."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

STABLE = {
    "AxiomError": "rl_training.errors",
    "Callback": "rl_training.runtime.callbacks",
    "DefaultExperimentManager": "rl_training.experiment.default_manager",
    "EarlyStopping": "rl_training.runtime.callbacks",
    "TrainConfig": "rl_training.experiment.config",
    "TrainResult": "rl_training.runtime.session",
    "TrainingEvent": "rl_training.runtime.callbacks",
    "evaluate": "rl_training.runtime.workflows",
    "load_config": "rl_training.experiment.configuration.config_files",
    "load_policy": "rl_training.runtime.acting.policy",
    "resume": "rl_training.runtime.workflows",
    "train": "rl_training.runtime.workflows",
}
"""The exports of `rl_training`, and the modules that define them."""


def lazy_exports(module: str, sources: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a module; `sources` maps a name to the module that defines it."""

    def get_attribute(name: str) -> Any:
        if name not in sources:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(sources[name]), name)
        setattr(sys.modules[module], name, value)
        return value

    def directory() -> list[str]:
        return sorted({*vars(sys.modules[module]), *sources})

    return get_attribute, directory

"""All packaged presets with their algorithms' defaults filled in, so that reports can compare runs without torch.

`python -m rl_training.zoo.preset_lock` regenerates `presets.lock.json`; a test checks it against the presets.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from rl_training.zoo.run_index import PER_RUN_KEYS

LOCK = "presets.lock.json"


@cache
def locked_presets() -> Mapping[str, Mapping[str, Any]]:
    """Return the resolved configuration of every packaged preset by name, without seed and output directory."""
    content: dict[str, dict[str, Any]] = json.loads(
        resources.files("rl_training.zoo").joinpath(LOCK).read_text(encoding="utf-8")
    )
    return content


def resolve_presets() -> dict[str, dict[str, Any]]:
    """Resolve every packaged preset, which imports its algorithm."""
    from rl_training.experiment.config import config_to_dict
    from rl_training.experiment.configuration.config_files import load_config, preset_names

    resolved = {}
    for name in preset_names():
        config = config_to_dict(load_config(preset=name))
        resolved[name] = {key: value for key, value in config.items() if key not in PER_RUN_KEYS}
    return resolved


def lock_text(presets: Mapping[str, Any]) -> str:
    """Return the content of the lock file: one line per key, for readable diffs."""
    return json.dumps(presets, indent=1, allow_nan=False) + "\n"


if __name__ == "__main__":
    Path(__file__).with_name(LOCK).write_text(lock_text(resolve_presets()), encoding="utf-8")

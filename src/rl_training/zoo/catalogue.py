"""The packaged presets at a glance, read without importing any algorithm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rl_training.experiment.config_files import preset_names, preset_values

_EXTRA_OF_FAMILY = {"gymnasium.envs.box2d": "box2d", "gymnasium.envs.mujoco": "mujoco"}


class PresetEntry(NamedTuple):
    """One line of the catalogue."""

    name: str
    algo: str
    env_id: str
    total_timesteps: int
    extra: str | None
    """What must be installed besides the core."""


def list_presets() -> list[PresetEntry]:
    """Return every packaged preset in alphabetical order."""
    entries = []
    for name in preset_names():
        values = preset_values(name)
        env_id = values["env_id"]
        entries.append(PresetEntry(name, values["algo"], env_id, values["total_timesteps"], needed_extra(env_id)))
    return entries


def needed_extra(env_id: str) -> str | None:
    """Return the extra that brings an environment of Gymnasium or ALE, or None where the core suffices."""
    if env_id.startswith("ALE/"):
        return "atari"
    from gymnasium.envs.registration import registry

    entry_point = registry[env_id].entry_point if env_id in registry else None
    for module, extra in _EXTRA_OF_FAMILY.items():
        if str(entry_point).startswith(module):
            return extra
    return None


def as_table(presets: Sequence[PresetEntry]) -> list[str]:
    """Return aligned lines with a heading."""
    rows = [("preset", "algo", "environment", "steps", "extra")]
    rows += [(p.name, p.algo, p.env_id, f"{p.total_timesteps:,}", p.extra or "-") for p in presets]
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if column == 3 else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def as_commands(presets: Sequence[PresetEntry]) -> list[str]:
    """Return the command that trains each preset."""
    return [f"axiomrl train --preset {preset.name}" for preset in presets]

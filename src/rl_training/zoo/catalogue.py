"""The list of packaged presets, read without importing any algorithm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rl_training.experiment.env_packages import extra_of_package
from rl_training.zoo.manifests import load_manifests, manifest_of
from rl_training.zoo.preset_lock import locked_presets


class PresetEntry(NamedTuple):
    """One preset in the list."""

    name: str
    algo: str
    env_id: str
    total_timesteps: int
    extra: str | None
    """The extra that must be installed."""
    suite: str | None
    """The suite whose manifest lists it."""


def list_presets() -> list[PresetEntry]:
    """Return every packaged preset in alphabetical order."""
    suite_of = {preset: manifest.suite for manifest in load_manifests() for preset in manifest.presets}
    return [
        PresetEntry(
            name,
            config["algo"],
            config["env_id"],
            config["total_timesteps"],
            _needed_extras(config),
            suite_of.get(name),
        )
        for name, config in sorted(locked_presets().items())
    ]


# Modules of environments that are not part of a suite, and the extras they need.
_EXTRAS = {"rl_training.envs.board_games": "boardgames"}


def needed_extra(env_id: str) -> str | None:
    """Return the extra that provides an environment, or None if it needs none."""
    manifest = manifest_of(env_id)
    if manifest is not None:
        return manifest.extra
    return _EXTRAS.get(env_id.partition(":")[0]) or extra_of_package(env_id)


def _needed_extras(config: Mapping[str, Any]) -> str | None:
    """Return the extras that a configuration needs, for its dataset and all tasks of a suite."""
    tasks = config["env_kwargs"].get("tasks", [config])
    extras = {extra for task in tasks if (extra := needed_extra(task["env_id"])) is not None}
    if config.get("dataset") is not None:
        extras.add("offline")
    return ",".join(sorted(extras)) or None


def catalogue_record(presets: Sequence[PresetEntry]) -> dict[str, Any]:
    """Return presets and suites as plain data."""
    suites = [
        {
            "suite": manifest.suite,
            "title": manifest.title,
            **manifest.identity,
            "protocol": manifest.protocol._asdict(),
            "presets": manifest.presets,
            "references": {
                env_id: None if reference is None else reference._asdict()
                for env_id, reference in manifest.environments.items()
            },
            "sources": manifest.sources,
        }
        for manifest in load_manifests()
    ]
    return {"presets": [preset._asdict() for preset in presets], "suites": suites}


def as_table(presets: Sequence[PresetEntry]) -> list[str]:
    """Return aligned lines with a header."""
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

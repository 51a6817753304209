"""Configurations from files, packaged presets and the command line, merged and validated once.

A file is either complete, or links another one by `config: other.yaml` (relative to itself) or `config: preset:NAME`
and overrides some of its keys.
"""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from rl_training.errors import ConfigError, did_you_mean
from rl_training.experiment.config import TrainConfig, config_to_dict, validate_config
from rl_training.experiment.configuration.fork_rules import ALGORITHM, refusal
from rl_training.experiment.configuration.safe_yaml import parse_yaml
from rl_training.experiment.configuration.settings_files import read_settings_file
from rl_training.experiment.configuration.short_trials import WARM_UP, scaled_warm_up
from rl_training.experiment.configuration.validation import KeyPath
from rl_training.experiment.own_code.user_code import LoadedFrom
from rl_training.experiment.registry import admit_algorithm

if TYPE_CHECKING:
    from importlib.abc import Traversable

logger = logging.getLogger("rl_training")

# Defaults for `--algo NAME --env ID`; a file must contain these keys.
DEFAULTS: dict[str, Any] = {"seed": 0, "total_timesteps": 100_000, "output_dir": "runs"}

_LINK_KEY = "config"
_PRESET_PREFIX = "preset:"
_PRESET_ORIGIN = "preset "  # prefix in the name of a packaged layer
_FLAGS = {"env_id": "--env", "benchmark.seeds": "--seeds", "tags": "--tag", "dataset": "--set"}


def load_config(
    path: str | Path | None = None,
    *,
    preset: str | None = None,
    base: Mapping[str, Any] | None = None,
    overrides: Mapping[str, Any] | None = None,
    set_values: Sequence[str] = (),
    loaded: LoadedFrom | None = None,
) -> TrainConfig:
    """Return the validated config of a file, a packaged preset, or `base` over the defaults.

    `overrides` contains the dedicated flags by dotted key (None: the flag was not given) and `set_values` the texts of
    `--set`; both override the file, `--set` last. `loaded` says that the user did not write `base`. Names in a
    configuration file count as written by the user.
    """
    given = sum(origin is not None for origin in (path, preset, base))
    if given > 1:
        raise ConfigError("choose one of --config, --preset and --algo with --env")
    if given == 0:
        raise ConfigError("nothing to train: give --config FILE, --preset NAME, or --algo NAME with --env ID")
    layered = _Layers()
    if base is not None:
        _add_flags(layered, DEFAULTS)
        for key, value in base.items():  # the configuration of a sweep may contain null where that is not the default
            layered.add(_nested(tuple(key.split(".")), value), _flag(key))
    else:
        location = _preset_location(preset) if preset is not None else _Location(Path(str(path)))
        for name, values in _read_chain(location):
            layered.add(values, name)
    _add_changes(layered, overrides, set_values)
    admit_algorithm(layered.values.get("algo"), loaded)
    _shorten_warm_up(layered)
    return validate_config(layered.values, source=layered.source)


def overlay_config(
    config: TrainConfig, *, overrides: Mapping[str, Any] | None = None, set_values: Sequence[str] = ()
) -> TrainConfig:
    """Return a run's configuration with `overrides` and `set_values` applied, as in `load_config`."""
    layered = _Layers()
    layered.add(config_to_dict(config), "the run's configuration")
    _add_changes(layered, overrides, set_values)
    if layered.values["algo"] != config.algo:  # the parameters of another algorithm never fit: report only this
        raise ConfigError(f"{layered.source(('algo',))}: {refusal('algo', config.algo, ALGORITHM)}")
    return validate_config(layered.values, source=layered.source)


def preset_names() -> list[str]:
    """Return the names of the packaged presets in alphabetical order."""
    return sorted(
        entry.name.removesuffix(".yaml")
        for entry in _preset_root().iterdir()
        if entry.is_file() and entry.name.endswith(".yaml")
    )


def parse_set(text: str) -> tuple[KeyPath, Any]:
    """Return the key path and the YAML value of `a.b=value`."""
    key, separator, value = text.partition("=")
    parts = tuple(part.strip() for part in key.split("."))
    if not separator:
        raise ConfigError(f"--set {text}: no `=`; write --set {key.strip() or 'KEY'}=VALUE")
    if not all(parts):
        raise ConfigError(f"--set {text}: the key before `=` is incomplete; write it as --set block.key=VALUE")
    return parts, parse_yaml(value, f"--set {text if len(text) <= 80 else text[:80] + '...'}")


@dataclass
class _Layers:
    """The values merged so far, and the layer that set each key."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[KeyPath, str] = field(default_factory=dict)
    preset: dict[str, Any] = field(default_factory=dict)
    """The top-level values of the packaged presets among the layers."""
    file: str = ""
    """The latest file, in which a missing key should be; empty if there is none."""

    def add(self, values: Mapping[str, Any], name: str) -> None:
        if not name.startswith("--"):
            self.file = name
        if name.startswith(_PRESET_ORIGIN):
            self.preset.update(values)
        self._merge(self.values, values, name, ())

    def source(self, path: KeyPath) -> str:
        """Return the layer that set the key, or the nearest key above it."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.origins:
                return self.origins[path[:length]]
        return self.file or _flag(".".join(path))

    def _merge(self, into: dict[str, Any], values: Mapping[str, Any], name: str, path: KeyPath) -> None:
        for key, value in values.items():
            here = (*path, key)
            if isinstance(value, Mapping) and isinstance(into.get(key), dict):
                self._merge(into[key], value, name, here)
                continue
            self.origins = {known: at for known, at in self.origins.items() if known[: len(here)] != here}
            self.origins[here] = name
            if isinstance(value, Mapping):
                into[key] = {}
                self._merge(into[key], value, name, here)
            else:
                into[key] = value


@dataclass(frozen=True)
class _Location:
    """A file on disk, or inside the package (which may be a zip file and then has no path)."""

    path: Path | PurePosixPath
    packaged: bool = False

    @property
    def name(self) -> str:
        return f"{_PRESET_ORIGIN}{self.path.with_suffix('')}" if self.packaged else str(self.path)

    @property
    def identity(self) -> object:
        return self if isinstance(self.path, PurePosixPath) and self.packaged else Path(self.path).resolve()

    @property
    def preset(self) -> str | None:
        """The preset's name if this file is a preset; `base/` contains the shared parts of presets."""
        return self.path.stem if self.packaged and self.path.parent == PurePosixPath() else None

    def linked(self, target: str) -> _Location:
        if target.startswith(_PRESET_PREFIX):
            return _preset_location(target.removeprefix(_PRESET_PREFIX).strip())
        if self.packaged:
            return _Location(PurePosixPath(posixpath.normpath(self.path.parent / target)), packaged=True)
        return _Location(Path(self.path).parent / Path(target).expanduser())

    def read(self) -> str:
        if not self.packaged:
            return read_settings_file(Path(self.path), inside="config.yaml")
        try:
            return _preset_root().joinpath(*self.path.parts).read_text(encoding="utf-8")
        except FileNotFoundError:
            raise ConfigError(f"{self.name}: no such file") from None


def _preset_root() -> Traversable:
    return resources.files("rl_training.zoo").joinpath("presets")


def _preset_location(name: str) -> _Location:
    if name not in preset_names():
        raise ConfigError(
            f"unknown preset `{name}`{did_you_mean(name, preset_names()) or '; `axiomrl zoo` lists them'}"
        )
    return _Location(PurePosixPath(f"{name}.yaml"), packaged=True)


def _read_chain(location: _Location) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (name, values) of a file and of all files that it links, the innermost link first."""
    chain: list[tuple[_Location, dict[str, Any]]] = []
    current: _Location | None = location
    while current is not None:
        if any(current.identity == earlier.identity for earlier, _ in chain):
            names = " -> ".join(entry.name for entry in [*(earlier for earlier, _ in chain), current])
            raise ConfigError(f"{names}: the `config:` links form a circle; remove one of them")
        values = _read_mapping(current, linked_by=chain[-1][0].name if chain else None)
        chain.append((current, values))
        current = current.linked(values.pop(_LINK_KEY)) if _LINK_KEY in values else None
    for entry, values in reversed(chain):
        yield entry.name, values


def _read_mapping(location: _Location, *, linked_by: str | None) -> dict[str, Any]:
    try:
        values = parse_yaml(location.read(), location.name)
    except ConfigError as error:
        if linked_by is None:
            raise
        raise ConfigError([f"{linked_by}: config: {text}" for text in error.problems]) from None
    if values is None:
        raise ConfigError(f"{location.name}: is empty; it needs at least algo, env_id and total_timesteps")
    if not isinstance(values, dict):
        raise ConfigError(f"{location.name}: must be a mapping `key: value`, got {type(values).__name__}")
    link = values.get(_LINK_KEY, "")
    if _LINK_KEY in values and not (isinstance(link, str) and link):
        raise ConfigError(f"{location.name}: config: must be the path of another file, got {link!r}")
    return values if location.preset is None else {"preset": location.preset, **values}


def _add_changes(layered: _Layers, overrides: Mapping[str, Any] | None, set_values: Sequence[str]) -> None:
    """Apply the flags and then `--set` to the layers."""
    _add_flags(layered, overrides or {})
    for text in set_values:
        key, value = parse_set(text)
        layered.add(_nested(key, value), "--set")


def _add_flags(layered: _Layers, flags: Mapping[str, Any]) -> None:
    for key, value in flags.items():
        if value is not None:
            layered.add(_nested(tuple(key.split(".")), value), _flag(key))


def _shorten_warm_up(layered: _Layers) -> None:
    """Scale a warm-up that the user did not choose down with the horizon, and report it."""
    meant = layered.preset.get("total_timesteps", DEFAULTS["total_timesteps"])
    path = ("algo_kwargs", WARM_UP)
    origin = layered.origins.get(path)
    scaled = scaled_warm_up(
        layered.values,
        chosen=origin is not None and not origin.startswith(_PRESET_ORIGIN),
        horizon=meant,
        origin=origin or "the defaults",
    )
    if scaled is not None:
        logger.warning("%s", scaled.sentence)
        layered.add(_nested(path, scaled.steps), layered.source(("total_timesteps",)))


def _flag(key: str) -> str:
    return _FLAGS.get(key) or "--" + key.rpartition(".")[2].replace("_", "-")


def _nested(path: KeyPath, value: Any) -> dict[str, Any]:
    for key in reversed(path):
        value = {key: value}
    nested: dict[str, Any] = value
    return nested

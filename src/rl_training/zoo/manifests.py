"""The suites of the zoo: their environments and presets, protocol, and references for normalisation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from rl_training.errors import ConfigError
from rl_training.experiment.configuration.safe_yaml import parse_yaml
from rl_training.zoo.entries import fingerprint, preset_settings


class Reference(NamedTuple):
    """The two scores that define an environment's scale: `random` is 0, `target` is 1."""

    random: float
    target: float
    kind: str
    """Kind of target: `human`, `solved` (the environment's own threshold) or `published`."""
    sources: tuple[str, ...]
    """Keys of the manifest's sources."""

    def normalize(self, score: float) -> float:
        """Return a score on this scale."""
        return (score - self.random) / (self.target - self.random)


class Protocol(NamedTuple):
    """The rules that make results of a suite comparable."""

    seeds: int
    """Number of distinct seeds of a full result."""
    eval_episodes: int
    """Smallest number of episodes of the final evaluation."""
    task: Mapping[str, Any]
    """Required `env_kwargs` of the task in evaluation; with others it is another task."""
    training: str
    """The rules of training in words."""
    evaluation: str
    """The rules of evaluation in words."""


@dataclass(frozen=True)
class Manifest:
    """One suite."""

    suite: str
    version: int
    title: str
    extra: str | None
    """The extra that must be installed."""
    protocol: Protocol
    sources: Mapping[str, str]
    environments: Mapping[str, Reference | None]
    """All environments of the suite; None if no reference is known."""
    presets: tuple[str, ...]
    fingerprint: str
    """Fingerprint of the whole content, including the presets."""

    @property
    def identity(self) -> dict[str, Any]:
        """Version and fingerprint, which exports contain."""
        return {"version": self.version, "fingerprint": self.fingerprint}


@cache
def load_manifests() -> tuple[Manifest, ...]:
    """Return the packaged manifests, ordered by suite."""
    folder = resources.files("rl_training.zoo").joinpath("manifests")
    files = [file for file in folder.iterdir() if file.name.endswith(".yaml")]
    contents = [parse_yaml(file.read_text(encoding="utf-8"), file.name, quick=True) for file in files]
    return tuple(sorted(map(read_manifest, contents), key=lambda manifest: manifest.suite))


def read_manifest(content: Mapping[str, Any]) -> Manifest:
    """Return the manifest described by plain data."""
    environments = {
        env_id: None if entry is None else Reference(**{**entry, "sources": tuple(entry["sources"])})
        for env_id, entry in content["environments"].items()
    }
    presets = tuple(content["presets"])
    preset_contents = {name: preset_settings()[name] for name in presets}
    return Manifest(
        suite=content["suite"],
        version=content["version"],
        title=content["title"],
        extra=content["extra"],
        protocol=Protocol(**content["protocol"]),
        sources=content["sources"],
        environments=environments,
        presets=presets,
        fingerprint=fingerprint([content, preset_contents]),
    )


def check_suites(names: Iterable[str]) -> None:
    """Raise an error for a name that is not a suite's."""
    suites = [manifest.suite for manifest in load_manifests()]
    for name in names:
        if name not in suites:
            raise ConfigError(f"--suite {name}: no such suite; there are {', '.join(suites)}")


def manifest_of(env_id: str) -> Manifest | None:
    """Return the suite of an environment, None if it is in none."""
    return next((manifest for manifest in load_manifests() if env_id in manifest.environments), None)


def reference_of(env_id: str) -> Reference | None:
    """Return the references of an environment, None if there are none."""
    manifest = manifest_of(env_id)
    return None if manifest is None else manifest.environments[env_id]

"""The suites of the zoo: which environments and presets, under which protocol, normalised by which references."""

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
    """The two scores that fix an environment's scale: 0 is `random`, 1 is `target`."""

    random: float
    target: float
    kind: str
    """What the target is: `human`, `solved` (the environment's own threshold) or `published`."""
    sources: tuple[str, ...]
    """Keys of the manifest's sources."""

    def normalize(self, score: float) -> float:
        """Return a score on this scale."""
        return (score - self.random) / (self.target - self.random)


class Protocol(NamedTuple):
    """What makes results of a suite comparable."""

    seeds: int
    """Distinct seeds of a full result."""
    eval_episodes: int
    """Least number of episodes of the final evaluation."""
    task: Mapping[str, Any]
    """What `env_kwargs` must say about the task itself, as evaluation sees it; anything else is another task."""
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
    """What must be installed besides the core."""
    protocol: Protocol
    sources: Mapping[str, str]
    environments: Mapping[str, Reference | None]
    """Every environment of the suite; None where no reference is known."""
    presets: tuple[str, ...]
    fingerprint: str
    """Stands for the whole content, that of the presets included."""

    @property
    def identity(self) -> dict[str, Any]:
        """Version and fingerprint, which exports carry along."""
        return {"version": self.version, "fingerprint": self.fingerprint}


@cache
def load_manifests() -> tuple[Manifest, ...]:
    """Return the packaged manifests, ordered by suite."""
    folder = resources.files("rl_training.zoo").joinpath("manifests")
    files = [file for file in folder.iterdir() if file.name.endswith(".yaml")]
    contents = [parse_yaml(file.read_text(encoding="utf-8"), file.name, quick=True) for file in files]
    return tuple(sorted(map(read_manifest, contents), key=lambda manifest: manifest.suite))


def read_manifest(content: Mapping[str, Any]) -> Manifest:
    """Return the manifest that plain data describes."""
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
    """Refuse a name that is no suite's."""
    suites = [manifest.suite for manifest in load_manifests()]
    for name in names:
        if name not in suites:
            raise ConfigError(f"--suite {name}: no such suite; there are {', '.join(suites)}")


def manifest_of(env_id: str) -> Manifest | None:
    """Return the suite that an environment belongs to."""
    return next((manifest for manifest in load_manifests() if env_id in manifest.environments), None)


def reference_of(env_id: str) -> Reference | None:
    """Return the references of an environment, where there are any."""
    manifest = manifest_of(env_id)
    return None if manifest is None else manifest.environments[env_id]

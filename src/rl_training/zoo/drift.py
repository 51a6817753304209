"""Differences between runs and their suite's protocol or preset, with a severity for each."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rl_training.experiment.configuration.env_params import MODES, WRAPPER_KEYS, EnvParams
from rl_training.zoo.entries import Entry, preset_settings
from rl_training.zoo.manifests import Manifest, manifest_of

SEVERITIES = ("minor", "major", "critical")
"""`critical`: another task or budget, scores are not comparable; `major`: other settings of training or evaluation;
`minor`: a difference that should not matter for the final score."""

_CRITICAL_KEYS = ("algo", "env_id", "total_timesteps")
_MINOR_KEYS = ("eval_interval",)
# Wrappers that change the task; the others change observations and rewards in training. Every key of `env_kwargs` that
# is not a wrapper's is an argument of `gymnasium.make` and may change the task.
_TASK_WRAPPERS = ("max_episode_steps", "atari", "noop_max", "frame_skip")
_WRAPPER_DEFAULTS = {field.name: field.default for field in dataclasses.fields(EnvParams)}


class DriftFinding(NamedTuple):
    """One difference between an entry and its manifest."""

    severity: str
    key: str
    expected: Any
    found: Any
    rule: str
    """Origin of the expected value: `protocol of <suite>` or `preset <name>`."""

    def sentence(self) -> str:
        """Return the finding as a sentence."""
        return f"{self.key} is {_shown(self.found)}, {self.rule} says {_shown(self.expected)}"


def find_drift(entry: Entry) -> tuple[DriftFinding, ...]:
    """Return the differences of an entry from its suite's protocol and its preset, the most severe first."""
    manifest = manifest_of(entry.env_id)
    findings = _protocol_drift(entry, manifest) if manifest is not None else []
    found = {finding.key for finding in findings}
    findings += [finding for finding in _preset_drift(entry) if finding.key not in found]
    return tuple(sorted(findings, key=lambda finding: (-SEVERITIES.index(finding.severity), finding.key)))


def worst_severity(findings: Sequence[DriftFinding]) -> str | None:
    """Return the highest severity, None if there is no drift."""
    return max((finding.severity for finding in findings), key=SEVERITIES.index, default=None)


def at_least(findings: Sequence[DriftFinding], severity: str) -> list[DriftFinding]:
    """Return the findings of at least this severity."""
    return [finding for finding in findings if SEVERITIES.index(finding.severity) >= SEVERITIES.index(severity)]


def _protocol_drift(entry: Entry, manifest: Manifest) -> list[DriftFinding]:
    rule = f"protocol of {manifest.suite}"
    task, wanted = _task(entry.runs[0].config.get("env_kwargs") or {}), _task(manifest.protocol.task)
    findings = [
        DriftFinding("critical", f"env_kwargs.{key}", wanted.get(key), task.get(key), rule)
        for key in sorted({*task, *wanted})
        if task.get(key) != wanted.get(key)
    ]
    episodes, least = entry.settings.get("eval_episodes"), manifest.protocol.eval_episodes
    if not isinstance(episodes, int) or episodes < least:
        findings.append(DriftFinding("major", "eval_episodes", f"at least {least}", episodes, rule))
    return findings


def _preset_drift(entry: Entry) -> list[DriftFinding]:
    if entry.preset is None:
        return []
    rule = f"preset {entry.preset}"
    preset = preset_settings().get(entry.preset)
    if preset is None:
        return [DriftFinding("minor", "preset", "a packaged one", entry.preset, "the zoo")]
    return [
        DriftFinding(_severity(key, preset, entry.settings), key, preset.get(key), entry.settings.get(key), rule)
        for key in sorted({*preset, *entry.settings})
        if preset.get(key) != entry.settings.get(key)
    ]


def _severity(key: str, preset: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    if key in _CRITICAL_KEYS:
        return "critical"
    if key == "eval_episodes":  # more episodes only make the score more precise
        found, wanted = settings.get(key), preset.get(key) or 0
        return "minor" if isinstance(found, (int, float)) and found > wanted else "major"
    return "minor" if key in _MINOR_KEYS else "major"


def _task(env_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of `env_kwargs` that defines the task in evaluation, without defaults."""
    merged = {key: value for key, value in env_kwargs.items() if key not in MODES}
    merged |= env_kwargs.get("evaluation") or {}
    merged = {key: value for key, value in merged.items() if value != _WRAPPER_DEFAULTS.get(key)}
    return {key: value for key, value in merged.items() if key in _TASK_WRAPPERS or key not in WRAPPER_KEYS}


def _shown(value: Any) -> str:
    if value is None:
        return "not set"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)

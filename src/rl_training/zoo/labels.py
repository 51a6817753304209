"""Labels of entries that are shown together: the user's names, or the settings in which they differ."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from rl_training.experiment.runs import algorithm_slug, sanitize
from rl_training.zoo.entries import Entry, preset_settings, setting_differences

# Number of settings in a label: a few if they distinguish the entries, else more. The table of differences contains
# all.
_LEAST_SETTINGS, _MOST_SETTINGS = 3, 6
_MEASURED_BY = ("eval_interval", "eval_episodes")
_LONGEST_VALUE = 24  # characters


def entry_labels(entries: Sequence[Entry]) -> list[str]:
    """Return one label per entry of a board, all different.

    An entry whose runs share the user's name (`train --name`) gets that name. Others get the name of their preset, or
    algorithm and environment, if that distinguishes them, and otherwise the values of the settings that differ
    (`learning_rate 0.003`). Tags that only some entries have are added. If two labels are still equal, the beginning of
    the fingerprint is added.
    """
    titles = [entry.label or _origin(entry) for entry in entries]
    groups: defaultdict[str, list[int]] = defaultdict(list)
    for position, title in enumerate(titles):
        groups[title].append(position)
    labels = list(titles)
    for title, members in groups.items():
        shown = len(groups) > 1 or entries[members[0]].label is not None
        for position, settings in zip(members, _settings_of([entries[member] for member in members]), strict=True):
            labels[position] = ", ".join([*([title] if shown or not settings else []), *settings])
    for position, tags in enumerate(_distinguishing_tags(entries)):
        labels[position] += f" [{', '.join(tags)}]" if tags else ""
    counts = Counter(labels)
    return [
        label if counts[label] == 1 else f"{label} ({entry.fingerprint[:8]})"
        for label, entry in zip(labels, entries, strict=True)
    ]


def _origin(entry: Entry) -> str:
    """Return what an entry started from: its name without the fingerprint."""
    return entry.preset if entry.preset is not None else f"{algorithm_slug(entry.algo)}-{sanitize(entry.trained_on)}"


def _settings_of(entries: Sequence[Entry]) -> list[list[str]]:
    """Return the settings that distinguish entries of one title; for a single one, its differences from its preset."""
    if len(entries) > 1:
        differences = setting_differences(entries)
    else:
        differences = _preset_differences(entries[0])
    # Settings that distinguish most entries come first; among equals, those of the algorithm. The number of evaluations
    # does not affect the policy and is shown only if nothing else differs.
    keys = sorted(
        differences,
        key=lambda key: (
            key in _MEASURED_BY,
            -len(set(map(repr, differences[key]))),
            not key.startswith("algo_kwargs."),
            key,
        ),
    )
    learned = [key for key in keys if key not in _MEASURED_BY] or keys
    texts = [[_setting_text(key, differences[key][position]) for key in learned] for position in range(len(entries))]
    shown = min(_LEAST_SETTINGS, len(learned))
    while shown < min(_MOST_SETTINGS, len(learned)) and len({tuple(text[:shown]) for text in texts}) < len(texts):
        shown += 1
    further = len(keys) - shown if len(learned) > shown else 0
    return [[*text[:shown], f"{further} more"] if further else text for text in texts]


def _preset_differences(entry: Entry) -> dict[str, list[Any]]:
    preset: Mapping[str, Any] | None = preset_settings().get(entry.preset or "")
    if preset is None or entry.label is not None:
        return {}
    keys = {key for key in (*preset, *entry.settings) if preset.get(key) != entry.settings.get(key)}
    return {key: [entry.settings.get(key)] for key in keys}


def _setting_text(key: str, value: Any) -> str:
    name = key.removeprefix("algo_kwargs.")
    if value is None:
        return f"{name} not set"
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return f"{name} {text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 1] + '…'}"


def _distinguishing_tags(entries: Sequence[Entry]) -> list[list[str]]:
    """Return the tags that all runs of an entry, but not all entries, have."""
    of_entries = [entry.tags for entry in entries]
    common = set(of_entries[0]).intersection(*of_entries) if of_entries else set()
    if len(entries) == 1:
        return [[]]
    return [[tag for tag in tags if tag not in common] for tags in of_entries]

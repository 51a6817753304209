"""Which settings a fork may change.

Every parameter dataclass defines this in a class attribute `on_fork`: one rule per field, `FREE` or the reason why a
checkpoint cannot continue with another value. A subclass adds rules for its fields. Fields without a rule are fixed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FREE = "nothing in a checkpoint depends on it"
NETWORKS = "the networks in the checkpoint were built with it"
REPLAY = "the replay in the checkpoint was filled with it"
ROLLOUT = "the unfinished rollout in the checkpoint was collected with it"
OPTIMIZER = "the optimizer's statistics in the checkpoint belong to it"
EXPLORATION = "the exploration in progress in the checkpoint was drawn with it"
STAGES = "the stages in the checkpoint were planned with it"
START = "it decides only how a run starts, and the checkpoint is past that"
ENVIRONMENTS = "the environments in the checkpoint were made with it"
DATASET = "the networks in the checkpoint have learned from it"
STREAMS = "the random streams in the checkpoint come from it"
ALGORITHM = "the checkpoint holds the state of that algorithm"
ORIGIN = "it records where the settings came from"
ONE_RUN = "a fork is a single run"
# Applies only if rewards are normalised.
REWARD_STATISTICS = "the reward statistics in the checkpoint were discounted with it"
UNKNOWN = "nothing says that a checkpoint can go on with another value"

# Reasons for which `axiomrl train --init` would not help either.
_NO_WARM_START = (ALGORITHM, NETWORKS, START, ORIGIN, ONE_RUN)


def refusal(key: str, value: Any, rule: str) -> str:
    """Return the error message for a key that has to keep its value."""
    shown = "null" if value is None else value
    elsewhere = ", or start a new run from the checkpoint's weights by `axiomrl train --init`"
    return f"{key}: must stay {shown}, because {rule}; leave it out{'' if rule in _NO_WARM_START else elsewhere}"


def rules(rule: str, *names: str) -> dict[str, str]:
    """Return the same rule for several fields."""
    return dict.fromkeys(names, rule)


def scheduled(*names: str) -> dict[str, str]:
    """Return FREE for scalars, their schedules and their warm-up: they are resolved at every step."""
    return rules(FREE, *(f"{name}{suffix}" for name in names for suffix in ("", "_schedule", "_warmup_steps")))


def fork_rules(record: type) -> dict[str, str]:
    """Return the rules of the fields of a parameter dataclass and its base classes."""
    found: dict[str, str] = {}
    for owner in reversed(record.__mro__):
        own: Mapping[str, str] = vars(owner).get("on_fork", {})
        found.update(own)
    return found

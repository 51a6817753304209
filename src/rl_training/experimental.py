"""Managed but not yet stable, tier `experimental`: may change in a minor release, after a deprecation warning.

Nothing is in this tier at present.
"""

from typing import Any

__all__: list[str] = []


def __getattr__(name: str) -> Any:
    raise AttributeError(
        f"rl_training.experimental has no {name!r}: nothing is experimental at present; "
        "the stable names are in rl_training.core"
    )

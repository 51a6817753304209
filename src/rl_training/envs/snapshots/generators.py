"""Random generators as plain values and back."""

from __future__ import annotations

from typing import Any

import numpy as np

from rl_training.errors import CheckpointError

# Only these names are looked up, so that a file cannot run any other code.
_BIT_GENERATORS = {
    bit_generator.__name__: bit_generator
    for bit_generator in (
        np.random.PCG64,
        np.random.PCG64DXSM,
        np.random.MT19937,
        np.random.Philox,
        np.random.SFC64,
    )
}


def generator_state(generator: np.random.Generator) -> dict[str, Any]:
    """Return the generator's state as nested dicts of ints and arrays."""
    return dict(generator.bit_generator.state)


def generator_from_state(state: dict[str, Any]) -> np.random.Generator:
    """Return a generator that continues from `state`."""
    name = state.get("bit_generator")
    if name not in _BIT_GENERATORS:
        raise CheckpointError(f"the checkpoint names an unknown random generator `{name!s:.200}`")
    bit_generator: Any = _BIT_GENERATORS[name](0)
    bit_generator.state = state
    return np.random.Generator(bit_generator)


_LEGACY_PARTS = ("bit_generator", "key", "position", "has_gauss", "cached_gaussian")


def random_state_parts(generator: np.random.RandomState) -> dict[str, Any]:
    """Return the state of a generator of the older kind by names."""
    parts = generator.get_state(legacy=True)
    return dict(zip(_LEGACY_PARTS, parts, strict=True))


def random_state_from_parts(parts: dict[str, Any]) -> np.random.RandomState:
    """Return a generator of the older kind that continues from its saved parts."""
    made = np.random.RandomState(0)
    made.set_state(tuple(parts[name] for name in _LEGACY_PARTS))
    return made

"""Named random streams: one seed per run, one independent generator per purpose."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def derive_seeds(seed: int, *purpose: str | int, count: int = 1) -> list[int]:
    """Return `count` seeds for a purpose; equal arguments give equal seeds, different ones independent seeds."""
    key = tuple(zlib.crc32(part.encode()) if isinstance(part, str) else part for part in purpose)
    state = np.random.SeedSequence(seed, spawn_key=key).generate_state(count, np.uint32)
    return [int(value) for value in state]


class Streams:
    """The generators of one run, made on first use and saved with it."""

    def __init__(self, seed: int, device: torch.device, *, root: int | None = None) -> None:
        """`root` is the seed of what learners have in common, their initial weights; None: `seed` itself."""
        self.seed = seed
        self.root = seed if root is None else root
        self.device = device
        self._generators: dict[str, torch.Generator] = {}
        self._host_generators: dict[str, np.random.Generator] = {}

    def __getitem__(self, name: str) -> torch.Generator:
        """Return the generator of a purpose, such as `policy` or `update`, on the run's device."""
        return self._generator(name, self.device)

    def on_host(self, name: str) -> torch.Generator:
        """Return the generator of a purpose, on the CPU whatever the run's device is."""
        return self._generator(name, torch.device("cpu"))

    def initial(self) -> torch.Generator:
        """Return the generator of initial weights; on the CPU, so that every device starts from the same ones."""
        return self.on_host("init")

    def numpy(self, name: str) -> np.random.Generator:
        """Return the NumPy generator of a purpose, such as `replay`."""
        if name not in self._host_generators:
            self._host_generators[name] = np.random.default_rng(derive_seeds(self.seed, name, count=4))
        return self._host_generators[name]

    def _generator(self, name: str, device: torch.device) -> torch.Generator:
        if name not in self._generators:
            generator = torch.Generator(device)
            low, high = derive_seeds(self.root if name == "init" else self.seed, name, count=2)
            generator.manual_seed(((high << 32) | low) & 0x7FFF_FFFF_FFFF_FFFF)
            self._generators[name] = generator
        return self._generators[name]

    def state_dict(self) -> dict[str, Any]:
        """Return the state of every generator."""
        return {
            "torch": {name: generator.get_state() for name, generator in self._generators.items()},
            "numpy": {name: generator.bit_generator.state for name, generator in self._host_generators.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of every generator."""
        for name, value in state["numpy"].items():
            self.numpy(name).bit_generator.state = value
        for name, value in state["torch"].items():
            generator = self.initial() if name == "init" else self[name]
            generator.set_state(value.cpu())

"""What every benchmark shares: where results are stored, who is compared, and where they were measured."""

from __future__ import annotations

import importlib.util
import os
import platform
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
PEERS = ROOT / "build"
"""Where peers are installed whose requirements do not fit ours."""
OURS, SB3, D3RLPY = "ours", "stable_baselines3", "d3rlpy"
"""What the sides are called in stored results."""
SB3_CONTRIB = "sb3_contrib"
"""The package that stable-baselines3's policies with a memory come from."""
PACKAGES = (
    *("axiomrl", "torch", "gymnasium", "numpy", "numba", SB3, SB3_CONTRIB, "sbx-rl", "mctx", "jax", "envpool"),
    *("Box2D", "mujoco", "ale-py", "onnxruntime"),
)
_PACKAGES_BESIDE = {"cleanrl": "cleanrl", "LightZero": "lightzero", "d3rlpy": "d3rlpy"}
"""Peers by their folder in `PEERS`."""
_MISSING = {
    SB3: "stable-baselines3 is not installed: {bench}",
    SB3_CONTRIB: "sb3-contrib is not installed: {bench}",
    "sbx": "SBX is not installed: {bench}",
    "mctx": "mctx is not installed: {bench}",
    "Box2D": "Box2D is not installed: {box2d}",
    "mujoco": "MuJoCo is not installed: {mujoco}",
    "ale_py": "Atari games are not installed: {atari}",
    "envpool": "EnvPool is not installed: run `pip install envpool`",
}
_PROCESSOR = Path("/proc/cpuinfo")


def why_missing(package: str) -> str | None:
    """Return how to get a package that is not there, or None where it is."""
    if importlib.util.find_spec(package):
        return None
    # Not above: the names beside this function are also read with older checkouts of the package.
    from rl_training.install_hint import install_hint

    extras = ("bench", "box2d", "mujoco", "atari")
    return _MISSING[package].format(**{extra: install_hint(extra) for extra in extras})


def origin() -> dict[str, Any]:
    """Return what a summary says of where it was measured."""
    return {"versions": {**versions(PACKAGES), **versions_beside()}, "machine": machine()}


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of the packages that are there."""
    found = {}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def versions_beside(peers: Path = PEERS) -> dict[str, str]:
    """Return the versions of the peers that have folders of their own."""
    return {
        name: found.version
        for name, folder in _PACKAGES_BESIDE.items()
        for found in distributions(name=name, path=[str(peers / folder)])
    }


def machine() -> dict[str, Any]:
    """Return what tells machines apart, without their names."""
    return {
        "processor": platform.machine(),
        "model": processor_model(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }


def processor_model(file: Path = _PROCESSOR) -> str:
    """Return the processor's name as Linux tells it, elsewhere as Python does."""
    if file.exists():
        for line in file.read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.processor()

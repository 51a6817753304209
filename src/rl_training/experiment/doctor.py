"""What this installation can do: versions, devices, extras, environments, trackers, disk."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
from importlib import metadata
from typing import Any

from rl_training._version import __version__

_EXTRAS = {
    "atari": ("ale_py", "cv2"),
    "boardgames": ("pettingzoo", "pygame"),
    "box2d": ("Box2D",),
    "minatar": ("minatar",),
    "mujoco": ("mujoco",),
    "plot": ("matplotlib",),
    "ray": ("ray",),
    "video": ("imageio", "imageio_ffmpeg", "pygame"),
    "wandb": ("wandb",),
}
_FAMILIES = {
    "classic_control": "CartPole-v1",
    "toy_text": "FrozenLake-v1",
    "box2d": "LunarLander-v3",
    "mujoco": "HalfCheetah-v5",
    "atari": "ALE/Pong-v5",
    "minatar": "MinAtar/Breakout-v1",
}
_TRACKERS = {"tensorboard": "tensorboard", "wandb": "wandb"}


def examine() -> dict[str, Any]:
    """Return every finding by a name that stays the same between releases; nothing raises."""
    findings: dict[str, Any] = {
        "axiomrl": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "torch": _version("torch"),
        "gymnasium": _version("gymnasium"),
        "numpy": _version("numpy"),
        "cpu_count": os.cpu_count(),
        "free_disk_gb": round(shutil.disk_usage(".").free / 1e9, 1),
    }
    findings |= {f"extra_{name}": _extra(name) for name in _EXTRAS}
    findings |= {f"tracker_{name}": _tracker(name) for name in _TRACKERS}
    findings |= {f"env_{family}": _environment(env_id) for family, env_id in _FAMILIES.items()}
    return findings | _torch()


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "missing"


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # half-installed
        return False


def _extra(name: str) -> str:
    missing = [module for module in _EXTRAS[name] if not _is_there(module)]
    return f"missing {', '.join(missing)}: pip install 'axiomrl[{name}]'" if missing else "installed"


def _tracker(name: str) -> str:
    if _is_there(_TRACKERS[name]):
        return "works"
    distribution = f"'axiomrl[{name}]'" if name in _EXTRAS else name
    return f"missing: pip install {distribution}"


def _environment(env_id: str) -> str:
    """Make one environment of a family and say whether it works."""
    try:
        from rl_training.envs.make import check_environment

        check_environment(env_id, {})
    except Exception as error:
        return "fails: " + " ".join(f"{type(error).__name__}: {error}".split())
    return "works"


def _torch() -> dict[str, Any]:
    """Probe PyTorch last: importing it takes longer than everything else together."""
    try:
        import torch

        gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        devices = ["cpu", *(f"cuda:{index} ({name})" for index, name in enumerate(gpus))]
        if torch.backends.mps.is_available():
            devices.append("mps")
        return {
            "cuda": f"yes ({torch.version.cuda})" if gpus else "no",
            "devices": ", ".join(devices),
            "torch_threads": torch.get_num_threads(),
        }
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        return {"cuda": "no", "devices": f"none: torch cannot be imported ({reason})", "torch_threads": 0}

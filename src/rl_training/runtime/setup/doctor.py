"""Report on this installation: versions, devices, extras, environments, trackers, disk."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
from collections.abc import Sequence
from importlib import metadata
from typing import Any

from rl_training._version import __version__
from rl_training.errors import EnvironmentFailure, MissingExtraError
from rl_training.install_hint import install_hint

_EXTRAS = {
    "atari": ("ale_py", "cv2"),
    "boardgames": ("pettingzoo", "pygame"),
    "box2d": ("Box2D",),
    "dmc": ("shimmy", "dm_control"),
    "envpool": ("envpool",),
    "export": ("onnx", "onnxruntime", "onnxscript"),
    "highway": ("highway_env",),
    "minatar": ("minatar",),
    "minigrid": ("minigrid",),
    "mlflow": ("mlflow",),
    "mujoco": ("mujoco",),
    "offline": ("h5py", "minari", "PIL"),
    "pettingzoo": ("pettingzoo", "mpe2"),
    "plot": ("matplotlib",),
    "popgym": ("popgym",),
    "ray": ("ray",),
    "robotics": ("gymnasium_robotics", "mujoco"),
    "trackio": ("trackio",),
    "video": ("imageio", "imageio_ffmpeg", "pygame"),
    "wandb": ("wandb",),
}
# One environment of each family to try, and the distributions that provide it.
_FAMILIES = {
    "classic_control": ("CartPole-v1", ("gymnasium",)),
    "toy_text": ("FrozenLake-v1", ("gymnasium",)),
    "box2d": ("LunarLander-v3", ("Box2D",)),
    "mujoco": ("HalfCheetah-v5", ("mujoco",)),
    "atari": ("ALE/Pong-v5", ("ale-py",)),
    "minatar": ("MinAtar/Breakout-v1", ("MinAtar",)),
    "boardgames": ("rl_training.envs.board_games:TicTacToe-v0", ("pettingzoo",)),
    "robotics": ("FetchReach-v4", ("gymnasium-robotics", "mujoco")),
    "pointmaze": ("PointMaze_UMaze-v3", ("gymnasium-robotics", "mujoco")),
    "dmc": ("dm_control/cartpole-balance-v0", ("dm-control", "mujoco")),
    "minigrid": ("MiniGrid-Empty-5x5-v0", ("minigrid",)),
    "highway": ("highway-fast-v0", ("highway-env",)),
    "popgym": ("popgym-RepeatPreviousEasy-v0", ("popgym",)),
    "pettingzoo": ("pettingzoo:mpe2.simple_spread_v3", ("pettingzoo", "mpe2")),
}
_TRACKERS = {name: name for name in ("tensorboard", "wandb", "mlflow", "trackio")}


def examine() -> dict[str, Any]:
    """Return all findings by names that are stable between releases; no exception is raised."""
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
    findings |= {f"env_{family}": _environment(*family_of) for family, family_of in _FAMILIES.items()}
    return findings | _torch()


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "missing"


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # partly installed
        return False


def _extra(name: str) -> str:
    missing = [module for module in _EXTRAS[name] if not _is_there(module)]
    return f"missing {', '.join(missing)}: {install_hint(name)}" if missing else "installed"


def _tracker(name: str) -> str:
    if _is_there(_TRACKERS[name]):
        return "works"
    return f"missing: {install_hint(name) if name in _EXTRAS else f'run `pip install {name}`'}"


def _environment(env_id: str, distributions: Sequence[str]) -> str:
    """Take a step in one environment of a family; return whether it works, and with which versions."""
    try:
        from rl_training.envs.make import check_environment, make_players
        from rl_training.envs.multi_agent.world import World

        check_environment(env_id, {})
        (player,) = make_players(env_id, {}, mode="training", count=1)
        player.action_space.seed(0)
        player.reset(0)
        action = player.action_space.sample()
        player.step(dict.fromkeys(range(len(player.agents)), action) if isinstance(player, World) else action)
        player.close()
    except MissingExtraError as error:
        return f"missing: {install_hint(error.extra)}"
    except Exception as error:
        cause = error.__cause__ if isinstance(error, EnvironmentFailure) and error.__cause__ is not None else error
        first_line = str(cause).partition("\n")[0]
        return "fails: " + " ".join(f"{type(cause).__name__}: {first_line}".split())
    return f"works with {', '.join(f'{name} {_version(name)}' for name in distributions)}"


def _torch() -> dict[str, Any]:
    """Probe PyTorch last: importing it takes longer than everything else."""
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

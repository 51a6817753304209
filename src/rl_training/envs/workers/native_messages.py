"""Redirects messages of C++ simulators to Python's logging, or suppresses them."""

from __future__ import annotations

import logging

from gymnasium.envs.registration import EnvSpec

_LOGGER = logging.getLogger("rl_training.envs.mujoco")


def redirect_native_messages(spec: EnvSpec) -> None:
    """Keep a simulator from writing to the terminal or into the user's working directory."""
    entry_point = spec.entry_point if isinstance(spec.entry_point, str) else ""
    try:
        if entry_point.startswith("gymnasium.envs.mujoco"):
            _log_mujoco_warnings()
        elif entry_point.startswith("ale_py"):
            _silence_atari_banner()
    except ImportError:
        return  # making the environment will report what is missing


def _log_mujoco_warnings() -> None:
    """Log MuJoCo's warnings instead of printing them and writing `MUJOCO_LOG.TXT` to the working directory."""
    import mujoco

    # A handler that somebody else has set is kept.
    if mujoco.get_mju_user_warning() is None:
        mujoco.set_mju_user_warning(_log)


def _log(message: str) -> None:
    # Gymnasium's own model files use features deprecated in newer releases: nothing that a user can repair.
    level = logging.DEBUG if "deprecated" in message else logging.WARNING
    _LOGGER.log(level, "%s", message)


def _silence_atari_banner() -> None:
    import ale_py

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)

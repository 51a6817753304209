"""Names of environments with several agents: `pettingzoo:module`, whose code is the module's `parallel_env`."""

from __future__ import annotations

PREFIX = "pettingzoo:"
MAKER = "parallel_env"


def is_world(env_id: str | None) -> bool:
    """Return whether a name means an environment with several agents."""
    return env_id is not None and env_id.startswith(PREFIX)


def code_of(env_id: str) -> str:
    """Return the name of the code that an environment's name refers to.

    `pettingzoo:package.module` means the function `parallel_env` in it, as PettingZoo's own modules have it;
    `pettingzoo:package.module:name` and `pettingzoo:path/to/file.py:name` mean another function or class.
    """
    if not is_world(env_id):
        return env_id
    code = env_id.removeprefix(PREFIX)
    return code if ":" in code else f"{code}:{MAKER}"

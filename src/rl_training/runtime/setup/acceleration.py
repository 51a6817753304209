"""Decides, once per run or policy, whether a kernel replaces parts of the algorithm's own code."""

from __future__ import annotations

import logging
from typing import Any

logger = logging.getLogger("rl_training")


def accelerate(algorithm: Any, mode: str) -> dict[str, str | None]:
    """Attach the kernel for the algorithm, if there is one; return its name, or the reason why there is none."""
    if mode == "off":
        return {"kernel": None, "reason": "switched off"}
    try:
        from rl_training.kernels.door import attach
    except ImportError as error:
        return {"kernel": None, "reason": f"rl_training.kernels cannot be imported ({error})"}
    attached = attach(algorithm)
    return {"kernel": attached.kernel, "reason": attached.reason}


def log_acceleration(found: dict[str, str | None]) -> None:
    """Log which kernel accelerates the run, or why none does."""
    if found["kernel"] is not None:
        logger.info("acceleration: the kernel `%s`", found["kernel"])
    else:
        logger.info("acceleration: none, %s", found["reason"])

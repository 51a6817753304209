"""PyTorch's process-wide settings for one run, restored afterwards."""

from __future__ import annotations

import logging
import os
from typing import Any

import torch

from rl_training.runtime.setup.threads import Threads

logger = logging.getLogger("rl_training")


class TorchSetup:
    """Applies thread count and determinism, and restores the previous settings."""

    def __init__(self, *, threads: Threads, deterministic: bool, device: torch.device) -> None:
        self.threads = threads
        # On the CPU all operations in use are deterministic.
        self.deterministic = deterministic and device.type == "cuda"
        self._previous: tuple[int, bool, bool] | None = None

    def apply(self) -> None:
        """Apply the settings and log the number of threads."""
        logger.log(logging.WARNING if self.threads.crowded else logging.INFO, "%s", self.threads.sentence())
        self._previous = (
            torch.get_num_threads(),
            torch.are_deterministic_algorithms_enabled(),
            torch.backends.cudnn.benchmark,
        )
        torch.set_num_threads(self.threads.number)
        if self.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(True)
            torch.backends.cudnn.benchmark = False

    def restore(self) -> None:
        """Restore the previous settings."""
        if self._previous is None:
            return
        threads, deterministic, benchmark = self._previous
        torch.set_num_threads(threads)
        if self.deterministic:
            torch.use_deterministic_algorithms(deterministic)
            torch.backends.cudnn.benchmark = benchmark
        self._previous = None

    def __enter__(self) -> None:
        self.apply()

    def __exit__(self, *error: object) -> None:
        self.restore()

    def describe(self) -> dict[str, Any]:
        """Return the settings for the metadata."""
        return {"torch_threads": self.threads.number, "torch_threads_reason": self.threads.reason}

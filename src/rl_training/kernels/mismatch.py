"""What is said where a kernel does not compute what the algorithm's own code does."""

from __future__ import annotations

from rl_training.errors import RunFailure


class KernelMismatch(RunFailure):
    """A kernel and the algorithm's own code disagree; the message names the kernel and the repair."""

    def __init__(self, kernel: str, what: str) -> None:
        super().__init__(
            f"the kernel `{kernel}` and the algorithm's own code disagree about {what}: the algorithm or its network "
            "was changed where the kernel cannot see it; train with --set acceleration=off, or give what was changed "
            "a class of its own"
        )

"""What a pool needs of the place where its samplers are: processes on this machine, or actors on a Ray cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from rl_training.envs.workers.shared_rows import RawMemory
from rl_training.runtime.samplers.sampler import SamplerSetup


class SamplerLost(Exception):
    """A sampler that cannot answer any more; the text says how it ended."""


class SamplerLink(Protocol):
    """The run's end of the connection to a sampler."""

    def send(self, command: str, argument: Any = None) -> Any:
        """Send a command; that a sampler is gone is noticed by `receive`."""

    def receive(self, seconds: float | None = None) -> tuple[bool, Any] | None:
        """Return the reply to the last command: whether it succeeded, and its result or the error.

        None: there was none within `seconds`. Raises `SamplerLost`.
        """

    def end(self) -> None:
        """End the sampler at once, whatever it does."""


Link = TypeVar("Link", bound=SamplerLink)


class Transport(Protocol[Link]):
    """Starts samplers and moves arrays between them and the run."""

    @property
    def memory(self) -> RawMemory:
        """What arrays that the run and its samplers exchange are allocated from."""

    def start(self, setup: SamplerSetup, number: int, rows: slice) -> Link:
        """Start a sampler; its first reply says that it is ready."""

    def publish(self, setup: SamplerSetup) -> None:
        """Show all samplers what the run has written to `setup.outgoing()`, as of their next rollout."""

    def ready(self, links: Sequence[Link], seconds: float) -> list[int]:
        """Return the indices of links with a reply, after waiting up to `seconds` for the first."""

    def close(self, links: Sequence[Link]) -> None:
        """Let idle samplers close their environments and exit."""

    def end(self, links: list[Link]) -> None:
        """End all samplers at once and forget them; may be called twice."""

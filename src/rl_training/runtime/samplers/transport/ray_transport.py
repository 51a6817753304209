"""Samplers as actors on a Ray cluster (extra `ray`): orders and weights go there by its object store, rollouts return.

Ray restarts nothing by itself: the pool replaces a lost sampler, since only the run has the state to begin from.
"""

from __future__ import annotations

import dataclasses
import pickle
import time
from collections.abc import Sequence
from typing import Any

from rl_training.envs.workers.processes import CLOSE_SECONDS
from rl_training.errors import ConfigError, EnvironmentFailure
from rl_training.experiment.runs import dependency_versions
from rl_training.runtime.samplers.sampler import Collected, SamplerSetup
from rl_training.runtime.samplers.transport.mirrored_memory import MirroredMemory, snapshot, write
from rl_training.runtime.samplers.transport.process_transport import not_movable
from rl_training.runtime.samplers.transport.protocol import SamplerLost
from rl_training.runtime.samplers.transport.ray_sampler import COLLECT, Answer, RaySampler
from rl_training.runtime.sweep.ray_cluster import connect, disconnect, is_connected, start_here

_WATCH = "watch"
_SECONDS_BETWEEN_LOOKS = 1.0
# An actor may be placed on a node that is gone without the cluster having noticed, and end before it was ready.
_PLACEMENTS = 3


class ActorLink:
    """The run's end of the connection to an actor."""

    def __init__(self, transport: RayTransport, setup: SamplerSetup, number: int, rows: slice) -> None:
        self._transport, self._setup, self._number, self._rows = transport, setup, number, rows
        self._sent: Any = None  # argument of the last command
        self._look: Any = None  # at the actor's progress, if it was not answered yet
        self._looked = time.monotonic()
        self._clock_offset = float("inf")  # from the actor's monotonic clock to that of the run
        self._node, self._host = "", ""  # known when it is ready
        self._placed = 0
        self._place()

    def _place(self) -> None:
        """Start an actor on some node."""
        self._placed += 1
        self._actor = self._transport.new_actor()
        self.pending = self._actor.make.remote(
            self._transport.sent_setup, self._number, self._rows, dependency_versions()
        )
        self._where = self._actor.node.remote()

    def send(self, command: str, argument: Any = None) -> None:
        """Send a command."""
        self._sent = argument
        also = [self._transport.published] if command == COLLECT else []
        self.pending = self._actor.execute.remote(command, pickle.dumps(argument), *also)

    def receive(self, seconds: float | None = None) -> tuple[bool, Any] | None:
        """Return the reply to the last command, None if there was none within `seconds`."""
        import ray

        try:
            if not ray.wait([self.pending], timeout=seconds)[0]:
                return None
            answer: Answer = ray.get(self.pending)
            if not self._node:
                self._node = ray.get(self._where)
        except ray.exceptions.RayTaskError as error:
            return False, EnvironmentFailure(f"sampler {self._number} failed: {error}")
        except ray.exceptions.RayError as error:
            if self._host or self._placed >= _PLACEMENTS:
                raise SamplerLost(self._cause(error)) from error
            self.end()
            self._place()
            return self.receive(seconds)
        self.pending = None
        self._compare_clocks(answer.clock)
        result = pickle.loads(answer.result)
        if answer.incoming:
            write(self._setup.incoming(self._sent, self._rows), answer.incoming)
        if isinstance(result, Collected):
            result = dataclasses.replace(result, finished=result.finished + self._clock_offset)
        elif not self._host and answer.succeeded:
            self._host = result
        return answer.succeeded, result

    def see(self, *, every: float) -> None:
        """Write the actor's progress, as far as it has been answered, and ask again from time to time."""
        import ray

        if self._look is not None and ray.wait([self._look], timeout=0)[0]:
            look, self._look = self._look, None
            try:
                row, clock = ray.get(look)
            except ray.exceptions.RayError:
                return  # `receive` says what has happened
            self._compare_clocks(clock)
            self._setup.progress.view()[self._number] = row
        if self._look is None and time.monotonic() - self._looked > every:
            self._looked = time.monotonic()
            self._look = self._actor.progress.options(concurrency_group=_WATCH).remote()

    def close(self) -> Any:
        """Let the actor close its environments; return a reference to the end of that."""
        return self._actor.close.remote()

    def end(self) -> None:
        """Kill the actor."""
        import ray

        if ray.is_initialized():
            ray.kill(self._actor)

    def _compare_clocks(self, clock: float) -> None:
        # The least delayed answer tells the difference best.
        self._clock_offset = min(self._clock_offset, time.monotonic() - clock)

    def _cause(self, error: Exception) -> str:
        import ray

        if not self._host:
            return f"ended before it was ready ({type(error).__name__})"
        name = f"node {self._host} ({self._node[:8]})"
        if all(node["NodeID"] != self._node or not node["Alive"] for node in ray.nodes()):
            return f"was lost with {name}"
        if isinstance(error, ray.exceptions.ActorUnavailableError):
            return f"can no longer be reached on {name}"  # the cluster may find out later that the node is gone
        return f"died on {name} ({type(error).__name__})"


class RayTransport:
    """Starts actors, one CPU each and spread over the nodes of a cluster."""

    def __init__(self, samplers: int, *, address: str | None, timeout: float) -> None:
        """Use the cluster at `address`, None for one of this machine that ends with the samplers."""
        import ray

        self._connected = not is_connected()
        if self._connected:
            start_here(samplers) if address is None else connect(address, place="ray_address")
        self.memory = MirroredMemory()
        self.published: Any = None
        self.sent_setup: Any = None
        self._every = min(_SECONDS_BETWEEN_LOOKS, timeout / 4)
        self._actor_class = ray.remote(
            num_cpus=1,
            scheduling_strategy="SPREAD",
            max_restarts=0,
            max_task_retries=0,
            concurrency_groups={_WATCH: 1},
        )(RaySampler)
        cpus = int(ray.cluster_resources().get("CPU", 0))
        if cpus < samplers:
            self.end([])
            raise ConfigError(
                f"samplers: {samplers} samplers need a CPU each, and the Ray cluster has {cpus}; add nodes, or set "
                f"samplers to at most {max(1, cpus)}"
            )

    def start(self, setup: SamplerSetup, number: int, rows: slice) -> ActorLink:
        """Start an actor; its first reply says that it is ready."""
        import ray

        if self.sent_setup is None:
            try:
                self.sent_setup = ray.put(ray.cloudpickle.dumps(setup))
            except (pickle.PicklingError, AttributeError, TypeError) as error:
                raise not_movable(error) from error
        return ActorLink(self, setup, number, rows)

    def new_actor(self) -> Any:
        """Return an actor, which Ray starts when and where there is a CPU for it."""
        return self._actor_class.remote()

    def publish(self, setup: SamplerSetup) -> None:
        """Put what the run has written into the object store, for the next rollout."""
        import ray

        self.published = ray.put(snapshot(setup.outgoing()))

    def ready(self, links: Sequence[ActorLink], seconds: float) -> list[int]:
        """Return the indices of actors that have replied or ended."""
        import ray

        places = {link.pending: place for place, link in enumerate(links)}
        replied, _ = ray.wait(list(places), timeout=seconds)
        for link in links:
            link.see(every=self._every)
        return [places[reference] for reference in replied]

    def close(self, links: Sequence[ActorLink]) -> None:
        """Let idle actors close their environments."""
        import ray

        closing = [link.close() for link in links]
        if closing:
            ray.wait(closing, num_returns=len(closing), timeout=CLOSE_SECONDS)

    def end(self, links: list[ActorLink]) -> None:
        """Kill all actors and forget them; leave the cluster, which ends if it was started for them."""
        for link in links:
            link.end()
        links.clear()
        self.published = self.sent_setup = None
        if self._connected:
            self._connected = False
            disconnect()

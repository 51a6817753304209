"""What samplers and learners would yield: a discrete-event model of who waits for whom.

A training step needs one rollout of every sampler and the weights of an earlier update. Samplers collect their share,
send it, and the learners update when all shares have come; with a lag of 1 samplers go on meanwhile. Processes on one
machine share its cores equally; times of rollouts vary by a lognormal factor, so that many samplers wait for the
slowest.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

_NOTHING = 1e-12


@dataclass(frozen=True)
class Task:
    """The measured times of one task, all in seconds, for one rollout (or round of updates) of all environments."""

    name: str
    transitions: int
    """Environment steps of one rollout."""
    collect: float
    """Processor time of one sampler that collects all of it."""
    update: float
    """Processor time of one learner."""
    rollout_bytes: int
    weight_bytes: int
    gradient_steps: int
    """Gradient steps of an update, each of which is an all-reduce between learners."""
    collect_fixed: float = 0.0
    """The part of collecting that does not shrink with fewer environments per sampler: calls, not rows."""
    alone_collect: float | None = None
    """Where one process collects faster than samplers, which step their environments one by one."""
    thread_overhead: float = 1.0
    """How much more processor time several threads take for an update than one."""
    spread: float = 0.05
    """Standard deviation of the logarithm of a sampler's time for one rollout."""

    def threaded_update(self, threads: int) -> float:
        """Return the seconds in which threads, each on a core of its own, make an update together."""
        return self.update / threads * (1.0 if threads == 1 else self.thread_overhead)


@dataclass(frozen=True)
class Cluster:
    """What the processes run on."""

    samplers: int
    learners: int = 1
    lag: int = 0
    cores: int | None = None
    """Cores that all processes share; None: each process has its own."""
    message: float = 2e-4
    """Seconds that a learner needs to receive one message, whatever its size."""
    bytes_per_second: float = 2e9
    threads: int = 1
    """Threads of each learner, which share its work evenly."""


@dataclass
class _Job:
    """Work in progress on a processor."""

    left: float
    done: Callable[[], None] = field(repr=False)


class Processor:
    """Cores that share their time equally among the jobs, as an operating system does."""

    def __init__(self, cores: int | None) -> None:
        self.cores = cores
        self.jobs: list[_Job] = []

    @property
    def rate(self) -> float:
        """Seconds of work per second for every job."""
        if self.cores is None or len(self.jobs) <= self.cores:
            return 1.0
        return self.cores / len(self.jobs)

    def next_end(self) -> float:
        """Return in how many seconds the next job ends."""
        return min((job.left for job in self.jobs), default=math.inf) / self.rate

    def pass_time(self, seconds: float) -> list[_Job]:
        """Let time pass and return the jobs that have ended."""
        work = seconds * self.rate
        for job in self.jobs:
            job.left -= work
        ended = [job for job in self.jobs if job.left <= _NOTHING]
        self.jobs = [job for job in self.jobs if job.left > _NOTHING]
        return ended


class Simulation:
    """One training of a task on a cluster."""

    def __init__(self, task: Task, cluster: Cluster, *, seed: int = 0) -> None:
        self.task, self.cluster = task, cluster
        self.random = np.random.default_rng(seed)
        self.now = 0.0
        self.processor = Processor(cluster.cores)
        self.timers: list[tuple[float, int, Callable[[], None]]] = []
        self.numbers = itertools.count()  # events of the same moment keep their order
        self.arrived: dict[int, int] = {}
        self.updates = 0
        self.updating = False
        self.begun = [0] * cluster.samplers
        self.idle = set(range(cluster.samplers))
        self.update_ends: list[float] = []

    def run(self, updates: int) -> float:
        """Return the environment steps per second over all but the first tenth of the updates."""
        self._start_samplers()
        while self.updates < updates:
            self._advance()
        first = updates // 10
        elapsed = self.update_ends[-1] - self.update_ends[first]
        return (updates - 1 - first) * self.task.transitions / elapsed

    def _advance(self) -> None:
        timer = self.timers[0][0] - self.now if self.timers else math.inf
        step = min(timer, self.processor.next_end())
        self.now += step
        for job in self.processor.pass_time(step):
            job.done()
        while self.timers and self.timers[0][0] <= self.now + _NOTHING:
            heapq.heappop(self.timers)[2]()

    def _after(self, seconds: float, then: Callable[[], None]) -> None:
        heapq.heappush(self.timers, (self.now + seconds, next(self.numbers), then))

    def _work(self, seconds: float, then: Callable[[], None]) -> None:
        if self.cluster.cores is None:
            self._after(seconds, then)
        else:
            self.processor.jobs.append(_Job(seconds, then))

    def _start_samplers(self) -> None:
        for sampler in sorted(self.idle):
            self._start(sampler)

    def _start(self, sampler: int) -> None:
        """Collect the next rollout, if its weights are there: rollout k needs those of update k - 1 - lag."""
        if self.begun[sampler] - self.cluster.lag <= self.updates:
            self.idle.discard(sampler)
            self.begun[sampler] += 1
            self._collect(sampler, self.begun[sampler] - 1)

    def _collect(self, sampler: int, rollout: int) -> None:
        task, count = self.task, self.cluster.samplers
        share = task.collect_fixed + (task.collect - task.collect_fixed) / count
        factor = math.exp(task.spread * self.random.standard_normal() - task.spread**2 / 2)

        def collected() -> None:
            self.idle.add(sampler)
            self._start(sampler)
            self._after(task.rollout_bytes / count / self.cluster.bytes_per_second, lambda: self._arrive(rollout))

        self._work(share * factor, collected)

    def _arrive(self, rollout: int) -> None:
        self.arrived[rollout] = self.arrived.get(rollout, 0) + 1
        self._learn()

    def _learn(self) -> None:
        """Update, if all shares of the next rollout have come and no update is being made."""
        if self.updating or self.arrived.get(self.updates, 0) < self.cluster.samplers:
            return
        self.updating = True
        del self.arrived[self.updates]
        left = parts = self.cluster.learners * self.cluster.threads

        def part_done() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                self._after(self._exchange() + self._publish(), self._updated)

        receive = self.cluster.message * self.cluster.samplers / self.cluster.learners
        for _ in range(parts):
            self._work(receive + self.task.threaded_update(self.cluster.threads) / self.cluster.learners, part_done)

    def _exchange(self) -> float:
        """Return the seconds of all-reducing the gradient at every gradient step, around a ring of learners."""
        learners = self.cluster.learners
        if learners == 1:
            return 0.0
        moved = 2 * (learners - 1) / learners * self.task.weight_bytes / self.cluster.bytes_per_second
        return self.task.gradient_steps * (moved + 2 * (learners - 1) * self.cluster.message / 4)

    def _publish(self) -> float:
        """Return the seconds until every sampler has the weights, which pass on along a tree."""
        hops = math.ceil(math.log2(self.cluster.samplers + 1))
        return hops * self.task.weight_bytes / self.cluster.bytes_per_second

    def _updated(self) -> None:
        self.updates += 1
        self.updating = False
        self.update_ends.append(self.now)
        self._start_samplers()
        self._learn()


def one_process(task: Task, threads: int = 1) -> float:
    """Return the environment steps per second of one process that collects and learns in turn."""
    collect = task.collect if task.alone_collect is None else task.alone_collect
    return task.transitions / (collect + task.threaded_update(threads))


def throughput(task: Task, cluster: Cluster, *, updates: int = 60, seed: int = 0) -> float:
    """Return the environment steps per second that the model predicts."""
    return Simulation(task, cluster, seed=seed).run(updates)

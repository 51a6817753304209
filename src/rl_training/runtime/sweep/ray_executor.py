"""Trains seeds as tasks on a Ray cluster whose machines need not share a disk (extra `ray`).

The sweep keeps a copy of every run in its output directory, updated with each checkpoint. If a node is lost, the copy
is sent to another one, which continues from there.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from rl_training.errors import AxiomError, CheckpointError, RunFailure
from rl_training.experiment.checkpoints import newest_sound_checkpoint
from rl_training.experiment.manager import Runner
from rl_training.experiment.runs import claim_directory, dependency_versions
from rl_training.experiment.sweeps import FAILED, RUNNING, BenchmarkRunRecord
from rl_training.runtime.signals import SignalGuard
from rl_training.runtime.sweep.executors import SAID, STARTED, Begin, Report, Seeds, label_of
from rl_training.runtime.sweep.ray_cluster import check_installed, connect
from rl_training.runtime.sweep.ray_worker import PACKED, PART, Assignment, Mailbox, MovableRunner, train_on_node
from rl_training.runtime.sweep.run_transfer import RunPacker, unpack_run

logger = logging.getLogger("rl_training")

FRUITLESS_ATTEMPTS = 3
"""How many times in a row a seed may lose its node without a newer checkpoint before it counts as failed."""
_SECONDS_BETWEEN_SIGNAL_CHECKS = 0.2


class RayExecutor:
    """Trains as many seeds at a time as the cluster has resources for."""

    def __init__(self, address: str | None, output_dir: Path, *, gpus: int = 0) -> None:
        """Use the cluster at `address`, by default the one of this machine, with `gpus` GPUs per seed."""
        check_installed("benchmark.executor: ray")
        self._address = address or os.environ.get("RAY_ADDRESS") or "auto"
        self._output_dir = output_dir
        self._gpus = gpus

    def prepare(self) -> None:
        """Connect to the cluster and check that it has the resources for a seed."""
        import ray

        if not ray.is_initialized():
            connect(self._address, place="benchmark.ray_address")
        there = ray.cluster_resources()
        lacking = [name for name, count in (("CPU", 1), ("GPU", self._gpus)) if there.get(name, 0) < count]
        if lacking:
            raise AxiomError(f"the Ray cluster has no {' and no '.join(lacking)} to train on; add a node that has")

    def execute(self, seeds: Seeds, begin: Begin, report: Report, signals: SignalGuard) -> None:
        """Train the seeds; one that loses its node continues on another."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        mailbox = ray.remote(Mailbox).options(num_cpus=0, scheduling_strategy=here).remote()
        # A new process for each seed, as with `processes`; the sweep itself makes retries.
        task = ray.remote(max_calls=1)(train_on_node).options(num_cpus=1, num_gpus=self._gpus, max_retries=0)
        tasks: dict[Any, RemoteSeed] = {}

        def submit(seed: RemoteSeed) -> None:
            assignment, archive = seed.next_attempt(ray.put)
            tasks[task.remote(assignment, mailbox, archive)] = seed

        waiting, told_to_stop = iter(seeds), False
        try:
            while True:
                while not told_to_stop and (number := next(waiting, None)) is not None:
                    submit(RemoteSeed(number, begin(number), self._output_dir, report))
                if not tasks:
                    return
                if signals.received is not None and not told_to_stop:
                    told_to_stop = True
                    _stop(signals.received, mailbox, tasks)
                ended, _ = ray.wait(list(tasks), num_returns=len(tasks), timeout=0)
                _read(mailbox, {seed.number: seed for seed in tasks.values()})  # all messages of the ended seeds
                for reference in ended:
                    seed = tasks.pop(reference)
                    try:
                        seed.end(ray.get(reference))
                    except ray.exceptions.RayTaskError as error:
                        seed.fail(f"{type(error.cause).__name__}: {error.cause}")
                    except ray.exceptions.RayError as error:
                        if not told_to_stop and seed.may_try_again(type(error).__name__):
                            submit(seed)
        finally:
            for reference in tasks:
                ray.cancel(reference, force=True)
            ray.kill(mailbox)


def _stop(number: int, mailbox: Any, tasks: Mapping[Any, RemoteSeed]) -> None:
    """Forward a signal to the runs; a task that has not started its run has nothing to save."""
    import ray

    ray.get(mailbox.stop.remote(number))
    for reference, seed in tasks.items():
        if not seed.in_training:
            ray.cancel(reference, force=True)


def _read(mailbox: Any, seeds: Mapping[int, RemoteSeed]) -> None:
    """Deliver all messages that have arrived, except those of earlier attempts on lost nodes."""
    import ray

    for number, attempt, kind, content in ray.get(mailbox.take.remote(_SECONDS_BETWEEN_SIGNAL_CHECKS)):
        seed = seeds.get(number)
        if seed is not None and seed.attempt == attempt:
            seed.receive(kind, content)


class RemoteSeed:
    """A seed that is trained on another machine, and the local copy of its run."""

    def __init__(self, number: int, runner: Runner, output_dir: Path, report: Report) -> None:
        if not isinstance(runner, MovableRunner):
            raise RunFailure(f"a {type(runner).__name__} cannot be sent to a Ray cluster; train its seeds serially")
        self.number, self.attempt = number, 0
        self._label = label_of(number, runner)
        self.in_training = False
        self._runner, self._output_dir, self._report = runner, output_dir, report
        self._run_dir = runner.resume_from  # the local copy
        self._run_name = ""
        self._arriving: IO[bytes] | None = None
        self._step_at_start, self._fruitless = -1, 0

    def next_attempt(self, store: Callable[[bytes], Any]) -> tuple[Assignment, list[Any]]:
        """Return the assignment of a worker, and references to the stored parts of the run so far."""
        self.attempt += 1
        self.in_training = False
        if self._arriving is not None:  # an incomplete archive, whose remaining parts are lost
            self._arriving.close()
            self._arriving = None
        self._step_at_start = self._newest_step()
        archive: list[Any] = []
        names: list[str] = []
        source = self._run_dir if self._step_at_start >= 0 else None
        if source is not None:
            names = RunPacker(source).pack(lambda part: archive.append(store(part)))
        assignment = Assignment(
            seed=self.number,
            attempt=self.attempt,
            runner=self._runner,
            run_name=None if source is None else source.name,
            file_names=tuple(names),
            argv=tuple(sys.argv),
            versions=dependency_versions(),
            log_level=logger.getEffectiveLevel(),
        )
        return assignment, archive

    def receive(self, kind: str, content: Any) -> None:
        """Handle a message of the worker."""
        if kind == SAID:
            level, text = content
            logger.log(level, "%s: %s", self._label, text)
        elif kind == STARTED:
            self.in_training, self._run_name = True, content.run_dir.name
            if self._run_dir is not None:
                self._report_running()
        elif kind == PART:
            if self._arriving is None:
                self._arriving = tempfile.TemporaryFile(dir=self._output_dir)  # noqa: SIM115 - closed when unpacked
            self._arriving.write(content)
        elif kind == PACKED:
            self._unpack(content)

    def _unpack(self, names: Sequence[str]) -> None:
        assert self._arriving is not None
        is_new = self._run_dir is None
        if self._run_dir is None:
            self._run_dir = claim_directory(self._output_dir, self._run_name)
        with self._arriving as parts:
            parts.seek(0)
            unpack_run(parts, self._run_dir, names, output_dir=self._output_dir)
        self._arriving = None
        if is_new:
            logger.info("%s: its run is kept in %s", self._label, self._run_dir)
            self._report_running()

    def _report_running(self) -> None:
        self._report(BenchmarkRunRecord(self.number, self._run_dir, status=RUNNING))

    def end(self, record: BenchmarkRunRecord) -> None:
        """Report the end of the training, with local paths."""
        copy = self._run_dir
        self._report(record if copy is None or record.run_dir is None else record.moved_to(copy))

    def fail(self, sentence: str) -> None:
        """Report that the seed cannot be trained."""
        self._report(BenchmarkRunRecord(self.number, self._run_dir, status=FAILED, error=sentence))

    def may_try_again(self, cause: str) -> bool:
        """Return whether a seed whose node was lost is tried again; after too many attempts report a failure."""
        reached = self._newest_step()
        self._fruitless = 0 if reached > self._step_at_start else self._fruitless + 1
        if self._fruitless >= FRUITLESS_ATTEMPTS:
            self.fail(f"its node was lost {self._fruitless} times without a newer checkpoint ({cause})")
            return False
        outlook = f"goes on elsewhere from step {reached}" if reached >= 0 else "starts anew elsewhere"
        logger.warning("%s: its node was lost (%s); it %s", self._label, cause, outlook)
        return True

    def _newest_step(self) -> int:
        """Return the step of the newest undamaged local checkpoint, -1 if there is none."""
        if self._run_dir is None:
            return -1
        try:
            return newest_sound_checkpoint(self._run_dir)[0].step
        except CheckpointError:
            return -1

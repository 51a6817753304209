"""Runners: how an experiment is executed."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rl_training.experiment.benchmarking import SweepSummary, aggregate_sweep, score_metric, write_summary
from rl_training.experiment.manager import Runner
from rl_training.experiment.runs import SCORE, utc_now
from rl_training.experiment.storage.files import hold_lock, storage_errors
from rl_training.experiment.sweeps import (
    COMPLETED,
    FAILED,
    INTERRUPTED,
    PENDING,
    BenchmarkRunRecord,
    SeedSweepPlan,
)
from rl_training.runtime.recording.result import EPISODE_BOUNDARY, EXACT
from rl_training.runtime.session import TrainResult
from rl_training.runtime.signals import SignalGuard
from rl_training.runtime.sweep.executors import Executor, SerialExecutor

logger = logging.getLogger("rl_training")


class FunctionRunner:
    """Runs one training."""

    def __init__(self, run_fn: Callable[[], TrainResult]) -> None:
        self._run_fn = run_fn

    def run(self) -> TrainResult:
        """Train and return the result."""
        return self._run_fn()


class BenchmarkRunner:
    """Trains one run per seed and writes a summary."""

    def __init__(
        self,
        seed_sweep: SeedSweepPlan,
        make_runner: Callable[[int], Runner],
        summary_path: Path,
        *,
        config: Mapping[str, Any] | None = None,
        executor: Executor | None = None,
        known: SweepSummary | None = None,
    ) -> None:
        """Prepare a sweep; `config` is stored in the summary, and `known` is the summary of a sweep to continue.

        Executors in other processes need a `make_runner` whose runners can be pickled.
        """
        self._seeds = seed_sweep.seeds
        self._make_runner = make_runner
        self._path = Path(summary_path)
        self._executor: Executor = SerialExecutor() if executor is None else executor
        self._known = {} if known is None else {record.seed: record for record in known.runs}
        runs = tuple(self._known.get(seed, BenchmarkRunRecord(seed, status=PENDING)) for seed in self._seeds)
        self._summary = SweepSummary(config, runs, utc_now() if known is None else known.created_at_utc)

    def run(self) -> TrainResult:
        """Train the missing seeds and return the aggregates; the summary is rewritten whenever a seed begins or ends.

        A seed that fails is recorded and does not stop the others; the status of the result is then `failed`.
        """
        self._executor.prepare()
        with storage_errors("the summary of a sweep", self._path.parent):
            self._path.parent.mkdir(parents=True, exist_ok=True)
        lock = hold_lock(
            self._path.with_name(f".{self._path.name}.lock"),
            taken=f"another process is training the seeds of {self._path}; wait for it or stop it",
        )
        signals = SignalGuard()
        signals.install()
        try:
            write_summary(self._path, self._summary)
            missing = [record.seed for record in self._summary.runs if record.status != COMPLETED]
            self._executor.execute(missing, self._begin, self._report, signals)
            self._end(signals.received)
        finally:
            signals.restore()
            if lock is not None:
                lock.close()
        return self._result(signals.received)

    def _begin(self, seed: int) -> Runner:
        logger.info("seed %d (%d of %d)", seed, self._seeds.index(seed) + 1, len(self._seeds))
        return self._make_runner(seed)

    def _report(self, record: BenchmarkRunRecord) -> None:
        earlier = self._known.get(record.seed)
        if earlier is not None and earlier.run_dir == record.run_dir and record.duration_seconds is not None:
            seconds = record.duration_seconds + (earlier.duration_seconds or 0.0)
            record = dataclasses.replace(record, duration_seconds=seconds)
        self._summary = self._summary.with_record(record)
        write_summary(self._path, self._summary)
        if record.status == FAILED:
            where = f" (its traceback is in {self._path})" if record.traceback else ""
            logger.error("seed %d failed: %s%s", record.seed, record.error, where)
        elif record.status == COMPLETED:
            metric = score_metric(record.metrics)
            score, name = record.metrics.get(metric), "eval return" if metric == SCORE else "normalised mean"
            shown = "" if score is None else f", {name} {score:g}"
            logger.info("seed %d completed%s", record.seed, shown)

    def _end(self, signal: int | None) -> None:
        statuses = {record.status for record in self._summary.runs}
        if statuses == {COMPLETED}:
            status = COMPLETED
        else:
            status = FAILED if signal is None else INTERRUPTED
        self._summary = self._summary.ended(status)
        write_summary(self._path, self._summary)

    def _result(self, signal: int | None) -> TrainResult:
        modes = {record.resume_mode for record in self._summary.runs}
        return TrainResult(
            run_dir=self._path.parent,
            checkpoint_path=None,
            metrics=aggregate_sweep(self._summary.runs),
            benchmark_summary_path=self._path,
            status=self._summary.status,
            resume_mode=EPISODE_BOUNDARY if EPISODE_BOUNDARY in modes else EXACT,
            signal=signal if self._summary.status == INTERRUPTED else None,
        )

"""How the seeds of a sweep are executed: the protocol, and the serial executor.

Executors differ in where a seed is trained, never in the results. What they train need not be known in advance: a
search of settings decides from the results so far what is trained next.
"""

from __future__ import annotations

import logging
import signal
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from rl_training.errors import AxiomError, RunFailure
from rl_training.experiment.checkpoints import LATEST, pointed
from rl_training.experiment.manager import Runner
from rl_training.experiment.sweeps import FAILED, INTERRUPTED, RUNNING, BenchmarkRunRecord
from rl_training.runtime.callbacks import Callback, TrainingEvent
from rl_training.runtime.recording.progress import LoggedProgress
from rl_training.runtime.signals import SignalGuard

logger = logging.getLogger("rl_training")

STARTED, SAID, ENDED = "started", "said", "ended"
"""Kinds of messages from a seed that is trained in another process: its run directory, a log line, its result."""

Seeds = Iterable[int | None]
"""The seeds to train, each taken when it can begin; None says that there is none now, but perhaps after a report."""
Begin = Callable[[int], Runner]
"""Called when a seed begins; returns its runner."""
Report = Callable[[BenchmarkRunRecord], None]
"""Called with the latest record of a seed."""


class Executor(Protocol):
    """Trains the seeds of a sweep."""

    def prepare(self) -> None:
        """Check that the executor can work, before anything is written."""

    def execute(self, seeds: Seeds, begin: Begin, report: Report, signals: SignalGuard) -> None:
        """Train every seed; report when its run has started and when it has ended.

        After a signal no further seed begins, and those in training save and end.
        """


@runtime_checkable
class WatchableRunner(Runner, Protocol):
    """A runner of one training that accepts further callbacks."""

    def watched_by(self, *callbacks: Callback) -> Runner:
        """Return the same runner with these callbacks added."""


class SerialExecutor:
    """One seed after another in this process."""

    def prepare(self) -> None:
        """Do nothing."""

    def execute(self, seeds: Seeds, begin: Begin, report: Report, signals: SignalGuard) -> None:
        """Train the seeds in order."""

        def started(record: BenchmarkRunRecord) -> None:
            report(record)
            if signals.received is not None:  # received during the setup of the run, which now has its own guard
                signal.raise_signal(signals.received)

        waiting = iter(seeds)
        while signals.received is None and (seed := next(waiting, None)) is not None:
            record = train_seed(seed, begin(seed), started)
            signals.received = signals.received or record.signal
            report(record)


def label_of(seed: int, runner: Runner) -> str:
    """Return what messages about a seed begin with."""
    return getattr(runner, "label", "") or f"seed {seed}"


def train_seed(seed: int, runner: Runner, started: Report, callbacks: Sequence[Callback] = ()) -> BenchmarkRunRecord:
    """Train one seed and return its record, also after a failure; `started` is called when its run has started."""
    watcher = _StartWatcher(seed, started)
    if isinstance(runner, WatchableRunner):
        runner = runner.watched_by(watcher, *callbacks)
    begun = time.monotonic()
    try:
        result = runner.run()
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        return _failure(seed, watcher.run_dir, error, time.monotonic() - begun)
    return BenchmarkRunRecord(
        seed=seed,
        run_dir=result.run_dir,
        checkpoint_path=result.checkpoint_path,
        metrics=result.metrics,
        status=result.status,
        best_checkpoint_path=result.best_checkpoint_path,
        resume_mode=result.resume_mode,
        stop_reason=result.stop_reason,
        duration_seconds=time.monotonic() - begun,
        signal=result.signal,
    )


def train_elsewhere(
    seed: int, runner: Runner, send: Callable[[str, Any], None], level: int, callbacks: Sequence[Callback] = ()
) -> BenchmarkRunRecord:
    """Train one seed in a process of its own, and `send` messages to the sweep.

    These are `STARTED` with a record, and `SAID` with level and text for everything that is logged at `level` or above.
    """
    handler = _LogSender(send)
    logger.addHandler(handler)
    logger.setLevel(level)
    progress = [LoggedProgress()] if logger.isEnabledFor(logging.INFO) else []
    try:
        return train_seed(seed, runner, lambda record: send(STARTED, record), [*callbacks, *progress])
    finally:
        logger.removeHandler(handler)


def _failure(seed: int, run_dir: Path | None, error: BaseException, seconds: float) -> BenchmarkRunRecord:
    interrupted = isinstance(error, KeyboardInterrupt)
    if isinstance(error, SystemExit):  # raised by an environment; it must neither end the sweep nor count as success
        error = RunFailure(f"the run was ended by a call of sys.exit({error.code!r}) inside it")
    expected = interrupted or isinstance(error, AxiomError)
    sentence = str(error) if expected else f"{type(error).__name__}: {error}"
    return BenchmarkRunRecord(
        seed=seed,
        run_dir=run_dir,
        checkpoint_path=None if run_dir is None else pointed(run_dir, LATEST),
        status=INTERRUPTED if interrupted else FAILED,
        duration_seconds=seconds,
        error=None if interrupted else sentence,
        traceback=None if expected else "".join(traceback.format_exception(error)),
        signal=signal.SIGINT if interrupted else None,
    )


class _StartWatcher(Callback):
    """Reports the run directory of a seed as soon as it trains, so that a killed sweep can be continued."""

    def __init__(self, seed: int, started: Report) -> None:
        self._seed, self._started = seed, started
        self.run_dir: Path | None = None

    def on_train_start(self, event: TrainingEvent) -> None:
        self.run_dir = event.run_dir
        self._started(BenchmarkRunRecord(self._seed, event.run_dir, status=RUNNING))


class _LogSender(logging.Handler):
    """Sends log records to the sweep."""

    def __init__(self, send: Callable[[str, Any], None]) -> None:
        super().__init__()
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        self._send(SAID, (record.levelno, record.getMessage()))

"""The state of one run: configuration, streams, counters, intervals, files. Every trainer runs inside a session."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from types import TracebackType

from torch import Tensor

from rl_training.algorithms.base import Algorithm
from rl_training.data.replay import Replay
from rl_training.envs.step import StepBatch, StepEvents
from rl_training.errors import AxiomError, EnvironmentFailure
from rl_training.experiment.benchmarking import score_metric
from rl_training.experiment.cadence import Marks
from rl_training.experiment.checkpoints import ResumePoint, go_back_to
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.tasks import is_suite
from rl_training.runtime.acting.evaluator import EvaluationInterrupted, evaluate_tasks, evaluation_seeds
from rl_training.runtime.acting.films import Films
from rl_training.runtime.callbacks import Callback, CallbackList, EarlyStopping
from rl_training.runtime.collector import Collector
from rl_training.runtime.controls import Control
from rl_training.runtime.ranks.share import WHOLE, Share
from rl_training.runtime.recording.metrics import Stopwatch
from rl_training.runtime.recording.recorder import RunRecorder
from rl_training.runtime.recording.replay_archive import ReplayArchive
from rl_training.runtime.recording.result import EPISODE_BOUNDARY, EXACT
from rl_training.runtime.recording.result import TrainResult as TrainResult
from rl_training.runtime.recording.saved_run import SavedRun
from rl_training.runtime.run_utils import create_training_run, write_run_config
from rl_training.runtime.setup.callback_setup import make_named_callbacks
from rl_training.runtime.setup.restored_state import (
    check_actions,
    check_collector_form,
    check_form,
    check_replay_counts,
    checkpoint_fits,
)
from rl_training.runtime.setup.run_setup import RunSetup
from rl_training.runtime.setup.streams import Streams
from rl_training.runtime.setup.warm_start import StartingWeights
from rl_training.runtime.signals import SignalGuard

logger = logging.getLogger("rl_training")


class TrainingSession(SavedRun):
    """Counts steps, and logs, evaluates and saves when their intervals have passed."""

    def __init__(
        self,
        config: TrainConfig,
        *,
        callbacks: Sequence[Callback] = (),
        checkpoint: ResumePoint | None = None,
        weights: StartingWeights | None = None,
        share: Share = WHOLE,
    ) -> None:
        """Check everything that can be checked before a run directory exists.

        A new run starts with `weights` if given, in place of those that `init` names. With several learners, this is
        the session of the one that has the given `share`.
        """
        super().__init__()
        self.setup = RunSetup(config, checkpoint, weights, share)
        self.config, self.params, self.device = self.setup.config, self.setup.params, self.setup.device
        self.learners, self.seed = share.count, share.seed(self.config.seed)
        self.streams = Streams(self.seed, self.device, root=self.config.seed)
        self.callbacks = self._make_callbacks(callbacks)
        self.resume_mode = EXACT
        self._resume_point = checkpoint
        self._signals = SignalGuard()
        self._controls = {
            key: Control.of(self.config, key, default=getattr(self.params, key)) for key in self.params.controls
        }
        horizon = self.config.total_timesteps
        self._log_marks = Marks(self.config.log_interval or max(1, horizon // 100), horizon)
        self._eval_marks = Marks(self.config.eval_interval, horizon)
        self._films = Films(self.config)
        self._save_marks = Marks(self.config.checkpoint_interval or max(1, horizon // 10), horizon)
        self._saved = False  # whether the latest checkpoint contains the current state

    def _make_callbacks(self, callbacks: Sequence[Callback]) -> CallbackList:
        early = [EarlyStopping(**self.config.early_stopping)] if self.config.early_stopping else []
        return CallbackList([*early, *callbacks], named=make_named_callbacks(self.config))

    def __enter__(self) -> TrainingSession:
        self.setup.torch.apply()
        return self

    def start(self, algorithm: Algorithm, collector: Collector, replays: Sequence[Replay] = ()) -> None:
        """Create or reopen the run directory, restore the checkpoint if there is one, and begin."""
        self.algorithm, self.collector = algorithm, collector
        self._archives = [
            ReplayArchive(replay, number) for number, replay in enumerate(replays, start=self.setup.share.rank)
        ]
        self._policies = self.setup.make_policies(algorithm)
        lengths = self._restore(self._resume_point) if self._resume_point is not None else {}
        self.resume_mode = EXACT if collector.state_dict()["env"] is not None else EPISODE_BOUNDARY
        self._open_run(lengths)
        for notice in self._resume_point.notices if self._resume_point else ():
            self._recorder.notice(notice)
        for task in self.setup.tasks:
            for notice in task.notices:
                self.notify(notice)
        if self.resume_mode == EPISODE_BOUNDARY:
            self.notify(
                f"{self.config.env_id} cannot be snapshotted, so the resume mode is {EPISODE_BOUNDARY}: "
                "a resumed run starts its episodes anew"
            )
        self._recorder.follow(self.config)
        self._recorder.metadata["hardware"].update(self.setup.torch.describe())
        self._recorder.update(
            status="running",
            error=None,
            finished_at_utc=None,
            resume_mode=self.resume_mode,
            acceleration=self.setup.acceleration,
            dataset=self.setup.dataset,
        )
        self._signals.install()
        self._timed_from = (self.step, time.perf_counter())
        self.callbacks.call("on_train_start", self._event())
        if not self._saved:
            self.save()
        if self._evaluation_due and self.evaluate():
            self.save(best=True)
        if self._film_due:
            self._film()

    def _open_run(self, lengths: Mapping[str, int]) -> None:
        resumed = self._resume_point
        if resumed is None or resumed.fork:
            run_dir = create_training_run(
                self.config,
                resume_mode=self.resume_mode,
                parent=self.setup.lineage(),
            )
            self._recorder = RunRecorder(run_dir, self.config)
            self.run_dir = run_dir
            return
        checkpoint = resumed.checkpoint
        self._recorder = RunRecorder(checkpoint.run_dir, self.config, resumed_at=self.step)
        self.run_dir = checkpoint.run_dir
        # Pointers before rows: rows beyond the checkpoint are removed at the next resume, missing ones cannot be
        # recovered.
        self._checkpoint_path, best, removed = go_back_to(checkpoint, best=self._best_path())
        self._recorder.cut_back(lengths)
        self._saved = True
        if self._best is not None and best is None:
            self._forget_best()
        if removed:
            self.notify(f"removed what came after step {checkpoint.step}: {', '.join(path.name for path in removed)}")
        self._recorder.metadata.update(
            latest_metrics=dict(self._latest),
            latest_checkpoint=f"checkpoints/{self._checkpoint_path.name}",
            best_checkpoint=self._best,
            resumed_at_steps=[*self._recorder.metadata.get("resumed_at_steps", []), checkpoint.step],
        )
        write_run_config(self.run_dir, self.config)

    def _restore(self, resumed: ResumePoint) -> dict[str, int]:
        """Load the resume point into all components and return the lengths of the run's files stored in it."""
        checkpoint = resumed.checkpoint
        state, self.setup.state = self.setup.state, None
        assert state is not None
        with checkpoint_fits(checkpoint):
            session = state["session"]
            check_form(self.algorithm.state_dict(), state["algorithm"], "algorithm")
            check_collector_form(self.collector.state_dict(), state["collector"])
            self.algorithm.load_state_dict(state["algorithm"])
            self.setup.load_normalizer_state_dict(state["normalizers"])
            self.streams.load_state_dict(session["streams"])
            if self._archives:
                check_replay_counts(state["collector"], checkpoint.manifest["segments"], self._archives[0].number)
            for archive in self._archives:
                archive.restore(checkpoint.run_dir, checkpoint.manifest["segments"], fork=resumed.fork)
            self.collector.load_state_dict(state["collector"], step=checkpoint.step)
            for archive, task in zip(self._archives, self.setup.tasks, strict=False):
                check_actions(archive.replay, task.action_space)
            self.callbacks.load_state_dict(resumed.kept_callbacks(session["callbacks"]))
            self.load_counters(session["counters"])
            if resumed.asks_for_more(self.config.total_timesteps):
                self.stop_reason = None
            if resumed.fork:
                self._best = None  # the best checkpoint belongs to the parent
            return dict(session["file_lengths"])

    # -- running ---------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """Whether the run reached its horizon or a callback ended it."""
        return self.step >= self.config.total_timesteps or self.stop_reason is not None

    @property
    def interrupted(self) -> bool:
        """Whether a signal requested the run to save and end."""
        return self.signal is not None

    @property
    def signal(self) -> int | None:
        """The signal that requested it."""
        return self._signals.received

    @property
    def done(self) -> bool:
        """Whether the loop should end."""
        return self.finished or self.interrupted

    def controls(self) -> dict[str, float]:
        """Resolve every scheduled scalar for the current step."""
        self._resolved = self.controls_at(self.step)
        return self._resolved

    def controls_at(self, step: int) -> dict[str, float]:
        """Resolve every scheduled scalar for a step."""
        return {key: control.at(step) for key, control in self._controls.items()}

    def due_between(self, before: int, after: int) -> bool:
        """Return whether a row, an evaluation, a film or a checkpoint is due between two step counts."""
        marks = (self._log_marks, self._eval_marks, self._save_marks, self._films)
        return any(mark.crossed(before, after) for mark in marks)

    def show(self, **values: float) -> None:
        """Add values beside the scheduled scalars to all following rows."""
        self._resolved.update(values)

    def timed(self, name: str) -> Stopwatch:
        """Add the time of a block to `time_<name>`."""
        return Stopwatch(self._times, f"time_{name}")

    def count_episodes(self, step: StepBatch | StepEvents, task: str | None = None) -> None:
        """Record the episodes that ended at a step and the environments' metrics.

        `task` is the name of the task in a suite.
        """
        if step.episodes:
            self.add_episodes([(episode.episode_return, episode.length) for episode in step.episodes], task)
        for given in step.metrics:
            self.env_metrics.add(given, task)

    def fewest(self, stored: int) -> int:
        """Return the smallest number of stored transitions of all learners."""
        return stored

    def collected(self) -> None:
        """Call the callbacks after collection, before the update."""
        if self.callbacks:  # making the event costs as much as a small product
            self.callbacks.call("on_collect_end", self._event())

    def advance(
        self, steps: int, metrics: Mapping[str, Tensor], *, updates: int = 1, check_finite: bool = True
    ) -> None:
        """Count collected steps and updates; log, evaluate and save if an interval has passed.

        With several learners each has taken as many steps. Metrics are checked for NaN immediately, or with
        `check_finite=False` before the next row or checkpoint: for small updates the check would cost more than it
        saves.
        """
        before, self.step = self.step, self.step + steps * self.learners
        self.update_count += updates
        self._saved = False
        self.metrics.add(metrics)
        if check_finite:
            self._check_finite()
        row = self._log() if self._log_marks.crossed(before, self.step) else {}
        if self.callbacks and (updates or row):
            self.callbacks.call("on_update_end", self._event(row))
        self._evaluation_due |= self._eval_marks.crossed(before, self.step)
        best = self._evaluation_due and self.evaluate()
        self._film_due |= self._films.crossed(before, self.step)
        if self._film_due:
            self._film()
        if best or self._save_marks.crossed(before, self.step):
            self.save(best=best)

    def evaluate(self) -> bool:
        """Evaluate the current policy and return whether it is the best so far.

        An evaluation interrupted by a signal or a failing environment stays due: the resumed run makes it first.
        """
        if self.config.eval_episodes == 0 or self._evaluated_step == self.step:
            self._evaluation_due = False
            return False
        self._evaluation_due, self._saved = True, False
        seeds = evaluation_seeds(self.config.seed, self.step, self.config.eval_episodes)
        self._set_simulations()
        suite = is_suite(self.config)
        try:
            with self.timed("eval"):
                episodes, summary = evaluate_tasks(
                    self._policies, seeds, suite=suite, interrupted=lambda: self._signals.received is not None
                )
        except EvaluationInterrupted:
            return False
        self._evaluated_step, self._evaluation_due = self.step, False
        self._recorder.episodes(
            {"global_step": self.step, "episode": index % len(seeds), **episode.as_row()}
            for index, episode in enumerate(episodes)
        )
        row = {"event": "eval", "global_step": self.step, **summary, "time_eval": self._times["time_eval"]}
        self._record(row)
        self.callbacks.call("on_eval_end", self._event(row))
        return self._best is None or row[score_metric(row)] > self._best["value"]

    def _set_simulations(self) -> None:
        for policy in self._policies.values():
            if policy.plans:
                policy.num_simulations = int(self._controls["num_simulations"].at(self.step))

    def _film(self) -> None:
        """Record the films that are due; after a signal the resumed run records them."""
        assert self.run_dir is not None
        self._saved = False
        self._set_simulations()
        self._times.setdefault("time_video", 0.0)
        with self.timed("video"):
            self._film_due = not self._films.record(
                self._policies,
                self.run_dir,
                self.step,
                interrupted=lambda: self._signals.received is not None,
                report=self.notify,
            )

    # -- ending ----------------------------------------------------------------------------------

    def result(self) -> TrainResult:
        """Log, evaluate and save what is still due, close the run and return its result."""
        assert self.run_dir is not None
        best = False
        if self.finished:
            if self._logged_step != self.step:
                self._log()
            best = self.evaluate()
        if best or not self._saved or self.collector.steps_in_progress:
            self.save(best=best)
        # A signal may have interrupted the last evaluation or film.
        complete = self.finished and not self._evaluation_due and not self._film_due
        status = "completed" if complete else "interrupted"
        self._end(status)
        return TrainResult(
            run_dir=self.run_dir,
            checkpoint_path=self._checkpoint_path,
            metrics={**self._latest, **self._resolved, "global_step": self.step},
            best_checkpoint_path=self._best_path(),
            status=status,
            stop_reason=self.stop_reason,
            resume_mode=self.resume_mode,
            signal=None if complete else self.signal,
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is not None and self.run_dir is not None:
                self._fail(error)
        finally:
            self._signals.restore()
            self.setup.close()

    def _fail(self, error: BaseException) -> None:
        """Record a failure; if only the environments failed, save the algorithm first."""
        if isinstance(error, EnvironmentFailure) and not self._saved:
            try:
                lost = self.collector.state_dict()["env"] is None
                outlook = "; its episodes start anew when it is resumed" if lost else ""
                self.notify(f"saved the learner in {self.save().name}{outlook}")
            except (AxiomError, OSError) as second:
                logger.error("the learner could not be saved: %s", second)
        self._end_in_failure(error)

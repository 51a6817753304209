"""The session of one of several ranks: counted, logged, evaluated, saved and stopped together, written by rank 0."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from rl_training.algorithms.base import ActingAlgorithm
from rl_training.envs.step import StepBatch, StepEvents
from rl_training.errors import NonFiniteError, RunFailure
from rl_training.experiment.checkpoints import ResumePoint
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.callbacks import Callback, CallbackList
from rl_training.runtime.ranks.group import Ranks
from rl_training.runtime.ranks.moments import JointMoments
from rl_training.runtime.ranks.share import RANKS, Share
from rl_training.runtime.ranks.silence import NoSignals, SilentRecorder
from rl_training.runtime.recording.env_metrics import EnvironmentMetrics
from rl_training.runtime.session import TrainingSession

logger = logging.getLogger("rl_training")

_QUESTIONS_PER_ANSWER = 32
"""How often a rank asks whether to stop before it asks the others: an exchange may take longer than a step."""
_DECIDED = ("stop_reason", "_saved", "_evaluation_due", "_evaluated_step", "_film_due")
"""What rank 0 decides for all."""


class RankSession(TrainingSession):
    """A session whose methods are called by all ranks in the same order.

    Rank 0 alone has callbacks, evaluates and writes files. `step` counts the environment steps of all ranks.
    """

    def __init__(
        self,
        config: TrainConfig,
        share: Share,
        find_others: Callable[[RankSession], Ranks],
        *,
        callbacks: Sequence[Callback] = (),
        checkpoint: ResumePoint | None = None,
        deaf: bool = False,
    ) -> None:
        """`find_others` starts the other ranks or finds them; a `deaf` rank gets no signals of its own."""
        self._find_others = find_others
        self._ranks: Ranks | None = None
        self._asked = 0
        self._signal = 0  # the largest that any rank has received
        self._all_stored = False
        self._pending: list[tuple[float, int]] = []  # episodes since the last row
        self._of_others: list[dict[str, Any]] = []  # what the other ranks have sent for a checkpoint
        self._segments_of_others: list[dict[str, Any]] = []
        super().__init__(config, callbacks=callbacks, checkpoint=checkpoint, share=share)
        if deaf:
            self._signals = NoSignals()

    def __enter__(self) -> RankSession:
        super().__enter__()
        try:
            logger.info("%d learners with %d environments each", self.learners, self.setup.own_config.num_envs)
            self._ranks = self._find_others(self)
            self._ranks.connect(self.device)
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    @property
    def ranks(self) -> Ranks:
        """The ranks of the run."""
        assert self._ranks is not None
        return self._ranks

    def _make_callbacks(self, callbacks: Sequence[Callback]) -> CallbackList:
        return super()._make_callbacks(callbacks) if self.setup.share.rank == 0 else CallbackList([])

    def start(self, algorithm: Any, collector: Any, replays: Sequence[Any] = ()) -> None:
        """Learn together, create or reopen the run directory, restore the checkpoint if there is one, and begin."""
        algorithm.share(self.ranks)
        self._acting: ActingAlgorithm = algorithm
        collector.steps_at_once *= self.learners  # messages name the steps of all ranks
        self._joint = JointMoments(self.setup.tasks[0].normalizers)
        super().start(algorithm, collector, replays)
        self._agree()

    def _restore(self, resumed: ResumePoint) -> dict[str, int]:
        assert self.setup.state is not None
        own = self.setup.state[RANKS][self.ranks.rank]
        lengths = super()._restore(resumed)
        self._pending = [(value, length) for value, length in own["episodes"]]
        self._joint.load_state_dict(own["moments"])
        return lengths

    def _open_run(self, lengths: Any) -> None:
        if self.ranks.leads:
            super()._open_run(lengths)
        else:
            self._recorder = SilentRecorder()
        # Only what is needed to write there is the same for all: rows and notices are those of rank 0.
        self.run_dir, self._checkpoint_path, self._saved = self.ranks.broadcast(
            (self.run_dir, self._checkpoint_path, self._saved)
        )

    # -- running ---------------------------------------------------------------------------------

    @property
    def interrupted(self) -> bool:
        """Whether a signal requested the run to save and end; all ranks are told so at the same step."""
        self._asked += 1
        if not self._signal and self._asked % _QUESTIONS_PER_ANSWER == 0:
            (self._signal,) = self.ranks.largest(self._signals.received or 0)
        return self._signal != 0

    @property
    def signal(self) -> int | None:
        """The signal that all ranks follow."""
        return self._signal or None

    def fewest(self, stored: int) -> int:
        """Return the smallest number of stored transitions of all ranks, until each has some."""
        if not self._all_stored:
            stored = -self.ranks.largest(-stored)[0]
            self._all_stored = stored > 0
        return stored

    def count_episodes(self, step: StepBatch | StepEvents, task: str | None = None) -> None:
        """Remember the episodes that ended at a step until those of all ranks are joined."""
        self._pending += [(episode.episode_return, episode.length) for episode in step.episodes]
        for given in step.metrics:
            self.env_metrics.add(given, task)

    def collected(self) -> None:
        """Join the normalisers' statistics, and call the callbacks."""
        self._joint.join(self.ranks.add)
        super().collected()

    def advance(self, steps: int, metrics: Any, *, updates: int = 1, check_finite: bool = True) -> None:
        """Count collected steps and updates; log, evaluate and save if an interval has passed; agree on the end."""
        logged = self._logged_step
        super().advance(steps, metrics, updates=updates, check_finite=check_finite)
        if updates or self._logged_step != logged:  # callbacks may have been called
            self._agree()

    def _agree(self) -> None:
        """Stop where any rank wants to stop."""
        self._signal, stops = self.ranks.largest(
            max(self._signal, self._signals.received or 0), self.stop_reason is not None
        )
        if stops:
            self.stop_reason = self.ranks.broadcast(self.stop_reason)

    def _check_finite(self) -> None:
        """Raise an error on all ranks if metrics of any are NaN or infinite."""
        error: NonFiniteError | None = None
        try:
            self.metrics.check_finite(self.step)
        except NonFiniteError as found:
            error = found
        if self.ranks.largest(error is not None)[0]:
            sentences = self.ranks.broadcast(self.ranks.gather(None if error is None else str(error)))
            rank, sentence = next((rank, text) for rank, text in enumerate(sentences) if text is not None)
            raise NonFiniteError(f"rank {rank}: {sentence}" if None in sentences else sentence)

    def _log(self) -> dict[str, Any]:
        """Join the metrics of all ranks; rank 0 records and returns them as a row."""
        self._check_finite()
        self.metrics.average(self.ranks.average)
        gathered = self.ranks.gather((self._pending, self.env_metrics))
        self._pending = []
        self.env_metrics = EnvironmentMetrics()
        if not self.ranks.leads:
            self.metrics.clear()
            self._logged_step = self.step
            return {}
        for episodes, given in gathered:
            self.episodes.add(episodes)
            self.env_metrics.join(given)
        return self._write_row()

    def evaluate(self) -> bool:
        """Let rank 0 evaluate the current policy, and return whether it is the best so far."""
        best = super().evaluate() if self.ranks.leads else False
        return bool(self._follow(best))

    def _film(self) -> None:
        if self.ranks.leads:
            super()._film()
        self._follow(None)

    def _follow(self, result: Any) -> Any:
        """Take over what rank 0 has decided, and return its result."""
        result, decided = self.ranks.broadcast((result, [getattr(self, name) for name in _DECIDED]))
        for name, value in zip(_DECIDED, decided, strict=True):
            setattr(self, name, value)
        return result

    # -- saving ----------------------------------------------------------------------------------

    def save(self, *, best: bool = False) -> Path:
        """Let rank 0 write a checkpoint of the state of all ranks and return its path."""
        assert self.run_dir is not None
        self._check_finite()
        segments = self._own_segments()
        sent = self.ranks.gather((self._own_state(), segments, _fingerprint(self.algorithm)))
        if self.ranks.leads:
            for rank, (_, _, weights) in enumerate(sent):
                if weights != sent[0][2]:
                    raise RunFailure(f"the weights of rank {rank} are no longer those of rank 0; this is a bug")
            self._of_others = [state for state, _, _ in sent]
            self._segments_of_others = [segment for _, own, _ in sent for segment in own]
            self._write_checkpoint(best=best)
        self._checkpoint_path = self._follow(self._checkpoint_path)
        assert self._checkpoint_path is not None
        return self._checkpoint_path

    def _own_state(self) -> dict[str, Any]:
        """Return what a checkpoint needs of this rank alone; the rest of rank 0's state is the run's."""
        shared = {"episodes": self._pending, "moments": self._joint.state_dict()}
        if self.ranks.leads:
            return shared
        return {
            **shared,
            "acting": _on_host(self._acting.acting_state()),
            "normalizers": self.setup.normalizer_state_dict(),
            "collector": self.collector.state_dict(),
            "counters": {**self.counters(), "times": dict.fromkeys(self._times, 0.0)},  # the clock is rank 0's
            "streams": self.streams.state_dict(),
        }

    def _state(self, collector: dict[str, Any]) -> dict[str, Any]:
        return {**super()._state(collector), RANKS: self._of_others}

    def _segments(self) -> list[dict[str, Any]]:
        return self._segments_of_others

    def _own_segments(self) -> list[dict[str, Any]]:
        return super()._segments()

    # -- ending ----------------------------------------------------------------------------------

    def _fail(self, error: BaseException) -> None:
        """Record a failure; the last checkpoint is kept, since a new one would need all ranks."""
        self._end_in_failure(error)

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is not None and self._ranks is not None:
            self._ranks.fail(error)
        try:
            super().__exit__(kind, error, trace)
        finally:
            if self._ranks is not None:
                self._ranks.close(failed=error is not None)


def _on_host(state: Any) -> Any:
    """Return a state with its tensors in host memory, to be sent to another process."""
    if isinstance(state, torch.Tensor):
        return state.detach().cpu()
    return {key: _on_host(value) for key, value in state.items()} if isinstance(state, dict) else state


def _fingerprint(algorithm: Any) -> bytes:
    """Return a hash of all weights that learning changes."""
    digest = hashlib.blake2b(digest_size=16)
    for name in algorithm.parts:
        part = getattr(algorithm, name)
        if isinstance(part, torch.nn.Module):
            for parameter in part.parameters():
                digest.update(parameter.detach().cpu().numpy().tobytes())
    return digest.digest()

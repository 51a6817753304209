"""A run whose complete state is saved in checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rl_training.algorithms.base import Algorithm
from rl_training.experiment.benchmarking import score_metric
from rl_training.experiment.checkpoints import BEST, point, prune_checkpoints
from rl_training.runtime.collector import Collector
from rl_training.runtime.recording.recorded_run import RecordedRun
from rl_training.runtime.recording.replay_archive import ReplayArchive
from rl_training.runtime.recording.result import EPISODE_BOUNDARY, EXACT
from rl_training.runtime.run_utils import save_training_checkpoint
from rl_training.runtime.setup.run_setup import RunSetup
from rl_training.runtime.setup.streams import Streams


class SavedRun(RecordedRun):
    """A recorded run with the components whose state makes up a checkpoint."""

    setup: RunSetup
    streams: Streams
    algorithm: Algorithm
    collector: Collector
    learners: int
    _archives: list[ReplayArchive]
    _saved: bool  # whether the latest checkpoint contains the current state

    def save(self, *, best: bool = False) -> Path:
        """Write a checkpoint of the complete state and return its path."""
        self._check_finite()
        return self._write_checkpoint(best=best)

    def _write_checkpoint(self, *, best: bool) -> Path:
        assert self.run_dir is not None
        self._check_saved()
        step = self.step + self.collector.steps_in_progress * self.learners
        if best:
            metric = score_metric(self._latest)
            self._best = {
                "path": f"checkpoints/step_{step}",
                "metric": metric,
                "mode": "max",
                "value": self._latest[metric],
                "step": self.step,
            }
        collector = self.collector.state_dict()
        path = save_training_checkpoint(
            self.run_dir,
            step=step,
            config=self.config,
            state=self._state(collector),
            resume_mode=EXACT if collector["env"] is not None else EPISODE_BOUNDARY,
            spaces=self.setup.spaces_as_json(),
            torch_threads=self.setup.torch.threads.number,
            segments=self._segments(),
            dataset=self.setup.dataset,
        )
        self._checkpoint_path, self._saved = path, True
        if best:
            point(self.run_dir, BEST, path)
        prune_checkpoints(self.run_dir, self.config.keep_checkpoints)
        self._recorder.update(latest_checkpoint=f"checkpoints/{path.name}", best_checkpoint=self._best)
        self.callbacks.call("on_checkpoint", self._event(checkpoint_path=path))
        return path

    def _state(self, collector: dict[str, Any]) -> dict[str, Any]:
        return {
            "algorithm": self.algorithm.state_dict(),
            "normalizers": self.setup.normalizer_state_dict(),
            "collector": collector,
            "session": {
                "counters": self.counters(),
                "streams": self.streams.state_dict(),
                "callbacks": self.callbacks.state_dict(),
                "file_lengths": self._recorder.sync(),
            },
        }

    def _segments(self) -> list[dict[str, Any]]:
        assert self.run_dir is not None
        return [segment for archive in self._archives for segment in archive.save(self.run_dir)]

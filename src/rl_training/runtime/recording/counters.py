"""Counters and pending metrics of a run, saved with every checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rl_training.runtime.recording.env_metrics import EnvironmentMetrics
from rl_training.runtime.recording.logged import LoggedValues
from rl_training.runtime.recording.metrics import EpisodeStatistics, RunningMeans

_PLAIN = (
    "step",
    "update_count",
    "stop_reason",
    "_times",
    "_resolved",
    "_latest",
    "_best",
    "_logged_step",
    "_evaluated_step",
    "_evaluation_due",
)


class RunCounters:
    """Counts, running metrics and the latest results of a run."""

    def __init__(self) -> None:
        self.step = 0
        self.update_count = 0
        self.stop_reason: str | None = None
        self.metrics = RunningMeans()
        self.episodes = EpisodeStatistics()
        self.task_episodes: dict[str, EpisodeStatistics] = {}  # of the tasks of a suite
        self.env_metrics = EnvironmentMetrics()  # metrics of environments since the last row
        self.logged = LoggedValues()  # metrics logged by callbacks
        self._times = {"time_collect": 0.0, "time_update": 0.0, "time_eval": 0.0}
        self._resolved: dict[str, float] = {}  # scheduled scalars at the latest step
        self._latest: dict[str, Any] = {}  # the latest value of every metric
        self._best: dict[str, Any] | None = None  # the best evaluation and its checkpoint
        self._logged_step = 0
        self._evaluated_step: int | None = None
        self._evaluation_due = False
        self._film_due = False

    def counters(self) -> dict[str, Any]:
        """Return everything as plain values and tensors."""
        plain = {name.removeprefix("_"): getattr(self, name) for name in _PLAIN}
        by_task = {task: episodes.state_dict() for task, episodes in self.task_episodes.items()}
        return {
            **plain,
            "metrics": self.metrics.state_dict(),
            "episodes": self.episodes.state_dict(),
            **({"task_episodes": by_task} if by_task else {}),
            **({"env_metrics": given} if (given := self.env_metrics.state_dict()) else {}),
            **({"film_due": True} if self._film_due else {}),
            **({"logged": logged} if (logged := self.logged.state_dict()) else {}),
        }

    def load_counters(self, state: Mapping[str, Any]) -> None:
        """Restore everything."""
        for name in _PLAIN:
            setattr(self, name, state[name.removeprefix("_")])
        self.metrics.load_state_dict(state["metrics"])
        self.episodes.load_state_dict(state["episodes"])
        self.env_metrics.load_state_dict(state.get("env_metrics", {}))
        self.logged.load_state_dict(state.get("logged", {}))
        self._film_due = state.get("film_due", False)
        for task, episodes in state.get("task_episodes", {}).items():
            self.task_episodes[task] = EpisodeStatistics()
            self.task_episodes[task].load_state_dict(episodes)

    def add_times(self, seconds: Mapping[str, float]) -> None:
        """Add to the times of every following row."""
        for name, value in seconds.items():
            self._times[name] = self._times.get(name, 0.0) + value

    def spent(self, name: str) -> float:
        """Return the seconds of `time_<name>`."""
        return self._times[f"time_{name}"]

    def request_stop(self, reason: str) -> None:
        """End the run after the current step."""
        self.stop_reason = self.stop_reason or reason

    def log(self, name: str, value: float) -> None:
        """Add a callback's metric to the next row."""
        self.logged.add(name, value, taken={*self.metrics.names, *self._resolved, *self._latest})

    def add_episodes(self, episodes: Sequence[tuple[float, int]], task: str | None) -> None:
        """Add finished training episodes as (return, length)."""
        self.episodes.add(episodes)
        if task is not None:
            self.task_episodes.setdefault(task, EpisodeStatistics()).add(episodes)

    def episode_metrics(self) -> dict[str, float]:
        """Return the means over the latest training episodes, of all and of each task of a suite."""
        metrics = self.episodes.metrics()
        for task, episodes in self.task_episodes.items():
            metrics.update({f"{name}/{task}": value for name, value in episodes.metrics().items()})
        return metrics

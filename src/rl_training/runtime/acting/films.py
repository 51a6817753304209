"""Films of the policy while it learns: own environments, own seeds, without any effect on training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rl_training.errors import AxiomError, ConfigError
from rl_training.experiment.cadence import Marks
from rl_training.experiment.config import TrainConfig, video_params
from rl_training.experiment.runs import sanitize
from rl_training.experiment.tasks import Task, is_suite
from rl_training.runtime.acting.evaluator import EvaluationInterrupted
from rl_training.runtime.acting.policy import Policy
from rl_training.runtime.acting.video import check_video, record_episodes
from rl_training.runtime.setup.streams import derive_seeds


class Films:
    """Records episodes of every task when their interval has passed."""

    def __init__(self, config: TrainConfig) -> None:
        self.params = video_params(config)
        self._config = config
        self._marks = Marks(None if self.params is None else self.params.interval, config.total_timesteps)

    def crossed(self, before: int, after: int) -> bool:
        """Return whether films became due in (before, after]."""
        return self._marks.crossed(before, after)

    def check(self, tasks: Sequence[Task]) -> None:
        """Raise an error if films are asked for and a task cannot be rendered."""
        if self.params is not None and self._config.env_id is None:
            raise ConfigError("video: the run has no environment to film; set env_id, or leave video out")
        for task in tasks if self.params is not None else ():
            check_video(task, self._seeds(0)[0])

    def record(
        self,
        policies: Mapping[Task, Policy],
        run_dir: Path,
        step: int,
        *,
        interrupted: Callable[[], bool],
        report: Callable[[str], None],
    ) -> bool:
        """Film the policies and return whether it was done; a failure is reported and counts as done."""
        suite = is_suite(self._config)
        for task, policy in policies.items():
            label = f"{sanitize(task.name)}__" if suite else ""
            try:
                record_episodes(
                    policy, task, self._seeds(step), run_dir, step=step, label=label, interrupted=interrupted
                )
            except EvaluationInterrupted:
                return False
            except (AxiomError, OSError) as error:
                report(f"no film of step {step} was made, and training goes on: {str(error).partition(chr(10))[0]}")
        return True

    def _seeds(self, step: int) -> list[int]:
        assert self.params is not None
        return derive_seeds(self._config.seed, "video", step, count=self.params.episodes)

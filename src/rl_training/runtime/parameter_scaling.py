"""Dynamic parameter scaling (arXiv 2509.07945): solved tasks leave training, and adapters are added for the others.

Stage 0 trains the whole backbone; every later stage freezes it and trains one more low-rank adapter. Evaluations decide
which tasks are solved and continue for tasks that have left training: a task that has been forgotten returns to
training and does not leave it again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from rl_training.experiment.tasks import Task
from rl_training.runtime.callbacks import Callback, TrainingEvent

ALL_SOLVED = "every task reached its target return"
ALL_LEFT = "every task reached its target return once, if not at the same time"


class ScalableAlgorithm(Protocol):
    """The methods of an algorithm that scaling uses."""

    stage: int

    def train_only(self, tasks: Sequence[int]) -> None:
        """Collect and learn from these tasks alone."""

    def enter_stage(self, stage: int) -> None:
        """Train the backbone (stage 0) or only its stage-th adapter from now on."""


class ParameterScaling(Callback):
    """Tracks the solved tasks and decides when the next stage begins."""

    def __init__(
        self, tasks: Sequence[Task], *, adapters: int, stage_steps: int, reopen: bool, first_stage_steps: int = 0
    ) -> None:
        """`stage_steps` is the largest number of environment steps of a stage; `reopen` lets forgotten tasks return.

        `first_stage_steps` is the least number of steps of stage 0 and takes precedence over `stage_steps`.
        """
        self.tasks = tuple(tasks)
        self.adapters = adapters
        self.stage_steps = stage_steps
        self.first_stage_steps = first_stage_steps
        self.reopen = reopen
        self.algorithm: ScalableAlgorithm | None = None
        self.at_target: set[int] = set()
        """Tasks at their target in the latest evaluation."""
        self.left: set[int] = set()
        """Tasks that reached their target once and left training."""
        self.returned: set[int] = set()
        """Tasks that returned to training."""
        self._began = 0  # step at which the stage began
        self._unsolved_then = set(range(len(self.tasks)))

    @property
    def forgotten(self) -> set[int]:
        """Tasks that reached their target once but are now below it."""
        return self.left - self.at_target

    @property
    def solved(self) -> set[int]:
        """Tasks that need no training; forgotten ones count as solved if they cannot return."""
        return self.at_target if self.reopen else self.left

    @property
    def trained(self) -> list[int]:
        """Tasks to collect and learn from."""
        return [task for task in range(len(self.tasks)) if task not in self.left or task in self.returned]

    def on_eval_end(self, event: TrainingEvent) -> None:
        """Update the sets of tasks, and begin the next stage if it is due."""
        assert self.algorithm is not None
        everything = range(len(self.tasks))
        solved_before = len(self.solved)
        self.at_target = {number for number, task in enumerate(self.tasks) if _reached(task, event.metrics)}
        self.left |= self.at_target
        if self.reopen:
            self.returned |= self.forgotten
        unsolved = set(everything) - self.solved
        if not unsolved and solved_before < len(self.tasks):
            event.request_stop(ALL_LEFT if self.forgotten else ALL_SOLVED)
        # A run that continues although every task is solved trains all of them.
        self.algorithm.train_only(self.trained if unsolved else everything)
        if unsolved and self._next_stage_due(self.algorithm.stage, event.step):
            self.algorithm.enter_stage(self.algorithm.stage + 1)
            self._began, self._unsolved_then = event.step, unsolved

    def _next_stage_due(self, stage: int, step: int) -> bool:
        """Return whether one adapter's share of the tasks was solved in this stage, or the stage is at its end."""
        remaining = self.adapters - stage
        if remaining == 0 or (stage == 0 and step < self.first_stage_steps):
            return False
        enough = math.ceil(len(self._unsolved_then) / remaining)
        return len(self._unsolved_then & self.solved) >= enough or step - self._began >= self.stage_steps

    def metrics(self) -> dict[str, float]:
        """Return the metrics about the tasks, as of the latest evaluation."""
        by_task = {f"solved/{task.name}": float(number in self.at_target) for number, task in enumerate(self.tasks)}
        return {"solved_tasks": len(self.at_target), "forgotten_tasks": len(self.forgotten), **by_task}

    def state_dict(self) -> dict[str, Any]:
        """Return the sets of tasks and the beginning of the stage; the algorithm saves the stage itself."""
        return {
            "at_target": sorted(self.at_target),
            "left": sorted(self.left),
            "returned": sorted(self.returned),
            "began": self._began,
            "unsolved_then": sorted(self._unsolved_then),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state."""
        self.at_target, self.left, self.returned, self._unsolved_then = (
            set(state[key]) for key in ("at_target", "left", "returned", "unsolved_then")
        )
        self._began = state["began"]


def _reached(task: Task, metrics: Mapping[str, Any]) -> bool:
    assert task.target_return is not None
    return bool(metrics[f"eval_return_mean/{task.name}"] >= task.target_return)

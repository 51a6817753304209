"""Dynamic parameter scaling (arXiv 2509.07945): solved tasks leave training, and adapters join for the others.

Stage 0 trains the whole backbone; every later stage freezes it and trains one more low-rank adapter. What is solved is
found by evaluations, which go on for solved tasks too: what is forgotten shows, and comes back into training for good.
A task that left again and again would only be lost again and again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from rl_training.experiment.tasks import Task
from rl_training.runtime.callbacks import Callback, TrainingEvent

ALL_SOLVED = "every task reached its target return"


class ScalableAlgorithm(Protocol):
    """What scaling steers."""

    stage: int

    def train_only(self, tasks: Sequence[int]) -> None:
        """Collect and learn from these tasks alone."""

    def enter_stage(self, stage: int) -> None:
        """Train the backbone (stage 0) or only its stage-th adapter from now on."""


class ParameterScaling(Callback):
    """Keeps the pool of solved tasks and decides when the next stage begins."""

    def __init__(self, tasks: Sequence[Task], *, adapters: int, stage_steps: int, reopen: bool) -> None:
        """`stage_steps` is the most environment steps of a stage; `reopen` lets forgotten tasks come back."""
        self.tasks = tuple(tasks)
        self.adapters = adapters
        self.stage_steps = stage_steps
        self.reopen = reopen
        self.algorithm: ScalableAlgorithm | None = None
        self.solved: set[int] = set()
        """The tasks that reached their target, in the latest evaluation where forgotten ones come back."""
        self.forgotten: set[int] = set()
        """The tasks that had been solved and fell below their target, since whenever that was."""
        self._began = 0  # the step at which the stage began
        self._unsolved_then = set(range(len(self.tasks)))

    @property
    def unsolved(self) -> list[int]:
        """The numbers of the tasks that have not reached their target."""
        return [number for number in range(len(self.tasks)) if number not in self.solved]

    @property
    def trained(self) -> list[int]:
        """The numbers of the tasks to collect and to learn from."""
        return sorted({*self.unsolved, *self.forgotten})

    def on_eval_end(self, event: TrainingEvent) -> None:
        """Sort the tasks anew, and begin the next stage where it is due."""
        assert self.algorithm is not None
        for number, task in enumerate(self.tasks):
            assert task.target_return is not None
            if event.metrics[f"eval_return_mean/{task.name}"] >= task.target_return:
                self.solved.add(number)
            elif self.reopen and number in self.solved:
                self.solved.discard(number)
                self.forgotten.add(number)
        if not self.unsolved:
            event.request_stop(ALL_SOLVED)
        # A run that is told to go on although all is solved trains everything.
        self.algorithm.train_only(self.trained or range(len(self.tasks)))
        if self.unsolved and self._next_stage_due(self.algorithm.stage, event.step):
            self.algorithm.enter_stage(self.algorithm.stage + 1)
            self._began, self._unsolved_then = event.step, set(self.unsolved)

    def _next_stage_due(self, stage: int, step: int) -> bool:
        """Whether one adapter's share of the tasks was solved since the stage began, or it lasted too long."""
        remaining = self.adapters - stage
        if remaining == 0:
            return False
        enough = math.ceil(len(self._unsolved_then) / remaining)
        return len(self._unsolved_then & self.solved) >= enough or step - self._began >= self.stage_steps

    def metrics(self) -> dict[str, float]:
        """Return what rows say of the pool."""
        by_task = {f"solved/{task.name}": float(number in self.solved) for number, task in enumerate(self.tasks)}
        return {"solved_tasks": len(self.solved), "forgotten_tasks": len(self.forgotten), **by_task}

    def state_dict(self) -> dict[str, Any]:
        """Return the pool and when the stage began; the algorithm saves the stage itself."""
        return {
            "solved": sorted(self.solved),
            "forgotten": sorted(self.forgotten),
            "began": self._began,
            "unsolved_then": sorted(self._unsolved_then),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put it back."""
        self.solved, self.forgotten, self._began = set(state["solved"]), set(state["forgotten"]), state["began"]
        self._unsolved_then = set(state["unsolved_then"])

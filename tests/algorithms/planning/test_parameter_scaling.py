"""Parameter scaling as evaluations drive it: which tasks are trained, when a stage begins, and what is saved of it."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_training.experiment.config import validate_config
from rl_training.experiment.tasks import Task
from rl_training.runtime.callbacks import TrainingEvent
from rl_training.runtime.parameter_scaling import ALL_LEFT, ALL_SOLVED, ParameterScaling
from rl_training.runtime.scalezero_trainer import make_scaling

FOREVER = 10**9
TARGETS = (450.0, -120.0, 0.85, 0.0, 7.0)  # returns of unlike size and sign


@dataclass
class Learner:
    """Remembers what it was told."""

    stage: int = 0
    trained: list[int] = field(default_factory=list)
    entered: list[int] = field(default_factory=list)

    def train_only(self, tasks: Sequence[int]) -> None:
        self.trained = list(tasks)

    def enter_stage(self, stage: int) -> None:
        self.stage = stage
        self.entered.append(stage)


class Scene:
    """A callback with its learner, and what it asked of the run."""

    def __init__(
        self, tasks: int, adapters: int, *, stage_steps: int = FOREVER, reopen: bool = True, first_stage_steps: int = 0
    ) -> None:
        self.tasks = [Task(f"t{number}", "Env-v0", {}, TARGETS[number]) for number in range(tasks)]
        self.learner = Learner(trained=list(range(tasks)))
        self.options: dict[str, Any] = {
            "adapters": adapters,
            "stage_steps": stage_steps,
            "reopen": reopen,
            "first_stage_steps": first_stage_steps,
        }
        self.scaling = ParameterScaling(self.tasks, **self.options)
        self.scaling.algorithm = self.learner
        self.stops: list[str] = []

    def evaluate(self, step: int, reached: Collection[int], *, above: float = 0.0) -> None:
        """Tell of an evaluation in which some tasks were at their target or above, the others just below."""
        returns = {
            f"eval_return_mean/{task.name}": TARGETS[number] + (above if number in reached else -1e-3)
            for number, task in enumerate(self.tasks)
        }
        event = TrainingEvent(
            run_dir=Path("run"),
            step=step,
            total_timesteps=FOREVER,
            update_count=0,
            request_stop=self.stops.append,
            metrics={"eval_return_mean": 1e6, **returns},  # what all tasks earn together says nothing
        )
        self.scaling.on_eval_end(event)

    def restored(self) -> Scene:
        """Return a new scene that goes on from what a checkpoint holds, the stage being the learner's to keep."""
        scene = Scene(len(self.tasks), **self.options)
        scene.scaling.load_state_dict(json.loads(json.dumps(self.scaling.state_dict())))
        scene.learner = Learner(self.learner.stage, list(self.learner.trained))
        scene.scaling.algorithm = scene.learner
        return scene

    def decisions(self) -> tuple[Any, ...]:
        """Return everything that the run sees of the callback."""
        learner = self.learner
        return learner.stage, learner.trained, len(self.stops), self.scaling.metrics(), self.scaling.state_dict()


# -- the pool of solved tasks ------------------------------------------------------------------------------


def test_a_task_at_its_target_leaves_training_and_one_that_fell_below_comes_back_for_good() -> None:
    scene = Scene(3, 1)
    history: list[tuple[set[int], list[int], int]] = [
        (set(), [0, 1, 2], 0),
        ({1}, [0, 2], 0),
        ({0, 1}, [2], 0),
        ({0}, [1, 2], 1),  # 1 was forgotten
        ({0, 1}, [1, 2], 0),  # and is not let go again
    ]
    for step, (reached, trained, forgotten) in enumerate(history):
        scene.evaluate(step, reached)
        assert scene.learner.trained == trained
        assert scene.scaling.metrics()["forgotten_tasks"] == forgotten
    assert scene.scaling.metrics() == {
        "solved_tasks": 2,
        "forgotten_tasks": 0,
        "solved/t0": 1.0,
        "solved/t1": 1.0,
        "solved/t2": 0.0,
    }
    scene.evaluate(9, {2}, above=3.0)
    assert scene.learner.trained == [0, 1]
    assert scene.stops == []


def test_without_reopening_a_task_that_left_stays_away_and_shows_what_it_forgot() -> None:
    scene = Scene(3, 1, reopen=False)
    for step, (reached, trained) in enumerate([({1}, [0, 2]), (set(), [0, 2]), ({0}, [2])]):
        scene.evaluate(step, reached)
        assert scene.learner.trained == trained
    assert scene.scaling.metrics()["solved_tasks"] == 1
    assert scene.scaling.metrics()["forgotten_tasks"] == 1
    scene.evaluate(9, {2})
    assert scene.stops == [ALL_LEFT]  # never all at the same time


def test_the_run_is_asked_to_stop_when_all_tasks_are_solved_at_once() -> None:
    scene = Scene(2, 1)
    scene.evaluate(1, {0})
    scene.evaluate(2, {1})  # each was solved, never both
    assert scene.stops == []
    scene.evaluate(3, {0, 1})
    assert scene.stops == [ALL_SOLVED]
    assert scene.learner.trained == [0, 1]  # should the run go on, it trains everything
    scene.evaluate(4, {0, 1})
    assert scene.stops == [ALL_SOLVED]  # and is not stopped again for what it knew
    scene.evaluate(5, {0})
    assert scene.learner.trained == [0, 1]  # both were forgotten once


def test_an_evaluation_that_is_not_a_number_solves_nothing() -> None:
    scene = Scene(1, 1)
    scene.evaluate(1, {0}, above=float("nan"))
    assert scene.scaling.metrics() == {"solved_tasks": 0, "forgotten_tasks": 0, "solved/t0": 0.0}


# -- stages ------------------------------------------------------------------------------------------------

# Tasks, adapters, then for each evaluation which tasks are at their target and the stage afterwards.
SWITCHES: dict[str, tuple[int, int, list[tuple[set[int], int]]]] = {
    "two of three": (3, 2, [(set(), 0), ({0}, 0), ({0, 1}, 1), ({0, 1}, 1)]),
    "no adapter too many": (3, 1, [({0}, 0), ({0, 1}, 0), ({1, 2}, 0)]),
    "one each": (4, 4, [({3}, 1), ({3}, 1), ({3, 1}, 2), ({3, 1}, 2), ({3, 1, 0}, 3), ({3, 1, 0}, 3)]),
    "halves": (4, 2, [({0}, 0), ({0, 3}, 1), ({0, 3, 1}, 1)]),
    "rounded up twice": (5, 3, [({0}, 0), ({0, 3}, 1), ({0, 3, 1}, 1), ({0, 3, 1, 2}, 2), ({0, 3, 1, 2}, 2)]),
    "one stage at a time": (3, 3, [({0, 1}, 1), ({0, 1}, 1), ({0, 1}, 1)]),
    "solved before it began": (3, 3, [({0}, 1), (set(), 1), ({0}, 1), ({0, 1}, 2)]),
    "forgotten meanwhile": (4, 2, [({0}, 0), ({1}, 0), ({2}, 0), ({2, 1}, 1)]),
    "more adapters than tasks": (2, 5, [(set(), 0), ({1}, 1), ({1}, 1), ({0}, 2), ({0}, 2), ({1}, 3)]),
    "all at once": (2, 2, [({0, 1}, 0), ({0, 1}, 0), ({0}, 1)]),
}


@pytest.mark.parametrize("case", SWITCHES)
def test_a_stage_ends_when_one_adapters_share_of_the_tasks_was_solved_in_it(case: str) -> None:
    tasks, adapters, evaluations = SWITCHES[case]
    scene = Scene(tasks, adapters)
    found = []
    for step, (reached, _) in enumerate(evaluations):
        scene.evaluate(step, reached)
        found.append(scene.learner.stage)
    assert found == [stage for _, stage in evaluations]


@pytest.mark.parametrize(
    ("stage_steps", "stages"),
    [
        (100, [1, 2, 3, 3, 3, 3, 3, 3]),
        (101, [0, 1, 1, 2, 2, 3, 3, 3]),
        (200, [0, 1, 1, 2, 2, 3, 3, 3]),
        (300, [0, 0, 1, 1, 1, 2, 2, 2]),
        (800, [0, 0, 0, 0, 0, 0, 0, 1]),
        (801, [0, 0, 0, 0, 0, 0, 0, 0]),
    ],
)
def test_a_stage_lasts_so_many_steps_at_most_and_the_last_one_for_ever(stage_steps: int, stages: list[int]) -> None:
    scene = Scene(5, 3, stage_steps=stage_steps)
    found = []
    for step in range(100, 900, 100):
        scene.evaluate(step, set())
        found.append(scene.learner.stage)
    assert found == stages
    assert scene.learner.entered == list(range(1, stages[-1] + 1))  # each once


def test_the_steps_of_a_stage_count_from_the_one_before_it_ended() -> None:
    scene = Scene(2, 2, stage_steps=300)
    scene.evaluate(200, {0})
    assert scene.learner.stage == 1
    for step in (300, 400):
        scene.evaluate(step, {0})
        assert scene.learner.stage == 1
    scene.evaluate(500, {0})
    assert scene.learner.stage == 2
    scene.evaluate(10_000, {0})
    assert scene.learner.stage == 2


@pytest.mark.parametrize(
    ("first_stage_steps", "stages"),
    [(100, [1, 2, 2, 2]), (200, [0, 1, 2, 2]), (300, [0, 0, 1, 2]), (301, [0, 0, 0, 1])],
)
def test_stage_0_lasts_so_many_steps_at_least_whatever_is_solved(first_stage_steps: int, stages: list[int]) -> None:
    scene = Scene(3, 2, stage_steps=100, first_stage_steps=first_stage_steps)
    found = []
    for step in range(100, 500, 100):
        scene.evaluate(step, {0, 1})
        found.append(scene.learner.stage)
    assert found == stages
    assert scene.learner.trained == [2]  # what is solved leaves training all the same


def test_no_stage_begins_for_a_run_whose_tasks_are_all_solved() -> None:
    scene = Scene(2, 2, stage_steps=100)
    scene.evaluate(500, {0, 1})
    assert scene.learner.entered == []
    assert scene.stops == [ALL_SOLVED]


# -- what is saved ------------------------------------------------------------------------------------------


def test_a_stage_goes_on_where_it_was_saved() -> None:
    scene = Scene(3, 3, stage_steps=1000)
    scene.evaluate(100, {0})
    scene.evaluate(300, {0})
    saved = {"at_target": [0], "left": [0], "returned": [], "began": 100, "unsolved_then": [1, 2]}
    assert scene.scaling.state_dict() == saved
    scene = scene.restored()
    scene.evaluate(400, {0})
    assert (scene.learner.stage, scene.learner.trained) == (1, [1, 2])
    scene.evaluate(1099, set())  # 999 steps after the stage began, and task 0 is forgotten
    assert (scene.learner.stage, scene.learner.trained) == (1, [0, 1, 2])
    scene.evaluate(1100, set())
    assert scene.learner.stage == 2


@st.composite
def histories(draw: st.DrawFn) -> tuple[dict[str, Any], list[tuple[int, set[int]]], int]:
    """Draw a scene, its evaluations, and after how many of them it is saved."""
    tasks = draw(st.integers(1, 5))
    scene = {
        "tasks": tasks,
        "adapters": draw(st.integers(1, 4)),
        "stage_steps": draw(st.integers(1, 12)),
        "reopen": draw(st.booleans()),
        "first_stage_steps": draw(st.integers(0, 20)),
    }
    steps = draw(st.lists(st.integers(1, 5), min_size=1, max_size=12))
    evaluations = [(sum(steps[: number + 1]), draw(st.sets(st.integers(0, tasks - 1)))) for number in range(len(steps))]
    return scene, evaluations, draw(st.integers(0, len(steps)))


@settings(max_examples=150)
@given(histories())
def test_saving_and_restoring_at_any_point_changes_no_decision(history: Any) -> None:
    about, evaluations, saved = history
    whole, parted = Scene(**about), Scene(**about)
    for number, (step, reached) in enumerate(evaluations):
        if number == saved:
            stops = parted.stops
            parted = parted.restored()
            parted.stops = stops
        before = whole.learner.stage
        whole.evaluate(step, reached)
        parted.evaluate(step, reached)
        assert parted.decisions() == whole.decisions()
        # Whatever happens: one stage at a time, no more than there are adapters, and somebody is trained.
        assert before <= whole.learner.stage <= min(before + 1, about["adapters"])
        assert whole.learner.trained
        assert whole.scaling.at_target == reached
        if about["reopen"]:
            assert set(whole.learner.trained) >= set(range(about["tasks"])) - reached


# -- when there is scaling ------------------------------------------------------------------------------------


def scaling_of(tasks: list[dict[str, Any]], **algo_kwargs: Any) -> ParameterScaling | None:
    raw = {"algo": "scalezero", "env_id": "suite", "seed": 0, "total_timesteps": 5000, "output_dir": "runs"}
    raw |= {"eval_interval": 500, "env_kwargs": {"tasks": tasks}, "algo_kwargs": algo_kwargs}
    return make_scaling(validate_config(raw))


def test_parameters_scale_where_every_task_has_a_target_or_as_it_is_asked() -> None:
    cart, acro = {"env_id": "CartPole-v1", "target_return": 450}, {"env_id": "Acrobot-v1"}
    scaling = scaling_of([cart])
    assert scaling is not None
    assert (scaling.adapters, scaling.stage_steps, scaling.reopen) == (2, 1667, True)  # 5000 steps in three stages
    assert scaling.first_stage_steps == 0
    assert [task.name for task in scaling.tasks] == ["CartPole-v1"]
    scaling = scaling_of(
        [cart], adapters=4, stage_steps=70, reopen_tasks=False, first_stage_steps=90, parameter_scaling=True
    )
    assert scaling is not None
    assert (scaling.adapters, scaling.stage_steps, scaling.reopen, scaling.first_stage_steps) == (4, 70, False, 90)
    assert scaling_of([cart, acro]) is None
    assert scaling_of([cart], parameter_scaling=False) is None

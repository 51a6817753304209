"""The sampler process of a run that plans: it searches and takes steps, and returns both."""

from __future__ import annotations

from typing import Any

import numpy as np

from rl_training.envs.step import StepBatch
from rl_training.runtime.planning_collector import PlanningCollector
from rl_training.runtime.samplers.own_search import OwnSearch
from rl_training.runtime.samplers.replay_sampler import PlannedStep, RecordedSteps, RoundRecorder, StepSampler
from rl_training.runtime.samplers.sampler import CPU, SamplerSetup


class PlanningSampler(StepSampler):
    """Searches before every step with a copy of the model."""

    _collector: GroupPlanningCollector
    _stream: np.random.Generator

    def __init__(self, setup: SamplerSetup, number: int, rows: slice) -> None:
        super().__init__(setup, number, rows)
        self._search = OwnSearch(self._algorithm, setup.config.num_envs, rows)
        self._search.try_rows(setup.seen_space, setup.controls)
        self._collector = GroupPlanningCollector(self._env, self._search, self._recorder, setup)
        self._stream = np.random.default_rng(0)  # every order brings its state

    def searches_for_all(self, _: None) -> bool:
        """Return whether environments of other samplers are all searched for as well."""
        return self._search.for_all

    def _take(self, planned: PlannedStep) -> StepBatch:
        collector = self._collector
        return collector.follow(self._search.plan(*collector.shown(), planned.controls, self._stream))


class GroupPlanningCollector(RecordedSteps, PlanningCollector):
    """Takes the actions of searches in some environments of a run."""

    def __init__(self, env: Any, actor: OwnSearch, recorder: RoundRecorder, setup: SamplerSetup) -> None:
        super().__init__(
            env,
            actor,
            lambda action, mask: recorder,  # type: ignore[arg-type, return-value]
            seed=setup.config.seed,
            device=CPU,
        )
        self.steps_at_once = setup.config.num_envs

"""Statistics that environments continue on their own, and that are merged afterwards."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from rl_training.envs.normalize import Normalizers, ObservationNormalizer, RewardNormalizer
from rl_training.envs.row_normalize import RowMoments, RowNormalizers, merge_rows
from rl_training.envs.step import StepBatch

SPACE = spaces.Box(-10.0, 10.0, (2,))
STEPS, ENVS = 7, 3


def _normalizers() -> Normalizers:
    return Normalizers(ObservationNormalizer(SPACE, 10.0), RewardNormalizer(ENVS, 0.9, 10.0))


def _steps(seed: int) -> list[StepBatch]:
    random = np.random.default_rng(seed)
    steps = []
    for _ in range(STEPS):
        obs, reward = random.normal(2.0, 3.0, (ENVS, 2)), random.normal(1.0, 1.0, ENVS).astype(np.float32)
        ended = random.random(ENVS) < 0.3
        steps.append(StepBatch(obs, reward, ended, np.zeros(ENVS, np.bool_), obs.copy(), None, []))
    return steps


def _rows(step: StepBatch, rows: slice) -> StepBatch:
    obs, final = (array[rows] for array in (step.obs, step.final_obs) if isinstance(array, np.ndarray))
    return StepBatch(obs, step.reward[rows], step.terminated[rows], step.truncated[rows], final, None, [])


def _split(groups: list[slice]) -> tuple[list[np.ndarray], Normalizers]:
    """Return the scaled observations of every group, and the merged statistics, of two rollouts."""
    of_run, scaled = _normalizers(), []
    of_run.begin(np.arange(6.0).reshape(ENVS, 2))
    for rollout in range(2):
        gained, parts = [], []
        for rows in groups:
            own = RowNormalizers(of_run, rows)
            own.start(of_run.state_dict())
            seen = []
            for step in _steps(rollout):
                part = _rows(step, rows)
                own.update(part)
                observation: Any = own.scale_observation(part.obs)
                seen.append(np.column_stack([observation, own.scale_reward(part.reward)]))
            gained.append(own.gained())
            parts.append(np.stack(seen))
        merge_rows(of_run, gained)
        scaled.append(np.concatenate(parts, axis=1))
    return scaled, of_run


def test_the_split_of_environments_changes_no_bit() -> None:
    whole, merged = _split([slice(0, 3)])
    for groups in ([slice(0, 1), slice(1, 3)], [slice(0, 1), slice(1, 2), slice(2, 3)]):
        parts, statistics = _split(groups)
        assert all(np.array_equal(one, other) for one, other in zip(whole, parts, strict=True))
        assert str(statistics.state_dict()) == str(merged.state_dict())


def test_merged_statistics_are_those_of_all_data_together() -> None:
    _, merged = _split([slice(0, 2), slice(2, 3)])
    of_run = _normalizers()
    of_run.begin(np.arange(6.0).reshape(ENVS, 2))
    for rollout in range(2):
        for step in _steps(rollout):
            of_run.update(step)
    found, expected = merged.state_dict(), of_run.state_dict()
    for kind, key in (("observation", "observation"), ("reward", "moments")):
        for name in ("mean", "var", "count"):
            np.testing.assert_allclose(found[kind][key][name], expected[kind][key][name], rtol=1e-12)
    np.testing.assert_array_equal(found["reward"]["returns"], expected["reward"]["returns"])


def test_an_environment_continues_the_statistics_of_the_run_with_its_own_data() -> None:
    moments = RowMoments(2)
    moments.begin({"mean": 1.0, "var": 4.0, "count": 3})
    moments.update(np.array([5.0, 1.0]))
    # Three numbers with mean 1 and variance 4, and a fourth: the mean is 2 or 1, the sum of squares 12 + 12 or 12.
    np.testing.assert_allclose(moments.mean, [2.0, 1.0])
    np.testing.assert_allclose(moments.var, [6.0, 3.0])
    np.testing.assert_allclose(moments.gained()["mean"], [5.0, 1.0])
    np.testing.assert_allclose(moments.gained()["var"], [0.0, 0.0])

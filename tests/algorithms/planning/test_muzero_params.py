"""The planning family's parameters: sets of one algorithm, and values that do not fit."""

from __future__ import annotations

from typing import Any

import pytest

from rl_training.algorithms.efficientzero import EfficientZeroParams
from rl_training.algorithms.gumbel_muzero import GumbelMuZeroParams
from rl_training.algorithms.planning.muzero_params import MuZeroParams
from rl_training.errors import ConfigError
from rl_training.experiment.config import validate_config


def test_the_registry_names_are_parameter_sets_of_one_algorithm() -> None:
    def differences(kind: type[MuZeroParams]) -> set[str]:
        plain, own = vars(MuZeroParams()), vars(kind())
        return {key for key in own if own[key] != plain[key]}

    assert GumbelMuZeroParams().search == "gumbel"
    assert MuZeroParams().search == "puct"
    assert differences(GumbelMuZeroParams) >= {"search"}
    parts = {"value_prefix", "consistency_coef", "shrink_n_step", "reanalyze_ratio", "augmentation"}
    assert differences(EfficientZeroParams) >= parts


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"num_simulations_schedule": "linear"}, "algo_kwargs.num_simulations_schedule: goes down to 0"),
        ({"num_simulations_schedule": {"type": "linear", "end": 0.4}}, "goes down to 0.4"),
        ({"num_simulations_schedule": {"type": "step", "milestones": [0.5], "values": [0.2]}}, "goes down to 0.2"),
        ({"num_simulations_schedule": {"type": "piecewise", "points": [[0, 0], [1, 8]]}}, "goes down to 0"),
        ({"num_simulations": 5, "num_simulations_schedule": "exponential"}, "goes down to 0.05"),
        ({"num_simulations": 50, "num_simulations_schedule": "step"}, "goes down to 0.5"),
        ({"num_simulations_schedule": {"type": "step", "factor": 0.02, "milestones": [0.5]}}, "goes down to 0.5"),
        (
            {"value_prefix": True, "unroll_steps": 4},
            "algo_kwargs.value_prefix_horizon: 5 steps are never seen together",
        ),
        ({"num_simulations_schedule": {"type": "linear", "end": "many"}}, "num_simulations_schedule"),
        ({"num_simulations_schedule": 5}, "num_simulations_schedule"),
        ({"two_player": True, "value_prefix": True}, "algo_kwargs.value_prefix: sums the rewards of one player"),
        ({"num_simulations": 0}, "num_simulations"),
        ({"num_simulations": "many"}, "num_simulations"),
        ({"num_simulations": 2.5}, "num_simulations"),
        ({"batch_size": 8, "learning_starts": 16, "buffer_size": 9}, "algo_kwargs.buffer_size: a window"),
        ({"learning_starts": 5000}, "algo_kwargs.learning_starts: 5000 steps before learning leave nothing"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, Any], complaint: str) -> None:
    raw = {"algo": "muzero", "env_id": "CartPole-v1", "seed": 0, "total_timesteps": 5000, "output_dir": "runs"}
    with pytest.raises(ConfigError) as refused:
        validate_config({**raw, "algo_kwargs": settings})
    assert complaint in str(refused.value)


@pytest.mark.parametrize(
    "schedule",
    [
        {"type": "linear", "end": 2},
        {"type": "step", "milestones": [0.5], "values": [4]},
        {"type": "piecewise", "points": [[0, 1], [1, 8]]},
        {"type": "exponential", "start": 16, "end": 2},
        {"type": "exponential", "start": 200},
        {"type": "step", "factor": 0.25},
        {"type": "step", "factor": 2.0},
        "constant",
    ],
)
def test_schedules_that_stay_above_1_are_taken(schedule: Any) -> None:
    raw = {"algo": "muzero", "env_id": "CartPole-v1", "seed": 0, "total_timesteps": 5000, "output_dir": "runs"}
    validate_config({**raw, "algo_kwargs": {"num_simulations_schedule": schedule}})

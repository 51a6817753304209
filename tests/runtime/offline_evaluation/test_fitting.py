"""Fitted Q evaluation trains on every kind of observation and action."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import Space, spaces

from dataset_parts import IMAGE, PARTS, VECTOR, random_episode, write_dataset
from rl_training.algorithms.evaluation.action_features import ActionFeatures
from rl_training.algorithms.evaluation.fitted_q import FittedQParams
from rl_training.data.datasets.columns import load_columns
from rl_training.data.datasets.dataset import open_dataset
from rl_training.errors import NonFiniteError
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runtime.acting.policy import Policy
from rl_training.runtime.offline_evaluation.fitting import QFitting
from rl_training.runtime.offline_evaluation.policy_outputs import policy_outputs
from rl_training.runtime.setup.streams import Streams

TORQUE = spaces.Box(-2.0, 2.0, (2,), np.float32)
SMALL = FittedQParams(members=2, hidden_sizes=(8,), batch_size=4)


@pytest.fixture(autouse=True)
def _own_datasets(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))


def _fitting(observation_space: Space[Any], action_space: Space[Any], *, stochastic: bool) -> QFitting:
    random = np.random.default_rng(0)
    episodes = [random_episode(random, observation_space, action_space, steps) for steps in (3, 5)]
    write_dataset("test/random-v0", episodes, observation_space, action_space)
    columns = load_columns(open_dataset("test/random-v0"))
    spec, device = get_algorithm_spec("ppo"), torch.device("cpu")
    generator = torch.Generator().manual_seed(0)
    actor = spec.load_algorithm()(
        spec.load_params()(), observation_space, action_space, device=device, generator=generator
    )
    policy = Policy(actor, observation_space, action_space)
    features = ActionFeatures(action_space, columns.action)
    outputs = policy_outputs(policy, columns, features, generator=generator if stochastic else None)
    return QFitting(policy, columns, features, outputs, gamma=0.9, streams=Streams(0, device), params=SMALL)


@pytest.mark.parametrize("stochastic", [False, True])
@pytest.mark.parametrize(
    ("observation_space", "action_space"),
    [
        (VECTOR, spaces.Discrete(3, start=1)),
        (VECTOR, TORQUE),
        (VECTOR, spaces.MultiDiscrete([2, 3])),
        (VECTOR, spaces.MultiBinary(3)),
        (VECTOR, spaces.Box(-np.inf, np.inf, (1,), np.float32)),
        (spaces.Discrete(4), spaces.Discrete(2)),
        (IMAGE, spaces.Discrete(2)),
        (PARTS, TORQUE),
    ],
    ids=str,
)
def test_every_kind_of_space_is_fitted(
    observation_space: Space[Any], action_space: Space[Any], stochastic: bool
) -> None:
    fitting = _fitting(observation_space, action_space, stochastic=stochastic)
    done: list[int] = []
    fitting.fit(3, done.append)
    values = fitting.values(everywhere=True)
    assert done == [3]
    assert values.initial.shape == (2, 2)
    assert values.taken is not None
    assert values.following is not None
    assert values.taken.shape == values.following.shape == (8,)
    assert np.isfinite(values.initial).all()
    assert np.isfinite(values.residual)


def test_values_that_are_no_numbers_stop_it() -> None:
    fitting = _fitting(VECTOR, TORQUE, stochastic=False)
    with torch.no_grad():
        fitting.model.optimizer.values.fill_(torch.nan)
    with pytest.raises(NonFiniteError, match="fitted Q evaluation became NaN or infinite by update 2"):
        fitting.fit(2)

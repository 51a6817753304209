"""The probabilities that a policy reports are those with which it samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import Space, spaces

from rl_training.algorithms.base import ActingAlgorithm
from rl_training.algorithms.dqn import DQN
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runtime.acting.policy import Policy

DRAWS = 20_000
OBSERVATIONS = spaces.Box(-1, 1, (3,), np.float32)


def _algorithm(name: str, action_space: Space[Any], **kwargs: Any) -> Any:
    spec = get_algorithm_spec(name)
    generator = torch.Generator().manual_seed(0)
    parameters = spec.load_params()(**kwargs)
    return spec.load_algorithm()(
        parameters, OBSERVATIONS, action_space, device=torch.device("cpu"), generator=generator
    )


def _same_observation(rows: int) -> torch.Tensor:
    return torch.tensor([[0.3, -0.8, 0.5]]).repeat(rows, 1)


def _draw(algorithm: Any, mask: torch.Tensor | None = None) -> np.ndarray:
    generator = torch.Generator().manual_seed(2)
    return algorithm.env_action(algorithm.choose(_same_observation(DRAWS), mask, generator))


@pytest.mark.parametrize(
    ("name", "action_space", "mask"),
    [
        ("ppo", spaces.Discrete(3, start=2), None),
        ("ppo", spaces.Discrete(3), [True, False, True]),
        ("ppo", spaces.MultiDiscrete([2, 3]), None),
        ("ppo", spaces.MultiBinary(2), None),
        ("dqn", spaces.Discrete(3, start=-1), None),
        ("dqn", spaces.Discrete(4), [True, True, False, True]),
        ("discrete_sac", spaces.Discrete(3, start=1), None),
    ],
)
def test_reported_probabilities_are_the_frequencies_of_sampled_choices(
    name: str, action_space: Space[Any], mask: list[bool] | None
) -> None:
    algorithm = _algorithm(name, action_space)
    legal = None if mask is None else torch.tensor([mask]).repeat(DRAWS, 1)
    actions = _draw(algorithm, legal)
    reported = algorithm.env_log_prob(_same_observation(DRAWS), legal, actions).exp().numpy()
    choices, which, counts = np.unique(actions.reshape(DRAWS, -1), axis=0, return_inverse=True, return_counts=True)
    probabilities = np.array([reported[which.reshape(-1) == number][0] for number in range(len(choices))])
    np.testing.assert_allclose(probabilities, counts / DRAWS, atol=0.015)
    assert probabilities.sum() == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize(
    ("name", "space", "kwargs"),
    [
        ("ppo", spaces.Box(-0.5, 1.0, (1,), np.float32), {}),
        ("sac", spaces.Box(-2.0, 3.0, (1,), np.float32), {}),
        ("td3", spaces.Box(-2.0, 3.0, (1,), np.float32), {"exploration_noise": 0.8}),
    ],
)
def test_reported_densities_integrate_to_one_with_the_probabilities_of_the_bounds(
    name: str, space: spaces.Box, kwargs: dict[str, Any]
) -> None:
    algorithm = _algorithm(name, space, **kwargs)
    low, high = space.low.item(), space.high.item()
    inside = np.linspace(low, high, 4001, dtype=np.float32)[1:-1, None]
    density = algorithm.env_log_prob(_same_observation(len(inside)), None, inside).exp().numpy()
    interior = float(density.sum()) * (high - low) / 4000
    actions = _draw(algorithm)
    share = ((actions > low) & (actions < high)).mean()
    assert interior == pytest.approx(share, abs=0.015)
    if name != "sac":  # tanh reaches no bound
        for bound in (low, high):
            edge = np.array([[bound]], np.float32)
            reported = algorithm.env_log_prob(_same_observation(1), None, edge).exp().item()
            assert reported == pytest.approx((actions == bound).mean(), abs=0.015)


def test_densities_count_the_stretch_of_every_dimension() -> None:
    narrow = _algorithm("sac", spaces.Box(-1.0, 1.0, (2,), np.float32))
    wide = _algorithm("sac", spaces.Box(np.array([-1, -4], np.float32), np.array([1, 4], np.float32)))
    small = narrow.env_log_prob(_same_observation(1), None, np.array([[0.3, 0.5]], np.float32))
    large = wide.env_log_prob(_same_observation(1), None, np.array([[0.3, 2.0]], np.float32))
    assert (small - large).item() == pytest.approx(np.log(4.0), abs=1e-4)


def test_integer_boxes_have_no_reported_density() -> None:
    space = spaces.Box(0, 5, (2,), np.int64)
    for name in ("ppo", "sac", "td3"):
        assert _algorithm(name, space).env_log_prob(_same_observation(1), None, np.array([[1, 2]])) is None


def test_a_subclass_with_another_choice_reports_nothing() -> None:
    class Greedy(DQN):
        def choose(self, observation: Any, mask: Any, generator: Any) -> torch.Tensor:
            return super().choose(observation, mask, None)

    known, other = (_policy(kind) for kind in (DQN, Greedy))
    observation, action = np.zeros((1, 3), np.float32), np.array([1])
    assert known.log_probs(observation, action) is not None
    assert other.log_probs(observation, action) is None


def _policy(kind: type[ActingAlgorithm]) -> Policy:
    space = spaces.Discrete(3)
    params = get_algorithm_spec("dqn").load_params()()
    actor = kind(params, OBSERVATIONS, space, device=torch.device("cpu"), generator=torch.Generator().manual_seed(0))
    return Policy(actor, OBSERVATIONS, space)

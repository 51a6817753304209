"""PPO's gradient: written out, by autograd and compiled, it is the same."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from gymnasium import Space, spaces
from torch import Tensor

from ppo_parts import CHOICE, CONTROLS, TORQUE, make_ppo, make_rollout, seeded, update, weights_of
from rl_training.kernels.door import attach
from rl_training.kernels.ppo import PPOGradient

# Of two environments; the second gives no choice at all, and nothing must be learned from what it is left with.
MASK = torch.tensor([[True, False, True], [False, False, False]])


@pytest.mark.parametrize(
    ("action_space", "params", "masked"),
    [
        (CHOICE, {}, False),
        (CHOICE, {}, True),
        (CHOICE, {"activation": "relu", "hidden_sizes": (8, 5)}, False),
        (CHOICE, {"hidden_sizes": ()}, False),
        (CHOICE, {"clip_value_loss": True, "normalize_advantage": False}, False),
        (TORQUE, {}, False),
        (TORQUE, {"clip_value_loss": True, "log_std_init": -1.0}, False),
    ],
    ids=str,
)
@pytest.mark.parametrize("ent_coef", [0.0, 0.3])
def test_the_gradient_by_hand_is_that_of_autograd(
    action_space: Space[Any], params: dict[str, Any], masked: bool, ent_coef: float
) -> None:
    algorithm = make_ppo(action_space, num_steps=40, **params)
    batch = algorithm.prepare(make_rollout(algorithm, mask=MASK if masked else None))
    with torch.no_grad():  # so far that both sides of every clip occur
        for weight in algorithm.model.parameters():
            weight.add_(torch.randn(weight.shape, generator=seeded(5)), alpha=0.3)
    controls = {"clip_coef": 0.2, "ent_coef": ent_coef}
    gradient_of = PPOGradient(algorithm)
    algorithm.optimizer.gradient.fill_(7.0)  # which is to be overwritten
    by_hand = gradient_of(batch, controls)
    gradient = algorithm.optimizer.gradient.clone()
    by_graph = algorithm.gradient(batch, controls)
    torch.testing.assert_close(gradient, algorithm.optimizer.gradient, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(by_hand, by_graph, rtol=1e-5, atol=1e-6)
    ratio = by_hand["log_ratio"].exp()
    assert (ratio > 1.2).any()
    assert (ratio < 0.8).any()


@pytest.mark.parametrize(
    ("action_space", "params"),
    [
        (CHOICE, {"activation": "silu"}),
        (TORQUE, {"use_sde": True}),
        (TORQUE, {"log_std": "state_dependent"}),
    ],
    ids=str,
)
def test_other_models_learn_by_autograd(action_space: Space[Any], params: dict[str, Any]) -> None:
    algorithm = make_ppo(action_space, **params)
    accelerated = attach(algorithm)
    assert accelerated.kernel is None
    assert accelerated.reason
    before = weights_of(algorithm)
    update(algorithm, make_rollout(algorithm))
    assert not weights_of(algorithm).equal(before)


def test_a_model_that_no_optimizer_took_over_is_refused() -> None:
    algorithm = make_ppo(CHOICE)
    batch = algorithm.prepare(make_rollout(algorithm))
    algorithm.model = copy.deepcopy(algorithm.model)
    gradient_of = PPOGradient(algorithm)
    with pytest.raises(AssertionError, match="taken the parameters over"):
        gradient_of(batch, CONTROLS)


def test_minibatches_of_any_size_share_their_memory() -> None:
    algorithm = make_ppo(CHOICE, num_steps=20)
    batch = algorithm.prepare(make_rollout(algorithm))
    gradient_of = PPOGradient(algorithm)
    for rows in (7, 40, 3, 40):
        part = batch.select(torch.arange(rows))
        gradient_of(part, CONTROLS)
        gradient = algorithm.optimizer.gradient.clone()
        algorithm.gradient(part, CONTROLS)
        torch.testing.assert_close(gradient, algorithm.optimizer.gradient, rtol=1e-4, atol=1e-6)


COMPILED: list[tuple[Space[Any], dict[str, Any], bool]] = [
    (CHOICE, {}, False),
    (CHOICE, {"clip_value_loss": True}, True),
    (TORQUE, {}, False),
    (CHOICE, {"activation": "silu"}, False),  # by autograd, as the next two
    (TORQUE, {"use_sde": True}, False),
    (spaces.MultiDiscrete([2, 3]), {}, False),
]


def _train_plain_and_compiled(
    action_space: Space[Any], params: dict[str, Any], *, masked: bool
) -> tuple[Tensor, Tensor]:
    """Return the weights after several updates whose controls change, as schedules do."""
    weights = []
    for compiled in (False, True):
        settings = {"minibatch_size": 5, "update_epochs": 2, "max_grad_norm": 0.5, **params}
        algorithm = make_ppo(action_space, compile=compiled, **settings)
        attach(algorithm)
        for number in range(3):
            rollout = make_rollout(algorithm, seed=number, mask=MASK if masked else None)
            update(algorithm, rollout, learning_rate=1e-2 / (number + 1), clip_coef=0.2 - 0.05 * number)
        weights.append(weights_of(algorithm))
    return weights[0], weights[1]


@pytest.mark.parametrize(("action_space", "params", "masked"), COMPILED, ids=str)
def test_the_compiled_path_learns_the_same_without_code_generation(
    action_space: Space[Any], params: dict[str, Any], masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    original: Callable[..., Any] = torch.compile
    graphs: list[Any] = []

    def traced(function: Any, **settings: Any) -> Any:
        graphs.append(function)
        return original(function, **{**settings, "backend": "eager"})

    monkeypatch.setattr(torch, "compile", traced)
    plain, compiled = _train_plain_and_compiled(action_space, params, masked=masked)
    assert graphs
    torch.testing.assert_close(compiled, plain, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("action_space", "params", "masked"), COMPILED, ids=str)
def test_the_compiled_path_learns_the_same(action_space: Space[Any], params: dict[str, Any], masked: bool) -> None:
    plain, compiled = _train_plain_and_compiled(action_space, params, masked=masked)
    torch.testing.assert_close(compiled, plain, rtol=1e-5, atol=1e-6)

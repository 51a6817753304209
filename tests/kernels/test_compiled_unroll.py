"""MuZero's compiled gradient is that of autograd, is checked by its first result, and leaves the rest to torch."""

from __future__ import annotations

import logging
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from planning_parts import CONTROLS, make_algorithm, random_unroll
from rl_training.algorithms import muzero
from rl_training.algorithms.efficientzero import EfficientZeroParams
from rl_training.algorithms.muzero import MuZero
from rl_training.algorithms.planning.muzero_params import MuZeroParams
from rl_training.kernels import compiled_muzero
from rl_training.kernels.checks import KernelMismatch
from rl_training.kernels.compiled_muzero import CompiledUnroll
from rl_training.kernels.door import attach
from rl_training.models.planning.planning_network import PlanningNetwork

IMAGE_SHAPE = (16, 16, 3)
IMAGES = gym.spaces.Box(0, 255, IMAGE_SHAPE, np.uint8)
SIZES: dict[str, Any] = {"latent_size": 32, "hidden_size": 16}


def learner(kind: type[MuZeroParams] = EfficientZeroParams, *, random: bool = True, **settings: Any) -> MuZero:
    return make_algorithm(kind, random=random, **{**SIZES, "value_prefix_horizon": 2, **settings})


def gradients(algorithm: MuZero, batch: Any) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any], dict[str, Any]]:
    """Return the gradients and the metrics of autograd and of compiled code."""
    expected_metrics = algorithm.gradient(batch)
    expected = algorithm.optimizer.gradient.clone()
    metrics = CompiledUnroll(algorithm, "muzero").gradient(batch)
    return expected, algorithm.optimizer.gradient, expected_metrics, metrics


@pytest.mark.parametrize(
    ("kind", "steps", "horizon", "rows"),
    [
        (MuZeroParams, 3, 2, 5),
        (EfficientZeroParams, 1, 1, 4),
        (EfficientZeroParams, 3, 1, 5),
        (EfficientZeroParams, 5, 2, 40),
        (EfficientZeroParams, 5, 5, 64),
        (EfficientZeroParams, 7, 3, 33),
    ],
)
@pytest.mark.parametrize("weighted", [False, True])
def test_the_gradient_is_that_of_autograd(
    kind: type[MuZeroParams], steps: int, horizon: int, rows: int, weighted: bool
) -> None:
    algorithm = learner(kind, unroll_steps=steps, value_prefix_horizon=horizon)
    consistency = algorithm.params.consistency_coef > 0
    batch = random_unroll(seed=rows, steps=steps, rows=rows, weighted=weighted, successors=consistency)
    expected, found, expected_metrics, metrics = gradients(algorithm, batch)
    at = 0
    for name, parameter in algorithm.network.named_parameters():
        part = slice(at, at := at + parameter.numel())
        size = float(expected[part].norm())
        # A cell that is reset after every step never sees its own output.
        assert size > 0 or (horizon == 1 and name == "prefix.state_weight"), f"{name} gets no gradient"
        assert float((found[part] - expected[part]).norm()) <= 1e-4 * size, name
    assert metrics.keys() == expected_metrics.keys()
    for name, number in expected_metrics.items():
        assert float(metrics[name]) == pytest.approx(float(number), rel=1e-4), name


@pytest.mark.parametrize("kind", [MuZeroParams, EfficientZeroParams])
def test_an_encoder_s_weights_get_the_gradient_of_autograd(kind: type[MuZeroParams]) -> None:
    """By autograd from the gradient with respect to the features on; the later observations are targets alone."""
    algorithm = learner(kind, observation_space=IMAGES)
    batch = random_unroll(rows=40, successors=True)
    images = torch.randint(0, 256, (160, *IMAGE_SHAPE), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    batch = batch._replace(observation=images[:40], successor=images[40:])
    expected, found, _, _ = gradients(algorithm, batch)
    weights = sum(parameter.numel() for parameter in algorithm.network.encoder.parameters())
    size = float(expected[:weights].norm())
    assert size > 0
    assert float((found[:weights] - expected[:weights]).norm()) <= 1e-4 * size
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)


def test_latents_without_a_range_pass_their_gradient_on_as_autograd_does() -> None:
    algorithm = learner()
    with torch.no_grad():
        algorithm.network.representation.second.weight.zero_()
        algorithm.network.representation.second.bias.fill_(0.5)  # all numbers of a latent are equal
    expected, found, _, _ = gradients(algorithm, random_unroll(successors=True))
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)


def test_targets_beyond_the_support_are_counted_and_clipped_alike() -> None:
    algorithm = learner()
    batch = random_unroll(successors=True)
    batch = batch._replace(value=batch.value * 100.0, reward=batch.reward * 100.0)
    expected, found, expected_metrics, metrics = gradients(algorithm, batch)
    assert 0 < float(metrics["clipped_targets"]) < 1
    assert float(metrics["clipped_targets"]) == pytest.approx(float(expected_metrics["clipped_targets"]))
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)


def test_logits_far_apart_overflow_nowhere() -> None:
    algorithm = learner()
    with torch.no_grad():
        for head in (algorithm.network.policy, algorithm.network.value):
            head.bias[0], head.bias[1] = 300.0, -300.0
    expected, found, _, _ = gradients(algorithm, random_unroll(successors=True))
    assert found.isfinite().all()
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def test_the_rows_of_a_batch_count_alike_in_chunks_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = random_unroll(rows=50, successors=True)
    found = []
    for chunk in (7, 32, 64):
        monkeypatch.setattr(compiled_muzero, "CHUNK", chunk)
        algorithm = learner()
        CompiledUnroll(algorithm, "muzero").gradient(batch)
        found.append(algorithm.optimizer.gradient)
    torch.testing.assert_close(found[0], found[1], rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(found[0], found[2], rtol=1e-3, atol=1e-5)


# -- the first update is checked -------------------------------------------------------------------


@pytest.mark.parametrize("method", ["represent", "imagine", "predict", "rewards", "similarity"])
def test_an_edited_network_does_not_pass_the_first_update(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    original: Any = getattr(PlanningNetwork, method)
    edited = lambda self, first, *rest: original(self, 1.3 * first, *rest)  # noqa: E731
    monkeypatch.setattr(PlanningNetwork, method, edited)
    algorithm = learner(random=False)
    assert attach(algorithm).kernel == "muzero"
    with pytest.raises(KernelMismatch, match="first update"):
        algorithm.update(random_unroll(successors=True), CONTROLS, torch.Generator())


def test_the_check_leaves_weights_and_results_as_they_are() -> None:
    batch = random_unroll(successors=True)
    checked, unchecked = learner(random=False), learner(random=False)
    attach(checked)
    unchecked.gradient = CompiledUnroll(unchecked, "muzero").gradient  # type: ignore[method-assign]
    for algorithm in (checked, unchecked):
        algorithm.update(batch, CONTROLS, torch.Generator())
    assert torch.equal(checked.optimizer.values, unchecked.optimizer.values)


def autograd_is_left(algorithm: MuZero, caplog: pytest.LogCaptureFixture, updates: float | None = None) -> str:
    """Attach the kernel, and return why the gradient is left to autograd."""
    with caplog.at_level(logging.INFO, logger="rl_training"):
        assert attach(algorithm, updates).kernel == "muzero"
    assert "gradient" not in vars(algorithm)
    return caplog.text


def test_what_the_kernel_does_not_know_is_left_to_autograd(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "no multiples of 16" in autograd_is_left(learner(hidden_size=24), caplog)
    assert "too few for compiling to pay" in autograd_is_left(learner(), caplog, 100)
    monkeypatch.setattr(muzero, "muzero_loss", lambda *arguments: None)
    assert "muzero_loss was replaced" in autograd_is_left(learner(), caplog)

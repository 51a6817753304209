"""The flat optimizer keeps its statistics out of the numbers with which processors are slow."""

from __future__ import annotations

import torch
from torch import nn

from rl_training.models.optimizers import NEGLIGIBLE, STEPS_BETWEEN_FLUSHES, FlatOptimizer

SMALLEST_NORMAL = torch.finfo(torch.float32).tiny


def _after_a_vanished_gradient(steps: int, rule: str = "adam") -> FlatOptimizer:
    """Step once along a gradient of one for the first weight, then without; the second always has one."""
    optimizer = FlatOptimizer([nn.Parameter(torch.tensor([0.5, 0.5]))], rule, eps=1e-8)
    for step in range(steps):
        optimizer.gradient.copy_(torch.tensor([float(step == 0), 1.0]))
        optimizer.descend(learning_rate=1e-3, max_grad_norm=None)
    return optimizer


def test_statistics_of_a_weight_without_gradient_end_at_zero() -> None:
    # Adam's mean, 0.1 * 0.9^n, would be subnormal from the 809th step on.
    optimizer = _after_a_vanished_gradient(1_000)
    assert optimizer.state["exp_avg"][0] == 0
    assert optimizer.state["exp_avg"][1] > 0.99
    assert optimizer.state["exp_avg_sq"][0] > NEGLIGIBLE  # 0.001 * 0.999^n is still far from it


def test_no_statistics_become_subnormal_between_two_sweeps() -> None:
    optimizer = _after_a_vanished_gradient(1)
    for _ in range(1_500):
        optimizer.gradient.zero_()
        optimizer.descend(learning_rate=1e-3, max_grad_norm=None)
        mean = optimizer.state["exp_avg"].abs()
        assert ((mean == 0) | (mean >= SMALLEST_NORMAL)).all()


def test_what_is_swept_moves_no_weight() -> None:
    swept, kept = _after_a_vanished_gradient(600), _after_a_vanished_gradient(600)
    kept._flush_subnormals = lambda: None  # type: ignore[method-assign]
    for optimizer in (swept, kept):
        for _ in range(STEPS_BETWEEN_FLUSHES - 1):
            optimizer.gradient.copy_(torch.tensor([0.0, 1.0]))
            optimizer.descend(learning_rate=1e-3, max_grad_norm=None)
    assert swept.state["exp_avg"][0] == 0
    assert kept.state["exp_avg"][0] > 0
    assert swept.values.equal(kept.values)


def test_a_saved_optimizer_sweeps_when_the_one_before_would() -> None:
    original = _after_a_vanished_gradient(STEPS_BETWEEN_FLUSHES - 1)
    resumed = FlatOptimizer([nn.Parameter(torch.tensor([0.5, 0.5]))], "adam", eps=1e-8)
    resumed.load_state_dict({name: tensor.clone() for name, tensor in original.state_dict().items()})
    for optimizer in (original, resumed):
        optimizer.state["exp_avg"][0] = NEGLIGIBLE
        optimizer.gradient.zero_()
        optimizer.descend(learning_rate=1e-3, max_grad_norm=None)
        assert optimizer.state["exp_avg"][0] == 0

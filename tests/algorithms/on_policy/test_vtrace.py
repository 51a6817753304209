"""V-trace: computed by hand, and in PPO where a rollout comes from an earlier policy."""

from __future__ import annotations

from typing import Any

import torch

from ppo_parts import CONTROLS, make_ppo, make_rollout
from rl_training.algorithms.advantages import generalized_advantage, vtrace

NO = torch.zeros(2, 1, dtype=torch.bool)
REWARD, VALUE, LAST = torch.tensor([[1.0], [2.0]]), torch.tensor([[0.0], [4.0]]), torch.tensor([8.0])


def _vtrace(
    ratio: list[float], *, terminated: torch.Tensor = NO, truncated: torch.Tensor = NO, **changes: float
) -> Any:
    settings: dict[str, Any] = {"gamma": 0.5, "gae_lambda": 1.0, "clip": 1.0, **changes}
    final = torch.tensor([[6.0], [0.0]])
    log_ratio = torch.tensor(ratio).log().unsqueeze(1)
    target, advantage = vtrace(REWARD, VALUE, final, terminated, truncated, LAST, log_ratio, **settings)
    return target.flatten().tolist(), advantage.flatten().tolist()


def test_vtrace_by_hand() -> None:
    # Step 1: the ratio 2 is clipped to 1, the error is 2 + 0.5 * 8 - 4 = 2, so the target is 6.
    # Step 0: the error is 0.5 * (1 + 0.5 * 4 - 0) = 1.5, and 0.5 * 0.5 * 2 comes from step 1: the target is 2.
    # Its advantage is 0.5 * (1 + 0.5 * 6 - 0) = 2.
    assert _vtrace([0.5, 2.0]) == ([2.0, 6.0], [2.0, 2.0])


def test_a_larger_clip_lets_larger_ratios_count() -> None:
    # Step 1: 2 * 2 = 4, so the target is 8. Step 0: 1.5 + 0.5 * 0.5 * 4 = 2.5; advantage 0.5 * (1 + 0.5 * 8) = 2.5.
    assert _vtrace([0.5, 2.0], clip=2.0) == ([2.5, 8.0], [2.5, 4.0])


def test_lambda_shortens_the_trace() -> None:
    # Step 0: 1.5 + 0.5 * 0.5 * 0.5 * 2 = 1.75; advantage 0.5 * (1 + 0.5 * 4 + 0.5 * 0.5 * 2) = 1.75.
    assert _vtrace([0.5, 2.0], gae_lambda=0.5) == ([1.75, 6.0], [1.75, 2.0])


def test_vtrace_crosses_no_end_of_an_episode() -> None:
    ends = torch.tensor([[True], [False]])
    # A termination has no next value: 0.5 * 1. A truncation has that of its final observation: 0.5 * (1 + 0.5 * 6).
    assert _vtrace([0.5, 2.0], terminated=ends) == ([0.5, 6.0], [0.5, 2.0])
    assert _vtrace([0.5, 2.0], truncated=ends) == ([2.0, 6.0], [2.0, 2.0])


def test_with_the_policy_that_acted_vtrace_is_generalised_advantage_estimation() -> None:
    generator = torch.Generator().manual_seed(3)
    reward, value, final = torch.randn(3, 9, 4, generator=generator)
    terminated, truncated = torch.rand(2, 9, 4, generator=generator) < 0.2
    last = torch.randn(4, generator=generator)
    rollout = (reward, value, final, terminated, truncated, last)
    expected = generalized_advantage(*rollout, gamma=0.97, gae_lambda=0.9)
    target, advantage = vtrace(*rollout, torch.zeros(9, 4), gamma=0.97, gae_lambda=0.9, clip=1.0)
    torch.testing.assert_close(advantage, expected)
    torch.testing.assert_close(target, expected + value)


def test_ppo_learns_from_an_earlier_policy_with_its_present_values_and_clipped_ratios() -> None:
    algorithm = make_ppo(vtrace=True, gamma=0.9, gae_lambda=0.8)
    rollout = make_rollout(algorithm)
    acted = algorithm.as_acted(rollout)
    algorithm.update(rollout, CONTROLS, torch.Generator().manual_seed(1))
    batch = algorithm.prepare(acted)
    with torch.no_grad():
        distribution, value = algorithm.model(rollout.flat_observation(), None)
        log_prob = distribution.log_prob(rollout.flat_action())
        last = algorithm.values(rollout.last_observation)
    assert acted.log_prob is not None
    assert not torch.allclose(log_prob, acted.log_prob.flatten())
    shape = rollout.reward.shape
    ends = (rollout.final_value, rollout.terminated, rollout.truncated)
    target, advantage = vtrace(
        rollout.reward,
        value.view(shape),
        *ends,
        last,
        log_prob.view(shape) - acted.log_prob,
        gamma=0.9,
        gae_lambda=0.8,
        clip=1.0,
    )
    torch.testing.assert_close(batch.log_prob, log_prob)
    torch.testing.assert_close(batch.target_value, target.flatten())
    torch.testing.assert_close(batch.advantage, advantage.flatten())


def test_without_a_lag_vtrace_changes_nothing() -> None:
    algorithm = make_ppo(vtrace=True)
    rollout = make_rollout(algorithm)
    found, plain = algorithm.prepare(rollout), make_ppo().prepare(rollout)
    for one, other in zip(vars(found).values(), vars(plain).values(), strict=True):
        assert one is other is None or torch.equal(one, other)


def test_without_vtrace_all_is_that_of_the_present_weights_but_advantages_are_weighted() -> None:
    algorithm = make_ppo(gamma=0.9, gae_lambda=0.8, vtrace_clip=1.01)
    rollout = make_rollout(algorithm)
    expected = algorithm.prepare(rollout)
    acted = algorithm.as_acted(rollout)
    algorithm.update(rollout, CONTROLS, torch.Generator().manual_seed(1))
    found, present = algorithm.prepare(acted), algorithm.prepare(rollout)
    assert not torch.allclose(present.value, expected.value)
    for name in ("log_prob", "value", "target_value"):
        assert torch.equal(getattr(found, name), getattr(present, name))
    ratio = (present.log_prob - expected.log_prob).exp()
    assert 0 < (ratio > 1.01).sum() < len(ratio)
    torch.testing.assert_close(found.advantage, present.advantage * ratio.clamp(max=1.01))

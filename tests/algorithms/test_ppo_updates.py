"""What one PPO update does to the weights: minibatches, limits, schedules, masks, its A2C case, saving."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from gymnasium import Space
from torch import Tensor

from ppo_parts import (
    CHOICE,
    CONTROLS,
    CPU,
    OBSERVATION,
    TORQUE,
    gradient_of,
    make_ppo,
    make_rollout,
    seeded,
    update,
    weights_of,
)
from rl_training.algorithms.advantages import generalized_advantage
from rl_training.algorithms.params.ppo_params import A2CParams
from rl_training.algorithms.ppo import PPO, PPOBatch


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[PPOBatch, float, float]]:
    """What the loss is asked for: every minibatch, with its clip range and entropy weight."""
    calls: list[tuple[PPOBatch, float, float]] = []

    original = PPO.gradient

    def watched(algorithm: PPO, batch: PPOBatch, controls: Any) -> Any:
        calls.append((batch, float(controls["clip_coef"]), float(controls["ent_coef"])))
        return original(algorithm, batch, controls)

    monkeypatch.setattr(PPO, "gradient", watched)
    return calls


# -- the update as a whole -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("optimizer", "action_space"), [("adam", CHOICE), ("adam", TORQUE), ("rmsprop", CHOICE)], ids=str
)
def test_updates_equal_a_loop_written_with_torch_alone(optimizer: str, action_space: Space[Any]) -> None:
    algorithm = make_ppo(action_space, optimizer=optimizer, update_epochs=3, max_grad_norm=0.3, vf_coef=0.7)
    twin = copy.deepcopy(algorithm.model)
    parameters = list(twin.parameters())
    reference: torch.optim.Optimizer = (
        torch.optim.Adam(parameters, lr=1e-2, eps=1e-5)
        if optimizer == "adam"
        else torch.optim.RMSprop(parameters, lr=1e-2, alpha=0.99, eps=1e-5)
    )
    for seed in range(2):
        rollout = make_rollout(algorithm, seed=seed)
        with torch.no_grad():
            distribution, value = twin(rollout.flat_observation(), None)
            old_log_prob = distribution.log_prob(rollout.flat_action())
            advantage = generalized_advantage(
                rollout.reward,
                value.view(6, 2),
                rollout.final_value,
                rollout.terminated,
                rollout.truncated,
                twin(rollout.last_observation, None)[1],
                gamma=0.99,
                gae_lambda=0.95,
            ).flatten()
        for _ in range(3):
            distribution, new_value = twin(rollout.flat_observation(), None)
            ratio = torch.exp(distribution.log_prob(rollout.flat_action()) - old_log_prob)
            scaled = (advantage - advantage.mean()) / advantage.std()
            gain = torch.minimum(ratio * scaled, ratio.clamp(0.8, 1.2) * scaled).mean()
            error = torch.nn.functional.mse_loss(new_value, advantage + value)
            loss = -gain + 0.7 * error - 0.01 * distribution.entropy().mean()
            reference.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 0.3)
            reference.step()
        update(algorithm, rollout, seed)
    expected = torch.cat([parameter.detach().flatten() for parameter in parameters])
    torch.testing.assert_close(weights_of(algorithm), expected, rtol=1e-4, atol=1e-5)


def test_a2c_gradient_is_the_plain_policy_gradient() -> None:
    params = A2CParams(num_steps=6, hidden_sizes=(8,), max_grad_norm=None, vf_coef=0.0)
    algorithm = PPO(params, OBSERVATION, CHOICE, device=CPU, generator=seeded(0))
    rollout = make_rollout(algorithm)
    twin = copy.deepcopy(algorithm.model)
    distribution, value = twin(rollout.flat_observation(), None)
    advantage = generalized_advantage(
        rollout.reward,
        value.detach().view(6, 2),
        rollout.final_value,
        rollout.terminated,
        rollout.truncated,
        twin(rollout.last_observation, None)[1].detach(),
        gamma=0.99,
        gae_lambda=1.0,
    ).flatten()
    policy_gradient = -(distribution.log_prob(rollout.flat_action()) * advantage).mean()
    parts = torch.autograd.grad(policy_gradient, list(twin.parameters()), materialize_grads=True)
    expected = torch.cat([part.flatten() for part in parts])
    update(algorithm, rollout, ent_coef=0.0)
    assert expected.abs().max() > 1e-3
    torch.testing.assert_close(gradient_of(algorithm), expected, rtol=1e-4, atol=1e-7)


def test_a_better_than_expected_action_becomes_more_likely() -> None:
    algorithm = make_ppo(normalize_advantage=False)
    rollout = make_rollout(algorithm)
    rollout.action.fill_(1)
    rollout.reward.fill_(5.0)
    rollout.terminated.fill_(True)

    def probability() -> float:
        policy: Any = algorithm.model.policy(rollout.flat_observation(), None)
        return float(policy.log_prob(rollout.flat_action()).exp().mean().item())

    before = probability()
    update(algorithm, rollout)
    assert probability() > before


def test_metrics_are_the_means_of_the_loss_parts() -> None:
    algorithm = make_ppo(update_epochs=2)
    metrics = update(algorithm, make_rollout(algorithm))
    assert set(metrics) == {
        "loss_policy",
        "loss_value",
        "loss_total",
        "entropy",
        "approx_kl",
        "clip_fraction",
        "gradient_norm",
        "explained_variance",
    }
    assert all(isinstance(value, Tensor) and value.dim() == 0 and value.isfinite() for value in metrics.values())


# -- minibatches ---------------------------------------------------------------------------------


def test_every_row_is_learned_from_once_per_epoch_in_a_new_order(seen: list[Any]) -> None:
    algorithm = make_ppo(update_epochs=3, minibatch_size=5)
    update(algorithm, make_rollout(algorithm, numbered=True))
    assert [len(batch.log_prob) for batch, *_ in seen] == [5, 5, 2] * 3
    epochs = [
        torch.cat([batch.observation[:, 0] for batch, *_ in seen[start : start + 3]]).tolist() for start in (0, 3, 6)
    ]
    assert all(sorted(epoch) == list(range(12)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


def test_rows_of_a_minibatch_belong_together(seen: list[Any]) -> None:
    algorithm = make_ppo(minibatch_size=4)
    rollout = make_rollout(algorithm, numbered=True)
    with torch.no_grad():
        distribution, value = algorithm.model(rollout.flat_observation(), None)
    log_prob = distribution.log_prob(rollout.flat_action())
    update(algorithm, rollout)
    assert len(seen) == 3
    for batch, *_ in seen:
        rows = batch.observation[:, 0].long()
        assert batch.action.equal(rollout.flat_action()[rows])
        torch.testing.assert_close(batch.log_prob, log_prob[rows])
        torch.testing.assert_close(batch.value, value[rows])
        torch.testing.assert_close(batch.target_value, batch.value + batch.advantage)


@pytest.mark.parametrize("minibatch_size", [None, 12])
def test_a_whole_rollout_needs_no_shuffling(seen: list[Any], minibatch_size: int | None) -> None:
    algorithm = make_ppo(update_epochs=2, minibatch_size=minibatch_size)
    generator = seeded(3)
    before = generator.get_state()
    algorithm.update(make_rollout(algorithm, numbered=True), CONTROLS, generator)
    assert generator.get_state().equal(before)
    assert [batch.observation[:, 0].tolist() for batch, *_ in seen] == [list(range(12))] * 2


def test_a_single_left_over_row_is_skipped_where_advantages_are_normalised(seen: list[Any]) -> None:
    for normalized, sizes in ((True, [11]), (False, [11, 1])):
        seen.clear()
        algorithm = make_ppo(minibatch_size=11, normalize_advantage=normalized)
        update(algorithm, make_rollout(algorithm))
        assert [len(batch.log_prob) for batch, *_ in seen] == sizes
        assert weights_of(algorithm).isfinite().all()


# -- limits and schedules ------------------------------------------------------------------------


def test_target_kl_stops_the_epochs_before_the_step_that_goes_too_far(seen: list[Any]) -> None:
    stopping = make_ppo(update_epochs=5, target_kl=1e-6)
    update(stopping, make_rollout(stopping))
    assert len(seen) == 2  # the second look found the policy too far from where it started
    single = make_ppo(update_epochs=1)
    update(single, make_rollout(single))
    assert weights_of(stopping).equal(weights_of(single))
    seen.clear()
    patient = make_ppo(update_epochs=5, target_kl=1e6)
    update(patient, make_rollout(patient))
    assert len(seen) == 5


def test_controls_of_the_call_decide_and_the_parameters_stay(seen: list[Any]) -> None:
    algorithm = make_ppo(learning_rate=1.0, clip_coef=0.3, ent_coef=0.5, optimizer_eps=1e-12)
    params = dataclasses.replace(algorithm.params)
    for learning_rate, clip_coef, ent_coef in ((1e-2, 0.2, 0.02), (1e-4, 0.1, 0.0)):
        fresh = make_ppo(optimizer_eps=1e-12)
        algorithm.load_state_dict(copy.deepcopy(fresh.state_dict()))
        before = weights_of(algorithm).clone()
        rollout = make_rollout(algorithm)
        update(algorithm, rollout, learning_rate=learning_rate, clip_coef=clip_coef, ent_coef=ent_coef)
        assert seen[-1][1:] == pytest.approx((clip_coef, ent_coef))
        # Adam's first step moves every weight that has a gradient by the learning rate.
        assert (weights_of(algorithm) - before).abs().max().item() == pytest.approx(learning_rate, rel=1e-2)
    assert algorithm.params == params


def test_gradient_is_scaled_down_to_its_largest_norm_and_reported_before() -> None:
    free, limited, loose = (make_ppo(max_grad_norm=limit) for limit in (None, 0.05, 1e6))
    reported = [
        update(algorithm, make_rollout(algorithm))["gradient_norm"].item() for algorithm in (free, limited, loose)
    ]
    norm = gradient_of(free).norm().item()
    assert norm > 0.1
    assert reported == pytest.approx([norm] * 3, rel=1e-5)
    torch.testing.assert_close(gradient_of(limited), gradient_of(free) * (0.05 / norm), rtol=1e-3, atol=1e-7)
    assert gradient_of(loose).equal(gradient_of(free))


# -- masks ---------------------------------------------------------------------------------------


def test_illegal_actions_have_no_probability_and_are_never_sampled() -> None:
    algorithm = make_ppo()
    observation = torch.randn(4000, 3, generator=seeded(0))
    mask = torch.tensor([True, False, True]).expand(4000, 3)
    generator = seeded(1)
    assert algorithm.act(observation, mask, CONTROLS, generator).unique().tolist() == [0, 2]
    assert algorithm.choose(observation, mask, generator).unique().tolist() == [0, 2]
    assert 1 not in algorithm.choose(observation, mask, None).unique().tolist()
    policy: Any = algorithm.model.policy(observation, mask)
    free: Any = algorithm.model.policy(observation, None)
    assert policy.log_prob(torch.ones(4000, dtype=torch.int64)).exp().max() == 0
    legal = [free.log_prob(torch.full((4000,), action)) for action in (0, 2)]
    renormalised = legal[0] - torch.logaddexp(legal[0], legal[1])
    torch.testing.assert_close(policy.log_prob(torch.zeros(4000, dtype=torch.int64)), renormalised)
    assert policy.entropy().isfinite().all()


def test_learning_leaves_the_logits_of_illegal_actions_alone() -> None:
    algorithm = make_ppo()
    mask = torch.tensor([[True, False, True], [True, False, True]])
    update(algorithm, make_rollout(algorithm, mask=mask))
    gradient: Any = algorithm.model.head.linear.weight.grad
    assert gradient[1].abs().max() == 0
    assert gradient[0].abs().max() > 0


# -- state and randomness --------------------------------------------------------------------------

VARIANTS: Mapping[str, tuple[Space[Any], dict[str, Any]]] = {
    "adam": (CHOICE, {}),
    "rmsprop": (CHOICE, {"optimizer": "rmsprop"}),
    "gaussian": (TORQUE, {}),
    "gsde": (TORQUE, {"use_sde": True, "sde_sample_freq": 4}),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_restored_algorithm_acts_and_learns_identically(variant: str) -> None:
    action_space, params = VARIANTS[variant]
    params = {**params, "minibatch_size": 5, "update_epochs": 2}
    original, restored = (make_ppo(action_space, seed=seed, **params) for seed in (0, 9))
    for seed in range(2):
        update(original, make_rollout(original, seed=seed))
    # In the middle of a rollout, where exploration matrices are in use.
    observation = torch.randn(2, 3, generator=seeded(5))
    original.start_rollout()
    original.act(observation, None, CONTROLS, seeded(6))
    restored.load_state_dict(copy.deepcopy(original.state_dict()))
    for seed in range(5):  # crosses the renewal of the matrices
        actions = [algorithm.act(observation, None, CONTROLS, seeded(seed)) for algorithm in (original, restored)]
        assert actions[0].equal(actions[1])
    for seed in range(2):
        rollout = make_rollout(original, seed=seed)
        for algorithm in (original, restored):
            update(algorithm, rollout)
        assert weights_of(original).equal(weights_of(restored))


def test_saved_state_is_not_the_running_one_after_a_copy() -> None:
    algorithm = make_ppo()
    saved = copy.deepcopy(algorithm.state_dict())
    update(algorithm, make_rollout(algorithm))
    learned = weights_of(algorithm).clone()
    algorithm.load_state_dict(saved)
    assert weights_of(algorithm).equal(weights_of(make_ppo()))
    update(algorithm, make_rollout(algorithm))
    assert weights_of(algorithm).equal(learned)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_global_generator_is_never_used(variant: str) -> None:
    action_space, params = VARIANTS[variant]
    torch.manual_seed(0)
    before = torch.get_rng_state()
    algorithm = make_ppo(action_space, minibatch_size=5, **params)
    rollout = make_rollout(algorithm)
    update(algorithm, rollout)
    algorithm.choose(rollout.flat_observation(), None, seeded(0))
    algorithm.values(rollout.flat_observation())
    assert torch.get_rng_state().equal(before)

"""What one PPO update does to the weights: minibatches, limits, schedules, masks, its A2C case, saving, compiling."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import Space, spaces
from torch import Tensor

from rl_training.algorithms import ppo
from rl_training.algorithms.ppo import PPO
from rl_training.algorithms.ppo_loss import PPOBatch, generalized_advantage, ppo_gradient, ppo_loss
from rl_training.algorithms.ppo_params import A2CParams, PPOParams
from rl_training.data.rollout import Rollout

CPU = torch.device("cpu")
OBSERVATION = spaces.Box(-np.inf, np.inf, (3,), np.float32)
CHOICE = spaces.Discrete(3)
TORQUE = spaces.Box(-1.0, 1.0, (2,), np.float32)
CONTROLS = {"learning_rate": 1e-2, "clip_coef": 0.2, "ent_coef": 0.01}
# What holds where a test says nothing else: one epoch over everything, nothing clipped.
PLAIN: dict[str, Any] = {"num_steps": 6, "update_epochs": 1, "minibatch_size": None, "max_grad_norm": None}


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _algorithm(action_space: Space[Any] = CHOICE, *, seed: int = 0, **params: Any) -> PPO:
    settings = PPOParams(**{"hidden_sizes": (8,), **PLAIN, **params})
    return PPO(settings, OBSERVATION, action_space, device=CPU, generator=_generator(seed))


def _rollout(
    algorithm: PPO, *, seed: int = 1, num_envs: int = 2, mask: Tensor | None = None, numbered: bool = False
) -> Rollout:
    """Let the policy act on random observations that end now and then; `numbered` ones say which row they are."""
    rng, generator = np.random.default_rng(seed), _generator(seed)
    num_steps = algorithm.params.num_steps
    shape = (num_steps, num_envs)
    observation = torch.from_numpy(rng.normal(size=(*shape, 3)).astype(np.float32))
    if numbered:
        observation[..., 0] = torch.arange(num_steps * num_envs).view(shape)
    algorithm.start_rollout()
    return Rollout(
        observation=observation,
        action=torch.stack([algorithm.act(row, mask, generator).clone() for row in observation]),
        mask=None if mask is None else mask.expand(num_steps, *mask.shape),
        reward=torch.from_numpy(rng.normal(size=shape).astype(np.float32)),
        terminated=torch.from_numpy(rng.random(shape) < 0.2),
        truncated=torch.from_numpy(rng.random(shape) < 0.2),
        final_value=torch.from_numpy(rng.normal(size=shape).astype(np.float32)),
        last_observation=torch.from_numpy(rng.normal(size=(num_envs, 3)).astype(np.float32)),
    )


def _update(algorithm: PPO, rollout: Rollout, seed: int = 2, **controls: float) -> dict[str, Tensor]:
    return algorithm.update(rollout, {**CONTROLS, **controls}, _generator(seed))


def _weights(algorithm: PPO) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in algorithm.model.parameters()])


def _gradient(algorithm: PPO) -> Tensor:
    """Return the gradient that the last step used."""
    gradients = [parameter.grad for parameter in algorithm.model.parameters()]
    return torch.cat([gradient.flatten().clone() for gradient in gradients if gradient is not None])


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[PPOBatch, float, float]]:
    """What the loss is asked for: every minibatch, with its clip range and entropy weight."""
    calls: list[tuple[PPOBatch, float, float]] = []

    def watched(model: Any, batch: PPOBatch, clip_coef: Any, ent_coef: Any, *rest: Any, **more: Any) -> Any:
        calls.append((batch, float(clip_coef), float(ent_coef)))
        return ppo_gradient(model, batch, clip_coef, ent_coef, *rest, **more)

    monkeypatch.setattr(ppo, "ppo_gradient", watched)
    return calls


# -- the gradient --------------------------------------------------------------------------------


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
    algorithm = _algorithm(action_space, num_steps=40, **params)
    mask = torch.tensor([[True, False, True], [True, True, True]]) if masked else None
    batch = algorithm._prepare(_rollout(algorithm, mask=mask))
    with torch.no_grad():  # so far that both sides of every clip occur
        for weight in algorithm.model.parameters():
            weight.add_(torch.randn(weight.shape, generator=_generator(5)), alpha=0.3)
    arguments = (algorithm.model, batch, 0.2, ent_coef, algorithm.params)
    assert algorithm.model.plain
    algorithm.optimizer.gradient.fill_(7.0)  # which is to be overwritten
    by_hand = ppo_gradient(*arguments)
    gradient = algorithm.optimizer.gradient.clone()
    algorithm.optimizer.gradient.zero_()
    loss, by_graph = ppo_loss(*arguments)
    loss.backward()
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
        (spaces.MultiDiscrete([2, 3]), {}),
        (spaces.MultiBinary(2), {}),
    ],
    ids=str,
)
def test_other_models_learn_by_autograd(action_space: Space[Any], params: dict[str, Any]) -> None:
    algorithm = _algorithm(action_space, **params)
    assert not algorithm.model.plain
    before = _weights(algorithm)
    _update(algorithm, _rollout(algorithm))
    assert not _weights(algorithm).equal(before)


# -- the update as a whole -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("optimizer", "action_space"), [("adam", CHOICE), ("adam", TORQUE), ("rmsprop", CHOICE)], ids=str
)
def test_updates_equal_a_loop_written_with_torch_alone(optimizer: str, action_space: Space[Any]) -> None:
    algorithm = _algorithm(action_space, optimizer=optimizer, update_epochs=3, max_grad_norm=0.3, vf_coef=0.7)
    twin = copy.deepcopy(algorithm.model)
    parameters = list(twin.parameters())
    reference: torch.optim.Optimizer = (
        torch.optim.Adam(parameters, lr=1e-2, eps=1e-5)
        if optimizer == "adam"
        else torch.optim.RMSprop(parameters, lr=1e-2, alpha=0.99, eps=1e-5)
    )
    for seed in range(2):
        rollout = _rollout(algorithm, seed=seed)
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
        _update(algorithm, rollout, seed)
    expected = torch.cat([parameter.detach().flatten() for parameter in parameters])
    torch.testing.assert_close(_weights(algorithm), expected, rtol=1e-4, atol=1e-5)


def test_a2c_gradient_is_the_plain_policy_gradient() -> None:
    params = A2CParams(num_steps=6, hidden_sizes=(8,), max_grad_norm=None, vf_coef=0.0)
    algorithm = PPO(params, OBSERVATION, CHOICE, device=CPU, generator=_generator(0))
    rollout = _rollout(algorithm)
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
    _update(algorithm, rollout, ent_coef=0.0)
    assert expected.abs().max() > 1e-3
    torch.testing.assert_close(_gradient(algorithm), expected, rtol=1e-4, atol=1e-7)


def test_a_better_than_expected_action_becomes_more_likely() -> None:
    algorithm = _algorithm(normalize_advantage=False)
    rollout = _rollout(algorithm)
    rollout.action.fill_(1)
    rollout.reward.fill_(5.0)
    rollout.terminated.fill_(True)

    def probability() -> float:
        policy: Any = algorithm.model.policy(rollout.flat_observation(), None)
        return float(policy.log_prob(rollout.flat_action()).exp().mean().item())

    before = probability()
    _update(algorithm, rollout)
    assert probability() > before


def test_metrics_are_the_means_of_the_loss_parts() -> None:
    algorithm = _algorithm(update_epochs=2)
    metrics = _update(algorithm, _rollout(algorithm))
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
    algorithm = _algorithm(update_epochs=3, minibatch_size=5)
    _update(algorithm, _rollout(algorithm, numbered=True))
    assert [len(batch.log_prob) for batch, *_ in seen] == [5, 5, 2] * 3
    epochs = [
        torch.cat([batch.observation[:, 0] for batch, *_ in seen[start : start + 3]]).tolist() for start in (0, 3, 6)
    ]
    assert all(sorted(epoch) == list(range(12)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


def test_rows_of_a_minibatch_belong_together(seen: list[Any]) -> None:
    algorithm = _algorithm(minibatch_size=4)
    rollout = _rollout(algorithm, numbered=True)
    with torch.no_grad():
        distribution, value = algorithm.model(rollout.flat_observation(), None)
    log_prob = distribution.log_prob(rollout.flat_action())
    _update(algorithm, rollout)
    assert len(seen) == 3
    for batch, *_ in seen:
        rows = batch.observation[:, 0].long()
        assert batch.action.equal(rollout.flat_action()[rows])
        torch.testing.assert_close(batch.log_prob, log_prob[rows])
        torch.testing.assert_close(batch.value, value[rows])
        torch.testing.assert_close(batch.target_value, batch.value + batch.advantage)


@pytest.mark.parametrize("minibatch_size", [None, 12])
def test_a_whole_rollout_needs_no_shuffling(seen: list[Any], minibatch_size: int | None) -> None:
    algorithm = _algorithm(update_epochs=2, minibatch_size=minibatch_size)
    generator = _generator(3)
    before = generator.get_state()
    algorithm.update(_rollout(algorithm, numbered=True), CONTROLS, generator)
    assert generator.get_state().equal(before)
    assert [batch.observation[:, 0].tolist() for batch, *_ in seen] == [list(range(12))] * 2


def test_a_single_left_over_row_is_skipped_where_advantages_are_normalised(seen: list[Any]) -> None:
    for normalized, sizes in ((True, [11]), (False, [11, 1])):
        seen.clear()
        algorithm = _algorithm(minibatch_size=11, normalize_advantage=normalized)
        _update(algorithm, _rollout(algorithm))
        assert [len(batch.log_prob) for batch, *_ in seen] == sizes
        assert _weights(algorithm).isfinite().all()


# -- limits and schedules ------------------------------------------------------------------------


def test_target_kl_stops_the_epochs_before_the_step_that_goes_too_far(seen: list[Any]) -> None:
    stopping = _algorithm(update_epochs=5, target_kl=1e-6)
    _update(stopping, _rollout(stopping))
    assert len(seen) == 2  # the second look found the policy too far from where it started
    single = _algorithm(update_epochs=1)
    _update(single, _rollout(single))
    assert _weights(stopping).equal(_weights(single))
    seen.clear()
    patient = _algorithm(update_epochs=5, target_kl=1e6)
    _update(patient, _rollout(patient))
    assert len(seen) == 5


def test_controls_of_the_call_decide_and_the_parameters_stay(seen: list[Any]) -> None:
    algorithm = _algorithm(learning_rate=1.0, clip_coef=0.3, ent_coef=0.5, optimizer_eps=1e-12)
    params = dataclasses.replace(algorithm.params)
    for learning_rate, clip_coef, ent_coef in ((1e-2, 0.2, 0.02), (1e-4, 0.1, 0.0)):
        fresh = _algorithm(optimizer_eps=1e-12)
        algorithm.load_state_dict(copy.deepcopy(fresh.state_dict()))
        before = _weights(algorithm).clone()
        rollout = _rollout(algorithm)
        _update(algorithm, rollout, learning_rate=learning_rate, clip_coef=clip_coef, ent_coef=ent_coef)
        assert seen[-1][1:] == pytest.approx((clip_coef, ent_coef))
        # Adam's first step moves every weight that has a gradient by the learning rate.
        assert (_weights(algorithm) - before).abs().max().item() == pytest.approx(learning_rate, rel=1e-2)
    assert algorithm.params == params


def test_gradient_is_scaled_down_to_its_largest_norm_and_reported_before() -> None:
    free, limited, loose = (_algorithm(max_grad_norm=limit) for limit in (None, 0.05, 1e6))
    reported = [_update(algorithm, _rollout(algorithm))["gradient_norm"].item() for algorithm in (free, limited, loose)]
    norm = _gradient(free).norm().item()
    assert norm > 0.1
    assert reported == pytest.approx([norm] * 3, rel=1e-5)
    torch.testing.assert_close(_gradient(limited), _gradient(free) * (0.05 / norm), rtol=1e-3, atol=1e-7)
    assert _gradient(loose).equal(_gradient(free))


# -- masks ---------------------------------------------------------------------------------------


def test_illegal_actions_have_no_probability_and_are_never_sampled() -> None:
    algorithm = _algorithm()
    observation = torch.randn(4000, 3, generator=_generator(0))
    mask = torch.tensor([True, False, True]).expand(4000, 3)
    generator = _generator(1)
    assert algorithm.act(observation, mask, generator).unique().tolist() == [0, 2]
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
    algorithm = _algorithm()
    mask = torch.tensor([[True, False, True], [True, False, True]])
    _update(algorithm, _rollout(algorithm, mask=mask))
    gradient: Any = algorithm.model.head.linear.weight.grad
    assert gradient[1].abs().max() == 0
    assert gradient[0].abs().max() > 0


# -- state, randomness, compiling ----------------------------------------------------------------

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
    original, restored = (_algorithm(action_space, seed=seed, **params) for seed in (0, 9))
    for seed in range(2):
        _update(original, _rollout(original, seed=seed))
    # In the middle of a rollout, where exploration matrices are in use.
    observation = torch.randn(2, 3, generator=_generator(5))
    original.start_rollout()
    original.act(observation, None, _generator(6))
    restored.load_state_dict(copy.deepcopy(original.state_dict()))
    for seed in range(5):  # crosses the renewal of the matrices
        actions = [algorithm.act(observation, None, _generator(seed)) for algorithm in (original, restored)]
        assert actions[0].equal(actions[1])
    for seed in range(2):
        rollout = _rollout(original, seed=seed)
        for algorithm in (original, restored):
            _update(algorithm, rollout)
        assert _weights(original).equal(_weights(restored))


def test_saved_state_is_not_the_running_one_after_a_copy() -> None:
    algorithm = _algorithm()
    saved = copy.deepcopy(algorithm.state_dict())
    _update(algorithm, _rollout(algorithm))
    learned = _weights(algorithm).clone()
    algorithm.load_state_dict(saved)
    assert _weights(algorithm).equal(_weights(_algorithm()))
    _update(algorithm, _rollout(algorithm))
    assert _weights(algorithm).equal(learned)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_global_generator_is_never_used(variant: str) -> None:
    action_space, params = VARIANTS[variant]
    torch.manual_seed(0)
    before = torch.get_rng_state()
    algorithm = _algorithm(action_space, minibatch_size=5, **params)
    rollout = _rollout(algorithm)
    _update(algorithm, rollout)
    algorithm.choose(rollout.flat_observation(), None, _generator(0))
    algorithm.values(rollout.flat_observation())
    assert torch.get_rng_state().equal(before)


def _train_plain_and_compiled() -> tuple[Tensor, Tensor]:
    """Return the weights after several updates whose controls change, as schedules do."""
    weights = []
    for compiled in (False, True):
        algorithm = _algorithm(compile=compiled, minibatch_size=6, update_epochs=2, max_grad_norm=0.5)
        for update in range(3):
            rollout = _rollout(algorithm, seed=update)
            _update(algorithm, rollout, learning_rate=1e-2 / (update + 1), clip_coef=0.2 - 0.05 * update)
        weights.append(_weights(algorithm))
    return weights[0], weights[1]


def test_the_compiled_path_learns_the_same_without_code_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    original: Callable[..., Any] = torch.compile
    graphs: list[Any] = []

    def traced(function: Any, **settings: Any) -> Any:
        graphs.append(function)
        return original(function, **{**settings, "backend": "aot_eager"})

    monkeypatch.setattr(torch, "compile", traced)
    plain, compiled = _train_plain_and_compiled()
    assert len(graphs) == 1
    torch.testing.assert_close(compiled, plain, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_the_compiled_path_learns_the_same() -> None:
    plain, compiled = _train_plain_and_compiled()
    torch.testing.assert_close(compiled, plain, rtol=1e-5, atol=1e-6)

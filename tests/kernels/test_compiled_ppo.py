"""PPO in compiled code: every option that it covers gives what autograd gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import Space, spaces
from torch import Tensor

from ppo_parts import CHOICE, CONTROLS, TORQUE, make_ppo, make_rollout, seeded, update, weights_of
from rl_training.algorithms import ppo
from rl_training.algorithms.ppo import PPO
from rl_training.kernels.checks import KernelMismatch
from rl_training.kernels.compiled_ppo import CompiledPPO
from rl_training.kernels.door import attach

# Of two environments; the second gives no choice at all, and nothing must be learned from what it is left with.
MASK = torch.tensor([[True, False, True], [False, False, False]])
MASKS = torch.tensor([[True, False, True, True, False], [True, True, False, True, True]])
OPTIONS: list[tuple[Space[Any], dict[str, Any], Tensor | None]] = [
    (CHOICE, {}, None),
    (CHOICE, {}, MASK),
    (CHOICE, {"activation": "relu", "hidden_sizes": (8, 5)}, None),
    (CHOICE, {"hidden_sizes": ()}, None),
    (CHOICE, {"clip_value_loss": True, "normalize_advantage": False}, None),
    (spaces.Discrete(20), {"hidden_sizes": (40, 33)}, None),
    (spaces.MultiDiscrete([2, 3]), {}, None),
    (spaces.MultiDiscrete([2, 3]), {}, MASKS),
    (spaces.MultiBinary(5), {}, None),
    (spaces.MultiBinary(5), {}, MASKS),
    (TORQUE, {}, None),
    (TORQUE, {"clip_value_loss": True, "log_std_init": -1.0}, None),
]


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def moved(algorithm: PPO) -> PPO:
    """Move the weights so far that both sides of every clip occur."""
    with torch.no_grad():
        for weight in algorithm.model.parameters():
            weight.add_(torch.randn(weight.shape, generator=seeded(5)), alpha=0.3)
    return algorithm


@pytest.mark.parametrize(("action_space", "params", "mask"), OPTIONS, ids=str)
@pytest.mark.parametrize("ent_coef", [0.0, 0.3])
def test_the_compiled_gradient_is_that_of_autograd(
    action_space: Space[Any], params: dict[str, Any], mask: Tensor | None, ent_coef: float
) -> None:
    algorithm = make_ppo(action_space, num_steps=40, **params)
    batch = algorithm.prepare(make_rollout(algorithm, mask=mask))
    compiled = CompiledPPO(moved(algorithm), "ppo")
    controls = {**CONTROLS, "clip_coef": 0.2, "ent_coef": ent_coef}
    for rows in (80, 7):
        indices = torch.randperm(80, generator=seeded(rows))[:rows]
        parts = algorithm.gradient(batch.select(indices), controls)
        found = compiled.gradient(batch, controls, indices)
        torch.testing.assert_close(found, algorithm.optimizer.gradient, rtol=1e-4, atol=1e-6)
        if rows == 80:
            assert (parts["log_ratio"].exp() > 1.2).any()
            assert (parts["log_ratio"].exp() < 0.8).any()


def test_rows_beyond_a_chunk_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_training.kernels.compiled_ppo._CHUNK_NUMBERS", 1)
    algorithm = make_ppo(CHOICE, num_steps=40)
    batch = algorithm.prepare(make_rollout(algorithm))
    compiled = CompiledPPO(moved(algorithm), "ppo")
    assert compiled.memory.chunk == 16
    algorithm.gradient(batch, CONTROLS)
    found = compiled.gradient(batch, CONTROLS, torch.arange(80))
    torch.testing.assert_close(found, algorithm.optimizer.gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("action_space", "params", "mask"), OPTIONS, ids=str)
def test_compiled_actions_log_probabilities_and_values_are_those_of_the_model(
    action_space: Space[Any], params: dict[str, Any], mask: Tensor | None
) -> None:
    algorithm = moved(make_ppo(action_space, num_steps=40, **params))
    compiled = CompiledPPO(algorithm, "ppo")
    rollout = make_rollout(algorithm, mask=mask)
    observation, masks = rollout.flat_observation(), rollout.flat_mask()
    one, other = seeded(3), seeded(3)
    for _ in range(3):
        expected = algorithm.act(observation, masks, CONTROLS, one)
        action = compiled.act(observation, masks, CONTROLS, other)
        assert action.dtype == expected.dtype
        torch.testing.assert_close(action, expected, rtol=1e-5, atol=1e-5)
    assert one.get_state().equal(other.get_state())
    with torch.no_grad():
        expectation = algorithm.evaluate_actions(observation, action, masks)
    torch.testing.assert_close(compiled.evaluate_actions(observation, action, masks), expectation, rtol=1e-4, atol=1e-5)


def test_compiled_advantages_are_those_of_the_formula() -> None:
    algorithm = make_ppo(CHOICE, num_steps=40)
    compiled = CompiledPPO(algorithm, "ppo")
    rollout = make_rollout(algorithm, num_envs=3)
    value, last_value = torch.randn(40, 3, generator=seeded(1)), torch.randn(3, generator=seeded(2))
    assert (rollout.terminated & rollout.truncated).any()
    expected = algorithm.advantages(rollout, value, last_value)
    torch.testing.assert_close(compiled.advantages(rollout, value, last_value), expected, rtol=1e-6, atol=1e-6)


def test_evaluating_and_acting_are_compiled_where_they_are_the_package_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    methods = {"act", "act_on_host", "values", "advantages", "evaluate_actions", "improve"}
    algorithm = make_ppo(CHOICE)
    attach(algorithm)
    assert methods <= vars(algorithm).keys()
    monkeypatch.setattr(ppo, "generalized_advantage", lambda *columns, **settings: columns[0])
    other = make_ppo(CHOICE)
    attach(other)
    assert methods - vars(other).keys() == {"advantages"}


UPDATES: list[tuple[Space[Any], dict[str, Any]]] = [
    (CHOICE, {"minibatch_size": None, "update_epochs": 3}),
    (CHOICE, {"minibatch_size": 13}),  # one row is left over
    (CHOICE, {"minibatch_size": 13, "normalize_advantage": False}),
    (CHOICE, {"minibatch_size": 10, "target_kl": 0.003}),
    (CHOICE, {"minibatch_size": 10, "target_kl": 1e-9}),
    (CHOICE, {"optimizer": "rmsprop", "max_grad_norm": None}),
    (TORQUE, {"minibatch_size": 16, "ent_coef": 0.1}),
    (spaces.MultiDiscrete([2, 3]), {"minibatch_size": 16}),
]


@pytest.mark.parametrize(("action_space", "params"), UPDATES, ids=str)
def test_whole_updates_are_those_of_autograd(action_space: Space[Any], params: dict[str, Any]) -> None:
    plain, compiled = (
        make_ppo(action_space, num_steps=20, **{"update_epochs": 4, "max_grad_norm": 0.5, **params}) for _ in range(2)
    )
    assert attach(compiled).kernel == "ppo"
    for number in range(20):
        changes: Any = {"learning_rate": 1e-2 / (number + 1), "clip_coef": 0.2 - 0.005 * number}
        rollout = make_rollout(plain, seed=number)
        reports = [update(algorithm, rollout, **changes) for algorithm in (plain, compiled)]
        assert reports[0].keys() == reports[1].keys()
        torch.testing.assert_close(reports[1], reports[0], rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(weights_of(compiled), weights_of(plain), rtol=1e-3, atol=1e-5)
    for name, statistics in plain.optimizer.state_dict().items():
        torch.testing.assert_close(compiled.optimizer.state_dict()[name], statistics, rtol=1e-2, atol=1e-6)


def test_updates_that_stop_early_take_fewer_steps() -> None:
    free, limited = (make_ppo(CHOICE, num_steps=20, minibatch_size=10, target_kl=kl) for kl in (None, 1e-9))
    for algorithm in (free, limited):
        attach(algorithm)
        update(algorithm, make_rollout(free), learning_rate=1e-2)
    assert 0 < limited.optimizer.steps < free.optimizer.steps


def test_statistics_that_vanished_are_set_to_zero() -> None:
    algorithm = make_ppo(CHOICE, num_steps=20, minibatch_size=None, update_epochs=128)
    attach(algorithm)
    mean = algorithm.optimizer.state["exp_avg"]
    mean[0] = 1e-25  # of a weight without a gradient it falls below 1e-30 within 128 steps
    algorithm.model.stacks.weight_0.data[:, 0] = 0.0
    rollout = make_rollout(algorithm)
    assert isinstance(rollout.observation, Tensor)
    rollout.observation[..., 0] = 0.0
    update(algorithm, rollout)
    assert mean[0] == 0.0


def test_a_changed_network_stops_the_run_at_its_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = make_ppo(CHOICE, num_steps=20)
    attach(algorithm)
    rollout = make_rollout(algorithm)
    original = type(algorithm.model.stacks).forward
    monkeypatch.setattr(type(algorithm.model.stacks), "forward", lambda self, x: 1.1 * original(self, x))
    with pytest.raises(KernelMismatch, match="first rollout"):
        update(algorithm, rollout)


def test_several_threads_use_the_written_out_gradient() -> None:
    torch.set_num_threads(2)
    algorithm = make_ppo(CHOICE)
    assert attach(algorithm).kernel == "ppo"
    assert "gradient" in vars(algorithm)
    assert "improve" not in vars(algorithm)


def test_an_overridden_update_keeps_what_it_overrides() -> None:
    class Own(PPO):
        def evaluate_actions(self, *arguments: Any) -> Any:
            return super().evaluate_actions(*arguments)

    example = make_ppo(CHOICE)
    algorithm = Own(
        example.params,
        spaces.Box(-1.0, 1.0, (3,), np.float32),
        CHOICE,
        device=torch.device("cpu"),
        generator=seeded(0),
    )
    attach(algorithm)
    assert "evaluate_actions" not in vars(algorithm)
    assert "improve" not in vars(algorithm)

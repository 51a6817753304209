"""Deep Q-learning in compiled code: every option that it covers gives what autograd gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from replay_parts import CHOICE, CONTROLS, CPU, OBSERVATION, generator, parameters_of, random_batch
from rl_training.algorithms import dqn
from rl_training.algorithms.dqn import DQN
from rl_training.algorithms.params.dqn_params import DQNParams
from rl_training.data.replay import ReplayBatch
from rl_training.kernels.checks import KernelMismatch
from rl_training.kernels.compiled_dqn import CompiledDQN
from rl_training.kernels.door import attach

OPTIONS: list[dict[str, Any]] = [
    {},
    {"loss": "squared"},
    {"double": True},
    {"dueling": True},
    {"double": True, "dueling": True, "activation": "tanh"},
    {"activation": "tanh", "hidden_sizes": (5, 40, 33)},
    {"hidden_sizes": ()},
    {"hidden_sizes": (), "dueling": True},
    {"distribution": "categorical"},
    {"distribution": "categorical", "num_atoms": 2, "double": True},
    {"distribution": "categorical", "num_atoms": 51, "dueling": True},
    {"distribution": "quantile"},
    {"distribution": "quantile", "num_quantiles": 1, "double": True},
    {"distribution": "quantile", "num_quantiles": 16},
    {"distribution": "quantile", "num_quantiles": 33, "dueling": True, "double": True},
]


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def make_dqn(kind: type[DQN] = DQN, **params: Any) -> DQN:
    """Return a learner whose networks differ, so that double's two judges disagree."""
    small = {"hidden_sizes": (8,), "num_atoms": 5, "num_quantiles": 5, "v_min": -2.0, "v_max": 2.0}
    settings = DQNParams(**{**small, **params})
    algorithm = kind(settings, OBSERVATION, CHOICE, device=CPU, generator=generator(0))
    with torch.no_grad():
        for seed, values in enumerate((algorithm.optimizer.values, algorithm.target_values)):
            values.add_(torch.randn(values.shape, generator=generator(seed + 5)), alpha=0.5)
    return algorithm


def make_batch(seed: int, *, rows: int = 16, weighted: bool = False, masked: bool = False) -> ReplayBatch:
    """Return transitions of up to three steps, with errors on both sides of Huber's corner."""
    batch = random_batch(CHOICE, seed=seed, rows=rows, weighted=weighted)
    steps = torch.randint(1, 4, (rows,), generator=generator(seed))
    batch = batch._replace(reward=3 * batch.reward, discount=batch.discount**steps)
    if not masked:
        return batch
    mask = torch.rand(rows, 4, generator=generator(seed)) < 0.5
    mask[:, seed % 4] = True
    return batch._replace(next_mask=mask)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize(("weighted", "masked"), [(False, False), (True, True)])
def test_the_compiled_gradient_is_that_of_autograd(options: dict[str, Any], weighted: bool, masked: bool) -> None:
    algorithm = make_dqn(**options)
    compiled = CompiledDQN(algorithm, "dqn")
    for rows in (64, 7):
        batch = make_batch(rows, rows=rows, weighted=weighted, masked=masked)
        algorithm.gradient(batch)
        expected = algorithm.optimizer.gradient.clone()
        algorithm.optimizer.gradient.fill_(7.0)  # which is to be overwritten
        torch.testing.assert_close(compiled.gradient(batch), expected, rtol=1e-4, atol=1e-6)


def test_rows_beyond_a_chunk_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_training.kernels.compiled_dqn._CHUNK_NUMBERS", 1)
    algorithm = make_dqn(double=True, dueling=True, distribution="quantile")
    compiled = CompiledDQN(algorithm, "dqn")
    assert compiled.memory.chunk == 16
    batch = make_batch(1, rows=70, weighted=True, masked=True)
    report = algorithm.gradient(batch)
    expected = algorithm.optimizer.gradient.clone()
    torch.testing.assert_close(compiled.gradient(batch), expected, rtol=1e-4, atol=1e-6)
    found = compiled.improve(batch, CONTROLS)
    torch.testing.assert_close(found["td_error"], report["td_error"], rtol=1e-4, atol=1e-5)
    actions, values = compiled.greedy(batch.observation, batch.next_mask)
    assert values.shape == (70, 4)
    assert torch.equal(actions, algorithm.choose(batch.observation, batch.next_mask, None))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize(("weighted", "masked"), [(True, False), (False, True)])
@pytest.mark.parametrize("max_grad_norm", [None, 0.5])
def test_twenty_updates_are_those_of_autograd(
    options: dict[str, Any], weighted: bool, masked: bool, max_grad_norm: float | None
) -> None:
    tau = 0.25 if weighted else 1.0
    plain, compiled = (
        make_dqn(max_grad_norm=max_grad_norm, tau=tau, target_update_interval=3, **options) for _ in range(2)
    )
    assert attach(compiled).kernel == "dqn"
    initial = parameters_of(plain.model)
    for number in range(20):
        batch = make_batch(number, weighted=weighted, masked=masked)
        controls = {**CONTROLS, "learning_rate": 1e-2 / (number + 1)}
        reports = [algorithm.update(batch, controls, generator(number)) for algorithm in (compiled, plain)]
        assert reports[0].keys() == reports[1].keys()
        assert ("td_error" in reports[0]) == weighted
        torch.testing.assert_close(reports[0], reports[1], rtol=1e-3, atol=1e-4)
        for algorithm in (compiled, plain):
            algorithm.steps_taken(number, number + 1)
    assert (parameters_of(plain.model) - initial).abs().max() > 1e-2
    torch.testing.assert_close(parameters_of(compiled.model), parameters_of(plain.model), rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(
        parameters_of(compiled.target_model), parameters_of(plain.target_model), rtol=1e-3, atol=1e-5
    )
    for name, statistics in plain.optimizer.state_dict().items():
        torch.testing.assert_close(compiled.optimizer.state_dict()[name], statistics, rtol=1e-2, atol=1e-6)
    assert compiled.optimizer.steps == 20


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_compiled_actions_are_those_of_the_algorithm(options: dict[str, Any]) -> None:
    plain, compiled = make_dqn(**options), make_dqn(**options)
    attach(compiled)
    one, other = generator(3), generator(3)
    for seed, epsilon in enumerate((0.0, 0.1, 0.5, 1.0)):
        batch = make_batch(seed, rows=20, masked=True)
        for mask in (None, batch.next_mask):
            for rows in (20, 1):
                assert isinstance(batch.observation, Tensor)
                shown, legal = batch.observation[:rows], None if mask is None else mask[:rows]
                expected = plain.act(shown, legal, {"epsilon": epsilon}, one)
                found = compiled.act(shown, legal, {"epsilon": epsilon}, other)
                assert found.dtype == expected.dtype
                assert torch.equal(found, expected)
    assert one.get_state().equal(other.get_state())


def test_repeated_random_actions_are_those_of_the_algorithm() -> None:
    plain, compiled = (make_dqn(repeat_exponent=1.0, repeat_limit=5) for _ in range(2))
    attach(compiled)
    one, other = generator(3), generator(3)
    for seed in range(10):
        observation = make_batch(seed).observation
        expected = plain.act(observation, None, {"epsilon": 0.3}, one)
        assert torch.equal(compiled.act(observation, None, {"epsilon": 0.3}, other), expected)
    assert one.get_state().equal(other.get_state())


def test_a_batch_that_is_filled_again_is_read_again() -> None:
    plain, compiled = make_dqn(), make_dqn()
    attach(compiled)
    batch = make_batch(0, weighted=True, masked=True)
    for number in range(1, 4):
        reports = [algorithm.update(batch, CONTROLS, generator(0)) for algorithm in (compiled, plain)]
        torch.testing.assert_close(reports[0], reports[1], rtol=1e-4, atol=1e-5)
        for mine, fresh in zip(batch, make_batch(number, weighted=True, masked=True), strict=True):
            if isinstance(mine, Tensor):
                mine.copy_(fresh)  # type: ignore[arg-type]


def test_observations_that_an_encoder_changes_are_encoded_at_every_update() -> None:
    space = spaces.Dict({"place": spaces.Discrete(5), "speed": spaces.Box(-1.0, 1.0, (2,), np.float64)})
    plain, compiled = (DQN(DQNParams(), space, CHOICE, device=CPU, generator=generator(0)) for _ in range(2))
    assert attach(compiled).kernel == "dqn"
    observation = {"place": torch.zeros(16, dtype=torch.int64), "speed": torch.zeros(16, 2)}
    batch = make_batch(0)._replace(observation=observation, next_observation=observation)
    for number in range(3):
        observation["place"].fill_(number)
        observation["speed"].fill_(number / 3)
        reports = [algorithm.update(batch, CONTROLS, generator(0)) for algorithm in (compiled, plain)]
        torch.testing.assert_close(reports[0], reports[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("distribution", ["none", "categorical", "quantile"])
@pytest.mark.parametrize("place", ["values", "target_values", "reward"])
def test_what_is_no_number_reaches_the_loss(distribution: str, place: str) -> None:
    algorithm, batch = make_dqn(distribution=distribution), make_batch(0)
    if place == "reward":
        batch.reward[3] = torch.nan
    else:
        (algorithm.optimizer.values if place == "values" else algorithm.target_values)[0] = torch.nan
    report = CompiledDQN(algorithm, "dqn").improve(batch, CONTROLS)
    assert report["loss_q"].isnan()
    assert report["gradient_norm"].isnan()


def test_statistics_that_vanished_are_set_to_zero() -> None:
    algorithm = make_dqn(dueling=True)
    attach(algorithm)
    assert len(algorithm.optimizer.values) % 16
    mean = algorithm.optimizer.state["exp_avg"]
    mean[0] = mean[-1] = 1e-25  # of weights without a gradient it falls below 1e-30 within 128 steps
    batch = make_batch(0)._replace(weight=torch.zeros(16))
    for _ in range(127):
        algorithm.update(batch, CONTROLS, generator(0))
    assert mean[0] > 0
    assert mean[-1] > 0
    algorithm.update(batch, CONTROLS, generator(0))
    assert mean[0] == 0
    assert mean[-1] == 0


@pytest.mark.parametrize("use", ["update", "act"])
def test_a_changed_network_stops_the_run_at_its_first_use(use: str, monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = make_dqn()
    attach(algorithm)
    original = type(algorithm.model.advantage).forward
    monkeypatch.setattr(type(algorithm.model.advantage), "forward", lambda self, x: 1.1 * original(self, x))
    batch = make_batch(0)
    arguments: Any = (batch,) if use == "update" else (batch.observation, None)
    with pytest.raises(KernelMismatch, match=r"this run.s first (update|step)"):
        getattr(algorithm, use)(*arguments, CONTROLS, generator(0))


def test_the_first_update_is_compared_and_changes_nothing_more() -> None:
    checked, unchecked = make_dqn(), make_dqn()
    attach(checked)
    checked.update(make_batch(0), CONTROLS, generator(0))
    CompiledDQN(unchecked, "dqn").improve(make_batch(0), CONTROLS)
    assert torch.equal(checked.optimizer.values, unchecked.optimizer.values)


# -- what is not covered -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"noisy": True}, "NoisyMLP is not exactly MLP"),
        ({"activation": "silu"}, "the activation has no compiled gradient"),
        ({"hidden_sizes": (512, 512)}, "the network is so large that torch is as fast"),
    ],
)
def test_other_networks_learn_by_autograd(options: dict[str, Any], reason: str) -> None:
    algorithm = make_dqn(**options)
    assert attach(algorithm).reason == reason
    assert not {"improve", "act"} & vars(algorithm).keys()


def test_wide_layers_are_shared_by_threads_where_there_are_several() -> None:
    params: Any = {"hidden_sizes": (256, 256), "batch_size": 128}
    assert attach(make_dqn(**params)).kernel == "dqn"
    torch.set_num_threads(2)
    assert attach(make_dqn(**params)).reason == "the network is so large that torch is as fast"
    assert attach(make_dqn()).kernel == "dqn"


def test_wide_layers_learn_by_compiled_code_and_act_by_torch() -> None:
    algorithm = make_dqn(hidden_sizes=(256, 256))
    assert attach(algorithm).kernel == "dqn"
    assert "improve" in vars(algorithm)
    assert "act" not in vars(algorithm)


@pytest.mark.parametrize("method", ["loss", "gradient", "improve"])
def test_an_overridden_formula_is_kept(method: str) -> None:
    own = type("Own", (DQN,), {method: lambda self, *arguments: getattr(DQN, method)(self, *arguments)})
    algorithm = make_dqn(own)
    assert attach(algorithm).reason == f"Own.{method} is not that of DQN"
    assert not {"improve", "act"} & vars(algorithm).keys()


@pytest.mark.parametrize("method", ["act", "values", "_explore"])
def test_overridden_acting_is_kept_beside_compiled_updates(method: str) -> None:
    own = type("Own", (DQN,), {method: lambda self, *arguments: getattr(DQN, method)(self, *arguments)})
    algorithm = make_dqn(own)
    assert attach(algorithm).kernel == "dqn"
    assert "improve" in vars(algorithm)
    assert "act" not in vars(algorithm)


@pytest.mark.parametrize("name", ["dqn_target", "project_categorical", "quantile_huber_loss"])
def test_a_replaced_function_of_the_formula_means_autograd(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dqn, name, lambda *arguments: torch.zeros(()))
    assert attach(make_dqn()).kernel is None

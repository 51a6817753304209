"""SAC and TD3 in compiled code: every option that they cover gives what autograd gives."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from replay_parts import CPU, OBSERVATION, TORQUE, assert_equal_states, generator, parameters_of, random_batch
from rl_training.algorithms.params.sac_params import SACParams
from rl_training.algorithms.sac import SAC
from rl_training.algorithms.td3 import TD3, DDPGParams, TD3Params
from rl_training.data.replay import ReplayBatch
from rl_training.experiment.runs import read_metadata
from rl_training.kernels.checks import KernelMismatch
from rl_training.kernels.continuous.compiled_sac import CompiledSAC
from rl_training.kernels.continuous.compiled_td3 import CompiledTD3
from rl_training.kernels.door import attach
from rl_training.runtime.workflows import train
from short_runs import config_of

CONTROLS = {"learning_rate": 1e-2}
KINDS: dict[str, tuple[Any, Any, Any]] = {
    "sac": (SAC, SACParams, CompiledSAC),
    "td3": (TD3, TD3Params, CompiledTD3),
    "ddpg": (TD3, DDPGParams, CompiledTD3),
}
OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("sac", {}),
    ("sac", {"temperature": 0.2}),
    ("sac", {"temperature": 0.2, "policy_delay": 3}),
    ("sac", {"target_entropy": 5.0, "optimizer_beta1": 0.5, "optimizer_eps": 1e-4, "max_grad_norm": 0.1}),
    ("sac", {"num_critics": 1}),
    ("sac", {"num_critics": 3, "activation": "tanh"}),
    ("sac", {"hidden_sizes": (7,), "critic_hidden_sizes": (20, 33, 5)}),
    ("sac", {"hidden_sizes": (64, 128), "critic_hidden_sizes": (128, 64)}),  # wide enough to skip zeros
    ("td3", {}),
    ("td3", {"policy_delay": 1, "target_noise": 0.5, "target_noise_clip": 0.3}),
    ("td3", {"policy_delay": 3, "max_grad_norm": 0.1, "optimizer_eps": 1e-4}),
    ("td3", {"num_critics": 3, "activation": "tanh"}),
    ("td3", {"hidden_sizes": (7, 40, 33)}),
    ("td3", {"hidden_sizes": (128, 64)}),
    ("ddpg", {}),
]


@pytest.fixture(autouse=True, params=[1, 2], ids=["one thread", "two threads"])
def _threads(request: pytest.FixtureRequest) -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(threads)


def make(algo: str, **options: Any) -> Any:
    """Return a learner whose targets differ from its networks, and whose deviations reach their bounds."""
    kind, params, _ = KINDS[algo]
    small = {"hidden_sizes": (16, 16), "batch_size": 300, "tau": 0.1}
    algorithm = kind(params(**{**small, **options}), OBSERVATION, TORQUE, device=CPU, generator=generator(0))
    with torch.no_grad():
        for seed, network in enumerate((algorithm.target_critic, getattr(algorithm, "target_actor", None))):
            for weight in () if network is None else network.parameters():
                weight.add_(torch.randn(weight.shape, generator=generator(seed)), alpha=0.05)
        if algo == "sac":
            algorithm.actor.log_std_head.weight.mul_(20.0)
    return algorithm


def make_batch(seed: int, rows: int = 100) -> ReplayBatch:
    """Return transitions of up to three steps."""
    batch = random_batch(TORQUE, seed=seed, rows=rows)
    return batch._replace(discount=batch.discount ** torch.randint(1, 4, (rows,), generator=generator(seed)))


def networks(algorithm: Any) -> dict[str, Tensor]:
    names = [name for name in ("actor", "critic", "target_actor", "target_critic") if hasattr(algorithm, name)]
    return {name: parameters_of(getattr(algorithm, name)) for name in names}


@pytest.mark.parametrize(("algo", "options"), OPTIONS, ids=str)
def test_twenty_updates_are_those_of_autograd(algo: str, options: dict[str, Any]) -> None:
    plain, compiled = make(algo, **options), make(algo, **options)
    attached = attach(compiled)
    assert (attached.kernel, attached.reason) == ("sac" if algo == "sac" else "td3", None)
    torch.set_num_threads(1)  # autograd alone would use them from here on
    initial = networks(plain)
    for number in range(20):
        batch = make_batch(number, rows=(100, 300, 7)[number % 3])  # of 300 rows one part has more than a chunk
        controls = {"learning_rate": 3e-3 / (number + 1)}
        reports = [algorithm.update(batch, controls, generator(number)) for algorithm in (compiled, plain)]
        assert reports[0].keys() == reports[1].keys()
        torch.testing.assert_close(reports[0], reports[1], rtol=1e-3, atol=1e-4)
    for name, expected in networks(plain).items():
        assert (expected - initial[name]).abs().max() > 1e-3
        torch.testing.assert_close(networks(compiled)[name], expected, rtol=1e-3, atol=2e-5)
    for name in ("actor_optimizer", "critic_optimizer"):
        found, known = (getattr(algorithm, name).state_dict() for algorithm in (compiled, plain))
        torch.testing.assert_close(found, known, rtol=1e-2, atol=1e-5)
    if algo == "sac":
        torch.testing.assert_close(compiled.temperature.state_dict(), plain.temperature.state_dict())


@pytest.mark.parametrize("failing", [0, 1])
def test_no_thread_waits_for_one_that_has_failed(failing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = CompiledSAC(make("sac"), "sac", parts=2)
    original = compiled.run_part

    def run_part(phases: Any, part: int, *rest: Any) -> None:
        if part == failing:
            raise MemoryError("no memory for this part")
        original(phases, part, *rest)

    monkeypatch.setattr(compiled, "run_part", run_part)
    with pytest.raises(MemoryError, match="no memory for this part"):
        compiled.improve(make_batch(0), torch.zeros(2, 100, 2), 1e-3)


@pytest.mark.parametrize(("algo", "options"), OPTIONS, ids=str)
def test_compiled_actions_are_those_of_the_algorithm(algo: str, options: dict[str, Any]) -> None:
    plain, compiled = make(algo, **options), make(algo, **options)
    attach(compiled)
    one, other = generator(3), generator(3)
    for rows in (1, 3, 20, 300):
        observation = make_batch(rows, rows).observation
        expected = plain.act(observation, None, {}, one)
        torch.testing.assert_close(compiled.act(observation, None, {}, other), expected, rtol=1e-5, atol=1e-5)
    assert one.get_state().equal(other.get_state())


def test_critics_that_agree_share_the_actors_gradient() -> None:
    algorithm = make("sac")
    with torch.no_grad():
        for weight in algorithm.critic.parameters():
            weight[1] = weight[0]
    noise, compiled = torch.zeros(2, 100, 2), CompiledSAC(algorithm, "sac", torch.get_num_threads())
    compiled.check_improvement(algorithm.improve, make_batch(0), noise, 1e-2)  # compares with autograd


@pytest.mark.parametrize("algo", ["sac", "td3"])
def test_a_saved_state_goes_on_bit_for_bit(algo: str) -> None:
    options = {"hidden_sizes": (64, 64), "max_grad_norm": 1.0}
    trained, fresh = make(algo, **options), make(algo, **options)
    attach(trained)
    for number in range(5):
        trained.update(make_batch(number), CONTROLS, generator(number))
    attach(fresh)
    fresh.load_state_dict(copy.deepcopy(trained.state_dict()))
    for number in range(5, 10):
        for algorithm in (trained, fresh):
            algorithm.update(make_batch(number), CONTROLS, generator(number))
    assert_equal_states(trained.state_dict(), fresh.state_dict())
    assert trained.critic_optimizer.steps == 10


@pytest.mark.parametrize("algo", ["sac", "td3"])
def test_the_first_update_is_compared_and_changes_nothing_more(algo: str) -> None:
    checked, unchecked = make(algo), make(algo)
    attach(checked)
    noise = torch.randn(*((2,) if algo == "sac" else ()), 100, 2, generator=generator(0))
    checked.updates = unchecked.updates = 1
    checked.improve(make_batch(0), noise, 1e-2)
    KINDS[algo][2](unchecked, algo, min(torch.get_num_threads(), 2)).improve(make_batch(0), noise, 1e-2)
    assert_equal_states(checked.state_dict(), unchecked.state_dict())


@pytest.mark.parametrize("algo", ["sac", "td3"])
@pytest.mark.parametrize("place", ["actor", "critic", "target_critic", "reward"])
def test_what_is_no_number_reaches_the_loss(algo: str, place: str) -> None:
    algorithm, batch = make(algo, hidden_sizes=(64, 64), policy_delay=1), make_batch(0)
    attach(algorithm)
    algorithm.update(batch, CONTROLS, generator(0))
    if place == "reward":
        batch.reward[3] = torch.nan
    else:
        with torch.no_grad():
            next(getattr(algorithm, place).parameters()).view(-1)[0] = torch.nan
    report = algorithm.update(batch, CONTROLS, generator(0))
    assert report["loss_actor" if place == "actor" else "loss_critic"].isnan()


def test_observations_are_encoded() -> None:
    space = spaces.Dict({"place": spaces.Discrete(5), "speed": spaces.Box(-1.0, 1.0, (2,), np.float64)})
    params = SACParams(hidden_sizes=(8,))
    plain, compiled = (SAC(params, space, TORQUE, device=CPU, generator=generator(0)) for _ in range(2))
    assert attach(compiled).reason is None
    observation = {"place": torch.arange(100) % 5, "speed": torch.randn(100, 2, generator=generator(1))}
    batch = make_batch(0)._replace(observation=observation, next_observation=observation)
    for seed in range(2):
        reports = [algorithm.update(batch, CONTROLS, generator(seed)) for algorithm in (compiled, plain)]
        torch.testing.assert_close(reports[0], reports[1], rtol=1e-4, atol=1e-5)
    actions = [algorithm.act(observation, None, {}, generator(2)) for algorithm in (compiled, plain)]
    torch.testing.assert_close(actions[0], actions[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("algo", ["sac", "td3"])
@pytest.mark.parametrize("use", ["update", "act"])
def test_a_changed_network_stops_the_run_at_its_first_use(algo: str, use: str, monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm, batch = make(algo), make_batch(0)
    attach(algorithm)
    kind, method = type(algorithm.critic.networks), "forward" if use == "update" else "one"
    original = getattr(kind, method)
    monkeypatch.setattr(kind, method, lambda self, *arguments: 1.1 * original(self, *arguments))
    arguments: Any = (batch,) if use == "update" else (batch.observation, None)
    with pytest.raises(KernelMismatch, match=r"this run.s first (update|policy)"):
        getattr(algorithm, use)(*arguments, CONTROLS, generator(0))


# -- what is not covered -------------------------------------------------------------------------


class Own(SAC):
    """Changes an update in a way that no kernel knows."""

    def improve(self, *arguments: Any) -> dict[str, Tensor]:
        return super().improve(*arguments)


def test_what_is_not_compiled_has_written_out_gradients_and_a_reason() -> None:
    own = Own(SACParams(), OBSERVATION, TORQUE, device=CPU, generator=generator(0))
    for algorithm, reason in (
        (own, "Own.improve is not that of SAC"),
        (make("sac", hidden_sizes=()), "networks without hidden layers have no compiled update"),
        (make("td3", hidden_sizes=()), "networks without hidden layers have no compiled update"),
    ):
        attached = attach(algorithm)
        assert attached.kernel is not None
        assert attached.reason == f"the gradients are written out but not compiled: {reason}"
        assert not {"improve", "act"} & vars(algorithm).keys()
        assert {"critic_gradient", "actor_gradient"} <= vars(algorithm).keys()


@pytest.mark.parametrize("algo", ["sac", "td3"])
def test_a_run_too_short_for_compiling_says_so(algo: str, tmp_path: Path) -> None:
    found = read_metadata(train(config_of(algo, tmp_path)).run_dir)["acceleration"]
    assert found["kernel"] == algo
    assert "gradient steps are too few for compiling to pay" in found["reason"]

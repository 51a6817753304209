"""DQN and its relatives: networks, acting, updates and parameter sets."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from replay_parts import (
    CHOICE,
    CONTROLS,
    CPU,
    OBSERVATION,
    Untouched,
    assert_equal_states,
    assert_goes_on_alike,
    generator,
    parameters_of,
    random_batch,
)
from rl_training.algorithms.distributional import project_categorical
from rl_training.algorithms.dqn import DQN
from rl_training.algorithms.params.dqn_params import C51Params, DoubleDQNParams, DQNParams, QRDQNParams, RainbowParams
from rl_training.errors import ConfigError
from rl_training.experiment.config import validate_config
from rl_training.models.encoders import VectorEncoder
from rl_training.models.noisy import NoisyLinear
from rl_training.models.q_network import QNetwork

# -- networks ------------------------------------------------------------------------------------


def _network(*, outputs: int = 1, dueling: bool = False, noisy: bool = False) -> QNetwork:
    return QNetwork(
        VectorEncoder(OBSERVATION),
        4,
        outputs=outputs,
        hidden_sizes=(8,),
        activation="relu",
        dueling=dueling,
        noisy=noisy,
        generator=generator(0),
    )


@pytest.mark.parametrize("outputs", [1, 5])
def test_dueling_values_average_to_the_state_value(outputs: int) -> None:
    network = _network(outputs=outputs, dueling=True)
    assert network.value is not None
    observation = torch.randn(6, 3, generator=generator(1))
    values = network(observation)
    assert values.shape == (6, 4, outputs)
    torch.testing.assert_close(values.mean(dim=1), network.value(observation))
    with torch.no_grad():
        network.advantage.bias_1.add_(5.0)  # type: ignore[operator]
    torch.testing.assert_close(network(observation), values)  # advantages count only against each other


def test_noisy_layer_adds_factorised_noise_to_its_weights() -> None:
    layer = NoisyLinear(2, 3, generator=generator(0))
    features = torch.tensor([[1.0, 2.0]])
    torch.testing.assert_close(layer(features, True), layer(features, False))  # no noise was drawn yet
    layer.noise_in.copy_(torch.tensor([1.0, -2.0]))
    layer.noise_out.copy_(torch.tensor([0.5, 0.0, -1.0]))
    sigma = 0.5 / math.sqrt(2)
    # Output i gets sigma * noise_out[i] * (1 * 1 + 2 * -2), and noise on its bias.
    shift = torch.tensor([[0.5, 0.0, -1.0]]) * (-3 * sigma + 0.5 / math.sqrt(3))
    torch.testing.assert_close(layer(features, True) - layer(features, False), shift)


def test_noise_is_the_signed_root_of_a_normal() -> None:
    layer = NoisyLinear(20_000, 1, generator=generator(0))
    layer.resample(generator(1))
    first = layer.noise_in.clone()
    assert abs(first.mean().item()) < 0.03
    assert first.square().mean().item() == pytest.approx(math.sqrt(2 / math.pi), rel=0.03)
    layer.resample(generator(2))
    assert not torch.equal(layer.noise_in, first)
    layer.resample(generator(1))
    assert torch.equal(layer.noise_in, first)


def _algorithm(*, seed: int = 0, kind: type[DQNParams] = DQNParams, action_space: Any = CHOICE, **params: Any) -> DQN:
    settings = kind(**{"hidden_sizes": (8,), "num_atoms": 5, "num_quantiles": 5, **params})
    return DQN(settings, OBSERVATION, action_space, device=CPU, generator=generator(seed))


def test_exploring_draws_noise_and_evaluating_uses_none() -> None:
    algorithm = _algorithm(noisy=True)
    observation = torch.randn(64, 3, generator=generator(1))
    greedy = algorithm.choose(observation, None, None)
    quiet = {**CONTROLS, "epsilon": 0.0}
    explored = [algorithm.act(observation, None, quiet, generator(seed)).tolist() for seed in (1, 2, 1)]
    assert explored[0] == explored[2]
    assert explored[0] != explored[1]
    assert greedy.tolist() not in explored
    assert torch.equal(algorithm.choose(observation, None, None), greedy)


def test_noise_is_part_of_the_state() -> None:
    algorithm, other = _algorithm(noisy=True), _algorithm(noisy=True, seed=5)
    observation = torch.randn(4, 3, generator=generator(1))
    algorithm.act(observation, None, CONTROLS, generator(2))
    assert "advantage.layers.0.noise_in" in algorithm.state_dict()["model"]
    other.load_state_dict(copy.deepcopy(algorithm.state_dict()))
    assert torch.equal(algorithm.model(observation, True), other.model(observation, True))
    assert not torch.equal(algorithm.model(observation, True), algorithm.model(observation, False))


def test_every_update_draws_noise_for_both_networks() -> None:
    algorithm = _algorithm(noisy=True)
    noises = []
    for seed in range(2):
        algorithm.update(random_batch(CHOICE), CONTROLS, generator(seed))
        noises += [
            model.state_dict()["advantage.layers.0.noise_in"].clone()
            for model in (algorithm.model, algorithm.target_model)
        ]
    assert len({tuple(noise.tolist()) for noise in noises}) == 4


# -- acting --------------------------------------------------------------------------------------


def _shares(actions: Tensor) -> list[float]:
    return (torch.bincount(actions, minlength=4) / len(actions)).tolist()


def test_epsilon_is_the_share_of_random_actions() -> None:
    algorithm = _algorithm()
    observation = torch.ones(1, 3).expand(20_000, 3)
    best = int(algorithm.choose(observation[:1], None, None)[0])
    for epsilon in (0.0, 0.4, 1.0):
        shares = _shares(algorithm.act(observation, None, {**CONTROLS, "epsilon": epsilon}, generator(1)))
        expected = [epsilon / 4 + (1 - epsilon) * (action == best) for action in range(4)]
        assert shares == pytest.approx(expected, abs=0.015 if epsilon else 0.0)
    shares = _shares(algorithm.choose(observation, None, generator(2)))
    assert shares[best] == pytest.approx(1 - 0.05 * 3 / 4, abs=0.01)


@pytest.mark.parametrize("noisy", [False, True])
def test_illegal_actions_are_never_taken(noisy: bool) -> None:
    algorithm = _algorithm(noisy=noisy)
    rows = 3000
    observation = torch.randn(rows, 3, generator=generator(1))
    mask = torch.rand(rows, 4, generator=generator(2)) < 0.4
    mask[torch.arange(rows), torch.arange(rows) % 4] = True
    legal_counts = mask.sum(dim=1)
    for epsilon in (0.0, 0.5, 1.0):
        action = algorithm.act(observation, mask, {**CONTROLS, "epsilon": epsilon}, generator(3))
        assert mask.gather(1, action.unsqueeze(1)).all()
    for chooser in (None, generator(4)):
        assert mask.gather(1, algorithm.choose(observation, mask, chooser).unsqueeze(1)).all()
    random = algorithm.random_actions(rows, mask, generator(5))
    assert mask.gather(1, random.unsqueeze(1)).all()
    two = legal_counts == 2
    first_legal = mask[two].float().argmax(dim=1)
    assert (random[two] == first_legal).float().mean().item() == pytest.approx(0.5, abs=0.07)
    values = algorithm.model(observation).squeeze(2).masked_fill(~mask, -torch.inf)
    assert torch.equal(algorithm.choose(observation, mask, None), values.argmax(dim=1))


def test_actions_are_counted_from_the_start_of_the_space() -> None:
    algorithm = _algorithm(action_space=spaces.Discrete(4, start=3))
    assert algorithm.env_action(torch.tensor([0, 3])).tolist() == [3, 6]


# -- updates -------------------------------------------------------------------------------------


def test_updates_equal_a_loop_written_with_torch_alone() -> None:
    algorithm = _algorithm(double=True, max_grad_norm=0.5, optimizer_eps=1e-5)
    online, target = copy.deepcopy(algorithm.model), copy.deepcopy(algorithm.target_model)
    parameters = list(online.parameters())
    optimizer = torch.optim.Adam(parameters, lr=1e-2, eps=1e-5)
    for seed in range(6):
        batch = random_batch(CHOICE, seed=seed, weighted=True)
        assert batch.weight is not None
        with torch.no_grad():
            best = online(batch.next_observation).squeeze(2).argmax(dim=1, keepdim=True)
            following = target(batch.next_observation).squeeze(2).gather(1, best).squeeze(1)
        value = online(batch.observation).squeeze(2).gather(1, batch.action.unsqueeze(1)).squeeze(1)
        error = (value - batch.reward - batch.discount * following).abs()
        loss = (batch.weight * torch.where(error < 1, 0.5 * error**2, error - 0.5)).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 0.5)
        optimizer.step()
        metrics = algorithm.update(batch, CONTROLS, generator(seed))
        torch.testing.assert_close(metrics["loss_q"], loss.detach(), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(metrics["td_error"], error.detach(), rtol=1e-4, atol=1e-5)
        if seed % 2:
            target.load_state_dict(online.state_dict())
            algorithm.update_target()
    torch.testing.assert_close(parameters_of(algorithm.model), parameters_of(online), rtol=1e-4, atol=1e-5)


def test_the_learning_rate_comes_with_each_call() -> None:
    algorithm = _algorithm()
    before = parameters_of(algorithm.model)
    algorithm.update(random_batch(CHOICE), {**CONTROLS, "learning_rate": 0.0}, generator(0))
    assert torch.equal(parameters_of(algorithm.model), before)
    algorithm.update(random_batch(CHOICE), CONTROLS, generator(0))
    assert not torch.equal(parameters_of(algorithm.model), before)


@pytest.mark.parametrize("tau", [1.0, 0.25])
def test_the_target_network_moves_only_when_told_and_by_tau(tau: float) -> None:
    algorithm = _algorithm(tau=tau)
    before = parameters_of(algorithm.target_model)
    assert torch.equal(before, parameters_of(algorithm.model))
    for seed in range(3):
        algorithm.update(random_batch(CHOICE, seed=seed), CONTROLS, generator(seed))
    assert torch.equal(parameters_of(algorithm.target_model), before)
    online = parameters_of(algorithm.model)
    assert not torch.equal(online, before)
    algorithm.update_target()
    expected = (1 - tau) * before + tau * online
    torch.testing.assert_close(parameters_of(algorithm.target_model), expected, rtol=1e-6, atol=1e-7)
    assert torch.equal(parameters_of(algorithm.model), online)
    if tau == 1.0:
        assert_equal_states(dict(algorithm.model.state_dict()), dict(algorithm.target_model.state_dict()))


KINDS = [DQNParams, DoubleDQNParams, C51Params, QRDQNParams, RainbowParams]


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_state_goes_on_bit_for_bit(kind: type[DQNParams]) -> None:
    assert_goes_on_alike(_algorithm(kind=kind), _algorithm(kind=kind, seed=9), CHOICE)


@pytest.mark.parametrize("kind", KINDS)
def test_global_generators_are_left_alone(kind: type[DQNParams]) -> None:
    with Untouched():
        algorithm = _algorithm(kind=kind)
        batch = random_batch(CHOICE)
        algorithm.act(batch.observation, None, CONTROLS, generator(0))
        algorithm.random_actions(4, None, generator(0))
        algorithm.update(batch, CONTROLS, generator(0))
        algorithm.update_target()


@pytest.mark.parametrize("kind", KINDS)
def test_repeated_updates_bring_the_loss_down(kind: type[DQNParams]) -> None:
    algorithm = _algorithm(kind=kind, noisy=False, hidden_sizes=(32,), v_min=-3.0, v_max=3.0)
    batch = random_batch(CHOICE, discount=0.0)
    losses = [algorithm.update(batch, CONTROLS, generator(seed))["loss_q"].item() for seed in range(150)]
    floor = 0.0
    if algorithm.params.distribution == "categorical":  # the entropy of the targets is left
        probs = project_categorical(torch.full((16, 5), 0.2), batch.reward, torch.zeros(16), algorithm.support)
        floor = -torch.special.xlogy(probs, probs).sum(dim=1).mean().item()
    assert losses[-1] - floor < 0.15 * (losses[0] - floor)


# -- parameter sets ------------------------------------------------------------------------------


def test_the_registry_names_are_parameter_sets_of_one_algorithm() -> None:
    def differences(kind: type[DQNParams]) -> dict[str, Any]:
        plain, own = vars(DQNParams()), vars(kind())
        return {key: own[key] for key in own if own[key] != plain[key]}

    assert differences(DoubleDQNParams) == {"double": True}
    assert differences(C51Params) == {"distribution": "categorical"}
    assert differences(QRDQNParams) == {"distribution": "quantile"}
    six = {"double": True, "dueling": True, "n_step": 3, "prioritized": True, "noisy": True}
    assert differences(RainbowParams).items() >= {**six, "distribution": "categorical", "epsilon": 0.0}.items()


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"v_min": 1.0, "v_max": 1.0}, "algo_kwargs.v_min: must lie below v_max"),
        ({"loss": "squared", "distribution": "quantile"}, "algo_kwargs.loss: has no meaning for a distribution"),
        ({"batch_size": 64, "buffer_size": 32}, "algo_kwargs.batch_size: is larger than the replay"),
        ({"learning_starts": 5000}, "algo_kwargs.learning_starts: 5000 steps before learning leave nothing"),
        ({"n_step": 33, "buffer_size": 32}, "algo_kwargs.n_step: is longer than the replay"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(settings: dict[str, Any], complaint: str) -> None:
    raw = {"algo": "dqn", "env_id": "CartPole-v1", "seed": 0, "total_timesteps": 5000, "output_dir": "runs"}
    with pytest.raises(ConfigError) as refused:
        validate_config({**raw, "algo_kwargs": settings})
    assert complaint in str(refused.value)

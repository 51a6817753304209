"""What holds for every offline algorithm on every action space that it takes."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import Space, spaces

from dataset_parts import random_episode
from offline_parts import CASES, RATES, SMALL, TanhEncoder, make_offline, offline_batch
from replay_parts import CHOICE, OBSERVATION, TORQUE, Untouched, assert_equal_states, generator
from rl_training.experiment.registry import list_algorithm_specs
from rl_training.kernels.door import attach


def ids(case: Any) -> str:
    return case if isinstance(case, str) else type(case).__name__


every_case = pytest.mark.parametrize(("algo", "actions"), CASES, ids=ids)


def test_the_cases_are_all_offline_algorithms_on_all_their_actions() -> None:
    offline = [spec for spec in list_algorithm_specs() if spec.loop == "offline"]
    assert sorted(SMALL) == sorted(spec.name for spec in offline)
    expected = {(spec.name, kind) for spec in offline for kind in spec.action_spaces}
    assert {(algo, type(actions).__name__) for algo, actions in CASES} == expected
    assert {spec.tier for spec in offline} == {"experimental"}


def _learn(learner: Any, actions: Space[Any], seeds: range) -> dict[str, torch.Tensor]:
    metrics: dict[str, torch.Tensor] = {}
    for seed in seeds:
        metrics = learner.update(offline_batch(learner, actions, seed=seed), RATES, generator(seed))
        learner.steps_taken(seed, seed + 1)
    return metrics


@every_case
def test_a_saved_state_goes_on_bit_for_bit(algo: str, actions: Space[Any]) -> None:
    trained, fresh = make_offline(algo, actions), make_offline(algo, actions, seed=9)
    _learn(trained, actions, range(3))
    fresh.load_state_dict(copy.deepcopy(trained.state_dict()))
    for learner in (trained, fresh):
        metrics = _learn(learner, actions, range(3, 9))
        assert all(value.isfinite() and value.dim() == 0 for value in metrics.values())
    assert_equal_states(trained.state_dict(), fresh.state_dict())


@every_case
def test_global_generators_are_left_alone(algo: str, actions: Space[Any]) -> None:
    with Untouched():
        learner = make_offline(algo, actions)
        _learn(learner, actions, range(2))
        learner.choose(offline_batch(learner, actions).observation, None, generator(0))


@every_case
def test_every_network_learns(algo: str, actions: Space[Any]) -> None:
    learner = make_offline(algo, actions)
    before = copy.deepcopy(learner.state_dict())
    _learn(learner, actions, range(8))
    networks = [name for name in learner.parts if isinstance(getattr(learner, name), torch.nn.Module)]
    for name in networks:
        unmoved = [key for key, value in learner.state_dict()[name].items() if value.equal(before[name][key])]
        assert not unmoved, (name, unmoved)


@every_case
def test_environment_actions_become_stored_ones_and_back(algo: str, actions: Space[Any]) -> None:
    learner = make_offline(algo, actions)
    given = random_episode(np.random.default_rng(0), OBSERVATION, actions, 12).actions
    returned = learner.env_action(torch.from_numpy(learner.stored_action(given)))
    np.testing.assert_allclose(returned, given, rtol=0, atol=1e-6)
    draws = np.stack([given, given])  # [2, 12, ...], as a replay draws several batches at once
    np.testing.assert_array_equal(learner.stored_action(draws)[1], learner.stored_action(given))


@every_case
def test_chosen_actions_lie_in_the_space(algo: str, actions: Space[Any]) -> None:
    learner = make_offline(algo, actions)
    observation = offline_batch(learner, actions).observation
    for source in (None, generator(0)):
        for action in learner.env_action(learner.choose(observation, None, source)):
            assert actions.contains(action.astype(actions.dtype)), action
    acted = learner.act(observation, None, RATES, generator(3))
    assert len(acted) == len(observation)


@every_case
def test_probabilities_of_sampled_actions_are_known(algo: str, actions: Space[Any]) -> None:
    learner = make_offline(algo, actions)
    observation = offline_batch(learner, actions).observation[:1]
    found = learner.env_log_prob(
        observation, None, random_episode(np.random.default_rng(0), OBSERVATION, actions, 1).actions
    )
    if algo == "bc" and isinstance(actions, spaces.Box):
        assert found is None  # its policy is deterministic
        return
    assert found.shape == (1,)
    if isinstance(actions, spaces.Discrete):
        every = [learner.env_log_prob(observation, None, np.array([number])).exp().item() for number in range(4)]
        assert sum(every) == pytest.approx(1.0, rel=1e-5)


def test_densities_of_a_stretched_space_are_those_of_its_actions() -> None:
    """The probability of an interval inside the bounds is its width times the density."""
    wide = spaces.Box(-4.0, 4.0, (1,), np.float32)
    learner = make_offline("iql", wide)
    observation = torch.ones(1, 3)
    drawn = learner.env_action(learner.choose(observation.expand(200_000, 3), None, generator(0)))
    middle = float(np.median(drawn))
    density = learner.env_log_prob(observation, None, np.array([[middle]], np.float32)).exp().item()
    share = np.mean(np.abs(drawn - middle) < 0.05)
    assert share == pytest.approx(0.1 * density, rel=0.05)


@every_case
def test_a_users_encoder_is_trained_with_the_rest(algo: str, actions: Space[Any]) -> None:
    def factory(space: Space[Any], *, orthogonal: bool, generator: torch.Generator) -> TanhEncoder:
        return TanhEncoder(space)

    learner = make_offline(algo, actions, encoder=factory)
    learner.check_networks(torch.zeros(2, 3))
    network = getattr(learner, "actor", None) or learner.model
    before = network.encoder.layer.weight.detach().clone()
    _learn(learner, actions, range(4))
    assert not network.encoder.layer.weight.equal(before)


@every_case
def test_no_kernel_stands_in(algo: str, actions: Space[Any]) -> None:
    found = attach(make_offline(algo, actions), updates=1_000_000)
    assert found.kernel is None
    assert found.reason


@pytest.mark.parametrize(("algo", "actions"), [("bc", CHOICE), ("iql", TORQUE)], ids=ids)
def test_images_and_dicts_are_observed(algo: str, actions: Space[Any]) -> None:
    shown = spaces.Dict({"image": spaces.Box(0, 255, (12, 12, 1), np.uint8), "position": OBSERVATION})
    learner = make_offline(algo, actions, observation_space=shown)
    episode = random_episode(np.random.default_rng(0), shown, actions, 8)
    assert isinstance(episode.observations, dict)
    observation = {key: torch.from_numpy(part) for key, part in episode.observations.items()}
    plain = offline_batch(learner, actions, rows=8)
    batch = plain._replace(
        observation={key: part[:8] for key, part in observation.items()},
        next_observation={key: part[1:] for key, part in observation.items()},
    )
    metrics = learner.update(batch, RATES, generator(0))
    assert metrics["loss_actor"].isfinite()


def test_integer_boxes_keep_their_integers() -> None:
    actions = spaces.Box(-3, 5, (2,), np.int64)
    learner = make_offline("td3_bc", actions)
    given = np.array([[-3, 5], [0, 4], [1, -2]])
    stored = learner.stored_action(given)
    assert np.abs(stored).max() < 1  # the middle of each integer's part
    np.testing.assert_array_equal(learner.env_action(torch.from_numpy(stored)), given)

"""MuZero's loss against a slow reference, its gradient, its target network, and how it acts."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from planning_parts import ACTIONS, CONTROLS, SMALL, generator, make_algorithm, make_network, random_unroll
from replay_parts import Untouched, assert_equal_states, parameters_of
from rl_training.algorithms.efficientzero import EfficientZeroParams
from rl_training.algorithms.gumbel_muzero import GumbelMuZeroParams
from rl_training.algorithms.planning.muzero_params import MuZeroParams
from rl_training.algorithms.planning.unroll import UnrollBatch, muzero_loss
from rl_training.errors import EnvironmentFailure
from rl_training.models.planning.planning_network import PlanningNetwork
from rl_training.models.planning.scalar_support import squash

KINDS = [MuZeroParams, GumbelMuZeroParams, EfficientZeroParams]


# -- the loss ------------------------------------------------------------------------------------


def two_hot(target: Tensor, size: int) -> Tensor:
    """Return the shares of the integers -size..size."""
    place = squash(target).clamp(-size, size).item() + size
    shares = torch.zeros(2 * size + 1)
    below = min(int(place), 2 * size - 1)
    shares[below], shares[below + 1] = 1 - (place - below), place - below
    return shares


def halved(latent: Tensor) -> Tensor:
    """Return the same numbers, through which half the gradient passes."""
    entering = latent.clone()
    if entering.requires_grad:
        entering.register_hook(lambda gradient: 0.5 * gradient)
    return entering


def slow_loss(network: PlanningNetwork, batch: UnrollBatch, params: MuZeroParams) -> Tensor:
    """Return the loss of windows taken one by one, with every weight written out."""
    assert isinstance(batch.observation, Tensor)
    steps, rows = batch.action.shape
    total = torch.zeros(())
    for row in range(rows):
        latent = network.represent(batch.observation[row : row + 1])
        loss = heads(network, latent, batch, row, 0, params)
        state = cell = torch.zeros(1, 4)
        for step in range(1, steps + 1):
            latent = network.imagine(halved(latent), batch.action[step - 1, row : row + 1])
            loss = loss + heads(network, latent, batch, row, step, params) / steps
            features = latent
            if network.prefix is not None:
                if (step - 1) % network.prefix.horizon == 0:
                    state = cell = torch.zeros(1, 4)
                state, cell = network.prefix.step(latent, (state, cell))
                features = state
            logits = network.reward(features)[0]
            shares = two_hot(batch.reward[step - 1, row], params.support_size)
            entropy = -(shares * logits.log_softmax(0)).sum()
            loss = loss + params.reward_coef * batch.reward_mask[step - 1, row] * entropy / steps
            if batch.successor is not None:
                assert isinstance(batch.successor, Tensor)
                assert network.projector is not None
                assert network.predictor is not None
                place = (step - 1) * rows + row
                goal = network.projector(network.represent(batch.successor[place : place + 1])).detach()[0]
                ours = network.predictor(network.projector(latent))[0]
                cosine = (ours * goal).sum() / (ours.norm() * goal.norm())
                loss = loss - 2.0 * batch.successor_mask[step - 1, row] * cosine / steps
        total = total + loss * (1.0 if batch.weight is None else batch.weight[row])
    return total / rows


def heads(
    network: PlanningNetwork, latent: Tensor, batch: UnrollBatch, row: int, step: int, params: MuZeroParams
) -> Tensor:
    predicted = network.predict(latent)
    policy = -(batch.policy[step, row] * predicted.policy[0].log_softmax(0)).sum()  # summed over actions
    value = -(two_hot(batch.value[step, row], params.support_size) * predicted.value[0].log_softmax(0)).sum()
    return batch.policy_mask[step, row] * policy + 0.25 * batch.value_mask[step, row] * value


def gradients(loss: Tensor, network: PlanningNetwork) -> dict[str, Tensor]:
    network.zero_grad()
    loss.backward()
    return {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
        for name, parameter in network.named_parameters()
    }


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", ["muzero", "prefix", "consistency"])
def test_loss_and_gradient_equal_a_loop_with_every_weight_written_out(kind: str, weighted: bool) -> None:
    network = make_network(
        prefix_horizon=2 if kind == "prefix" else None, projection=kind == "consistency"
    )  # three steps are more than one horizon
    params = MuZeroParams(
        **SMALL,
        consistency_coef=2.0 if kind == "consistency" else 0.0,
        reward_coef=0.5 if weighted else 1.0,
    )
    batch = random_unroll(weighted=weighted, successors=kind == "consistency")
    loss, metrics = muzero_loss(network, batch, params)
    expected = slow_loss(network, batch, params)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)
    ours, theirs = gradients(loss, network), gradients(expected, network)
    for name, gradient in theirs.items():
        torch.testing.assert_close(ours[name], gradient, rtol=1e-4, atol=1e-5, msg=name)
    assert ("loss_consistency" in metrics) is (kind == "consistency")


def only(batch: UnrollBatch, **masks: Tensor) -> UnrollBatch:
    """Return a batch of which nothing is known but what the masks say."""
    nothing = {
        name: torch.zeros_like(getattr(batch, name))
        for name in ("value_mask", "reward_mask", "policy_mask", "successor_mask")
    }
    return batch._replace(weight=None, **{**nothing, **masks})


def at_step(batch: UnrollBatch, name: str, step: int) -> Tensor:
    mask = torch.zeros_like(getattr(batch, name))
    mask[step] = 1.0
    return mask


@pytest.mark.parametrize("step", [1, 2, 3])
def test_each_imagined_step_halves_the_gradient_that_enters_it(step: int) -> None:
    network = make_network()
    params = MuZeroParams(**SMALL)
    batch = random_unroll()
    batch = only(batch, reward_mask=at_step(batch, "reward_mask", step - 1))
    whole = network.represent(batch.observation)
    for action in batch.action[:step]:
        whole = network.imagine(whole, action)
    shares = torch.stack([two_hot(target, 4) for target in batch.reward[step - 1]])
    loss = -(shares * network.reward(whole).log_softmax(1)).sum(1).mean() / 3
    undamped = gradients(loss, network)
    ours = gradients(muzero_loss(network, batch, params)[0], network)
    name = "representation.second.weight"
    assert undamped[name].abs().max() > 1e-6
    torch.testing.assert_close(ours[name], undamped[name] * 0.5**step, rtol=1e-3, atol=1e-8)
    torch.testing.assert_close(ours["reward.2.weight"], undamped["reward.2.weight"], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(("step", "weight"), [(0, 1.0), (1, 1 / 3), (3, 1 / 3)])
def test_the_first_state_counts_fully_and_the_imagined_ones_a_third_each(step: int, weight: float) -> None:
    network = make_network()
    batch = random_unroll()
    for name, factor in (("policy_mask", 1.0), ("value_mask", 0.25)):
        single = only(batch, **{name: at_step(batch, name, step)})
        loss, metrics = muzero_loss(network, single, MuZeroParams(**SMALL))
        assert loss.item() == pytest.approx(factor * weight * metrics[f"loss_{name.removesuffix('_mask')}"].item())


def test_what_is_masked_teaches_nothing() -> None:
    network = make_network(projection=True)
    params = MuZeroParams(**SMALL, consistency_coef=2.0)
    batch = random_unroll(successors=True)
    loss, metrics = muzero_loss(network, only(batch), params)
    assert loss.item() == 0.0
    assert all(gradient.abs().max() == 0 for gradient in gradients(loss, network).values())
    assert metrics["loss_policy"].item() == 0.0  # and not NaN


def test_the_real_observation_is_a_goal_and_learns_nothing_itself() -> None:
    network = make_network(projection=True)
    batch = random_unroll(successors=True)
    assert isinstance(batch.observation, Tensor)
    assert isinstance(batch.successor, Tensor)
    batch.observation.requires_grad_(True)
    batch.successor.requires_grad_(True)
    loss, _ = muzero_loss(
        network,
        only(batch, successor_mask=torch.ones_like(batch.successor_mask)),
        MuZeroParams(**SMALL, consistency_coef=2.0),
    )
    loss.backward()
    assert batch.successor.grad is None
    assert batch.observation.grad is not None
    assert batch.observation.grad.abs().max() > 0


def test_an_imagined_latent_that_is_the_real_one_is_most_similar() -> None:
    network = make_network(projection=True)
    network.predictor = torch.nn.Identity()  # type: ignore[assignment]
    latent = torch.rand(4, 6, generator=generator(1))
    assert network.similarity(latent, latent).tolist() == pytest.approx([1.0] * 4)
    assert (network.similarity(latent, latent.flip(0)) < 0.9999).all()


# -- updates -------------------------------------------------------------------------------------


def test_an_update_is_one_step_of_adam_along_the_clipped_gradient() -> None:
    algorithm = make_algorithm(max_grad_norm=0.5)
    twin = copy.deepcopy(algorithm.network)
    optimizer = torch.optim.Adam(twin.parameters(), lr=1e-2, eps=1e-8)
    for seed in range(3):
        batch = random_unroll(seed=seed)
        optimizer.zero_grad()
        muzero_loss(twin, batch, algorithm.params)[0].backward()
        norm = torch.nn.utils.clip_grad_norm_(twin.parameters(), 0.5)
        optimizer.step()
        metrics = algorithm.update(batch, {"learning_rate": 1e-2}, generator(0))
        assert metrics["gradient_norm"].item() == pytest.approx(norm.item(), rel=1e-4)
    torch.testing.assert_close(parameters_of(algorithm.network), parameters_of(twin), rtol=1e-4, atol=1e-5)


def test_the_target_network_is_copied_every_so_many_environment_steps() -> None:
    algorithm = make_algorithm(target_update_interval=15)
    before = parameters_of(algorithm.target_network)
    for update in range(1, 8):
        algorithm.update(random_unroll(seed=update), {"learning_rate": 1e-2}, generator(0))
        algorithm.steps_taken(5 * (update - 1), 5 * update)
        target, online = parameters_of(algorithm.target_network), parameters_of(algorithm.network)
        if update % 3 == 0:
            assert torch.equal(target, online)
            before = target
        else:
            assert torch.equal(target, before)
            assert not torch.equal(target, online)


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_state_goes_on_bit_for_bit(kind: type[MuZeroParams]) -> None:
    settings: dict[str, Any] = {"kind": kind, "target_update_interval": 2}
    trained, fresh = make_algorithm(**settings), make_algorithm(**settings, seed=9)
    successors = kind is EfficientZeroParams
    observation = torch.randn(4, 3, generator=generator(1))

    def go_on(learner: Any, seed: int) -> np.ndarray:
        learner.update(random_unroll(seed=seed, successors=successors), CONTROLS, generator(0))
        learner.steps_taken(seed, seed + 1)
        found = learner.plan(observation, None, CONTROLS, np.random.default_rng(seed))
        weights: np.ndarray = found.weights
        return weights

    for seed in range(3):
        go_on(trained, seed)
    fresh.load_state_dict(copy.deepcopy(trained.state_dict()))
    for seed in range(3, 6):
        np.testing.assert_array_equal(go_on(trained, seed), go_on(fresh, seed))
    assert_equal_states(trained.state_dict(), fresh.state_dict())


@pytest.mark.parametrize("kind", KINDS)
def test_global_generators_are_left_alone(kind: type[MuZeroParams]) -> None:
    with Untouched():
        algorithm = make_algorithm(kind)
        algorithm.update(random_unroll(successors=kind is EfficientZeroParams), CONTROLS, generator(0))
        algorithm.plan(torch.zeros(2, 3), None, CONTROLS, np.random.default_rng(0))
        algorithm.choose(torch.zeros(2, 3), None, generator(0), 4)


# -- acting --------------------------------------------------------------------------------------

ROWS = 400


def random_masks() -> Tensor:
    mask = torch.rand(ROWS, ACTIONS, generator=generator(2)) < 0.4
    mask[torch.arange(ROWS), torch.arange(ROWS) % ACTIONS] = True
    return mask


@pytest.mark.parametrize("num_simulations", [None, 1, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_illegal_actions_are_never_chosen(kind: type[MuZeroParams], num_simulations: int | None) -> None:
    algorithm = make_algorithm(kind)
    observation, mask = torch.randn(ROWS, 3, generator=generator(1)), random_masks()
    for chooser in (None, generator(4)):
        action = algorithm.choose(observation, mask, chooser, num_simulations)
        assert action.shape == (ROWS,)
        assert mask.gather(1, action.unsqueeze(1)).all()
    free = algorithm.choose(observation, None, None, num_simulations)
    assert not mask.gather(1, free.unsqueeze(1)).all()
    planned = algorithm.plan(observation, mask.numpy(), CONTROLS, np.random.default_rng(0))
    assert mask.numpy()[np.arange(ROWS), planned.action].all()
    assert (planned.weights[~mask.numpy()] == 0).all()
    np.testing.assert_allclose(planned.weights.sum(1), 1.0, rtol=1e-5)


def test_without_simulations_the_policy_head_decides() -> None:
    algorithm = make_algorithm()
    observation, mask = torch.randn(ROWS, 3, generator=generator(1)), random_masks()
    with torch.no_grad():
        logits = algorithm.network.predict(algorithm.network.represent(observation)).policy
    assert algorithm.choose(observation, None, None).equal(logits.argmax(1))
    assert algorithm.choose(observation, mask, None).equal(logits.masked_fill(~mask, -torch.inf).argmax(1))
    shares = functional.one_hot(algorithm.choose(observation[:1].expand(4000, 3), None, generator(1)), ACTIONS)
    assert shares.float().mean(0).tolist() == pytest.approx(logits[0].softmax(0).tolist(), abs=0.03)


def test_choosing_by_search_has_no_noise_and_takes_the_number_of_simulations() -> None:
    algorithm = make_algorithm()
    observation = torch.randn(20, 3, generator=generator(1))
    for simulations in (1, 7):
        first = algorithm.choose(observation, None, None, simulations)
        assert algorithm.search.tree.nodes.shape == (20, simulations + 1)
        assert all(first.equal(algorithm.choose(observation, None, None, simulations)) for _ in range(3))
        visits = algorithm.search.tree.edges["visits"][:, 0]
        assert visits.sum(1).tolist() == [simulations] * 20
        assert first.tolist() == visits.argmax(1).tolist()


def test_the_noise_of_gumbel_differs_from_search_to_search_and_repeats_with_the_seed() -> None:
    algorithm = make_algorithm(GumbelMuZeroParams)
    observation = torch.randn(4, 3, generator=generator(1))

    def searches(seed: int) -> list[np.ndarray]:
        numbers = np.random.default_rng(seed)
        found = []
        for _ in range(3):
            algorithm.plan(observation, None, {"num_simulations": 8}, numbers)
            found.append(algorithm.search.tree.gumbel.copy())
        return found

    first, again, other = searches(5), searches(5), searches(6)
    np.testing.assert_array_equal(first, again)
    assert len({noise.tobytes() for noise in [*first, *other]}) == 6
    assert np.std([*first, *other]) == pytest.approx(np.pi / np.sqrt(6), rel=0.2)  # a Gumbel distribution's


def test_the_noise_of_gumbel_is_multiplied_by_its_scale() -> None:
    algorithm = make_algorithm(GumbelMuZeroParams)
    assert "gumbel_scale" in algorithm.params.controls
    noise = []
    for scale in (1.0, 0.25, 0.0):
        controls = {"num_simulations": 8, "gumbel_scale": scale}
        algorithm.plan(torch.zeros(4, 3), None, controls, np.random.default_rng(0))
        noise.append(algorithm.search.tree.gumbel.copy())
    np.testing.assert_allclose(noise[1], 0.25 * noise[0])
    assert not noise[2].any()


def test_over_many_searches_a_new_network_considers_every_action() -> None:
    algorithm = make_algorithm(GumbelMuZeroParams, random=False)
    controls = {"num_simulations": 2}
    found = algorithm.plan(torch.zeros(300, 3), None, controls, np.random.default_rng(0))
    shares = np.bincount(found.action, minlength=ACTIONS) / 300
    assert shares.min() > 0.2


def test_temperature_and_noise_explore_in_training_by_puct() -> None:
    algorithm = make_algorithm()
    observation = torch.zeros(300, 3)
    drawn = algorithm.plan(observation, None, CONTROLS, np.random.default_rng(0))
    assert len(set(drawn.action.tolist())) > 1
    assert len({row.tobytes() for row in drawn.visits}) > 1
    quiet = {**CONTROLS, "temperature": 0.0, "root_exploration_fraction": 0.0}
    still = algorithm.plan(observation, None, quiet, np.random.default_rng(0))
    assert len(set(still.action.tolist())) == 1


def test_where_nothing_is_legal_the_root_is_named() -> None:
    mask = np.ones((3, ACTIONS), bool)
    mask[1] = False
    with pytest.raises(EnvironmentFailure, match="no action is legal at root 1"):
        make_algorithm().plan(torch.zeros(3, 3), mask, CONTROLS, np.random.default_rng(0))

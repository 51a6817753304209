"""ScaleZero as a whole: joint searches, experts, acting, and one task alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from planning_parts import CPU, generator
from rl_training.algorithms.planning.scalezero_loss import scalezero_loss
from rl_training.algorithms.scalezero import ScaleZero
from rl_training.models.planning.experts import MixtureOfExperts, expert_usage
from rl_training.models.planning.scalezero_network import TaskSpec, TaskWindow
from scalezero_learners import (
    ALL,
    CONTROLS,
    ROWS,
    SEARCHES,
    assert_same_findings,
    batches,
    make_algorithm,
    searched,
    shown,
    update,
)
from scalezero_parts import SPECS, observations, task_unroll

# -- joint searches ----------------------------------------------------------------------------------------


@SEARCHES
@pytest.mark.parametrize("stage", [0, 2])
def test_tasks_searched_together_find_what_each_finds_alone(search: str, stage: int) -> None:
    algorithm = make_algorithm(search=search)
    algorithm.enter_stage(stage)
    order = (1, 0, 2)
    for task, together in zip(order, searched(algorithm, order), strict=True):
        (alone,) = searched(algorithm, (task,))
        assert_same_findings(together, alone)
        assert together.visits.shape == (ROWS[task], SPECS[task].actions)
        assert (together.visits.sum(1) == 12).all()
        np.testing.assert_allclose(together.weights.sum(1), 1, rtol=1e-5)


def test_adapters_take_part_in_searches() -> None:
    algorithm = make_algorithm()
    values = []
    for stage in (0, 1, 2):
        algorithm.enter_stage(stage)
        values.append(searched(algorithm, (0,))[0].network_value)
    assert np.abs(values[0] - values[1]).min() > 1e-3
    assert np.abs(values[1] - values[2]).min() > 1e-3


@SEARCHES
def test_a_mask_of_one_task_leaves_the_others_alone(search: str) -> None:
    algorithm = make_algorithm(search=search)
    (pole, _), (table, _), (grid, _) = shown()
    mask = np.array([[False, True, False, True], [True, False, False, False]])
    free, masked, also_free = searched(algorithm, ALL, [(pole, None), (table, mask), (grid, None)])
    unmasked = searched(algorithm, ALL)
    assert_same_findings(free, unmasked[0])
    assert_same_findings(also_free, unmasked[2])
    assert (unmasked[1].visits[~mask] > 0).any()
    assert (masked.visits[~mask] == 0).all()
    assert (masked.weights[~mask] == 0).all()
    assert mask[range(2), masked.action].all()
    assert_same_findings(masked, searched(algorithm, (1,), [(table, mask)])[0])


def test_masks_stand_beside_observations_of_several_parts() -> None:
    both = spaces.Dict({"place": spaces.Discrete(3), "speed": spaces.Box(-1, 1, (2,), np.float32)})
    algorithm = make_algorithm(tasks=(TaskSpec("both", both, 4), SPECS[0]))
    seen = {"place": torch.tensor([0, 2, 1]), "speed": torch.randn(3, 2, generator=generator(0))}
    mask = np.array([[True, False], [False, True]])
    parts, pole = searched(algorithm, (0, 1), [(seen, None), (observations(0, 2), mask)])
    assert parts.visits.shape == (3, 4)
    assert pole.action.tolist() == [0, 1]


@SEARCHES
def test_actions_that_a_task_lacks_are_never_chosen(search: str) -> None:
    algorithm = make_algorithm(search=search)
    seen = [(observations(task, 60, seed=task), None) for task in ALL]
    controls = {"num_simulations": 3, "temperature": 1.0, "root_exploration_fraction": 1.0}
    found = algorithm.plan(seen, controls, np.random.default_rng(0))
    for result, spec in zip(found, SPECS, strict=True):
        assert set(result.action) == set(range(spec.actions))  # each of its own is
        assert result.weights.shape == (60, spec.actions)
        assert (result.visits.sum(1) == 3).all()


def test_planning_explores_and_follows_the_tasks_that_are_trained() -> None:
    algorithm = make_algorithm(search="gumbel")
    algorithm.train_only((2, 0))
    once, again, other = (algorithm.plan(shown((2, 0)), CONTROLS, np.random.default_rng(seed)) for seed in (0, 0, 1))
    assert [result.visits.shape for result in once] == [(4, 3), (3, 2)]
    assert (once[0].visits.sum(1) == CONTROLS["num_simulations"]).all()
    for ours, theirs in zip(once, again, strict=True):
        np.testing.assert_array_equal(ours.weights, theirs.weights)
    assert any((ours.visits != theirs.visits).any() for ours, theirs in zip(once, other, strict=True))


# -- experts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("top_k", [1, 2])
def test_the_router_gets_gradient_for_every_expert_in_use(top_k: int) -> None:
    algorithm = make_algorithm(experts=4, top_k=top_k)
    found = {task: task_unroll(task, seed=task, rows=12) for task in ALL}
    # Without the balance, which has a gradient of its own: what is left comes through the gates.
    loss, _ = scalezero_loss(algorithm.network, algorithm.target_network, found, algorithm.weights._replace(balance=0))
    algorithm.optimizer.gradient.zero_()
    loss.backward()
    windows = []
    for task, batch in found.items():
        assert isinstance(batch.observation, Tensor)
        assert isinstance(batch.successor, Tensor)
        latent = algorithm.network.encode(task, torch.cat((batch.observation, batch.successor))).view(3, 12, -1)
        windows.append(TaskWindow(task, latent, batch.action))
    read = algorithm.network.unroll(windows)
    for layer, block in enumerate(algorithm.network.transformer.blocks):
        used = torch.stack([expert_usage(unrolled.routings[layer]) for unrolled in read]).sum(0) > 0
        assert used.sum() >= 3
        assert isinstance(block.experts, MixtureOfExperts)
        assert block.experts.router is not None
        gradient = block.experts.router.grad
        assert gradient is not None
        assert (gradient[used].norm(dim=1) > 1e-4).all()


@pytest.mark.parametrize("top_k", [1, 2])
def test_the_dense_twin_has_as_many_active_parameters_apart_from_the_router(top_k: int) -> None:
    dense, mixture = (make_algorithm(experts=experts, top_k=top_k) for experts in (1, 4))

    def backbone(algorithm: ScaleZero) -> int:
        adapters = (".down.", ".up.", ".scales")
        named = algorithm.network.named_parameters()
        return sum(parameter.numel() for name, parameter in named if not any(part in name for part in adapters))

    idle = 2 * (4 - top_k) * 6 * (16 + 1 + 16)  # two layers; six units read 16 numbers, add a bias and write 16
    router = 2 * 4 * 16
    assert backbone(dense) == backbone(mixture) - idle - router
    for ours, theirs in zip(*(algorithm.network.transformer.blocks for algorithm in (dense, mixture)), strict=True):
        assert isinstance(ours.experts, MixtureOfExperts)
        assert isinstance(theirs.experts, MixtureOfExperts)
        assert ours.experts.active_parameters == theirs.experts.active_parameters
    metrics = dense.update(batches(), CONTROLS, generator(0))
    assert "load_balance" not in metrics
    assert not any(name.startswith("expert_use") for name in metrics)


# -- acting -----------------------------------------------------------------------------------------------------


def test_an_actor_takes_the_most_probable_legal_action() -> None:
    algorithm = make_algorithm(start=3)
    actor = algorithm.actor("table")
    assert (actor.task, actor.plans, actor.device) == (1, True, CPU)
    seen = observations(1, 7, seed=4)
    with torch.no_grad():
        logits = algorithm.network.predict(1, seen).policy
    best = actor.choose(seen, None, None)
    assert torch.equal(best, logits.argmax(1))
    mask = torch.ones(7, 4, dtype=torch.bool)
    mask[range(7), best] = False
    second = actor.choose(seen, mask, None)
    assert torch.equal(second, logits.topk(2).indices[:, 1])
    np.testing.assert_array_equal(actor.env_action(best), best.numpy() + 3)


@SEARCHES
def test_an_actor_with_simulations_does_what_the_search_found(search: str) -> None:
    algorithm = make_algorithm(search=search)
    actor = algorithm.actor("grid")
    seen = observations(2, 40, seed=1)
    (found,) = searched(algorithm, (2,), [(seen, None)])
    chosen = actor.choose(seen, None, None, num_simulations=12)
    np.testing.assert_array_equal(chosen.numpy(), found.action)
    assert not torch.equal(chosen, actor.choose(seen, None, None))  # the policy network alone says otherwise
    mask = torch.zeros(40, 3, dtype=torch.bool)
    mask[:, 1] = True
    assert (actor.choose(seen, mask, None, num_simulations=12) == 1).all()


@pytest.mark.parametrize("simulations", [None, 6])
def test_actions_are_drawn_by_the_policy_and_repeat_with_the_generator(simulations: int | None) -> None:
    algorithm = make_algorithm(search="puct", smallest_value_range=20.0)  # the prior decides: visits are spread
    actor = algorithm.actor("grid")
    seen = observations(2, 1).expand(1000, -1, -1, -1)
    once, again, other = (actor.choose(seen, None, generator(seed), simulations) for seed in (0, 0, 1))
    assert torch.equal(once, again)
    assert not torch.equal(once, other)
    if simulations is None:
        with torch.no_grad():
            expected = algorithm.network.predict(2, seen[:1]).policy.softmax(1)[0].numpy()
    else:
        options: dict[str, Any] = {"num_simulations": 6, "exploration": 0.0, "generator": np.random.default_rng(0)}
        expected = algorithm.search_tasks((2,), [(seen[:1], None)], **options)[0].weights[0]
    shares = np.bincount(once.numpy(), minlength=3) / 1000
    assert np.abs(shares - expected).max() < 0.065  # more than four deviations
    assert expected.max() < 0.98
    mask = torch.tensor([[True, False, True]]).expand(1000, -1)
    assert set(actor.choose(seen, mask, generator(0), simulations).tolist()) <= {0, 2}


def test_one_task_alone_is_planned_learned_and_played() -> None:
    algorithm = make_algorithm(tasks=SPECS[:1], adapters=False)
    (found,) = algorithm.plan(shown((0,)), CONTROLS, np.random.default_rng(0))
    assert found.visits.shape == (3, 2)
    losses = []
    for _ in range(40):
        metrics = algorithm.update({0: task_unroll(0)}, CONTROLS, generator(0))
        losses.append([metrics[f"loss_{part}/pole"].item() for part in ("value", "reward", "policy")])
    assert losses[-1][0] < 0.5 * losses[0][0]
    assert losses[-1][1] < 0.5 * losses[0][1]
    assert losses[-1][2] < losses[0][2]
    algorithm.enter_stage(1)
    update(algorithm)
    assert algorithm.actor("pole").choose(observations(0, 4), None, None, num_simulations=4).shape == (4,)

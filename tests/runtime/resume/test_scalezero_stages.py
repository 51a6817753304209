"""Stages of ScaleZero and tasks that leave: what is trained, what stays as it is, and what a saved state restores."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from planning_parts import generator
from rl_training.algorithms.planning.unroll import UnrollBatch
from rl_training.models.planning.scalezero_network import TaskSpec
from scalezero_learners import (
    ALL,
    CONTROLS,
    SEARCHES,
    assert_same_findings,
    batches,
    make_algorithm,
    moved,
    numbers,
    searched,
    shown,
    update,
)
from scalezero_parts import SPECS, observations

IMAGE = spaces.Box(0, 255, (5, 5, 2), np.uint8)


# -- stages ------------------------------------------------------------------------------------------------

OWN = (
    *(f"representation.{part}.{kind}" for part in ("first", "norm", "second") for kind in ("weight", "bias")),
    "action_rows",
    *(
        f"{head}.{kind}"
        for head in ("state_trunk", "policy", "value", "step_trunk", "latent", "reward")
        for kind in ("weight", "bias")
    ),
)
IMAGE_ENCODER = ("convolutions.0.weight", "convolutions.0.bias", "output.weight", "output.bias")


def trained_in(stage: int) -> set[str]:
    """Return the names of what a later stage trains where the third task shows images."""
    layers = ("attention_input", "attention_output", "experts.first", "experts.second")
    shared = {
        f"transformer.blocks.{block}.{layer}.{part}"
        for block in (0, 1)
        for layer in layers
        for part in (f"down.{stage - 1}", f"up.{stage - 1}", "scales")
    }
    own = {f"tasks.{task}.{name}" for task in ALL for name in OWN}
    return shared | own | {f"tasks.2.encoder.{name}" for name in IMAGE_ENCODER}


def image_batches(seed: int) -> dict[int, UnrollBatch]:
    """Return batches whose third task shows images."""
    found = batches(seed=seed)
    first, later = (
        torch.randint(256, (rows, 5, 5, 2), generator=generator(seed), dtype=torch.uint8) for rows in (6, 12)
    )
    found[2] = found[2]._replace(observation=first, successor=later)
    return found


def test_a_stage_trains_and_moves_exactly_the_newest_adapter_scales_heads_encoders_and_action_rows() -> None:
    algorithm = make_algorithm(tasks=(*SPECS[:2], TaskSpec("image", IMAGE, 3)), adapters=False)
    network = algorithm.network
    for seed in range(2):  # momentum for everything
        algorithm.update(image_batches(seed), CONTROLS, generator(0))
    for stage in (1, 2):
        algorithm.enter_stage(stage)
        expected = trained_in(stage)
        assert {name for name, parameter in network.named_parameters() if parameter.requires_grad} == expected
        before = numbers(network)
        for seed in range(3):  # while the second factor is 0, the first has no gradient
            algorithm.update(image_batches(seed), CONTROLS, generator(0))
        assert moved(network, before) == expected
        for name in (name for name in expected if name.endswith("scales")):
            changed = network.get_parameter(name) != before[name]
            assert changed.tolist() == [True, stage == 2]  # the scale of an adapter to come waits for it


def test_the_first_stage_trains_everything_but_adapters() -> None:
    algorithm = make_algorithm(adapters=False)
    before = numbers(algorithm.network)
    update(algorithm, 2)
    waiting = {name for name in before if any(part in name for part in (".down.", ".up.", ".scales"))}
    assert len(waiting) == 2 * 4 * 5  # two layers, four products, two factors of two adapters and the scales
    assert moved(algorithm.network, before) == before.keys() - waiting


@SEARCHES
def test_a_switch_changes_no_policy_no_value_and_no_search(search: str) -> None:
    algorithm = make_algorithm(search=search, adapters=False)

    def said() -> list[Any]:
        found: list[Any] = []
        for task, (seen, _) in zip(ALL, shown(), strict=True):
            with torch.no_grad():
                found += [*algorithm.network.predict(task, seen), algorithm.target_network.values(task, seen)]
        return [part.numpy() for part in found] + [part for result in searched(algorithm, ALL) for part in result]

    for stage in (1, 2):
        update(algorithm, 3)  # the earlier adapters have learned something
        before = said()
        algorithm.enter_stage(stage)
        for ours, theirs in zip(said(), before, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        update(algorithm, 3)
        assert max(np.abs(ours - theirs).max() for ours, theirs in zip(said(), before, strict=True)) > 1e-3


def test_trainable_parameters_counted_by_hand() -> None:
    """Width 16, two layers of 2 * 2 * 16 norms, 4 experts of 6 units and 3 rows of the router; rank 2."""
    algorithm = make_algorithm()
    attention = (16 * 48 + 48) + (16 * 16 + 16)
    experts = (16 * 24 + 24) + (24 * 16 + 16) + 3 * 16
    backbone = 2 * (64 + attention + experts) + 6 * 16 + 32  # six places and the last norm
    adapter = 2 * ((32 + 96 + 2) + (32 + 32 + 2) + (32 + 48 + 2) + (48 + 32 + 2))
    assert (backbone, adapter) == (4144, 720)
    # Hidden 7, support of 9: encoders of 3, 7 and 8 inputs; 2, 4 and 3 actions.
    pole, table, grid = (
        (inputs * 7 + 7) + 14 + (7 * 16 + 16) + actions * 16 + (7 * actions + actions) + 2 * 119 + 128 + 2 * 72
        for inputs, actions in ((3, 2), (7, 4), (8, 3))
    )
    assert (pole, table, grid) == (728, 804, 787)
    assert algorithm.trainable_parameters == backbone + pole + table + grid
    for stage in (1, 2):
        algorithm.enter_stage(stage)
        assert algorithm.trainable_parameters == adapter + pole + table + grid
    algorithm.train_only((0, 2))
    assert algorithm.trainable_parameters == adapter + pole + grid
    algorithm.enter_stage(0)
    assert algorithm.trainable_parameters == backbone + pole + grid


# -- tasks that leave ----------------------------------------------------------------------------------------


def test_a_task_that_left_training_keeps_its_parameters_bit_for_bit() -> None:
    algorithm = make_algorithm()
    update(algorithm, 3)
    kept, left = (algorithm.network.parts(task) for task in (0, 1))
    momentum = algorithm.optimizer.state["exp_avg"]
    places = [algorithm.optimizer._places[parameter] for parameter in (kept.action_rows, left.action_rows)]
    assert all(momentum[place].abs().max() > 0 for place in places)
    algorithm.train_only((0, 2))
    assert [bool(momentum[place].abs().max() > 0) for place in places] == [True, False]
    before = [numbers(algorithm.network.parts(task)) for task in ALL]
    update(algorithm, 3, first=3)
    assert moved(left, before[1]) == set()
    for task in (0, 2):
        assert moved(algorithm.network.parts(task), before[task]) == set(OWN)
    algorithm.train_only(ALL)
    update(algorithm, 1, first=6)
    assert moved(left, before[1]) == set(OWN)
    # Adam's first step is the learning rate, not several of it.
    furthest = max((now - before[1][name]).abs().max() for name, now in left.named_parameters())
    assert furthest <= CONTROLS["learning_rate"] * 1.01


def test_the_slower_copy_follows_in_every_stage() -> None:
    algorithm = make_algorithm()  # copies after every third step
    algorithm.enter_stage(1)
    seen = observations(1, 5)

    @torch.no_grad()
    def values() -> tuple[Tensor, Tensor]:
        return algorithm.network.values(1, seen), algorithm.target_network.values(1, seen)

    update(algorithm, 2)
    ours, theirs = values()
    assert not torch.equal(ours, theirs)
    update(algorithm, 1)
    ours, theirs = values()
    assert torch.equal(ours, theirs)
    maker = algorithm.batches[1]  # searches again with the copy
    options: dict[str, Any] = {"num_simulations": 12, "exploration": 0.0, "generator": np.random.default_rng(0)}
    again = maker.search(seen, **options)
    assert_same_findings(searched(algorithm, (1,), [(seen, None)])[0], again)


# -- state ----------------------------------------------------------------------------------------------------


def test_a_learner_in_a_later_stage_goes_on_bit_for_bit() -> None:
    algorithm = make_algorithm()
    update(algorithm, 2)
    algorithm.enter_stage(1)
    algorithm.train_only((0, 2))
    update(algorithm, 2)
    saved = copy.deepcopy(algorithm.state_dict())
    assert (saved["stage"], saved["trained"], saved["updates"]) == (1, [0, 2], 4)
    other = make_algorithm(5)
    other.load_state_dict(saved)
    for one in (algorithm, other):
        update(one, 3, first=4)  # the slower copy is renewed on the way
        one.train_only((1, 2))
        one.enter_stage(2)
        update(one, 2, first=7)
    ours, theirs = algorithm.state_dict(), other.state_dict()
    for part in ("network", "target_network", "optimizer"):
        assert ours[part].keys() == theirs[part].keys()
        for name, tensor in ours[part].items():
            assert torch.equal(tensor, theirs[part][name]), f"{part}.{name}"
    assert [ours[key] for key in ("updates", "stage", "trained")] == [9, 2, [1, 2]]
    assert [theirs[key] for key in ("updates", "stage", "trained")] == [9, 2, [1, 2]]
    for before, after in zip(searched(algorithm, ALL), searched(other, ALL), strict=True):
        assert all(map(np.array_equal, before, after))
    assert not torch.equal(saved["network"]["tasks.2.action_rows"], ours["network"]["tasks.2.action_rows"])


def test_loading_a_state_of_the_first_stage_thaws_the_backbone() -> None:
    fresh, later = make_algorithm(), make_algorithm()
    later.enter_stage(2)
    later.load_state_dict(copy.deepcopy(fresh.state_dict()))
    assert later.trainable_parameters == fresh.trainable_parameters
    for one in (fresh, later):
        update(one)
    assert all(map(torch.equal, numbers(fresh.network).values(), numbers(later.network).values()))

"""Reanalysis finds states that it evaluated before, with the same bits as if it evaluated them again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from planning_parts import CONTROLS, generator, make_algorithm, make_network, randomize
from rl_training.algorithms.planning.models import NetworkModel, PrefixModel
from rl_training.kernels.checks import KernelMismatch
from rl_training.kernels.door import attach
from rl_training.kernels.muzero import compiled_model
from rl_training.kernels.search import evaluated_states
from rl_training.kernels.search.perceptron_model import MLPModel
from rl_training.search.gumbel import Gumbel
from rl_training.search.puct import Puct
from rl_training.search.rule import Rule
from rl_training.search.search import TreeSearch

POSITIONS = torch.randn(60, 3, generator=generator(9))


def trees(rule: Rule, model: MLPModel, rounds: int = 4, roots: int = 50, simulations: int = 12) -> list[bytes]:
    """Return the trees of several searches from positions drawn at random, each with its own noise."""
    search, numbers = TreeSearch(rule), np.random.default_rng(3)
    found = []
    for _ in range(rounds):
        drawn = torch.from_numpy(numbers.integers(len(POSITIONS), size=roots))
        search.run(model, POSITIONS[drawn], num_simulations=simulations, exploration=0.25, generator=numbers)
        found += [search.tree.nodes.tobytes(), search.tree.edges.tobytes()]
    return found


def evaluated(model: MLPModel) -> int:
    """Return how many states are remembered."""
    return int(model._memory.states.counts[0])


@pytest.mark.parametrize("rule", [Puct(), Gumbel()], ids=["puct", "gumbel"])
@pytest.mark.parametrize("horizon", [None, 1, 3])
def test_trees_have_the_same_bits_whether_states_are_remembered_or_not(rule: Rule, horizon: int | None) -> None:
    network = make_network() if horizon is None else make_network(prefix_horizon=horizon)
    model = (NetworkModel if horizon is None else PrefixModel)(network, 0.9)
    remembering = compiled_model(model, remembers=True)
    assert trees(rule, remembering) == trees(rule, compiled_model(model))
    assert 0 < evaluated(remembering) < 0.8 * 4 * 50 * 13, "states must have been found again"
    before = evaluated(remembering)
    assert trees(rule, remembering) == trees(rule, compiled_model(model))
    assert evaluated(remembering) == before, "the same searches need nothing new"


def test_states_are_forgotten_when_the_weights_change() -> None:
    network = make_network(prefix_horizon=2)
    model = PrefixModel(network, 0.9)
    compiled = compiled_model(model, remembers=True)
    old = trees(Puct(), compiled)
    randomize(network, 5)
    assert trees(Puct(), compiled) == old, "nobody has said that they changed"
    compiled.refresh()
    assert evaluated(compiled) == 0
    new = trees(Puct(), compiled)
    assert new != old
    assert new == trees(Puct(), compiled_model(model))


@pytest.mark.parametrize(("limit", "value"), [("REMEMBERED_BYTES", 1), ("REMEMBERED_ROOTS", 1)])
def test_a_full_memory_begins_anew(limit: str, value: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = PrefixModel(make_network(prefix_horizon=2), 0.9)
    monkeypatch.setattr(evaluated_states, limit, value)
    compiled = compiled_model(model, remembers=True)
    assert trees(Puct(), compiled, roots=33) == trees(Puct(), compiled_model(model), roots=33)
    first = len(compiled._memory.states.states)
    # A larger search needs more memory, a smaller one finds its states there.
    assert trees(Puct(), compiled, roots=90) == trees(Puct(), compiled_model(model), roots=90)
    assert trees(Puct(), compiled, roots=5) == trees(Puct(), compiled_model(model), roots=5)
    assert len(compiled._memory.states.states) > first or limit == "REMEMBERED_ROOTS"


def test_only_reanalysis_remembers_states() -> None:
    algorithm: Any = make_algorithm(value_prefix=True, value_prefix_horizon=2)
    assert attach(algorithm).kernel == "muzero"
    settings = {"num_simulations": 8, "exploration": 0.25, "generator": np.random.default_rng(0)}
    for _ in range(2):  # the first search is checked
        algorithm.plan(POSITIONS[:3], None, CONTROLS, np.random.default_rng(0))
        algorithm.search_again(POSITIONS[:3], **settings)
    assert algorithm.target_model._memory.remembers
    assert not algorithm.model._memory.remembers
    before = evaluated(algorithm.target_model)
    algorithm.search_again(POSITIONS[:3], **settings)
    assert evaluated(algorithm.target_model) <= before + 3 * 8
    algorithm.target_values.add_(0.1)
    algorithm.search_again(POSITIONS[:3], **settings)
    assert evaluated(algorithm.target_model) <= 3 * 9, "the target network's weights changed"


def test_returns_are_bootstrapped_by_the_compiled_target_network() -> None:
    algorithm: Any = make_algorithm(value_prefix=True, value_prefix_horizon=2)
    expected = algorithm.target_network.values(POSITIONS).detach()
    assert attach(algorithm).kernel == "muzero"
    network = algorithm.batches.network
    np.testing.assert_allclose(network.values(POSITIONS), expected, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        algorithm.target_values.mul_(0.9)
    changed = algorithm.target_network.values(POSITIONS).detach()
    np.testing.assert_allclose(network.values(POSITIONS), changed, rtol=1e-4, atol=1e-4)
    assert (changed - expected).abs().max() > 1e-2


def test_a_network_with_other_values_does_not_pass_the_first_bootstrap() -> None:
    algorithm: Any = make_algorithm()
    assert attach(algorithm).kernel == "muzero"
    original = algorithm.target_network.values
    algorithm.target_network.values = lambda observation: original(observation) + 1.0
    with pytest.raises(KernelMismatch, match="first returns"):
        algorithm.batches.network.values(POSITIONS)

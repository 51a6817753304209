"""Networks as the search sees them: compiled and by torch alike, and rewards as differences of value prefixes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from planning_parts import ACTIONS, CONTROLS, generator, make_algorithm, make_network, random_unroll, randomize
from rl_training.algorithms.planning.models import NetworkModel, PrefixModel
from rl_training.kernels.checks import KernelMismatch
from rl_training.kernels.door import attach
from rl_training.kernels.muzero import compiled_model
from rl_training.kernels.search.perceptron_model import ROWS_TOGETHER, MLPModel
from rl_training.models.planning.planning_network import ValuePrefix, rescale
from rl_training.models.planning.scalar_support import expected_scalar
from rl_training.search.gumbel import Gumbel
from rl_training.search.model import Searchable
from rl_training.search.puct import Puct
from rl_training.search.rule import Rule
from rl_training.search.search import SearchResult, TreeSearch
from rl_training.search.tree import Tree

ROOTS = 5


def found_by(
    model: Searchable, rule: Rule, observation: torch.Tensor, legal: np.ndarray | None = None
) -> tuple[TreeSearch, SearchResult]:
    search = TreeSearch(rule)
    noise = np.random.default_rng(3)
    return search, search.run(model, observation, num_simulations=20, exploration=0.25, generator=noise, legal=legal)


def assert_alike(
    rule: Rule, one: Searchable, other: Searchable, *, roots: int = ROOTS, legal: np.ndarray | None = None
) -> tuple[TreeSearch, TreeSearch]:
    observation = torch.randn(roots, 3, generator=generator(9))
    (first_search, first), (second_search, second) = (
        found_by(model, rule, observation, legal) for model in (one, other)
    )
    np.testing.assert_array_equal(first.visits, second.visits)
    np.testing.assert_array_equal(first.action, second.action)
    for field in ("parent", "action", "visits"):
        np.testing.assert_array_equal(first_search.tree.nodes[field], second_search.tree.nodes[field])
    for field in ("value", "network_value", "reward", "discount"):
        ours, theirs = first_search.tree.nodes[field], second_search.tree.nodes[field]
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(first.weights, second.weights, rtol=1e-3, atol=1e-3)
    assert (first_search.tree.nodes["reward"] != 0).any()
    return first_search, second_search


@pytest.mark.parametrize("discount", [0.9, -1.0])
@pytest.mark.parametrize("rule", [Puct(), Gumbel()], ids=["puct", "gumbel"])
def test_the_compiled_model_is_the_network(rule: Rule, discount: float) -> None:
    network = make_network()
    assert_alike(rule, compiled_model(NetworkModel(network, discount)), NetworkModel(network, discount))


@pytest.mark.parametrize("horizon", [1, 2, 3, 50])
@pytest.mark.parametrize("rule", [Puct(), Gumbel()], ids=["puct", "gumbel"])
def test_the_compiled_model_with_a_value_prefix_is_the_network(rule: Rule, horizon: int) -> None:
    network = make_network(prefix_horizon=horizon)
    model = PrefixModel(network, 0.9)
    compiled = compiled_model(model)
    compiled.keeps_embeddings = True
    searches = assert_alike(rule, compiled, model)
    depths = depths_of(searches[0].tree)
    assert depths.max() > 3, "the searches must reach beyond the short horizons"
    expected = np.where(depths % horizon == 0, 0, depths % horizon)
    np.testing.assert_array_equal(compiled.embeddings[:, :, -1], expected)


@pytest.mark.parametrize("roots", [1, 3, 4, 33, 70])
@pytest.mark.parametrize("masked", [False, True])
def test_prefixes_are_searched_alike_for_any_number_of_roots(roots: int, masked: bool) -> None:
    model = PrefixModel(make_network(prefix_horizon=2), 0.9)
    legal = None
    if masked:
        legal = np.random.default_rng(0).random((roots, ACTIONS)) < 0.5
        legal[np.arange(roots), np.arange(roots) % ACTIONS] = True
    assert_alike(Puct(), compiled_model(model), model, roots=roots, legal=legal)


def test_trees_are_the_same_whether_embeddings_are_kept_or_not() -> None:
    model = PrefixModel(make_network(prefix_horizon=2), 0.9)
    observation = torch.randn(130, 3, generator=generator(9))
    trees = []
    for keeps in (False, True):
        compiled = compiled_model(model)
        compiled.keeps_embeddings = keeps
        trees.append(found_by(compiled, Puct(), observation)[0].tree)
    assert len(observation) > ROWS_TOGETHER, "there must be several groups"
    assert trees[0].nodes.tobytes() == trees[1].nodes.tobytes()
    assert compiled.embeddings.shape[:2] == trees[1].nodes.shape


def depths_of(tree: Tree) -> np.ndarray:
    """Return how many steps each node is away from its root."""
    parents = tree.nodes["parent"]
    depths = np.zeros(parents.shape, np.int64)
    for node in range(1, parents.shape[1]):
        depths[:, node] = depths[np.arange(len(parents)), parents[:, node]] + 1
    return depths


def test_the_compiled_model_follows_the_weights_when_refreshed() -> None:
    network = make_network()
    compiled = compiled_model(NetworkModel(network, 0.9))
    randomize(network, 5)
    with pytest.raises(AssertionError):
        assert_alike(Puct(), compiled, NetworkModel(network, 0.9))
    compiled.refresh()
    assert_alike(Puct(), compiled, NetworkModel(network, 0.9))


@pytest.mark.parametrize("prefix", [False, True], ids=["rewards", "prefixes"])
@pytest.mark.parametrize("search", ["puct", "gumbel"])
def test_a_learner_plans_with_what_it_has_just_learned(search: str, prefix: bool) -> None:
    algorithm = make_algorithm(search=search, target_update_interval=3, value_prefix=prefix, value_prefix_horizon=2)
    kind = PrefixModel if prefix else NetworkModel
    assert attach(algorithm).kernel == "muzero"
    observation = torch.randn(ROOTS, 3, generator=generator(9))

    def planned() -> SearchResult:
        return algorithm.plan(observation, None, CONTROLS, np.random.default_rng(1))

    before = planned()
    for seed in range(3):
        algorithm.update(random_unroll(seed=seed), {"learning_rate": 0.3}, generator(0))
        algorithm.steps_taken(seed, seed + 1)
    after = planned()
    assert np.abs(after.value - before.value).max() > 1e-2
    by_torch = TreeSearch(algorithm.search.rule).run(
        kind(algorithm.network, algorithm.params.discount),
        observation,
        num_simulations=8,
        exploration=0.25,
        temperature=1.0,
        generator=np.random.default_rng(1),
    )
    np.testing.assert_allclose(after.value, by_torch.value, rtol=1e-3, atol=1e-3)
    np.testing.assert_array_equal(after.visits, by_torch.visits)
    # The target network was copied after the third step, and its own search follows.
    assert_alike(
        algorithm.search.rule,
        algorithm.target_model,
        kind(algorithm.network, algorithm.params.discount),
    )


def test_searches_are_compiled_where_a_kernel_knows_the_network() -> None:
    algorithm = make_algorithm()
    assert attach(algorithm).kernel == "muzero"
    algorithm.plan(torch.zeros(1, 3), None, CONTROLS, np.random.default_rng(0))  # the first search is checked
    assert isinstance(algorithm.model, MLPModel)


class OtherCell(ValuePrefix):
    """May compute anything."""


class OtherPrefixModel(PrefixModel):
    """May compute anything."""


@pytest.mark.parametrize("changed", ["the cell", "the model"])
def test_prefixes_of_an_unknown_kind_are_searched_by_torch(changed: str) -> None:
    algorithm = make_algorithm(value_prefix=True, value_prefix_horizon=2)
    if changed == "the cell":
        algorithm.network.prefix.__class__ = OtherCell
    else:
        algorithm.model = OtherPrefixModel(algorithm.network, 0.9)
    assert attach(algorithm).kernel is None
    assert isinstance(algorithm.model, PrefixModel)


def test_a_cell_that_computes_something_else_does_not_pass_the_first_search() -> None:
    algorithm = make_algorithm(value_prefix=True, value_prefix_horizon=2)
    assert attach(algorithm).kernel == "muzero"
    cell = algorithm.network.prefix
    cell.step = lambda latent, state: (state[0] + 1, state[1])
    with pytest.raises(KernelMismatch, match="first search"):
        algorithm.plan(torch.randn(3, 3, generator=generator(1)), None, CONTROLS, np.random.default_rng(0))


# -- value prefixes --------------------------------------------------------------------------------


@pytest.mark.parametrize("horizon", [1, 3, 5])
@torch.no_grad()
def test_rewards_along_a_path_add_up_to_the_prefixes_that_are_trained(horizon: int) -> None:
    network = make_network(prefix_horizon=horizon)
    model = PrefixModel(network, 0.9)
    steps = 12  # more than two horizons
    actions = torch.randint(ACTIONS, (steps, ROOTS), generator=generator(2))
    output = model.initial(torch.randn(ROOTS, 3, generator=generator(3)))
    assert output.reward.tolist() == [0.0] * ROOTS
    latents, rewards = [], []
    for action in actions:
        output = model.recurrent(output.embedding, action)
        latents.append(output.embedding[:, : network.latent_size])
        rewards.append(output.reward)
    prefixes = expected_scalar(network.rewards(torch.stack(latents)))  # [K, B]
    total = torch.zeros(ROOTS)
    for step, reward in enumerate(rewards):
        total = reward if step % horizon == 0 else total + reward
        torch.testing.assert_close(total, prefixes[step], rtol=1e-4, atol=1e-4)
    assert prefixes.std() > 1e-2


@torch.no_grad()
def test_the_cell_starts_anew_after_every_horizon() -> None:
    network = make_network(prefix_horizon=3)
    assert network.prefix is not None
    latents = torch.rand(8, ROOTS, 6, generator=generator(1))
    outputs = network.prefix(latents)
    for start in (0, 3, 6):
        torch.testing.assert_close(outputs[start : start + 3], network.prefix(latents[start : start + 3]))
    later = network.prefix(latents[1:4])
    assert (later[-1] - outputs[3]).abs().max() > 1e-3  # the state of three steps counts where there is no reset


@torch.no_grad()
def test_the_cell_is_a_long_short_term_memory() -> None:
    network = make_network(prefix_horizon=5)
    cell = network.prefix
    assert cell is not None
    twin = torch.nn.LSTM(6, 4)
    for ours, theirs in (("input", "ih"), ("state", "hh")):
        getattr(twin, f"weight_{theirs}_l0").copy_(cell.get_parameter(f"{ours}_weight"))
        getattr(twin, f"bias_{theirs}_l0").copy_(cell.get_parameter(f"{ours}_bias"))
    latents = torch.rand(5, ROOTS, 6, generator=generator(1))
    torch.testing.assert_close(cell(latents), twin(latents)[0])


def test_branches_of_a_tree_keep_their_own_prefixes() -> None:
    """Each edge's reward in a real search is what its own path from the root says."""
    network = make_network(prefix_horizon=2)
    model = PrefixModel(network, 0.9)
    observation = torch.randn(1, 3, generator=generator(4))
    search, _ = found_by(model, Puct(), observation)
    nodes = search.tree.nodes[0]
    deepest = 0
    with torch.no_grad():
        for node in nodes[1:]:
            path = [int(node["action"])]
            parent = int(node["parent"])
            while parent > 0:
                path.insert(0, int(nodes[parent]["action"]))
                parent = int(nodes[parent]["parent"])
            deepest = max(deepest, len(path))
            output = model.initial(observation)
            for action in path:
                output = model.recurrent(output.embedding, torch.tensor([action]))
            assert node["reward"] == pytest.approx(output.reward.item(), abs=1e-4)
            assert node["network_value"] == pytest.approx(output.value.item(), abs=1e-3)
    assert deepest > 2


# -- latents -----------------------------------------------------------------------------------------


@torch.no_grad()
def test_latents_lie_between_0_and_1() -> None:
    assert rescale(torch.tensor([[1.0, 3.0, 2.0]])).tolist() == [[0.0, 1.0, 0.5]]
    assert rescale(torch.full((1, 4), 7.0)).tolist() == [[0.0] * 4]  # and are finite where all numbers are equal
    network = make_network()
    latent = network.represent(torch.randn(ROOTS, 3, generator=generator(1)))
    for action in range(ACTIONS):
        assert (latent.amin(1) == 0).all()
        assert (latent.amax(1) == 1).all()
        latent = network.imagine(latent, torch.full((ROOTS,), action))


def test_a_new_network_says_nothing_yet() -> None:
    algorithm = make_algorithm(random=False)
    observation = torch.randn(ROOTS, 3, generator=generator(1))
    found = algorithm.plan(observation, None, CONTROLS, np.random.default_rng(0))
    np.testing.assert_allclose(found.value, 0.0, atol=1e-6)
    assert algorithm.network.values(observation).abs().max().item() < 1e-6

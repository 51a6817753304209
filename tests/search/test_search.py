"""What a search finds, and what it does with noise, masks, discounts and its number of simulations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rl_training.errors import AxiomError, ConfigError, EnvironmentFailure, NonFiniteError
from rl_training.search.gumbel import Gumbel, considered_visits
from rl_training.search.model import ModelOutput
from rl_training.search.puct import Puct
from rl_training.search.rule import Rule
from rl_training.search.search import SearchResult, TreeSearch
from rl_training.search.transforms import TreeRange
from tabular import TabularModel, as_perceptron, random_model

RULES: dict[str, Rule] = {"puct": Puct(), "puct-tree": Puct(transform=TreeRange()), "gumbel": Gumbel()}
PATHS: dict[str, Callable[[TabularModel], Any]] = {"torch": lambda model: model, "compiled": as_perceptron}

each_rule = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
each_path = pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)


def plan(
    rule: Rule, model: Any, roots: list[int], simulations: int, *, seed: int = 0, exploration: float = 0.0, **more: Any
) -> SearchResult:
    generator = np.random.default_rng(seed)
    return TreeSearch(rule).run(
        model, roots, num_simulations=simulations, exploration=exploration, generator=generator, **more
    )


def bandit(rewards: list[float]) -> TabularModel:
    """One decision, then the end."""
    arms = len(rewards)
    return TabularModel.of(
        next_state=[[1] * arms] * 2, reward=[rewards, [0.0] * arms], value=[0, 0], logits=np.zeros((2, arms)),
        discount=np.zeros((2, arms)),
    )  # fmt: skip


def chain(length: int) -> TabularModel:
    """The right action leads on, the wrong one back to the start; only the last step on pays."""
    states = length + 1
    last = np.arange(states)[:, None] >= length - 1
    return TabularModel.of(
        next_state=[[0, min(state + 1, length)] for state in range(states)],
        reward=[[0.0, float(state == length - 1)] for state in range(states)],
        value=np.zeros(states),
        logits=np.zeros((states, 2)),
        discount=np.where(last, 0.0, 0.99) * [1.0, 1.0],
    )


def test_sequential_halving_by_hand() -> None:
    assert considered_visits(4, 8).tolist() == [0, 0, 0, 0, 1, 1, 2, 2]
    assert considered_visits(1, 4).tolist() == [0, 1, 2, 3]
    # Three rounds of 16 // (3 * c) visits, at least one: 5 actions, then 2 until the end.
    assert considered_visits(5, 16).tolist() == [0] * 5 + [1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6]
    assert considered_visits(16, 5).tolist() == [0] * 5


@each_path
def test_returns_are_backed_up_along_the_path(path: Callable[[TabularModel], Any]) -> None:
    # One action: every simulation goes one step deeper. Values 10, 20, 30, 40; rewards 1, 2, 3; discount 0.5.
    line = TabularModel.of(
        next_state=[[1], [2], [3], [3]], reward=[[1], [2], [3], [0]], value=[10, 20, 30, 40],
        logits=np.zeros((4, 1)), discount=np.full((4, 1), 0.5),
    )  # fmt: skip
    search = TreeSearch(Puct())
    result = search.run(path(line), [0], num_simulations=3, exploration=0.0, generator=np.random.default_rng(0))
    third = 3 + 0.5 * 40  # what the third simulation returns to state 2
    nodes = search.tree.nodes[0]
    assert nodes["visits"].tolist() == [4, 3, 2, 1]
    assert nodes["parent"].tolist() == [-1, 0, 1, 2]
    first, second = (30 + third) / 2, (20 + (2 + 0.5 * 30) + (2 + 0.5 * third)) / 3
    np.testing.assert_allclose(nodes["value"][1:], [second, first, 40])
    returns = [1 + 0.5 * 20, 1 + 0.5 * (2 + 0.5 * 30), 1 + 0.5 * (2 + 0.5 * third)]
    np.testing.assert_allclose(result.value, [(10 + sum(returns)) / 4])
    np.testing.assert_allclose(result.q_values, [[1 + 0.5 * second]])
    assert result.network_value.tolist() == [10.0]


@each_path
@each_rule
def test_most_visits_go_to_the_paying_arm(rule: Rule, path: Callable[[TabularModel], Any]) -> None:
    for rewards, best in (([1.0, 0.0], 0), ([0.0, 1.0], 1)):
        result = plan(rule, path(bandit(rewards)), [0], 10, exploration=0.0)
        # Sequential halving shares all visits of two actions equally, and speaks by its policy.
        assert result.visits[0, best] > 5 or isinstance(rule, Gumbel)
        assert result.visits[0, best] >= 5
        assert result.action[0] == best
        assert result.weights[0, best] > 0.5


@each_path
@each_rule
def test_chain_of_six_steps_is_solved(rule: Rule, path: Callable[[TabularModel], Any]) -> None:
    result = plan(rule, path(chain(6)), [0], 200)
    assert result.action[0] == 1
    assert result.q_values[0, 1] > result.q_values[0, 0]
    assert plan(rule, path(chain(6)), [0], 5).q_values.max() == 0.0  # the reward is six steps away


def test_rewards_count_and_not_only_values() -> None:
    model = bandit([0.0, 1.0])
    model.value[:] = torch.tensor([0.0, 5.0])
    model.discount[:] = 1.0
    model.reward[1] = -5.0
    assert plan(Puct(), model, [0], 20).action[0] == 1


def test_gumbel_noise_differs_from_search_to_search_and_repeats_with_the_seed() -> None:
    def actions(seed: int) -> tuple[list[int], np.ndarray]:
        search, generator = TreeSearch(Gumbel(max_considered=4)), np.random.default_rng(seed)
        model, taken, noise = bandit([0.0] * 8), [], []
        for _ in range(12):
            result = search.run(model, [0], num_simulations=4, exploration=1.0, generator=generator)
            taken.append(int(result.action[0]))
            noise.append(search.tree.gumbel.copy())
        return taken, np.concatenate(noise)

    taken, noise = actions(1)
    again, same = actions(1)
    assert taken == again
    np.testing.assert_array_equal(noise, same)
    assert len(np.unique(noise)) == noise.size
    assert len(set(taken)) > 3
    assert actions(2)[0] != taken


def test_with_zero_values_and_a_uniform_prior_every_action_is_considered() -> None:
    search, generator = TreeSearch(Gumbel(max_considered=2)), np.random.default_rng(0)
    visits = np.zeros(6)
    for _ in range(60):
        result = search.run(bandit([0.0] * 6), [0], num_simulations=4, exploration=1.0, generator=generator)
        assert (result.visits > 0).sum() == 2
        visits += result.visits[0]
    assert visits.min() > 0.4 * visits.mean()


def test_dirichlet_noise_enters_the_prior_of_legal_actions() -> None:
    model, search = bandit([0.0] * 4), TreeSearch(Puct())
    legal = np.array([[True, True, True, False]])
    draws = []
    generator = np.random.default_rng(0)
    for _ in range(300):
        search.run(model, [0], num_simulations=1, exploration=0.25, generator=generator, legal=legal)
        draws.append(search.tree.edges["prior"][0, 0].copy())
    priors = np.array(draws)
    np.testing.assert_allclose(priors.sum(1), 1.0, rtol=1e-5)
    assert (priors[:, 3] == 0).all()
    assert (priors[:, :3] >= 0.75 / 3 - 1e-6).all()
    np.testing.assert_allclose(priors[:, :3].mean(0), 1 / 3, atol=0.03)
    # Dirichlet(a, a, a) has the variance 2 / (9 (3a + 1)) in every component.
    np.testing.assert_allclose(priors[:, :3].var(0) / 0.25**2, 2 / (9 * 1.9), rtol=0.25)

    given = np.array([[0.1, 0.2, 0.7, 0.0]])
    search.run(model, [0], num_simulations=1, exploration=0.25, generator=generator, legal=legal, noise=given)
    np.testing.assert_allclose(search.tree.edges["prior"][0, 0], 0.75 * np.array([1, 1, 1, 0]) / 3 + 0.25 * given[0])


def test_the_prior_alone_guides_where_nothing_is_known() -> None:
    # Scores before the second simulation, node visits 2: prior * sqrt(2) * 1.25 / (1 + visits) + value share.
    model = bandit([0.0, 0.0, 0.0])
    model.logits[:] = torch.log(torch.tensor([0.6, 0.3, 0.1]))
    assert plan(Puct(), model, [0], 10).visits.tolist() == [[6, 3, 1]]


@each_path
@each_rule
def test_illegal_actions_are_never_visited(rule: Rule, path: Callable[[TabularModel], Any]) -> None:
    model = random_model(4, actions=4)
    model.logits[:, 2] = -torch.inf  # the model knows that the third is illegal everywhere
    model.logits[5] = -torch.inf  # nothing is legal: the game is over
    legal = np.array([[False, True, True, True], [True, True, True, False], [False, False, False, True]])
    search = TreeSearch(rule)
    # Noise that somebody put on illegal actions does not make them legal.
    for seed, noise in ((0, None), (1, None), (2, np.full((3, 4), 0.25))):
        result = search.run(
            path(model),
            [0, 1, 2],
            num_simulations=40,
            exploration=0.25,
            generator=np.random.default_rng(seed),
            legal=legal,
            noise=noise,
        )
        allowed = legal & [True, True, False, True]
        assert (result.visits[~allowed] == 0).all()
        assert (result.weights[~allowed] == 0).all()
        assert allowed[np.arange(3), result.action].all()
        assert (result.visits.sum(1) == 40).all()
        inside = search.tree.edges[np.isneginf(search.tree.edges["logit"])]
        assert len(inside) > 3
        assert (inside["visits"] == 0).all()


@each_path
@each_rule
def test_the_other_players_gain_is_a_loss(rule: Rule, path: Callable[[TabularModel], Any]) -> None:
    # I move at state 0; action 0 leads to 1, where the other can win, action 1 to 2, where he can only draw.
    model = TabularModel.of(
        next_state=[[1, 2], [3, 3], [3, 3], [3, 3]],
        reward=[[0, 0], [1, 0], [0, 0], [0, 0]],
        value=[0, 0, 0, 0],
        logits=np.zeros((4, 2)),
        discount=[[-1, -1], [0, 0], [0, 0], [0, 0]],
    )
    result = plan(rule, path(model), [0], 60)
    assert result.action[0] == 1
    assert result.q_values[0, 0] < -0.5
    assert result.q_values[0, 1] == 0.0
    model.discount[0] = 1.0  # with one player the same win is mine
    alone = plan(rule, path(model), [0], 60)
    assert alone.action[0] == 0
    assert alone.q_values[0, 0] > 0.5


def test_signs_flip_once_a_ply_by_hand() -> None:
    # One action, three plies: rewards 0, 0, 1 for who moves, value 0.5 of the last state for who moves there.
    line = TabularModel.of(
        next_state=[[1], [2], [3], [3]], reward=[[0], [0], [1], [0]], value=[0, 0, 0, 0.5],
        logits=np.zeros((4, 1)), discount=np.full((4, 1), -0.9),
    )  # fmt: skip
    search = TreeSearch(Puct())
    search.run(line, [0], num_simulations=3, exploration=0.0, generator=np.random.default_rng(0))
    third = 1 - 0.9 * 0.5
    np.testing.assert_allclose(search.tree.nodes["value"][0], [0.81 * third / 4, -0.9 * third / 3, third / 2, 0.5])


@each_rule
def test_a_batch_equals_each_root_alone(rule: Rule) -> None:
    model, roots = random_model(2), [3, 1, 7, 7, 0]
    noise = np.random.default_rng(0).dirichlet([1.0] * 3, size=5)
    legal = np.array([[1, 1, 0], [1, 1, 1], [0, 1, 1], [1, 1, 1], [0, 0, 1]], bool)
    together = plan(rule, model, roots, 30, exploration=0.25, noise=noise, legal=legal)
    for row, root in enumerate(roots):
        one = slice(row, row + 1)
        alone = plan(rule, model, [root], 30, exploration=0.25, noise=noise[one], legal=legal[one])
        for ours, theirs in zip(alone, together, strict=True):
            np.testing.assert_array_equal(ours[0], theirs[row])


@each_rule
@pytest.mark.parametrize("masked", [False, True])
def test_actions_that_the_model_does_not_have_change_nothing(rule: Rule, masked: bool) -> None:
    model, roots = random_model(2, actions=2), list(range(12))
    model.value += 30.0  # far from what the search finds, so that it widens any range it gets into
    legal = np.array([[1, 1], [1, 0], [0, 1], [1, 1]] * 3, bool) if masked else None
    pad = torch.nn.functional.pad
    wider = TabularModel(
        next_state=pad(model.next_state, (0, 2)),
        reward=pad(model.reward, (0, 2)),
        value=model.value,
        logits=pad(model.logits, (0, 2), value=-torch.inf),
        discount=pad(model.discount, (0, 2)),
    )
    ours = plan(rule, model, roots, 5, legal=legal)
    theirs = plan(rule, wider, roots, 5, legal=None if legal is None else np.pad(legal, ((0, 0), (0, 2))))
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one, other[:, :2] if one.ndim == 2 else other)


@each_path
@each_rule
def test_the_number_of_simulations_is_chosen_per_call(rule: Rule, path: Callable[[TabularModel], Any]) -> None:
    model, search = path(random_model(6)), TreeSearch(rule)
    for simulations, roots in ((3, [0, 1]), (40, [2]), (1, [0, 1, 2, 3]), (17, [5, 6])):
        generator = np.random.default_rng(3)
        result = search.run(model, roots, num_simulations=simulations, exploration=0.5, generator=generator)
        assert (result.visits.sum(1) == simulations).all()
        fresh = plan(rule, model, roots, simulations, seed=3, exploration=0.5)
        for ours, theirs in zip(result, fresh, strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_actions_are_drawn_by_visits_and_temperature() -> None:
    model = bandit([0.0, 0.0, 0.0])
    model.logits[:] = torch.log(torch.tensor([0.6, 0.3, 0.1]))
    roots = [0] * 4000
    drawn = plan(Puct(), model, roots, 10, temperature=1.0).action
    np.testing.assert_allclose(np.bincount(drawn, minlength=3) / 4000, [0.6, 0.3, 0.1], atol=0.03)
    sharper = plan(Puct(), model, roots, 10, temperature=0.5).action
    np.testing.assert_allclose(np.bincount(sharper, minlength=3) / 4000, np.array([36, 9, 1]) / 46, atol=0.03)
    assert (plan(Puct(), model, roots, 10, temperature=0.0).action == 0).all()


def test_values_are_scaled_by_the_range_of_the_node_or_of_the_tree() -> None:
    # After the first simulation arm 0 has Q = 1 and the root 0.5; the bonus is 0.5 * 1.25 * sqrt(2) / (1 + visits).
    # The node's range is [0.5, 1]: arm 0 scores 1 + 0.44, arm 1 only 0.88. The tree has seen one Q, which scales to 0.
    for rule, second in ((Puct(), 0), (Puct(transform=TreeRange()), 1)):
        search = TreeSearch(rule)
        search.run(bandit([1.0, 0.0]), [0], num_simulations=2, exploration=0.0, generator=np.random.default_rng(0))
        assert search.tree.nodes["action"][0].tolist() == [-1, 0, second]
    search.run(bandit([1.0, 0.0]), [0], num_simulations=9, exploration=0.0, generator=np.random.default_rng(0))
    assert search.tree.bounds.tolist() == [[0.0, 1.0]]


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"simulations": 0}, ConfigError, "num_simulations: must be at least 1, not 0"),
        ({"legal": np.array([[True, True], [False, False]])}, EnvironmentFailure, "no action is legal at root 1"),
        ({"logits": float("nan")}, NonFiniteError, "policy logits"),
        ({"reward": float("nan")}, NonFiniteError, "rewards, values or discounts"),
        ({"value": float("inf")}, NonFiniteError, "rewards, values or discounts"),
    ],
)
def test_bad_input_is_named(changes: dict[str, Any], error: type[AxiomError], words: str) -> None:
    model = bandit([1.0, 0.0])
    for table in ("logits", "reward", "value"):
        if table in changes:
            getattr(model, table)[:] = changes[table]
    for rule in RULES.values():
        with pytest.raises(error, match=words):
            plan(rule, model, [0, 1], changes.get("simulations", 4), legal=changes.get("legal"))


class SpatialModel:
    """A table whose states are pictures: the pixel that is on says which state it is."""

    def __init__(self, table: TabularModel) -> None:
        self.table = table

    def _picture(self, output: ModelOutput) -> ModelOutput:
        states = len(self.table.value)
        picture = torch.nn.functional.one_hot(output.embedding, states).float().view(-1, 1, states // 2, 2)
        return output._replace(embedding=picture)

    def initial(self, observation: Any) -> ModelOutput:
        return self._picture(self.table.initial(observation))

    def recurrent(self, embedding: Tensor, action: Tensor) -> ModelOutput:
        assert embedding.dim() == 4
        return self._picture(self.table.recurrent(embedding.flatten(1).argmax(1), action))


@each_rule
def test_spatial_latents_are_searched_as_vectors_are(rule: Rule) -> None:
    table = random_model(5)
    flat, spatial = (plan(rule, model, [0, 3, 7], 25, exploration=0.25) for model in (table, SpatialModel(table)))
    for one, other in zip(flat, spatial, strict=True):
        np.testing.assert_array_equal(one, other)

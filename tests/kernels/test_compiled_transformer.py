"""World transformers searched in compiled code: the trees are those that torch grows, node by node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from planning_parts import generator, randomize
from rl_training.algorithms.planning.scalezero_models import ScaleZeroModel
from rl_training.algorithms.planning.scalezero_params import ScaleZeroParams
from rl_training.algorithms.scalezero import ScaleZero
from rl_training.envs.spaces import joined_spaces
from rl_training.errors import NonFiniteError
from rl_training.kernels.door import attach
from rl_training.kernels.scalezero import compiled_transformer
from rl_training.kernels.search.transformer_model import Transformer, TransformerModel
from rl_training.models.planning.adapters import activate_adapters
from rl_training.models.planning.scalezero_network import ScaleZeroNetwork
from rl_training.search.gumbel import Gumbel
from rl_training.search.model import Searchable
from rl_training.search.puct import Puct
from rl_training.search.rule import Rule
from rl_training.search.search import SearchResult, TreeSearch
from scalezero_parts import DISCOUNT, SIZES, SPECS, make_scalezero, observations, task_unroll

RULES = pytest.mark.parametrize("rule", [Puct(), Gumbel()], ids=["puct", "gumbel"])
ROWS = (5, 3, 6)  # of each task's roots


def roots(tasks: Sequence[int]) -> list[torch.Tensor]:
    return [observations(task, ROWS[task], seed=task + 1) for task in tasks]


def found_by(
    model: Searchable, rule: Rule, tasks: Sequence[int], *, simulations: int = 24, legal: np.ndarray | None = None
) -> tuple[TreeSearch, SearchResult]:
    search = TreeSearch(rule)
    found = search.run(
        model,
        roots(tasks),
        num_simulations=simulations,
        exploration=0.25,
        generator=np.random.default_rng(3),
        legal=legal,
    )
    return search, found


def deepest(search: TreeSearch) -> int:
    parents = search.tree.nodes["parent"]
    depths = np.zeros(parents.shape, np.int64)
    for node in range(1, parents.shape[1]):
        depths[:, node] = depths[np.arange(len(parents)), parents[:, node]] + 1
    return int(depths.max())


def compiled(model: ScaleZeroModel, transformer: Transformer) -> TransformerModel:
    return TransformerModel(transformer, model.tasks, model.encode)


def assert_alike(
    network: ScaleZeroNetwork,
    transformer: Transformer,
    rule: Rule,
    tasks: Sequence[int],
    *,
    legal: np.ndarray | None = None,
) -> TreeSearch:
    """Search both ways, compare everything, and return the compiled search."""
    model = ScaleZeroModel(network, tasks, DISCOUNT)
    theirs, expected = found_by(model, rule, tasks, legal=legal)
    ours, found = found_by(compiled(model, transformer), rule, tasks, legal=legal)
    for field in ("parent", "action", "visits"):
        np.testing.assert_array_equal(ours.tree.nodes[field], theirs.tree.nodes[field])
    for field in ("value", "network_value", "reward", "discount"):
        np.testing.assert_allclose(ours.tree.nodes[field], theirs.tree.nodes[field], rtol=1e-4, atol=1e-4)
    for field in ("child", "visits"):
        np.testing.assert_array_equal(ours.tree.edges[field], theirs.tree.edges[field])
    for field in ("prior", "q_value"):
        np.testing.assert_allclose(ours.tree.edges[field], theirs.tree.edges[field], rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(found.action, expected.action)
    np.testing.assert_allclose(found.weights, expected.weights, rtol=1e-4, atol=1e-4)
    assert np.ptp(ours.tree.nodes["reward"][:, 1:]) > 0.1
    assert np.ptp(ours.tree.nodes["network_value"]) > 0.1
    return ours


@RULES
@pytest.mark.parametrize(
    ("tasks", "stage", "sizes"),
    [
        ((0,), 0, {}),
        ((1,), 2, {"top_k": 2, "context_steps": 2}),
        ((2,), 0, {"experts": 1, "top_k": 2, "layers": 1}),
        ((2,), 1, {"experts": 1, "top_k": 1, "context_steps": 40}),
        ((0, 1, 2), 0, {"experts": 5, "top_k": 2, "width": 40, "heads": 5, "hidden_size": 33, "support_size": 20}),
        ((1, 2, 0), 2, {"width": 64, "heads": 4, "expert_size": 35, "layers": 3}),
    ],
)
def test_the_compiled_search_grows_the_trees_that_torch_grows(
    rule: Rule, tasks: tuple[int, ...], stage: int, sizes: dict[str, Any]
) -> None:
    network = make_scalezero(4, **sizes)
    with torch.no_grad():  # large weights blow the last bits up from step to step
        for parameter in network.parameters():
            parameter.mul_((16 / network.width) ** 0.5)
    activate_adapters(network.transformer, stage)
    search = assert_alike(network, compiled_transformer(network, DISCOUNT), rule, tasks)
    if sizes.get("context_steps", 3) < 10:
        assert deepest(search) > network.transformer.window  # several windows


@RULES
def test_illegal_and_missing_actions_are_not_searched(rule: Rule) -> None:
    network = make_scalezero(2)
    legal = np.ones((ROWS[0] + ROWS[1], 4), bool)
    legal[::2, 0] = False
    legal[ROWS[0] :, 3] = False
    search = assert_alike(network, compiled_transformer(network, DISCOUNT), rule, (0, 1), legal=legal)
    assert not search.tree.edges["visits"][:, 0][~legal].any()
    assert not search.tree.edges["visits"][: ROWS[0], :, 2:].any()
    assert search.tree.edges["visits"][ROWS[0] :, :, 2:].any()


@RULES
def test_a_task_grows_the_same_tree_alone_and_among_others_to_the_last_bit(rule: Rule) -> None:
    network = make_scalezero(tasks=(SPECS[1], SPECS[1]))
    transformer = compiled_transformer(network, DISCOUNT)

    def values(tasks: Sequence[int], rows: int) -> np.ndarray:
        model = TransformerModel(transformer, tasks, ScaleZeroModel(network, tasks, DISCOUNT).encode)
        seen = [observations(1, rows, seed=7) for _ in tasks]
        search = TreeSearch(rule)
        search.run(model, seen, num_simulations=16, exploration=0.0, generator=np.random.default_rng(0))
        return search.tree.nodes["value"].copy()

    alone = values((1,), 7)
    np.testing.assert_array_equal(values((1,), 7), alone)
    np.testing.assert_array_equal(values((0, 1), 7)[7:], alone)
    np.testing.assert_array_equal(values((1,), 2), values((0, 1), 2)[2:])


def test_a_smaller_search_after_a_larger_one_is_not_disturbed_by_what_that_left() -> None:
    network = make_scalezero(3)
    transformer = compiled_transformer(network, DISCOUNT)
    model = compiled(ScaleZeroModel(network, (0, 1), DISCOUNT), transformer)
    first = found_by(model, Puct(), (0, 1), simulations=6)[1]
    found_by(compiled(ScaleZeroModel(network, (0, 1, 2), DISCOUNT), transformer), Puct(), (0, 1, 2))
    again = found_by(model, Puct(), (0, 1), simulations=6)[1]
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one, other)


def test_changed_weights_are_read_again_and_others_are_kept() -> None:
    network = make_scalezero(1)
    renewed = [False]
    transformer = compiled_transformer(network, DISCOUNT, lambda: renewed[0])
    model = compiled(ScaleZeroModel(network, (0, 2), DISCOUNT), transformer)
    before = found_by(model, Gumbel(), (0, 2))[1]
    parts = ("encoder", "representation")  # torch asks them at every search
    kept = {name: value.clone() for name, value in network.state_dict().items() if any(part in name for part in parts)}
    randomize(network, 6)
    network.load_state_dict(kept, strict=False)
    np.testing.assert_array_equal(found_by(model, Gumbel(), (0, 2))[1].value, before.value)
    renewed[0] = True
    assert_alike(network, transformer, Gumbel(), (0, 2))


@pytest.mark.parametrize("part", ["transformer.positions", "tasks.0.action_rows", "tasks.0.reward.weight"])
def test_weights_that_are_no_numbers_are_reported(part: str) -> None:
    network = make_scalezero()
    with torch.no_grad():
        network.get_parameter(part).fill_(torch.nan)
    model = compiled(ScaleZeroModel(network, (0,), DISCOUNT), compiled_transformer(network, DISCOUNT))
    with pytest.raises(NonFiniteError):
        found_by(model, Puct(), (0,))


# -- in the algorithm ----------------------------------------------------------------------------------


def make_algorithm(seed: int = 0) -> ScaleZero:
    """Return a tiny learner whose every weight counts."""
    algorithm = ScaleZero(
        ScaleZeroParams(**SIZES, unroll_steps=2, gamma=DISCOUNT, target_update_interval=2),
        joined_spaces({spec.name: spec.observation_space for spec in SPECS}),
        joined_spaces({spec.name: spaces.Discrete(spec.actions) for spec in SPECS}),
        device=torch.device("cpu"),
        generator=generator(seed),
    )
    randomize(algorithm.network, seed)
    randomize(algorithm.target_network, seed + 1)
    return algorithm


def assert_up_to_date(algorithm: ScaleZero) -> None:
    """Compare acting and reanalysing with torch and the weights of this moment."""
    options: dict[str, Any] = {"num_simulations": 12, "exploration": 0.0, "generator": np.random.default_rng(0)}
    shown = roots((0, 1, 2))
    model = ScaleZeroModel(algorithm.network, (0, 1, 2), DISCOUNT)
    expected = TreeSearch(algorithm.search.rule).run(model, shown, **options)
    found = algorithm.search_tasks((0, 1, 2), [(seen, None) for seen in shown], **options)
    np.testing.assert_allclose(np.concatenate([part.value for part in found]), expected.value, rtol=1e-4, atol=1e-4)
    batches = algorithm.batches[1]
    target = ScaleZeroModel(algorithm.target_network, (1,), DISCOUNT)
    expected = TreeSearch(algorithm.search.rule).run(target, shown[1], **options)
    again = batches.search(shown[1], **options)
    assert isinstance(algorithm.simulated(target), TransformerModel)  # the first searches were checked
    np.testing.assert_allclose(again.value, expected.value, rtol=1e-4, atol=1e-4)


def test_the_algorithm_plans_with_the_weights_of_the_moment() -> None:
    algorithm = make_algorithm()
    assert attach(algorithm).kernel == "scalezero"
    assert_up_to_date(algorithm)
    unrolls = {task: task_unroll(task) for task in range(3)}
    for step in range(2):  # the second changes the target network too
        algorithm.update(unrolls, {"learning_rate": 1e-2}, generator(0))
        algorithm.steps_taken(step, step + 1)
        assert_up_to_date(algorithm)
    algorithm.enter_stage(1)  # random adapters join
    assert_up_to_date(algorithm)
    algorithm.load_state_dict(make_algorithm(5).state_dict())
    assert_up_to_date(algorithm)

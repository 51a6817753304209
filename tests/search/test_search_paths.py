"""The compiled path gives the trees of the torch path, whatever the network is made of."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
import torch

from paths import HELPERS
from perceptrons import ACTIONS, LATENT, Perceptron
from rl_training.models.planning.scalar_support import expected_scalar
from rl_training.search.gumbel import Gumbel
from rl_training.search.puct import Puct
from rl_training.search.rule import Rule
from rl_training.search.search import SearchResult, TreeSearch
from tabular import random_model

NETWORKS = {
    "plain numbers": {"activation": "relu", "norm": False, "residual": False, "rescale": False, "atoms": 1},
    "atoms": {"activation": "relu", "norm": False, "residual": False, "rescale": True, "atoms": 51},
    "many atoms": {"activation": "elu", "norm": True, "residual": True, "rescale": True, "atoms": 601},
    "tanh": {"activation": "tanh", "norm": False, "residual": True, "rescale": False, "atoms": 11},
    "silu": {"activation": "silu", "norm": True, "residual": False, "rescale": False, "atoms": 1},
    "gelu": {"activation": "gelu", "norm": True, "residual": False, "rescale": True, "atoms": 21},
}


def search_both(
    model: Perceptron, rule: Rule, batch: int, simulations: int
) -> tuple[list[TreeSearch], list[SearchResult]]:
    observation = torch.rand(batch, LATENT, generator=torch.Generator().manual_seed(batch))
    searches, results = [], []
    for path in (model, model.compiled):
        searches.append(TreeSearch(rule))
        results.append(
            searches[-1].run(
                path,
                observation,
                num_simulations=simulations,
                exploration=0.25,
                generator=np.random.default_rng(7),
            )
        )
    return searches, results


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("rule", [Puct(), Gumbel()], ids=["puct", "gumbel"])
def test_both_paths_give_the_same_trees(network: str, rule: Rule) -> None:
    model = Perceptron(3, **NETWORKS[network])  # type: ignore[arg-type]
    for batch, simulations in ((1, 12), (6, 20)):
        (torch_search, compiled_search), (by_torch, compiled) = search_both(model, rule, batch, simulations)
        np.testing.assert_array_equal(compiled.visits, by_torch.visits)
        np.testing.assert_array_equal(compiled.action, by_torch.action)
        for ours, theirs in zip(compiled, by_torch, strict=True):
            assert_close(ours, theirs)
        for field in ("visits", "parent", "action"):
            np.testing.assert_array_equal(compiled_search.tree.nodes[field], torch_search.tree.nodes[field])
        for field in ("value", "network_value", "reward", "discount"):
            assert_close(compiled_search.tree.nodes[field], torch_search.tree.nodes[field])
        assert_close(compiled_search.tree.edges["logit"], torch_search.tree.edges["logit"])


def assert_close(ours: np.ndarray, theirs: np.ndarray) -> None:
    """To 1e-4 of the largest."""
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4 * max(1.0, np.abs(theirs).max()))


def test_compiled_search_follows_changed_weights_after_a_refresh() -> None:
    model = Perceptron(5, **NETWORKS["plain numbers"])  # type: ignore[arg-type]
    _, (_, before) = search_both(model, Puct(), 2, 10)
    model.reward[-1].bias.add_(1.0)
    _, (by_torch, stale) = search_both(model, Puct(), 2, 10)
    np.testing.assert_array_equal(stale.q_values, before.q_values)
    model.compiled.refresh()
    _, (by_torch, refreshed) = search_both(model, Puct(), 2, 10)
    assert_close(refreshed.q_values, by_torch.q_values)
    assert np.abs(refreshed.q_values - before.q_values).max() > 0.5


def test_a_state_is_valued_the_same_in_any_batch() -> None:
    model = Perceptron(1, **NETWORKS["many atoms"]).compiled  # type: ignore[arg-type]
    observation = torch.rand(7, LATENT, generator=torch.Generator().manual_seed(0))
    noise = np.random.default_rng(0).gumbel(size=(7, ACTIONS))
    search = TreeSearch(Gumbel())

    def run(rows: slice) -> SearchResult:
        return search.run(
            model,
            observation[rows],
            num_simulations=15,
            exploration=1.0,
            noise=noise[rows],
            generator=np.random.default_rng(0),
        )

    together = run(slice(7))
    for row in range(7):
        alone = run(slice(row, row + 1))
        for ours, theirs in zip(alone, together, strict=True):
            np.testing.assert_allclose(ours[0], theirs[row], rtol=1e-5)


def test_a_layer_must_fit_the_one_before() -> None:
    model = Perceptron(1, **NETWORKS["plain numbers"])  # type: ignore[arg-type]
    model.policy, model.trunk = model.policy, []
    with pytest.raises(ValueError, match="40 inputs follows 20 outputs"):
        type(model.compiled)(
            lambda observation: observation,
            action_rows=model.rows,
            dynamics=model.dynamics,
            reward=model.reward,
            value=model.value,
            policy=model.policy,
            discount=0.9,
        )


def test_what_allocates_does_not_compile_into_the_search() -> None:
    from numba.core.errors import NumbaError

    from rl_training.search.compilation import compiled

    @compiled
    def allocate(count: int) -> float:
        return np.ones(count).sum()

    with pytest.raises(NumbaError, match="empty"):
        allocate(3)


@pytest.mark.parametrize("rule", [Puct(), Gumbel()], ids=["puct", "gumbel"])
def test_memory_of_a_search_does_not_grow_with_its_simulations(rule: Rule) -> None:
    model, search = random_model(0), TreeSearch(rule)

    def peak(simulations: int) -> int:
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        search.run(model, [0] * 256, num_simulations=simulations, exploration=0.2, generator=np.random.default_rng(0))
        return tracemalloc.get_traced_memory()[1] - before

    tracemalloc.start()
    try:
        peak(100)  # compiles, reserves
        few, many = (min(peak(simulations) for _ in range(3)) for simulations in (10, 100))
        # One float for each root and simulation would be 92 kB.
        assert many < few + 12_000
    finally:
        tracemalloc.stop()


def test_compiled_arithmetic_is_exact_to_single_precision() -> None:
    from numba import njit

    from rl_training.kernels.compiled.lanes import LANES, load, store
    from rl_training.kernels.compiled.planning import exponentials

    @njit
    def one_by_one(values: np.ndarray, powers: np.ndarray) -> None:
        for index in range(len(values)):
            powers[index] = exponentials.exponential(values[index])

    @njit
    def by_lanes(values: np.ndarray, powers: np.ndarray) -> None:
        for index in range(0, len(values), LANES):
            store(powers, index, exponentials.exponentials(load(values, index)))

    values = np.linspace(-87, 88, 20_000, dtype=np.float32)
    expected = np.exp(values.astype(np.float64))
    for compute in (one_by_one, by_lanes):
        powers = np.empty_like(values)
        compute(values, powers)
        np.testing.assert_allclose(powers, expected, rtol=5e-7)
    powers = np.full(LANES, np.nan, np.float32)
    by_lanes(powers, powers)
    assert np.isnan(powers).all()


@pytest.mark.parametrize("atoms", [3, 11, 31, 33, 601])
def test_expectations_are_those_of_torch(atoms: int) -> None:
    from numba import njit

    from rl_training.kernels.search.network_outputs import expectation

    logits = 5 * torch.randn(6, atoms, generator=torch.Generator().manual_seed(atoms))
    logits[1:3] -= 1000.0  # only differences count
    logits[3] = -1e4
    logits[3, -1] = 0.0
    found = njit(lambda values, start, width: expectation(values, start, width))
    for row in logits:
        values = np.full(700, np.nan, np.float32)  # what stands around the logits does not count
        values[7 : 7 + atoms] = row
        assert found(values, 7, atoms) == pytest.approx(float(expected_scalar(row)), rel=1e-4, abs=1e-4)
        values[7 + atoms // 2] = np.nan
        assert np.isnan(found(values, 7, atoms))


def test_numba_is_imported_by_the_first_search_only() -> None:
    program = "import sys, rl_training.search.search, rl_training.search.gumbel; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_rules_that_are_imported_after_something_was_compiled_are_known_to_the_compiler() -> None:
    program = f"""
import sys
from rl_training.search import compilation

compilation._register()  # as another algorithm's kernel does before any search is imported
import numpy as np

sys.path.insert(0, {str(HELPERS)!r})
from rl_training.search.gumbel import Gumbel
from rl_training.search.search import TreeSearch
from tabular import random_model

settings = dict(num_simulations=4, exploration=0.0, generator=np.random.default_rng(0))
assert TreeSearch(Gumbel()).run(random_model(0), [0], **settings).visits.sum() == 4
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_machine_code_is_generated_for_the_outermost_function_only(monkeypatch: pytest.MonkeyPatch) -> None:
    from numba.core.codegen import CPUCodeLibrary, JITCodeLibrary

    from rl_training.search.compilation import compiled, part

    finished: list[str] = []
    original, untouched = JITCodeLibrary._finalize_specific, CPUCodeLibrary._finalize_final_module

    def finish(self: JITCodeLibrary) -> None:
        finished.append(self.name)
        original(self)

    monkeypatch.setattr(JITCodeLibrary, "_finalize_specific", finish)

    @part()
    def inner(number: float) -> float:
        return number + 1.0

    @part()
    def middle(number: float) -> float:
        return 2.0 * inner(number)

    @compiled
    def outer(number: float) -> float:
        return middle(number) + inner(number)

    assert outer(3.0) == 12.0
    assert any(name.endswith("outer") for name in finished)
    assert not any(name.endswith(("inner", "middle")) for name in finished)
    assert CPUCodeLibrary._finalize_final_module is untouched

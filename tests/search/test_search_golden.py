"""Both paths reproduce trees that a reference implementation built on random tabular models."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from paths import FIXTURES
from rl_training.search.gumbel import Gumbel
from rl_training.search.puct import Puct
from rl_training.search.search import TreeSearch
from tabular import TabularModel, as_perceptron

FOLDER = FIXTURES / "search"
CASES = [(kind, case) for kind in ("puct", "gumbel") for case in json.loads((FOLDER / f"{kind}.json").read_text())]
PATHS = {"torch": lambda model: model, "compiled": as_perceptron}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("kind", "case"), CASES, ids=[f"{kind}-{case['seed']}" for kind, case in CASES])
def test_golden_tree_is_reproduced(kind: str, case: dict[str, Any], path: str) -> None:
    expected = case["expected"]
    search = TreeSearch(Puct() if kind == "puct" else Gumbel(max_considered=case["max_considered"]))
    illegal = case["invalid_actions"]
    result = search.run(
        PATHS[path](TabularModel.of(**case["model"])),
        case["roots"],
        num_simulations=case["num_simulations"],
        exploration=0.0 if kind == "puct" else 1.0,
        noise=None if kind == "puct" else np.array(expected["root_gumbel"], np.float32),
        legal=None if illegal is None else np.array(illegal) == 0,
        generator=np.random.default_rng(0),
    )
    nodes = search.tree.nodes
    np.testing.assert_array_equal(result.visits, expected["visits"])
    np.testing.assert_array_equal(nodes["visits"], expected["node_visits"])
    np.testing.assert_array_equal(nodes["parent"], expected["parents"])
    np.testing.assert_array_equal(nodes["action"], expected["action_from_parent"])
    for ours, theirs in (
        (result.value, "root_value"),
        (result.q_values, "root_q"),
        (result.weights, "action_weights"),
        (nodes["value"], "node_values"),
    ):
        np.testing.assert_allclose(ours, expected[theirs], rtol=1e-4, atol=1e-5, err_msg=theirs)
    if kind == "gumbel":
        np.testing.assert_array_equal(result.action, expected["action"])

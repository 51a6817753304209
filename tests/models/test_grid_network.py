"""The network of planning on boards: its layout, what it refuses, and runs with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from board_parts import CONNECT_FOUR, TICTACTOE
from harness import stopped_after
from planning_parts import generator, randomize
from planning_runs import STEPS, tiny_run
from rl_training import load_policy
from rl_training.algorithms.planning.grid_params import GridParams
from rl_training.algorithms.planning.muzero_params import MuZeroParams
from rl_training.errors import ConfigError
from rl_training.experiment.runs import read_metadata
from rl_training.models.encoders import VectorEncoder
from rl_training.models.planning.grid_network import GridNetwork
from rl_training.runtime.workflows import resume, train

SHAPE = (2, 6, 7)


def network(shape: tuple[int, ...] = SHAPE, size: int = 84, **settings: Any) -> GridNetwork:
    space = spaces.Box(0.0, 1.0, (size,), np.float32)
    options = {"filters": 4, "blocks": 1, "hidden_size": 8, "support_size": 3, **settings}
    return GridNetwork(VectorEncoder(space), 7, shape, generator=generator(0), **options)


def test_a_latent_lists_the_board_cell_by_cell() -> None:
    """A filter that copies the other player's stones writes them to its place in the cells where they stand."""
    model = network(blocks=0)
    layer, norm = model.representation.layers[0], model.representation.norms[0]
    with torch.no_grad():
        layer.weight.zero_()
        layer.bias.zero_()
        layer.weight[2, 1, 1, 1] = 1.0  # filter 2 reads plane 1 at the cell itself
        norm.weight.fill_(1.0)
        board = np.zeros(SHAPE, np.float32)
        board[1, 4, 5] = 1.0
        board[0, 2, 3] = 1.0  # the player's own stone does not count
        latent = model.represent(torch.from_numpy(board.reshape(1, -1)))
    cells = latent.view(6, 7, 4)
    assert cells[4, 5].argmax() == 2
    assert cells[4, 5, 2] == 1.0
    assert torch.equal(cells.argmax().reshape(1), torch.tensor([(4 * 7 + 5) * 4 + 2]))


def test_a_moved_pattern_moves_the_latent() -> None:
    """Away from the edges, whose cells see less of the board."""
    model = network(shape=(1, 9, 9), size=81, blocks=0)
    pattern = np.zeros((2, 1, 9, 9), np.float32)
    pattern[0, 0, 3, 3] = pattern[0, 0, 4, 4] = 1.0
    pattern[1, 0, 4, 5] = pattern[1, 0, 5, 6] = 1.0
    with torch.no_grad():
        one, other = model.represent(torch.from_numpy(pattern.reshape(2, -1))).view(2, 9, 9, 4)
    torch.testing.assert_close(one[1:7, 1:7], other[2:8, 3:9])
    assert one[1:7, 1:7].std() > 0


def test_every_weight_learns_from_an_unrolled_model() -> None:
    model = network()
    randomize(model)
    latent = model.represent(torch.rand(5, 84, generator=generator(1)))
    unrolled = torch.stack([latent, model.imagine(latent, torch.tensor([0, 1, 2, 3, 6]))])
    predicted = model.predict(unrolled)
    assert predicted.policy.shape == (2, 5, 7)
    assert predicted.value.shape == (2, 5, 7)
    assert model.rewards(unrolled[1:]).shape == (1, 5, 7)
    assert (unrolled.amin(), unrolled.amax()) == (0.0, 1.0)
    loss = predicted.policy.square().sum() + predicted.value.square().sum() + model.rewards(unrolled[1:]).square().sum()
    loss.backward()
    assert all((parameter.grad != 0).any() for parameter in model.parameters() if parameter.grad is not None)
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_the_declared_number_of_weights_is_a_lower_bound() -> None:
    params = MuZeroParams(grid=GridParams(SHAPE, filters=4, blocks=2), hidden_size=8, support_size=3)
    weights = sum(parameter.numel() for parameter in network(blocks=2).parameters())
    assert weights / 4 < params.network_weights(84, 7) <= weights
    assert params.latent_numbers == network().latent_size == 4 * 42


@pytest.mark.parametrize("shape", [(6, 7), (2, 7, 7), (1, 1, 84, 1)])
def test_a_shape_that_does_not_fit_the_observation_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match=r"^algo_kwargs\.grid\.shape: .* encoded as 84 numbers; write \[planes, rows"):
        network(shape=shape)


@pytest.mark.parametrize(
    "others", [{"value_prefix": True}, {"consistency_coef": 2.0}, {"encoder": "my_nets:Vector"}], ids=lambda one: [*one]
)
def test_parts_of_the_other_network_are_refused(others: dict[str, Any]) -> None:
    params = MuZeroParams(grid=GridParams(SHAPE), **others)
    found = params.problems(num_envs=1, total_timesteps=100_000)
    assert any(one.startswith("algo_kwargs.grid: goes without value_prefix, consistency_coef and") for one in found)


@pytest.mark.parametrize(("env_id", "shape"), [(CONNECT_FOUR, [2, 6, 7]), (TICTACTOE, [2, 3, 3])])
def test_self_play_resumes_exactly_and_its_policy_plans(env_id: str, shape: list[int], tmp_path: Path) -> None:
    settings = {"two_player": True, "gamma": 1.0, "grid": {"shape": shape, "filters": 4}}

    changes: dict[str, Any] = {"eval_episodes": 0, "algo_kwargs": settings}
    whole = train(tiny_run(tmp_path / "whole", "gumbel_muzero", env_id, **changes))
    with stopped_after(STEPS // 4):
        stopped = train(tiny_run(tmp_path / "parts", "gumbel_muzero", env_id, **changes))
    assert stopped.status == "interrupted"
    parts = resume(stopped.run_dir)
    assert whole.status == parts.status == "completed"
    assert "GridNetwork" in str(read_metadata(whole.run_dir)["acceleration"]["reason"])
    policies = [load_policy(result.run_dir) for result in (whole, parts)]
    weights = [dict(policy.actor.network.named_parameters()) for policy in policies]  # type: ignore[attr-defined]
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())
    empty = np.zeros(2 * shape[1] * shape[2], np.float32)
    assert policies[0].predict(empty, num_simulations=4) in range(9)

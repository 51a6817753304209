"""What DQN and its relatives learn towards: targets and losses of values, distributions and quantiles."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from replay_parts import CPU, batch_of
from rl_training.algorithms.distributional import categorical_loss, project_categorical, quantile_huber_loss
from rl_training.algorithms.dqn import dqn_loss, dqn_target, expected_values
from rl_training.algorithms.params.dqn_params import DQNParams
from rl_training.data.replay import Replay, ReplayBatch
from rl_training.data.samplers import UniformSampler

# Two states and two actions. The online network prefers action 0 in state 1, the target network action 1.
ONLINE = [[1.0, 2.0], [5.0, 3.0]]
TARGET = [[0.0, 0.0], [4.0, 10.0]]


class Table:
    """Gives the stored outputs [states, actions, outputs] of the observed state."""

    def __init__(self, outputs: Any) -> None:
        table = torch.tensor(outputs)
        self.outputs = (table if table.ndim == 3 else table.unsqueeze(2)).requires_grad_()

    def forward(self, observation: Tensor, noisy: bool = False) -> Tensor:
        return self.outputs[observation[:, 0].long()]


def _loss(
    batch: ReplayBatch, *, online: Any = ONLINE, target: Any = TARGET, **params: Any
) -> tuple[Tensor, list[float], float]:
    """Return the loss, the errors and the mean value."""
    settings = DQNParams(**params)
    model: Any = online if isinstance(online, Table) else Table(online)
    target_model: Any = target if isinstance(target, Table) else Table(target)
    support = torch.linspace(settings.v_min, settings.v_max, settings.num_atoms)
    weight = torch.ones_like(batch.reward) if batch.weight is None else batch.weight
    weighted, errors, _ = dqn_loss(model, target_model, batch._replace(weight=weight), support, settings)
    loss, _, value = dqn_loss(model, target_model, batch, support, settings)
    assert errors is not None
    assert weighted.item() == pytest.approx(loss.item(), rel=1e-6)
    return loss, errors.tolist(), value.item()


# -- targets and losses of values ----------------------------------------------------------------


def test_plain_target_is_the_largest_value_of_the_target_network() -> None:
    loss, errors, value = _loss(batch_of([1.0], [0.5]), loss="squared")
    assert errors == [abs(1.0 - (1 + 0.5 * 10))]
    assert loss.item() == 25.0
    assert value == 1.0


def test_double_target_is_the_target_networks_value_of_the_online_networks_choice() -> None:
    loss, errors, _ = _loss(batch_of([1.0], [0.5]), loss="squared", double=True)
    assert errors == [abs(1.0 - (1 + 0.5 * 4))]
    assert loss.item() == 4.0


def test_illegal_actions_of_the_successor_count_in_no_target() -> None:
    # The target network says 4 and 10, the online one prefers the first; legal are: both, the first, the second.
    masks = torch.tensor([[True, True], [True, False], [False, True]])
    for double, values in ((False, [10, 4, 10]), (True, [4, 4, 10])):
        batch = batch_of([1.0] * 3, [0.5] * 3)._replace(next_mask=masks)
        _, errors, _ = _loss(batch, double=double)
        assert errors == [abs(1.0 - (1 + 0.5 * value)) for value in values]


@pytest.mark.parametrize("distribution", ["categorical", "quantile"])
def test_illegal_actions_of_the_successor_are_no_choice_of_a_distribution(distribution: str) -> None:
    # Two outputs per action: the first action is worth more, whichever way they are read.
    params = DQNParams(distribution=distribution, num_atoms=2, v_min=0.0, v_max=1.0)  # type: ignore[arg-type]
    model: Any = Table([[[0.0, 9.0], [0.0, 1.0]]] * 2)
    support = torch.linspace(0, 1, 2)
    rows = batch_of([0.0] * 2, [1.0] * 2)._replace(next_mask=torch.tensor([[True, True], [False, True]]))
    target = dqn_target(model, model, rows, support, params)
    outputs = torch.tensor([[0.0, 9.0], [0.0, 1.0]])
    torch.testing.assert_close(target, outputs.softmax(dim=1) if distribution == "categorical" else outputs)


def test_a_terminated_transition_is_worth_its_reward() -> None:
    for double in (False, True):
        _, errors, _ = _loss(batch_of([3.0], [0.0]), double=double)
        assert errors == [2.0]


def test_rows_bootstrap_by_their_own_discount() -> None:
    # One step, three steps, terminated.
    _, errors, _ = _loss(batch_of([0.0, 0.0, 0.0], [0.9, 0.9**3, 0.0]))
    assert errors == pytest.approx([9 - 1, 7.29 - 1, 1], rel=1e-6)


def test_huber_is_linear_beyond_one_and_squared_is_not() -> None:
    rewards, stops = [1.5, 4.0, -2.0], [0.0, 0.0, 0.0]  # errors of 0.5, 3 and 3 from a value of 1
    huber, errors, _ = _loss(batch_of(rewards, stops))
    assert errors == [0.5, 3.0, 3.0]
    assert huber.item() == pytest.approx((0.125 + 2.5 + 2.5) / 3)
    squared, _, _ = _loss(batch_of(rewards, stops), loss="squared")
    assert squared.item() == pytest.approx((0.25 + 9 + 9) / 3)


def test_importance_weights_scale_losses_and_leave_errors_alone() -> None:
    loss, errors, _ = _loss(batch_of([2.0, 3.0], [0.0, 0.0], weight=[1.0, 0.25]), loss="squared")
    assert loss.item() == pytest.approx((1.0 * 1 + 0.25 * 4) / 2)
    assert errors == [1.0, 2.0]


@pytest.mark.parametrize("double", [False, True])
def test_only_the_value_of_the_action_taken_learns(double: bool) -> None:
    online, target = Table(ONLINE), Table(TARGET)
    batch = batch_of([1.0], [0.5], action=[1])
    loss, _, _ = _loss(batch, online=online, target=target, loss="squared", double=double)
    loss.backward()
    assert online.outputs.grad is not None
    slope = 2 * (2.0 - (1 + 0.5 * (4 if double else 10)))
    assert online.outputs.grad.squeeze(2).tolist() == [[0.0, slope], [0.0, 0.0]]
    assert target.outputs.grad is None


def test_n_step_transitions_of_a_replay_reach_the_target() -> None:
    replay = Replay(
        spaces.Box(0, 9, (1,), np.float32),
        np.zeros(1, dtype=np.int64),
        UniformSampler(16),
        capacity=16,
        num_envs=1,
        n_step=3,
        gamma=0.5,
    )
    state = np.zeros((1, 1), dtype=np.float32)
    replay.begin(state)
    never = np.zeros(1, dtype=bool)
    for step, reward in enumerate((1.0, 2.0, 4.0)):
        following = np.full((1, 1), step == 2, dtype=np.float32)  # state 1 after the third step
        reward_row = np.array([reward], dtype=np.float32)
        replay.add(np.zeros(1, dtype=np.int64), reward_row, never, never, following, following)
    (batch,), _ = replay.sample(1, np.random.default_rng(0), CPU)
    _, errors, _ = _loss(batch)
    assert errors == [1 + 0.5 * 2 + 0.25 * 4 + 0.125 * 10 - ONLINE[0][0]]


# -- categorical distributions -------------------------------------------------------------------

SUPPORT = torch.tensor([-1.0, 0.0, 1.0])
PROBS = [0.2, 0.3, 0.5]


@pytest.mark.parametrize(
    ("reward", "discount", "expected"),
    [
        (0.0, 1.0, PROBS),  # nothing moves
        (1.0, 1.0, [0.0, 0.2, 0.8]),  # one atom up; the top one is clipped
        (-1.0, 1.0, [0.5, 0.5, 0.0]),  # one atom down
        (0.25, 0.5, [0.05, 0.5, 0.45]),  # moved to -0.25, 0.25 and 0.75
        (0.5, 0.0, [0.0, 0.5, 0.5]),  # terminated half way between two atoms
        (1.0, 0.0, [0.0, 0.0, 1.0]),  # terminated on an atom
        (7.0, 0.9, [0.0, 0.0, 1.0]),  # beyond both ends
        (-7.0, 0.9, [1.0, 0.0, 0.0]),
    ],
)
def test_projection_shares_the_mass_between_neighbouring_atoms(
    reward: float, discount: float, expected: list[float]
) -> None:
    projected = project_categorical(torch.tensor([PROBS]), torch.tensor([reward]), torch.tensor([discount]), SUPPORT)
    assert projected[0].tolist() == pytest.approx(expected, abs=1e-6)


def test_projection_equals_the_algorithm_of_the_paper() -> None:
    rng = np.random.default_rng(0)
    rows, atoms, low, high = 20, 11, -2.0, 3.0
    probs = rng.dirichlet(np.ones(atoms), size=rows)
    reward, discount = rng.normal(size=rows), rng.uniform(0, 1, size=rows)
    support = np.linspace(low, high, atoms)
    spacing = (high - low) / (atoms - 1)
    expected = np.zeros((rows, atoms))
    for row in range(rows):
        for atom in range(atoms):
            moved = min(high, max(low, reward[row] + discount[row] * support[atom]))
            position = (moved - low) / spacing
            below, above = math.floor(position), math.ceil(position)
            if below == above:
                expected[row, below] += probs[row, atom]
            else:
                expected[row, below] += probs[row, atom] * (above - position)
                expected[row, above] += probs[row, atom] * (position - below)
    arguments = (torch.from_numpy(array) for array in (probs, reward, discount, support))
    projected = project_categorical(*arguments)
    np.testing.assert_allclose(projected.numpy(), expected, atol=1e-12)
    np.testing.assert_allclose(projected.sum(dim=1).numpy(), 1.0, atol=1e-12)


def test_categorical_loss_is_the_cross_entropy() -> None:
    target = torch.tensor([[0.05, 0.5, 0.45], [0.0, 0.0, 1.0]])
    logits = torch.tensor([[0.0, 0.0, 0.0], PROBS]).log_softmax(dim=1)
    logits[1] = torch.tensor(PROBS).log() + 3.0  # a constant changes nothing
    assert categorical_loss(logits, target).tolist() == pytest.approx([math.log(3), -math.log(0.5)], rel=1e-6)


def _categorical(*rows: list[float]) -> Any:
    """Return logits [actions, atoms] of the given probabilities."""
    return [[math.log(max(p, 1e-30)) for p in row] for row in rows]


C51_ONLINE = [_categorical([0.2, 0.3, 0.5], [1 / 3, 1 / 3, 1 / 3]), _categorical([0, 0, 1], [1, 0, 0])]
C51_TARGET = [_categorical([0, 1, 0], [0, 1, 0]), _categorical([0.5, 0.5, 0], [0.25, 0.5, 0.25])]


@pytest.mark.parametrize(
    ("double", "chosen"), [(False, [0.25, 0.5, 0.25]), (True, [0.5, 0.5, 0.0])], ids=["plain", "double"]
)
def test_c51_compares_with_the_projected_distribution_of_the_best_action(double: bool, chosen: list[float]) -> None:
    # Means in state 1: 1 and -1 online, -0.5 and 0 in the target network.
    batch = batch_of([0.5, 0.5], [0.5, 0.0])
    settings: dict[str, Any] = {"distribution": "categorical", "num_atoms": 3, "v_min": -1.0, "v_max": 1.0}
    loss, errors, value = _loss(batch, online=C51_ONLINE, target=C51_TARGET, double=double, **settings)
    moved = [chosen[0], chosen[1] / 2, chosen[1] / 2 + chosen[2]]  # -1, 0, 1 went to 0, 0.5, 1
    first = -(moved[0] * math.log(0.3) + moved[1] * math.log(0.3) + moved[2] * math.log(0.5))
    second = -(0.5 * math.log(0.3) + 0.5 * math.log(0.5))
    assert errors == pytest.approx([first, second], rel=1e-5)
    assert loss.item() == pytest.approx((first + second) / 2, rel=1e-5)
    assert value == pytest.approx(0.5 - 0.2, rel=1e-5)


# -- quantiles -----------------------------------------------------------------------------------


def test_quantile_huber_loss_by_hand() -> None:
    # Fractions 1/4 and 3/4. Errors of the first quantile: 1 and 5; of the second: -1 and 3.
    first = (0.25 * 0.5 + 0.25 * 4.5) / 2
    second = ((1 - 0.75) * 0.5 + 0.75 * 2.5) / 2
    loss = quantile_huber_loss(torch.tensor([[0.0, 2.0]]), torch.tensor([[1.0, 5.0]]))
    assert loss.tolist() == [first + second]


def test_quantiles_and_targets_may_differ_in_number() -> None:
    loss = quantile_huber_loss(torch.tensor([[1.0]]), torch.tensor([[1.0, 1.5, -3.0]]))
    assert loss.tolist() == pytest.approx([0.5 * (0 + 0.125 + 3.5) / 3])


def test_minimising_the_quantile_loss_finds_the_quantiles() -> None:
    samples = torch.arange(0.0, 100.0, dtype=torch.float64).unsqueeze(0) * 10  # so wide that the Huber part is narrow
    quantiles = torch.tensor([[245.0, 745.0]], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(quantile_huber_loss(quantiles, samples).sum(), quantiles)
    assert slope.abs().max() < 0.01
    biased = torch.tensor([[145.0, 845.0]], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(quantile_huber_loss(biased, samples).sum(), biased)
    assert slope[0].tolist() == pytest.approx([-0.1, 0.1], abs=0.01)


def test_qr_dqn_chooses_by_the_mean_and_learns_every_quantile() -> None:
    online = [[[0.0, 2.0], [0.0, 0.0]], [[9.0, 9.0], [0.0, 0.0]]]
    target = [[[0.0, 0.0], [0.0, 0.0]], [[0.0, 12.0], [4.0, 10.0]]]  # means 6 and 7
    settings: dict[str, Any] = {"distribution": "quantile", "num_quantiles": 2}
    loss, errors, value = _loss(batch_of([-1.0], [0.5]), online=online, target=target, **settings)
    first = (0.25 * 0.5 + 0.25 * 3.5) / 2  # targets are 1 and 4
    second = (0.25 * 0.5 + 0.75 * 1.5) / 2
    assert loss.item() == pytest.approx(first + second)
    assert (errors, value) == ([1.5], 1.0)
    _, errors, _ = _loss(batch_of([-1.0], [0.5]), online=online, target=target, double=True, **settings)
    assert errors == [1.0]  # the online network prefers action 0: targets -1 and 5


def test_expected_values_of_each_kind_of_output() -> None:
    support = torch.tensor([-1.0, 0.0, 3.0])
    probs = torch.tensor([[[0.5, 0.25, 0.25], [0.0, 0.0, 1.0]]])
    assert expected_values(torch.tensor([[[1.0], [2.0]]]), "none", support).tolist() == [[1.0, 2.0]]
    assert expected_values(probs.log(), "categorical", support)[0].tolist() == pytest.approx([0.25, 3.0])
    assert expected_values(torch.tensor([[[1.0, 3.0], [0.0, 5.0]]]), "quantile", support).tolist() == [[2.0, 2.5]]

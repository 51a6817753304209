"""DQN's formulas against numbers worked out by hand, and what one update does to the networks."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from replay_parts import (
    CHOICE,
    CONTROLS,
    CPU,
    OBSERVATION,
    Untouched,
    assert_equal_states,
    assert_goes_on_alike,
    batch_of,
    generator,
    parameters_of,
    random_batch,
)
from rl_training.algorithms.distributional import categorical_loss, project_categorical, quantile_huber_loss
from rl_training.algorithms.dqn import (
    DQN,
    C51Params,
    DoubleDQNParams,
    DQNParams,
    QRDQNParams,
    RainbowParams,
    dqn_loss,
    dqn_target,
    expected_values,
)
from rl_training.data.replay import Replay, ReplayBatch
from rl_training.data.samplers import UniformSampler
from rl_training.errors import ConfigError
from rl_training.experiment.config import validate_config
from rl_training.models.noisy import NoisyLinear
from rl_training.models.q_network import QNetwork

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


# -- networks ------------------------------------------------------------------------------------


def _network(*, outputs: int = 1, dueling: bool = False, noisy: bool = False) -> QNetwork:
    return QNetwork(
        OBSERVATION,
        4,
        outputs=outputs,
        hidden_sizes=(8,),
        activation="relu",
        dueling=dueling,
        noisy=noisy,
        generator=generator(0),
    )


@pytest.mark.parametrize("outputs", [1, 5])
def test_dueling_values_average_to_the_state_value(outputs: int) -> None:
    network = _network(outputs=outputs, dueling=True)
    assert network.value is not None
    observation = torch.randn(6, 3, generator=generator(1))
    values = network(observation)
    assert values.shape == (6, 4, outputs)
    torch.testing.assert_close(values.mean(dim=1), network.value(observation))
    with torch.no_grad():
        network.advantage.bias_1.add_(5.0)  # type: ignore[operator]
    torch.testing.assert_close(network(observation), values)  # advantages count only against each other


def test_noisy_layer_adds_factorised_noise_to_its_weights() -> None:
    layer = NoisyLinear(2, 3, generator=generator(0))
    features = torch.tensor([[1.0, 2.0]])
    torch.testing.assert_close(layer(features, True), layer(features, False))  # no noise was drawn yet
    layer.noise_in.copy_(torch.tensor([1.0, -2.0]))
    layer.noise_out.copy_(torch.tensor([0.5, 0.0, -1.0]))
    sigma = 0.5 / math.sqrt(2)
    # Output i gets sigma * noise_out[i] * (1 * 1 + 2 * -2), and noise on its bias.
    shift = torch.tensor([[0.5, 0.0, -1.0]]) * (-3 * sigma + 0.5 / math.sqrt(3))
    torch.testing.assert_close(layer(features, True) - layer(features, False), shift)


def test_noise_is_the_signed_root_of_a_normal() -> None:
    layer = NoisyLinear(20_000, 1, generator=generator(0))
    layer.resample(generator(1))
    first = layer.noise_in.clone()
    assert abs(first.mean().item()) < 0.03
    assert first.square().mean().item() == pytest.approx(math.sqrt(2 / math.pi), rel=0.03)
    layer.resample(generator(2))
    assert not torch.equal(layer.noise_in, first)
    layer.resample(generator(1))
    assert torch.equal(layer.noise_in, first)


def _algorithm(*, seed: int = 0, kind: type[DQNParams] = DQNParams, action_space: Any = CHOICE, **params: Any) -> DQN:
    settings = kind(**{"hidden_sizes": (8,), "num_atoms": 5, "num_quantiles": 5, **params})
    return DQN(settings, OBSERVATION, action_space, device=CPU, generator=generator(seed))


def test_exploring_draws_noise_and_evaluating_uses_none() -> None:
    algorithm = _algorithm(noisy=True)
    observation = torch.randn(64, 3, generator=generator(1))
    greedy = algorithm.choose(observation, None, None)
    quiet = {**CONTROLS, "epsilon": 0.0}
    explored = [algorithm.act(observation, None, quiet, generator(seed)).tolist() for seed in (1, 2, 1)]
    assert explored[0] == explored[2]
    assert explored[0] != explored[1]
    assert greedy.tolist() not in explored
    assert torch.equal(algorithm.choose(observation, None, None), greedy)


def test_noise_is_part_of_the_state() -> None:
    algorithm, other = _algorithm(noisy=True), _algorithm(noisy=True, seed=5)
    observation = torch.randn(4, 3, generator=generator(1))
    algorithm.act(observation, None, CONTROLS, generator(2))
    assert "advantage.layers.0.noise_in" in algorithm.state_dict()["model"]
    other.load_state_dict(copy.deepcopy(algorithm.state_dict()))
    assert torch.equal(algorithm.model(observation, True), other.model(observation, True))
    assert not torch.equal(algorithm.model(observation, True), algorithm.model(observation, False))


def test_every_update_draws_noise_for_both_networks() -> None:
    algorithm = _algorithm(noisy=True)
    noises = []
    for seed in range(2):
        algorithm.update(random_batch(CHOICE), CONTROLS, generator(seed))
        noises += [
            model.state_dict()["advantage.layers.0.noise_in"].clone()
            for model in (algorithm.model, algorithm.target_model)
        ]
    assert len({tuple(noise.tolist()) for noise in noises}) == 4


# -- acting --------------------------------------------------------------------------------------


def _shares(actions: Tensor) -> list[float]:
    return (torch.bincount(actions, minlength=4) / len(actions)).tolist()


def test_epsilon_is_the_share_of_random_actions() -> None:
    algorithm = _algorithm()
    observation = torch.ones(1, 3).expand(20_000, 3)
    best = int(algorithm.choose(observation[:1], None, None)[0])
    for epsilon in (0.0, 0.4, 1.0):
        shares = _shares(algorithm.act(observation, None, {**CONTROLS, "epsilon": epsilon}, generator(1)))
        expected = [epsilon / 4 + (1 - epsilon) * (action == best) for action in range(4)]
        assert shares == pytest.approx(expected, abs=0.015 if epsilon else 0.0)
    shares = _shares(algorithm.choose(observation, None, generator(2)))
    assert shares[best] == pytest.approx(1 - 0.05 * 3 / 4, abs=0.01)


@pytest.mark.parametrize("noisy", [False, True])
def test_illegal_actions_are_never_taken(noisy: bool) -> None:
    algorithm = _algorithm(noisy=noisy)
    rows = 3000
    observation = torch.randn(rows, 3, generator=generator(1))
    mask = torch.rand(rows, 4, generator=generator(2)) < 0.4
    mask[torch.arange(rows), torch.arange(rows) % 4] = True
    legal_counts = mask.sum(dim=1)
    for epsilon in (0.0, 0.5, 1.0):
        action = algorithm.act(observation, mask, {**CONTROLS, "epsilon": epsilon}, generator(3))
        assert mask.gather(1, action.unsqueeze(1)).all()
    for chooser in (None, generator(4)):
        assert mask.gather(1, algorithm.choose(observation, mask, chooser).unsqueeze(1)).all()
    random = algorithm.random_actions(rows, mask, generator(5))
    assert mask.gather(1, random.unsqueeze(1)).all()
    two = legal_counts == 2
    first_legal = mask[two].float().argmax(dim=1)
    assert (random[two] == first_legal).float().mean().item() == pytest.approx(0.5, abs=0.07)
    values = algorithm.model(observation).squeeze(2).masked_fill(~mask, -torch.inf)
    assert torch.equal(algorithm.choose(observation, mask, None), values.argmax(dim=1))


def test_actions_are_counted_from_the_start_of_the_space() -> None:
    algorithm = _algorithm(action_space=spaces.Discrete(4, start=3))
    assert algorithm.env_action(torch.tensor([0, 3])).tolist() == [3, 6]


# -- updates -------------------------------------------------------------------------------------


def test_updates_equal_a_loop_written_with_torch_alone() -> None:
    algorithm = _algorithm(double=True, max_grad_norm=0.5, optimizer_eps=1e-5)
    online, target = copy.deepcopy(algorithm.model), copy.deepcopy(algorithm.target_model)
    parameters = list(online.parameters())
    optimizer = torch.optim.Adam(parameters, lr=1e-2, eps=1e-5)
    for seed in range(6):
        batch = random_batch(CHOICE, seed=seed, weighted=True)
        assert batch.weight is not None
        with torch.no_grad():
            best = online(batch.next_observation).squeeze(2).argmax(dim=1, keepdim=True)
            following = target(batch.next_observation).squeeze(2).gather(1, best).squeeze(1)
        value = online(batch.observation).squeeze(2).gather(1, batch.action.unsqueeze(1)).squeeze(1)
        error = (value - batch.reward - batch.discount * following).abs()
        loss = (batch.weight * torch.where(error < 1, 0.5 * error**2, error - 0.5)).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 0.5)
        optimizer.step()
        metrics, errors = algorithm.update(batch, CONTROLS, generator(seed))
        torch.testing.assert_close(metrics["loss_q"], loss.detach(), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(errors, error.detach(), rtol=1e-4, atol=1e-5)
        if seed % 2:
            target.load_state_dict(online.state_dict())
            algorithm.update_target()
    torch.testing.assert_close(parameters_of(algorithm.model), parameters_of(online), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "options", [{}, {"loss": "squared"}, {"double": True}, {"hidden_sizes": ()}, {"hidden_sizes": (5, 40, 33)}], ids=str
)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_the_compiled_gradient_is_that_of_autograd(options: dict[str, Any], weighted: bool, masked: bool) -> None:
    compiled, by_graph = (_algorithm(max_grad_norm=None, **options) for _ in range(2))
    assert compiled._compiled_gradient is not None
    by_graph._compiled_gradient = None
    for algorithm in (compiled, by_graph):  # so that double's two judges disagree
        algorithm.target_values.add_(torch.randn(algorithm.target_values.shape, generator=generator(9)), alpha=0.3)
    for rows in (16, 5, 27):
        batch = random_batch(CHOICE, seed=rows, rows=rows, weighted=weighted)
        batch = batch._replace(reward=3 * batch.reward)  # errors on both sides of Huber's corner
        if masked:
            mask = torch.rand(rows, 4, generator=generator(rows)) < 0.5
            mask[:, rows % 4] = True
            batch = batch._replace(next_mask=mask)
        reports = [algorithm.update(batch, CONTROLS, generator(0)) for algorithm in (compiled, by_graph)]
        torch.testing.assert_close(compiled.optimizer.gradient, by_graph.optimizer.gradient, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(reports[0], reports[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("place", ["values", "target_values"])
def test_a_weight_that_is_no_number_reaches_the_compiled_loss(place: str) -> None:
    algorithm = _algorithm()
    (algorithm.optimizer.values if place == "values" else algorithm.target_values)[0] = torch.nan
    metrics, _ = algorithm.update(random_batch(CHOICE), CONTROLS, generator(0))
    assert metrics["loss_q"].isnan()


@pytest.mark.parametrize(
    "options",
    [
        {"dueling": True},
        {"noisy": True},
        {"distribution": "quantile"},
        {"distribution": "quantile", "num_quantiles": 1},
        {"activation": "silu"},
        {"hidden_sizes": (512, 512)},
    ],
    ids=str,
)
def test_other_networks_learn_by_autograd(options: dict[str, Any]) -> None:
    assert _algorithm(**options)._compiled_gradient is None


def test_the_learning_rate_comes_with_each_call() -> None:
    algorithm = _algorithm()
    before = parameters_of(algorithm.model)
    algorithm.update(random_batch(CHOICE), {**CONTROLS, "learning_rate": 0.0}, generator(0))
    assert torch.equal(parameters_of(algorithm.model), before)
    algorithm.update(random_batch(CHOICE), CONTROLS, generator(0))
    assert not torch.equal(parameters_of(algorithm.model), before)


@pytest.mark.parametrize("tau", [1.0, 0.25])
def test_the_target_network_moves_only_when_told_and_by_tau(tau: float) -> None:
    algorithm = _algorithm(tau=tau)
    before = parameters_of(algorithm.target_model)
    assert torch.equal(before, parameters_of(algorithm.model))
    for seed in range(3):
        algorithm.update(random_batch(CHOICE, seed=seed), CONTROLS, generator(seed))
    assert torch.equal(parameters_of(algorithm.target_model), before)
    online = parameters_of(algorithm.model)
    assert not torch.equal(online, before)
    algorithm.update_target()
    expected = (1 - tau) * before + tau * online
    torch.testing.assert_close(parameters_of(algorithm.target_model), expected, rtol=1e-6, atol=1e-7)
    assert torch.equal(parameters_of(algorithm.model), online)
    if tau == 1.0:
        assert_equal_states(dict(algorithm.model.state_dict()), dict(algorithm.target_model.state_dict()))


KINDS = [DQNParams, DoubleDQNParams, C51Params, QRDQNParams, RainbowParams]


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_state_goes_on_bit_for_bit(kind: type[DQNParams]) -> None:
    assert_goes_on_alike(_algorithm(kind=kind), _algorithm(kind=kind, seed=9), CHOICE)


@pytest.mark.parametrize("kind", KINDS)
def test_global_generators_are_left_alone(kind: type[DQNParams]) -> None:
    with Untouched():
        algorithm = _algorithm(kind=kind)
        batch = random_batch(CHOICE)
        algorithm.act(batch.observation, None, CONTROLS, generator(0))
        algorithm.random_actions(4, None, generator(0))
        algorithm.update(batch, CONTROLS, generator(0))
        algorithm.update_target()


@pytest.mark.parametrize("kind", KINDS)
def test_repeated_updates_bring_the_loss_down(kind: type[DQNParams]) -> None:
    algorithm = _algorithm(kind=kind, noisy=False, hidden_sizes=(32,), v_min=-3.0, v_max=3.0)
    batch = random_batch(CHOICE, discount=0.0)
    losses = [algorithm.update(batch, CONTROLS, generator(seed))[0]["loss_q"].item() for seed in range(150)]
    floor = 0.0
    if algorithm.params.distribution == "categorical":  # the entropy of the targets is left
        probs = project_categorical(torch.full((16, 5), 0.2), batch.reward, torch.zeros(16), algorithm.support)
        floor = -torch.special.xlogy(probs, probs).sum(dim=1).mean().item()
    assert losses[-1] - floor < 0.15 * (losses[0] - floor)


# -- parameter sets ------------------------------------------------------------------------------


def test_the_registry_names_are_parameter_sets_of_one_algorithm() -> None:
    def differences(kind: type[DQNParams]) -> dict[str, Any]:
        plain, own = vars(DQNParams()), vars(kind())
        return {key: own[key] for key in own if own[key] != plain[key]}

    assert differences(DoubleDQNParams) == {"double": True}
    assert differences(C51Params) == {"distribution": "categorical"}
    assert differences(QRDQNParams) == {"distribution": "quantile"}
    six = {"double": True, "dueling": True, "n_step": 3, "prioritized": True, "noisy": True}
    assert differences(RainbowParams).items() >= {**six, "distribution": "categorical", "epsilon": 0.0}.items()


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"v_min": 1.0, "v_max": 1.0}, "algo_kwargs.v_min: must lie below v_max"),
        ({"loss": "squared", "distribution": "quantile"}, "algo_kwargs.loss: has no meaning for a distribution"),
        ({"batch_size": 64, "buffer_size": 32}, "algo_kwargs.batch_size: is larger than the replay"),
        ({"learning_starts": 5000}, "algo_kwargs.learning_starts: 5000 steps before learning leave nothing"),
        ({"n_step": 33, "buffer_size": 32}, "algo_kwargs.n_step: is longer than the replay"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(settings: dict[str, Any], complaint: str) -> None:
    raw = {"algo": "dqn", "env_id": "CartPole-v1", "seed": 0, "total_timesteps": 5000, "output_dir": "runs"}
    with pytest.raises(ConfigError) as refused:
        validate_config({**raw, "algo_kwargs": settings})
    assert complaint in str(refused.value)

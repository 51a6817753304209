"""DQN with a memory: its loss is that of the same sequences one by one, from the memories that acting had."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from replay_parts import generator
from rl_training.algorithms.dqn import DQN, dqn_loss
from rl_training.algorithms.params.dqn_params import C51Params, DQNParams, QRDQNParams, RainbowParams
from rl_training.algorithms.params.recurrent_params import ReplayedMemoryParams
from rl_training.algorithms.recurrent.recurrent_dqn import RecurrentDQN, sequence_errors
from rl_training.data.replay import ReplayBatch
from rl_training.data.samplers import UniformSampler
from rl_training.data.sequence_replay import SequenceBatch, SequenceReplay
from rl_training.errors import ConfigError
from rl_training.models.recurrent import Sequences

SEES, TAKES = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(4)
CPU = torch.device("cpu")
CONTROLS = {"learning_rate": 1e-3, "epsilon": 0.3}
GAMMA = 0.9
KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "lstm": (DQNParams, {}),
    "gru": (DQNParams, {"recurrent": {"type": "gru", "layers": 2}, "double": True, "dueling": True}),
    "c51": (C51Params, {"num_atoms": 5, "v_min": -2.0, "v_max": 2.0}),
    "quantile": (QRDQNParams, {"num_quantiles": 4, "double": True}),
    "rainbow": (RainbowParams, {"num_atoms": 5, "v_min": -2.0, "v_max": 2.0, "recurrent": {"layers": 2}}),
}


def make(name: str = "lstm", **params: Any) -> RecurrentDQN:
    """Return an algorithm whose two networks differ and are far from their start."""
    kind, options = KINDS[name]
    recurrent = {"size": 5, "sequence_length": 7, "burn_in": 4, **options.get("recurrent", {})}
    recurrent |= params.pop("recurrent", {})
    settings = {"gamma": GAMMA, "n_step": 3, "hidden_sizes": (6,), **options, **params}
    settings["recurrent"] = ReplayedMemoryParams(**recurrent)
    chosen = kind(**settings)
    algorithm_class: Any = DQN.for_params(chosen)
    algorithm: RecurrentDQN = algorithm_class(chosen, SEES, TAKES, device=CPU, generator=generator(1))
    with torch.no_grad():
        for seed, model in enumerate((algorithm.model, algorithm.target_model)):
            for weight in model.parameters():
                weight.add_(torch.randn(weight.shape, generator=generator(seed)), alpha=0.3)
            model.resample(generator(seed))
    return algorithm


def played(algorithm: RecurrentDQN, ended: np.ndarray, *, terminal: bool = True, seed: int = 3) -> SequenceReplay:
    """Return the replay of steps taken by the algorithm, with episodes that end where `ended` [steps, envs] says."""
    steps, envs = ended.shape
    params = algorithm.params
    assert params.recurrent is not None
    replay = SequenceReplay(
        SEES,
        np.zeros(envs, np.int64),
        UniformSampler(steps * envs),
        memory_size=algorithm.memory_size,
        sequence_length=params.recurrent.sequence_length,
        burn_in=params.recurrent.burn_in,
        n_step=params.n_step,
        gamma=params.gamma,
        capacity=steps * envs,
        num_envs=envs,
    )
    draws, noise = np.random.default_rng(seed), generator(seed)
    observation = draws.normal(size=(envs, 3)).astype(np.float32)
    memory = np.zeros((envs, algorithm.memory_size), np.float32)
    replay.begin(observation)
    for over in ended:
        action, after = algorithm.act_with_memory(
            torch.from_numpy(observation), None, CONTROLS, noise, torch.from_numpy(memory)
        )
        final, first = np.asarray(draws.normal(size=(2, envs, 3)), dtype=np.float32)
        shown = np.where(over[:, None], first, final)
        reward = np.asarray(draws.normal(size=envs), dtype=np.float32)
        terminated = over if terminal else np.zeros_like(over)
        replay.add(action.numpy(), reward, terminated, over & ~terminated, final, shown, memory=memory)
        observation, memory = shown, np.where(over[:, None], np.float32(0), after.numpy())
    return replay


def all_of(replay: SequenceReplay) -> SequenceBatch:
    """Return every sequence of a replay once, with weights that differ."""
    windows = replay.windows(np.arange(replay.count))
    once = np.unique(windows.start, return_index=True)[1]
    batch = replay._batch(type(windows)(*(part[once] for part in windows)), CPU, 1.0)
    return batch._replace(weight=torch.linspace(0.5, 1.0, len(once)))


def alone(batch: SequenceBatch, number: int) -> SequenceBatch:
    """Return one sequence of a batch."""
    first = int(batch.lengths[:number].sum())
    before = int(batch.earlier_lengths[:number].sum())
    mine = batch.sequence == number
    assert isinstance(batch.observation, torch.Tensor)
    assert isinstance(batch.earlier, torch.Tensor)
    return SequenceBatch(
        memory=batch.memory[number : number + 1],
        earlier=batch.earlier[before : before + int(batch.earlier_lengths[number])],
        earlier_lengths=batch.earlier_lengths[number : number + 1],
        observation=batch.observation[first : first + int(batch.lengths[number])],
        lengths=batch.lengths[number : number + 1],
        row=batch.row[mine] - first,
        next_row=batch.next_row[mine] - first,
        action=batch.action[mine],
        reward=batch.reward[mine],
        discount=batch.discount[mine],
        next_mask=None,
        sequence=batch.sequence[mine] - number,
        weight=batch.weight[number : number + 1],
    )


ends = st.lists(st.lists(st.booleans(), min_size=2, max_size=2), min_size=1, max_size=40)


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=10, deadline=None)
@given(ended=ends, length=st.integers(1, 40), burn_in=st.integers(0, 8))
def test_a_minibatch_has_the_loss_and_gradient_of_its_sequences_one_by_one(
    name: str, ended: list[list[bool]], length: int, burn_in: int
) -> None:
    algorithm = make(name, recurrent={"sequence_length": length, "burn_in": burn_in})
    batch = all_of(played(algorithm, np.array(ended)))
    together, _ = algorithm.loss(batch)
    weights = list(algorithm.model.parameters())
    grads = torch.autograd.grad(together, weights, allow_unused=True)
    count = len(batch.lengths)
    apart = torch.stack([algorithm.loss(alone(batch, number))[0] for number in range(count)]).mean()
    torch.testing.assert_close(together, apart, rtol=1e-4, atol=1e-5)
    for one, other in zip(grads, torch.autograd.grad(apart, weights, allow_unused=True), strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("name", ["lstm", "gru", "quantile"])
def test_a_loss_is_that_of_plain_transitions_whose_values_were_computed_step_by_step(name: str, terminal: bool) -> None:
    """By hand: run both networks over whole episodes one step at a time, then form every n-step target singly."""
    algorithm = make(name, recurrent={"sequence_length": 40, "burn_in": 0})  # each episode is one sequence
    ended = np.zeros((12, 1), bool)
    ended[[4, 9]] = True
    replay = played(algorithm, ended, terminal=terminal)
    batch = all_of(replay)
    reward = replay.columns["reward"]
    total, sequences = torch.zeros(()), [range(5), range(5, 10), range(10, 12)]
    for number, steps in enumerate(sequences):
        shown = np.concatenate([replay.columns["observation"][list(steps)], replay.columns["successor"][[steps[-1]]]])
        observed = torch.as_tensor(replay.observations.get(shown))
        outputs = []
        for model in (algorithm.model, algorithm.target_model):
            memory, each = torch.zeros(1, algorithm.memory_size), []
            for row in observed:
                output, memory = model.step(row[None], memory)
                each.append(output[0])
            outputs.append(torch.stack(each))
        online, target = outputs
        losses = []
        for step in range(len(steps)):
            last = min(step + 3, len(steps))
            value = sum(GAMMA**power * reward[steps[step + power]] for power in range(last - step))
            over = terminal and last == len(steps) and number < 2

            class Table:
                def __init__(self, rows: torch.Tensor) -> None:
                    self.rows = rows

                def forward(self, observation: torch.Tensor, noisy: bool) -> torch.Tensor:
                    return self.rows[observation]

            transition = ReplayBatch(
                observation=torch.tensor([step]),
                action=torch.as_tensor(replay.columns["action"][[steps[step]]]),
                reward=torch.tensor([value], dtype=torch.float32),
                discount=torch.tensor([0.0 if over else GAMMA ** (last - step)]),
                next_observation=torch.tensor([last]),
                weight=None,
            )
            online_table: Any = Table(online)
            target_table: Any = Table(target)
            losses.append(dqn_loss(online_table, target_table, transition, algorithm.support, algorithm.params)[0])
        total = total + batch.weight[number] * torch.stack(losses).mean()
    torch.testing.assert_close(algorithm.loss(batch)[0], total / 3, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["lstm", "gru"])
@settings(max_examples=10, deadline=None)
@given(ended=ends, length=st.integers(1, 12), burn_in=st.integers(1, 12))
def test_with_unchanged_weights_the_burn_in_arrives_at_the_stored_memory(
    name: str, ended: list[list[bool]], length: int, burn_in: int
) -> None:
    algorithm = make(name, recurrent={"sequence_length": length, "burn_in": burn_in})
    replay = played(algorithm, np.array(ended))
    windows = replay.windows(np.arange(replay.count))
    batch = replay._batch(windows, CPU, 1.0)
    after = algorithm.model.memory_after(batch.earlier, Sequences(batch.earlier_lengths, batch.memory))
    stored = torch.as_tensor(replay.columns["memory"][windows.start % replay.capacity])
    torch.testing.assert_close(after, stored, rtol=1e-4, atol=1e-5)
    assert windows.earlier.tolist() == np.minimum(burn_in, replay.columns["place"][windows.start]).tolist()


def test_the_burn_in_changes_an_outdated_memory_and_has_no_gradient() -> None:
    algorithm = make()
    batch = all_of(played(algorithm, np.zeros((20, 2), bool)))
    outdated = batch._replace(memory=torch.zeros_like(batch.memory).requires_grad_())
    algorithm.loss(outdated)[0].backward()
    assert outdated.memory.grad is None or not outdated.memory.grad[batch.earlier_lengths > 0].any()
    without = outdated._replace(earlier_lengths=torch.zeros_like(batch.earlier_lengths))
    assert not torch.isclose(algorithm.loss(outdated)[0], algorithm.loss(without)[0])


def test_every_step_of_a_sequence_gets_the_priority_of_the_sequence() -> None:
    errors = sequence_errors(torch.tensor([1.0, 3.0, 2.0, 5.0]), torch.tensor([0, 0, 0, 1]))
    torch.testing.assert_close(errors, torch.tensor([2.9, 2.9, 2.9, 5.0]))


@pytest.mark.parametrize("name", KINDS)
def test_repeated_updates_bring_the_loss_down(name: str) -> None:
    algorithm = make(name)
    batch: Any = all_of(played(algorithm, np.random.default_rng(0).random((30, 2)) < 0.1))
    losses = [algorithm.update(batch, {"learning_rate": 1e-2}, generator(0))["loss_q"] for _ in range(60)]
    assert float(torch.stack(losses[-5:]).mean()) < 0.9 * float(torch.stack(losses[:5]).mean())


def test_a_subclass_without_a_memory_refuses_one() -> None:
    class Own(DQN):
        """A user's algorithm."""

    with pytest.raises(ConfigError, match="derive it from RecurrentDQN"):
        Own.for_params(DQNParams(recurrent=ReplayedMemoryParams()))


@pytest.mark.parametrize(
    ("params", "sentence"),
    [
        ({"hindsight": "future"}, "algo_kwargs.hindsight: a stored memory has seen the goal"),
        ({"dataset_fraction": 0.5}, "algo_kwargs.dataset_fraction: a dataset has no memories"),
        ({"buffer_size": 40}, "algo_kwargs.recurrent: sequences of 32 steps after 16 of burn-in are longer than"),
    ],
)
def test_what_does_not_go_with_a_memory_is_refused_in_a_sentence(params: dict[str, Any], sentence: str) -> None:
    problems = DQNParams(**params, recurrent=ReplayedMemoryParams()).problems(num_envs=1, total_timesteps=10_000)
    assert [problem for problem in problems if problem.startswith(sentence)]

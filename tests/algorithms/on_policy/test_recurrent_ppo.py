"""PPO with a memory: its losses are those of the same episodes one by one, and padding never counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import tiny_config
from rl_training.algorithms.params.ppo_params import PPOParams
from rl_training.algorithms.params.recurrent_params import RecurrentParams
from rl_training.algorithms.ppo import PPO, PPOBatch
from rl_training.algorithms.recurrent.recurrent_ppo import RecurrentPPO, SequenceBatch, sequence_rows
from rl_training.data.rollout import Rollout
from rl_training.errors import AxiomError, ConfigError
from rl_training.models.recurrent import Sequences
from rl_training.runtime.acting.policy import load_policy
from rl_training.runtime.workflows import evaluate, train

SEES, TAKES = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(4)
CPU = torch.device("cpu")
CONTROLS = {"learning_rate": 1e-3, "clip_coef": 0.2, "ent_coef": 0.01}


def make(
    kind: str = "lstm", *, separate: bool = True, layers: int = 1, takes: Any = TAKES, **params: Any
) -> RecurrentPPO:
    """Return an algorithm with weights that are far from their start."""
    length = params.pop("sequence_length", 7)
    recurrent = RecurrentParams(kind, 5, layers, length, separate_critic=separate)  # type: ignore[arg-type]
    chosen = PPOParams(**{"num_steps": 40, "minibatch_size": 20, **params, "recurrent": recurrent})
    algorithm_class: Any = PPO.for_params(chosen)
    algorithm: RecurrentPPO = algorithm_class(
        chosen, SEES, TAKES, device=CPU, generator=torch.Generator().manual_seed(1)
    )
    with torch.no_grad():
        for weight in algorithm.model.parameters():
            weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(2)), alpha=0.3)
    return algorithm


def rollout_of(algorithm: RecurrentPPO, ended: torch.Tensor, *, masks: bool = False, seed: int = 3) -> Rollout:
    """Return a rollout as acting would fill it, with episodes that end where `ended` [steps, envs] says."""
    generator = torch.Generator().manual_seed(seed)
    steps, envs = ended.shape
    observation = torch.randn(steps + 1, envs, 3, generator=generator)
    legal = torch.rand(steps, envs, 4, generator=generator) < 0.7
    legal[..., 0] = True
    memory, columns = np.zeros((envs, algorithm.memory_size), np.float32), []
    for step in range(steps):
        mask = legal[step].numpy() if masks else None
        chosen = algorithm.act_on_host(observation[step].numpy(), mask, CONTROLS, generator, memory)
        assert chosen.memory is not None
        columns.append((chosen.action, chosen.log_prob, chosen.value, memory))
        memory = np.where(ended[step].numpy()[:, None], np.float32(0), chosen.memory)
    action, log_prob, value, before = (torch.as_tensor(np.stack(part)) for part in zip(*columns, strict=True))
    return Rollout(
        observation=observation[:-1],
        action=action,
        mask=legal if masks else None,
        reward=torch.randn(steps, envs, generator=generator),
        terminated=ended,
        truncated=torch.zeros_like(ended),
        final_value=torch.zeros(steps, envs),
        last_observation=observation[-1],
        log_prob=log_prob,
        value=value,
        memory=before,
        last_memory=torch.as_tensor(memory),
    )


ends = st.lists(st.lists(st.booleans(), min_size=2, max_size=2), min_size=1, max_size=40)


@settings(max_examples=40, deadline=None)
@given(ended=ends, length=st.integers(1, 41))
def test_sequences_hold_every_step_once_and_never_cross_an_end(ended: list[list[bool]], length: int) -> None:
    table = torch.tensor(ended)
    rows, lengths = sequence_rows(table, length)
    assert sorted(rows.tolist()) == list(range(table.numel()))
    assert int(lengths.sum()) == table.numel()
    assert int(lengths.max()) <= length
    for sequence in torch.split(rows, lengths.tolist()):
        steps, envs = sequence // 2, sequence % 2
        assert len(envs.unique()) == 1
        assert steps.tolist() == list(range(int(steps[0]), int(steps[0]) + len(steps)))
        assert not any(ended[int(step)][int(envs[0])] for step in steps[:-1])


@pytest.mark.parametrize("masks", [False, True])
@pytest.mark.parametrize(("kind", "separate", "layers"), [("lstm", True, 1), ("gru", False, 2), ("lstm", False, 2)])
@settings(max_examples=10, deadline=None)
@given(ended=ends, length=st.integers(1, 41))
def test_the_policy_of_sequences_is_that_of_the_steps_when_acting(
    kind: str, separate: bool, layers: int, masks: bool, ended: list[list[bool]], length: int
) -> None:
    """Run together, padded, from remembered states: every log-probability and value is that of acting step by step."""
    algorithm = make(kind, separate=separate, layers=layers, sequence_length=length)
    batch = algorithm.prepare(rollout_of(algorithm, torch.tensor(ended), masks=masks))
    distribution, value = algorithm.model.run(batch.observation, batch.action_mask, batch.sequences)
    torch.testing.assert_close(distribution.log_prob(batch.action), batch.log_prob, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(value, batch.value, rtol=1e-4, atol=1e-5)


@settings(max_examples=10, deadline=None)
@given(ended=ends, length=st.integers(1, 41))
def test_after_a_lag_all_sequences_are_evaluated_by_the_present_weights_and_advantages_weighted(
    ended: list[list[bool]], length: int
) -> None:
    algorithm = make(sequence_length=length)
    acted = algorithm.as_acted(rollout_of(algorithm, torch.tensor(ended), masks=True))
    with torch.no_grad():
        for weight in algorithm.model.parameters():
            weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(5)), alpha=0.1)
        batch = algorithm.prepare(acted)
        distribution, value = algorithm.model.run(batch.observation, batch.action_mask, batch.sequences)
        last = algorithm.values(acted.last_observation, acted.last_memory.numpy())  # type: ignore[union-attr]
    torch.testing.assert_close(batch.value, value, rtol=1e-4, atol=1e-5)
    log_prob = distribution.log_prob(batch.action)
    torch.testing.assert_close(batch.log_prob, log_prob, rtol=1e-4, atol=1e-5)
    if len(ended) == 1:
        expected = acted.reward[0] + algorithm.params.gamma * last * ~acted.terminated[0]
        torch.testing.assert_close(batch.target_value, expected, rtol=1e-4, atol=1e-5)
        weight = (log_prob - acted.log_prob[0]).exp().clamp(max=1.0)  # type: ignore[index]
        assert not torch.equal(weight, torch.ones_like(weight))
        torch.testing.assert_close(batch.advantage, weight * (batch.target_value - value), rtol=1e-3, atol=1e-4)


@settings(max_examples=20, deadline=None)
@given(ended=ends)
def test_a_minibatch_has_the_loss_and_gradient_of_its_episodes_one_by_one(ended: list[list[bool]]) -> None:
    algorithm = make(normalize_advantage=False, sequence_length=40)
    batch = algorithm.prepare(rollout_of(algorithm, torch.tensor(ended)))
    together, _ = algorithm.loss(batch, CONTROLS)
    grads = torch.autograd.grad(together, list(algorithm.model.parameters()), allow_unused=True)
    total, first = torch.zeros(()), 0
    for number, length in enumerate(batch.sequences.lengths.tolist()):
        rows = torch.arange(first, first + length)
        alone = Sequences(torch.tensor([length]), batch.sequences.memory[number : number + 1])
        single = SequenceBatch(**vars(PPOBatch.select(batch, rows)), sequences=alone)
        total = total + algorithm.loss(single, CONTROLS)[0] * length
        first += length
    expected = total / first
    torch.testing.assert_close(together, expected, rtol=1e-4, atol=1e-5)
    apart = torch.autograd.grad(expected, list(algorithm.model.parameters()), allow_unused=True)
    for one, other in zip(grads, apart, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_minibatches_are_whole_sequences_of_about_the_size_asked_for() -> None:
    algorithm = make(minibatch_size=20, update_epochs=2)
    ended = torch.rand(40, 4, generator=torch.Generator().manual_seed(0)) < 0.1
    batch = algorithm.prepare(rollout_of(algorithm, ended))
    minibatches = list(algorithm._minibatches(batch, torch.Generator().manual_seed(5)))
    rows = [int(part.sequences.lengths.sum()) for part in minibatches]  # type: ignore[attr-defined]
    assert sum(rows) == 2 * 160
    assert max(rows) < 20 + 7
    assert all(len(part.log_prob) == count for part, count in zip(minibatches, rows, strict=True))
    first = minibatches[0]
    assert isinstance(first, SequenceBatch)
    distribution, _ = algorithm.model.run(first.observation, first.action_mask, first.sequences)
    torch.testing.assert_close(distribution.log_prob(first.action), first.log_prob, rtol=1e-4, atol=1e-5)


def test_a_subclass_without_a_memory_refuses_one() -> None:
    class Own(PPO):
        """A user's algorithm."""

    with pytest.raises(ConfigError, match="derive it from RecurrentPPO"):
        Own.for_params(PPOParams(recurrent=RecurrentParams()))


def test_a_trained_policy_remembers_in_evaluation_and_in_predict(tmp_path: Path) -> None:
    result = train(tiny_config(tmp_path, algo_kwargs={"recurrent": {"size": 8, "sequence_length": 6}}))
    assert evaluate(result.run_dir, num_episodes=2, seed=1).episodes[0].length > 0
    policy = load_policy(result.run_dir)
    observations = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
    state, states = None, []
    for observation in observations:
        _, state = policy.predict(observation, state)
        states.append(state)
    batch = np.stack([observations[0], observations[0]])
    _, both = policy.predict(batch)
    np.testing.assert_allclose(both[0], states[0], rtol=1e-5, atol=1e-6)
    _, after = policy.predict(batch, both, [True, False])
    np.testing.assert_allclose(after[0], states[0], rtol=1e-5, atol=1e-6)  # started anew
    assert not np.allclose(after[1], states[0])
    with pytest.raises(AxiomError, match="give back what predict returned last"):
        policy.predict(batch, states[0])


def test_a_policy_without_a_memory_takes_no_state(tmp_path: Path) -> None:
    policy = load_policy(train(tiny_config(tmp_path)).run_dir)
    with pytest.raises(AxiomError, match="this policy has no memory"):
        policy.predict(np.zeros(4, np.float32), np.zeros(3))

"""Tables: models to search in (as torch, and as a perceptron whose latent says which edge was taken), and policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor

from rl_training.algorithms.base import ActingAlgorithm
from rl_training.data.datasets.columns import DatasetColumns
from rl_training.kernels.search.perceptron_layout import Dense
from rl_training.kernels.search.perceptron_model import MLPModel
from rl_training.models.distributions import Categorical, mask_logits
from rl_training.runtime.acting.policy import Policy
from rl_training.search.model import ModelOutput


@dataclass
class TabularModel:
    """A Markov decision process in tables; an observation is a state's number."""

    next_state: Tensor  # [S, A]
    reward: Tensor  # [S, A]
    value: Tensor  # [S]
    logits: Tensor  # [S, A]
    discount: Tensor  # [S, A]

    @classmethod
    def of(cls, **tables: Any) -> TabularModel:
        """Make it from lists or arrays."""
        kinds = {"next_state": torch.int64}
        return cls(
            **{name: torch.as_tensor(table, dtype=kinds.get(name, torch.float32)) for name, table in tables.items()}
        )

    def initial(self, observation: Any) -> ModelOutput:
        state = torch.as_tensor(observation)
        nothing = torch.zeros(len(state))
        return ModelOutput(self.logits[state], self.value[state], nothing, nothing, state)

    def recurrent(self, embedding: Tensor, action: Tensor) -> ModelOutput:
        state = self.next_state[embedding, action]
        reward, discount = self.reward[embedding, action], self.discount[embedding, action]
        return ModelOutput(self.logits[state], self.value[state], reward, discount, state)


def as_perceptron(table: TabularModel) -> MLPModel:
    """Return the same model as a perceptron.

    The latent has a unit per edge (s, a), of which the one just taken is on; S further units stand for roots. The first
    layer turns on unit (s', a') when both the latent's edge leads to s' and the action is a'.
    """
    states, actions = table.next_state.shape
    edges = states * actions
    leads = torch.zeros(edges + states, states)
    leads[torch.arange(edges), table.next_state.reshape(-1)] = 1.0
    leads[torch.arange(edges, edges + states), torch.arange(states)] = 1.0
    into = torch.zeros(edges + states, edges + states)  # [next latent, latent]
    into[:edges] = leads.repeat_interleave(actions, 1).T
    bias = torch.full((edges + states,), -1.0)
    rows = torch.zeros(actions, edges + states)
    rows[:, :edges] = torch.eye(actions).repeat(1, states)

    def head(of_edges: Tensor, of_roots: Tensor) -> list[Dense]:
        return [Dense(torch.cat((of_edges, of_roots)).T.contiguous(), torch.zeros(of_edges.shape[1]))]

    def represent(observation: Any) -> Tensor:
        return torch.nn.functional.one_hot(torch.as_tensor(observation) + edges, edges + states).float()

    def initial(observation: Any) -> ModelOutput:
        return table.initial(observation)._replace(embedding=represent(observation))

    ahead, nothing = table.next_state.reshape(-1), torch.zeros(states, 1)
    model = MLPModel(
        represent,
        action_rows=rows,
        dynamics=[Dense(into, bias, "relu")],
        reward=head(table.reward.reshape(-1, 1), nothing),
        value=head(table.value[ahead][:, None], table.value[:, None]),
        policy=head(table.logits[ahead], table.logits),
        discount=head(table.discount.reshape(-1, 1), nothing),
    )
    if not table.logits.isfinite().all():  # in a product, infinity times 0 is not a number
        model.initial = initial  # type: ignore[method-assign]
    return model


def random_model(seed: int, states: int = 12, actions: int = 3) -> TabularModel:
    """Return a model of random numbers."""
    random = np.random.default_rng(seed)
    return TabularModel.of(
        next_state=random.integers(states, size=(states, actions)),
        reward=random.normal(size=(states, actions)),
        value=random.normal(size=states),
        logits=random.normal(size=(states, actions)),
        discount=np.full((states, actions), 0.9),
    )


# -- policies in tables, and datasets that they record ---------------------------------------------


class TableActor(ActingAlgorithm):
    """Takes action a in state s with the probability `table[s, a]`; an observation is a state's number."""

    def build(self, observation_space: Space[Any], action_space: Space[Any], generator: torch.Generator) -> None:
        assert isinstance(action_space, spaces.Discrete)
        self.start = int(action_space.start)
        self.logits = torch.as_tensor(self.params, dtype=torch.float32).log()

    def _policy(self, observation: Any, mask: Tensor | None) -> Categorical:
        return Categorical(mask_logits(self.logits[observation], mask))

    def choose(self, observation: Any, mask: Tensor | None, generator: torch.Generator | None) -> Tensor:
        policy = self._policy(observation, mask)
        return policy.mode() if generator is None else policy.sample(generator)

    def act(self, observation: Any, mask: Any, controls: Any, generator: torch.Generator) -> Tensor:
        return self.choose(observation, mask, generator)

    def env_action(self, action: Tensor) -> np.ndarray:
        return action.numpy() + self.start

    def env_log_prob(self, observation: Any, mask: Tensor | None, action: np.ndarray) -> Tensor | None:
        return self._policy(observation, mask).log_prob(torch.as_tensor(action - self.start))

    def update(self, batch: Any, controls: Mapping[str, float], generator: torch.Generator) -> dict[str, Tensor]:
        raise AssertionError("a table does not learn")


def table_policy(table: np.ndarray, *, start: int = 0) -> Policy:
    """Return the policy of a table of probabilities [S, A]."""
    states, actions = table.shape
    observation_space, action_space = spaces.Discrete(states), spaces.Discrete(actions, start=start)
    device = torch.device("cpu")
    actor = TableActor(table, observation_space, action_space, device=device, generator=torch.Generator())
    return Policy(actor, observation_space, action_space)


class SmallProcess:
    """Three states, two actions; every step ends the episode with a probability of its own, or goes to a state."""

    gamma = 0.8

    def __init__(self) -> None:
        random = np.random.default_rng(11)
        self.start = np.array([0.6, 0.3, 0.1])
        self.move = random.dirichlet(np.ones(3), size=(3, 2))
        self.reward = random.normal(size=(3, 2)) + 1.0
        self.ends = np.full((3, 2), 0.15)

    def true_value(self, table: np.ndarray) -> float:
        """Return the discounted value of a policy at the start, by solving its Bellman equation."""
        reward = (table * self.reward).sum(axis=1)
        moves = np.einsum("sa,sat->st", table * (1 - self.ends), self.move)
        values = np.linalg.solve(np.eye(3) - self.gamma * moves, reward)
        return float(self.start @ values)

    def record(self, table: np.ndarray, episodes: int, *, longest: int, seed: int = 0) -> DatasetColumns:
        """Return the columns of episodes that a policy plays; those of the longest kind are truncated."""
        random = np.random.default_rng(seed)
        played = []
        for _ in range(episodes):
            state, steps = int(random.choice(3, p=self.start)), []
            while True:
                action = int(random.choice(2, p=table[state]))
                ended = random.random() < self.ends[state, action]
                successor = int(random.choice(3, p=self.move[state, action]))
                steps.append((state, action, self.reward[state, action], ended, successor))
                state = successor
                if ended or len(steps) == longest:
                    break
            played.append(steps)
        return columns_of(
            [np.array([step[0] for step in steps] + [steps[-1][4]]) for steps in played],
            [np.array([step[1] for step in steps]) for steps in played],
            [np.array([step[2] for step in steps]) for steps in played],
            [bool(steps[-1][3]) for steps in played],
            log_prob=np.log(np.concatenate([[table[step[0], step[1]] for step in steps] for steps in played])),
        )


def columns_of(
    observations: Sequence[np.ndarray],
    actions: Sequence[np.ndarray],
    rewards: Sequence[np.ndarray],
    terminated: Sequence[bool],
    **infos: np.ndarray,
) -> DatasetColumns:
    """Return the columns of episodes; those that did not terminate were truncated."""
    lengths = np.array([len(part) for part in rewards])
    last = np.cumsum(lengths) - 1
    first = np.cumsum(lengths + 1) - (lengths + 1)
    ends = np.zeros(lengths.sum(), bool)
    ends[last] = terminated
    cut = np.zeros_like(ends)
    cut[last] = ~np.array(terminated)
    return DatasetColumns(
        observation=np.concatenate(observations),
        place=np.concatenate([start + np.arange(steps) for start, steps in zip(first, lengths, strict=True)]),
        action=np.concatenate(actions),
        reward=np.concatenate(rewards).astype(np.float32),
        terminated=ends,
        truncated=cut,
        episode=np.repeat(np.arange(len(lengths)), lengths).astype(np.int32),
        episode_returns=np.array([part.sum() for part in rewards]),
        first=first,
        infos=infos,
    )

"""A policy with a memory is recorded with what it remembers, step by step; off-policy evaluation says why it cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from harness import tiny_config
from off_policy_runs import train_tiny
from rl_training.algorithms.dqn import EVALUATION_EPSILON
from rl_training.data.datasets.dataset import Dataset, open_dataset
from rl_training.data.datasets.episode import LOG_PROB
from rl_training.errors import AxiomError
from rl_training.runtime.acting.policy import load_policy
from rl_training.runtime.datasets.behaviour import Behaviour
from rl_training.runtime.datasets.recording import RecordRequest, record
from rl_training.runtime.datasets.replay_export import export_replay
from rl_training.runtime.offline_evaluation.evaluation import evaluate_offline
from rl_training.runtime.workflows import train

MEMORY = {"size": 6, "sequence_length": 5}


@pytest.fixture(scope="module")
def ppo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tiny_config(tmp_path_factory.mktemp("ppo"), algo_kwargs={"recurrent": MEMORY})).run_dir


@pytest.fixture(scope="module")
def dqn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = {"recurrent": {**MEMORY, "burn_in": 2}, "n_step": 3, "train_interval": 8}
    return train_tiny(tmp_path_factory.mktemp("dqn"), "dqn", "CartPole-v1", algo_kwargs=settings).run_dir


def _record(run: Path, **request: Any) -> Dataset:
    request = {"name": "tests/memory-v0", "episodes": 5, "num_envs": 2, **request}
    return open_dataset(record(RecordRequest(run, **request), quiet=True).path)


@pytest.mark.parametrize("which", ["ppo", "dqn"])
def test_recorded_actions_are_those_of_a_policy_that_remembers_its_episode(
    which: str, request: pytest.FixtureRequest
) -> None:
    run = request.getfixturevalue(which)
    policy = load_policy(run)
    for episode in _record(run).episodes():
        state = None
        for step in range(episode.steps):
            action, state = policy.predict(np.asarray(episode.observations)[step], state)
            assert action == episode.actions[step]


@pytest.mark.parametrize("which", ["ppo", "dqn"])
def test_recorded_probabilities_are_those_of_the_memory_at_that_step(
    which: str, request: pytest.FixtureRequest
) -> None:
    run = request.getfixturevalue(which)
    actor: Any = load_policy(run).actor
    for episode in _record(run, behaviour=Behaviour("stochastic")).episodes():
        memory = torch.zeros(1, actor.memory_size)
        for step in range(episode.steps):
            seen = torch.as_tensor(np.asarray(episode.observations)[step])[None]
            taken = int(episode.actions[step])
            best, after = actor.choose_with_memory(seen, None, None, memory)
            if which == "dqn":
                expected = EVALUATION_EPSILON / 2 + (1 - EVALUATION_EPSILON) * (int(best) == taken)
            else:
                expected = float(
                    actor.model.policy_of(actor.model.step(seen, memory).actor, None)
                    .log_prob(torch.tensor([taken]))
                    .exp()
                )
            assert float(np.exp(episode.infos[LOG_PROB][step])) == pytest.approx(expected, rel=1e-4)
            memory = after.clone()


def test_the_replay_of_sequences_is_exported_with_the_rewards_of_its_steps(dqn: Path) -> None:
    dataset = open_dataset(export_replay(dqn, "tests/replayed-v0", quiet=True).path)
    episodes = list(dataset.episodes())
    assert sum(episode.steps for episode in episodes) == 48
    assert {float(reward) for episode in episodes for reward in episode.rewards} == {1.0}


def test_off_policy_evaluation_says_why_it_refuses_a_memory(ppo: Path) -> None:
    dataset = _record(ppo)
    with pytest.raises(AxiomError, match="what it does depends on the whole episode"):
        evaluate_offline(ppo, dataset.path)

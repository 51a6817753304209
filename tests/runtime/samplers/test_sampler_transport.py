"""Samplers that share no memory with the run: what is written on one side arrives on the other, bit for bit."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from harness import evaluation_rows, metric_rows, rows_without_samplers, tiny_config, weights
from planning_runs import planning_config
from replays import off_policy_config
from rl_training.envs.workers.shared_rows import SharedArray
from rl_training.errors import EnvironmentFailure
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.samplers import groups
from rl_training.runtime.samplers.sampler import SamplerSetup
from rl_training.runtime.samplers.transport.mirrored_memory import MirroredMemory, snapshot, write
from rl_training.runtime.samplers.transport.protocol import SamplerLost
from rl_training.runtime.samplers.transport.ray_sampler import COLLECT, RaySampler
from rl_training.runtime.workflows import train


class NearLink:
    """An actor in this process; as with one elsewhere, everything is pickled on the way."""

    def __init__(self, transport: NearTransport, setup: SamplerSetup, number: int, rows: slice) -> None:
        self._transport, self._setup, self._rows, self._sent = transport, setup, rows, None
        self.actor = RaySampler()
        self._answer: Any = self.actor.make(pickle.dumps(setup), number, rows, {"torch": version("torch")})
        self._number, self.lost = number, False

    def send(self, command: str, argument: Any = None) -> None:
        self._sent = argument
        outgoing = pickle.loads(self._transport.published) if command == COLLECT else None
        self._answer = pickle.loads(pickle.dumps(self.actor.execute(command, pickle.dumps(argument), outgoing)))

    def receive(self, seconds: float | None = None) -> tuple[bool, Any] | None:
        if self.lost:
            raise SamplerLost("fell off the table")
        if self._answer.incoming:
            write(self._setup.incoming(self._sent, self._rows), self._answer.incoming)  # type: ignore[arg-type]
        self._setup.progress.view()[self._number] = self.actor.progress()[0]
        return self._answer.succeeded, pickle.loads(self._answer.result)

    def end(self) -> None:
        self.actor.close()


class NearTransport:
    """Samplers in this process; `losing` contains the rollouts in which one is lost."""

    def __init__(self, losing: Sequence[int] = ()) -> None:
        self.memory, self.published, self._losing, self._rollouts = MirroredMemory(), b"", list(losing), 0
        self.ended = False

    def start(self, setup: SamplerSetup, number: int, rows: slice) -> NearLink:
        return NearLink(self, setup, number, rows)

    def publish(self, setup: SamplerSetup) -> None:
        self._rollouts += 1
        self.published = pickle.dumps(snapshot(setup.outgoing()))

    def ready(self, links: Sequence[NearLink], seconds: float) -> list[int]:
        if self._rollouts in self._losing:
            self._losing.remove(self._rollouts)
            links[0].lost = True
        return list(range(len(links)))

    def close(self, links: Sequence[NearLink]) -> None:
        pass

    def end(self, links: list[NearLink]) -> None:
        self.ended = True
        links.clear()


@pytest.fixture(autouse=True)
def _own_threads() -> Iterator[None]:
    """A sampler sets the number of torch's threads in its process, which is that of the tests here."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def _train(config: TrainConfig, transport: NearTransport) -> Path:
    with mock.patch.object(groups, "make_transport", return_value=transport):
        result = train(replace(config, samplers=2))
    assert result.status == "completed"
    assert transport.ended
    return result.run_dir


def test_an_array_without_shared_memory_arrives_with_its_form_and_has_its_own_content() -> None:
    ours = SharedArray(MirroredMemory(), (2, 3), np.float32)
    ours.view()[:] = 1.5
    theirs = pickle.loads(pickle.dumps(ours))
    assert theirs.view().dtype == np.float32
    assert not theirs.view().any()
    write([theirs.view()[:, 1:]], pickle.loads(pickle.dumps(snapshot([ours.view()[:, 1:]]))))
    np.testing.assert_array_equal(theirs.view(), [[0, 1.5, 1.5]] * 2)


@pytest.mark.parametrize("losing", [(), (2, 5)], ids=["sound", "lost"])
def test_samplers_without_shared_memory_give_the_run_without_samplers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, losing: tuple[int, ...]
) -> None:
    config = tiny_config(tmp_path, num_envs=3, algo_kwargs={"recurrent": {"size": 8, "sequence_length": 6}})
    _assert_same_run(_train(config, NearTransport(losing)), train(config).run_dir)
    assert caplog.text.count("fell off the table; another one takes its place") == len(losing)


@pytest.mark.parametrize("losing", [(), (3,)], ids=["sound", "lost"])
@pytest.mark.parametrize("task", ["td3", "gumbel_muzero"])
def test_rounds_and_searches_come_without_shared_memory_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, task: str, losing: tuple[int, ...]
) -> None:
    make = off_policy_config if task == "td3" else planning_config
    config = make(task, tmp_path, num_envs=3)
    _assert_same_run(_train(config, NearTransport(losing)), train(config).run_dir)
    assert caplog.text.count("fell off the table; another one takes its place") == len(losing)


def _assert_same_run(split: Path, alone: Path) -> None:
    """Assert that two runs are the same, except for what only one with samplers records."""
    assert rows_without_samplers(split) == metric_rows(alone)
    assert evaluation_rows(split) == evaluation_rows(alone)
    for one, other in zip(*(weights(run).values() for run in (alone, split)), strict=True):
        assert one.equal(other)


def test_a_sampler_lost_twice_in_a_rollout_ends_all_of_them(tmp_path: Path) -> None:
    transport = NearTransport(losing=(3, 3))
    with pytest.raises(EnvironmentFailure, match="fell off the table, as did the one before it in the same rollout"):
        _train(tiny_config(tmp_path, num_envs=3), transport)
    assert transport.ended


def test_an_error_in_an_actor_is_returned_to_the_run() -> None:
    actor = RaySampler()
    answer = actor.make(b"", 1, slice(0, 1), {"torch": "0.1"})
    assert not answer.succeeded
    assert "install the same versions everywhere" in str(pickle.loads(answer.result))
    answer = actor.make(b"", 1, slice(0, 1), {})
    assert str(pickle.loads(answer.result)).startswith("sampler 1 failed:\nTraceback")

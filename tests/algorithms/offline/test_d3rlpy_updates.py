"""From the same weights and the same batches, updates here and in d3rlpy lead to the same weights.

d3rlpy is no dependency of the tests, because its pins are old. An environment of its own runs them:

    python -m venv d3rlpy-env
    d3rlpy-env/bin/pip install -e ".[dev]" -c constraints.txt "d3rlpy==2.8.0"
    d3rlpy-env/bin/python -m pytest tests/algorithms/offline/test_d3rlpy_updates.py
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from offline_parts import make_offline
from replay_parts import CHOICE, OBSERVATION, TORQUE, generator
from rl_training.data.batches import ReplayBatch

d3rlpy = pytest.importorskip("d3rlpy")

from d3rlpy.models.encoders import VectorEncoderFactory  # noqa: E402
from d3rlpy.torch_utility import TorchMiniBatch  # noqa: E402

ROWS, UPDATES, GAMMA = 32, 20, 0.9
RATES = {"learning_rate": 1e-3, "actor_learning_rate": 5e-4}
HIDDEN = (16, 12)
OURS: dict[str, Any] = {"hidden_sizes": HIDDEN, "normalize_observation": False}


def peer_of(config: str, *, encoders: Sequence[str], discrete: bool = False, **settings: Any) -> Any:
    """Return the implementation of one of d3rlpy's algorithms."""
    factory = VectorEncoderFactory(list(HIDDEN))
    named = {f"{part}encoder_factory": factory for part in encoders}
    algorithm = getattr(d3rlpy.algos, config)(batch_size=ROWS, gamma=GAMMA, **named, **settings).create()
    algorithm.create_impl((3,), CHOICE.n if discrete else TORQUE.shape[0])
    return algorithm.impl


def batches(seed: int, *, discrete: bool = False) -> tuple[ReplayBatch, Any]:
    """Return the same transitions as both sides take them, a quarter of them terminated."""
    rng = np.random.default_rng(seed)
    observation, successor = torch.from_numpy(rng.normal(size=(2, ROWS, *OBSERVATION.shape)).astype(np.float32))
    reward = torch.from_numpy(rng.normal(size=(ROWS, 1)).astype(np.float32))
    ended = torch.zeros(ROWS, 1)
    ended[: ROWS // 4] = 1.0
    if discrete:
        action = torch.from_numpy(rng.integers(CHOICE.n, size=(ROWS, 1)))
    else:
        action = torch.from_numpy(rng.uniform(-1, 1, (ROWS, *TORQUE.shape)).astype(np.float32))
    discount = (GAMMA * (1 - ended)).squeeze(1)
    ours = ReplayBatch(
        observation, action.squeeze(1) if discrete else action, reward.squeeze(1), discount, successor, None
    )
    theirs = TorchMiniBatch(
        observations=observation,
        actions=action,
        rewards=reward,
        next_observations=successor,
        next_actions=action,
        returns_to_go=torch.zeros_like(reward),
        terminals=ended,
        intervals=torch.ones_like(reward),
        device="cpu:0",
    )
    return ours, theirs


# -- weights in the order and the shapes of ours ---------------------------------------------------


def layers(module: nn.Module) -> list[tuple[Tensor, Tensor]]:
    return [(layer.weight.detach(), layer.bias.detach()) for layer in module.modules() if isinstance(layer, nn.Linear)]


def stacked(pairs: Sequence[Sequence[tuple[Tensor, Tensor]]]) -> list[Tensor]:
    """Return the layers of networks of one shape as our stacks hold them: [count, in, out] and [count, 1, out]."""
    joined = [
        (torch.stack([weight.T for weight, _ in one]), torch.stack([bias[None] for _, bias in one]))
        for one in zip(*pairs, strict=True)
    ]
    return [tensor for pair in joined for tensor in pair]


def plain(pairs: Sequence[tuple[Tensor, Tensor]]) -> list[Tensor]:
    return [tensor for pair in pairs for tensor in pair]


def critics(peer: Any) -> dict[str, list[Tensor]]:
    modules = peer.modules
    return {
        "critic": stacked([layers(network) for network in modules.q_funcs]),
        "target_critic": stacked([layers(network) for network in modules.targ_q_funcs]),
    }


def deterministic(peer: Any) -> dict[str, list[Tensor]]:
    modules = peer.modules
    actors = {"actor": modules.policy, "target_actor": modules.targ_policy}
    return critics(peer) | {name: stacked([layers(network)]) for name, network in actors.items()}


def implicit(peer: Any) -> dict[str, list[Tensor]]:
    modules = peer.modules
    *hidden, mean = layers(modules.policy)
    policy = [*stacked([hidden]), modules.policy._logstd.detach().squeeze(0), *mean]
    return critics(peer) | {"actor": policy, "value": stacked([layers(modules.value_func)])}


def soft(peer: Any) -> dict[str, list[Tensor]]:
    *hidden, mean, deviation = layers(peer.modules.policy)
    return critics(peer) | {"actor": [*stacked([hidden]), *mean, *deviation]}


def imitator(peer: Any) -> dict[str, list[Tensor]]:
    return {"actor": stacked([layers(peer.modules.imitator)])}


def discrete_imitator(peer: Any) -> dict[str, list[Tensor]]:
    *hidden, logits = layers(peer.modules.imitator)
    return {"actor": [*stacked([hidden]), *logits]}


def q_network(peer: Any) -> dict[str, list[Tensor]]:
    (network,), (target,) = peer.modules.q_funcs, peer.modules.targ_q_funcs
    return {"model": plain(layers(network)), "target_model": plain(layers(target))}


def start_alike(ours: Any, weights: dict[str, list[Tensor]]) -> None:
    with torch.no_grad():
        for name, tensors in weights.items():
            for parameter, tensor in zip(getattr(ours, name).parameters(), tensors, strict=True):
                parameter.copy_(tensor)


def assert_alike(ours: Any, weights: dict[str, list[Tensor]]) -> None:
    for name, tensors in weights.items():
        for parameter, tensor in zip(getattr(ours, name).parameters(), tensors, strict=True):
            torch.testing.assert_close(parameter.detach(), tensor, rtol=1e-4, atol=1e-5)


def learn_alike(ours: Any, peer: Any, read: Any, noise: Any = None, *, discrete: bool = False) -> None:
    """Make the same updates on both sides and compare after every one; `noise(step)` hands ours to the peer."""
    start_alike(ours, read(peer))
    for step in range(UPDATES):
        batch, theirs = batches(step, discrete=discrete)
        if noise is not None:
            noise(step)
        ours.update(batch, RATES, generator(step))
        ours.steps_taken(step, step + 1)
        peer.update(theirs, step + 1)  # d3rlpy counts from 0, so that its first update is also one of the actor
        assert_alike(ours, read(peer))


# -- the algorithms --------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [2.5, 0.5])
def test_td3_bc(alpha: float, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = make_offline("td3_bc", TORQUE, alpha=alpha, **OURS)
    rates: dict[str, Any] = {
        "actor_learning_rate": RATES["learning_rate"],
        "critic_learning_rate": RATES["learning_rate"],
    }
    peer = peer_of("TD3PlusBCConfig", encoders=("actor_", "critic_"), alpha=alpha, **rates)

    def noise(step: int) -> None:
        drawn = torch.empty(ROWS, *TORQUE.shape).normal_(generator=generator(step))
        monkeypatch.setattr(torch, "randn", lambda *shape, **settings: drawn)

    learn_alike(ours, peer, deterministic, noise)


def test_iql() -> None:
    ours = make_offline("iql", TORQUE, **OURS)
    rates: dict[str, Any] = {
        "actor_learning_rate": RATES["actor_learning_rate"],
        "critic_learning_rate": RATES["learning_rate"],
    }
    peer = peer_of("IQLConfig", encoders=("actor_", "critic_", "value_"), **rates)
    learn_alike(ours, peer, implicit)


@pytest.mark.parametrize("soft_target", [False, True])
def test_cql(soft_target: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = 4
    ours = make_offline(
        "cql", TORQUE, **{**OURS, "action_samples": samples, "temperature": 1.0, "soft_target": soft_target}
    )
    rates: dict[str, Any] = {
        "actor_learning_rate": RATES["actor_learning_rate"],
        "critic_learning_rate": RATES["learning_rate"],
    }
    fixed: dict[str, Any] = {"temp_learning_rate": 0.0, "alpha_learning_rate": 0.0}
    peer = peer_of(
        "CQLConfig",
        encoders=("actor_", "critic_"),
        n_action_samples=samples,
        soft_q_backup=soft_target,
        **rates,
        **fixed,
    )

    original = torch.Tensor.uniform_

    def noise(step: int) -> None:
        source = generator(step)
        normal = torch.empty(2 + 2 * samples, ROWS, *TORQUE.shape).normal_(generator=source)
        uniform = torch.empty(samples, ROWS, *TORQUE.shape).uniform_(-1.0, 1.0, generator=source)
        parts = [normal[2 : 2 + samples], normal[2 + samples :], normal[1]]
        drawn: Iterator[Tensor] = iter([normal[0], *parts] if soft_target else parts)

        def fill(tensor: Tensor, *bounds: float, **settings: Any) -> Tensor:
            if settings.get("generator") is not None:  # ours
                return original(tensor, *bounds, **settings)
            return uniform.transpose(0, 1).reshape(tensor.shape)

        monkeypatch.setattr(
            torch.distributions.Normal, "rsample", lambda normal, *shape: normal.loc + normal.scale * next(drawn)
        )
        monkeypatch.setattr(torch.Tensor, "uniform_", fill)

    learn_alike(ours, peer, soft, noise)


def test_behavioural_cloning() -> None:
    ours = make_offline("bc", TORQUE, **OURS)
    learn_alike(ours, peer_of("BCConfig", encoders=("",), learning_rate=RATES["learning_rate"]), imitator)


@pytest.mark.parametrize("penalty", [0.0, 0.5])
def test_discrete_behavioural_cloning(penalty: float) -> None:
    ours = make_offline("bc", CHOICE, logit_penalty=penalty, **OURS)
    settings: dict[str, Any] = {"learning_rate": RATES["learning_rate"], "beta": penalty}
    peer = peer_of("DiscreteBCConfig", encoders=("",), discrete=True, **settings)
    learn_alike(ours, peer, discrete_imitator, discrete=True)


def test_discrete_cql() -> None:
    settings: dict[str, Any] = {"target_update_interval": 3}
    ours = make_offline("discrete_cql", CHOICE, **{**OURS, **settings, "max_grad_norm": None})
    peer = peer_of(
        "DiscreteCQLConfig", encoders=("",), discrete=True, learning_rate=RATES["learning_rate"], alpha=1.0, **settings
    )
    learn_alike(ours, peer, q_network, discrete=True)

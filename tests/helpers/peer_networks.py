"""The networks of stable-baselines3's models beside ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


def linear_layers(module: nn.Module) -> list[tuple[Tensor, Tensor]]:
    return [(layer.weight.detach(), layer.bias.detach()) for layer in module.modules() if isinstance(layer, nn.Linear)]


def stacked(networks: Sequence[nn.Module]) -> list[Tensor]:
    """Return the layers of networks of one shape as our stacks hold them: [count, in, out] and [count, 1, out]."""
    layers = zip(*map(linear_layers, networks), strict=True)
    pairs = [(torch.stack([w.T for w, _ in one]), torch.stack([b[None] for _, b in one])) for one in layers]
    return [tensor for pair in pairs for tensor in pair]


def weights_of_peer(peer: Any) -> dict[str, list[Tensor]]:
    """Return its weights in the order and the shapes of ours."""
    if hasattr(peer, "rollout_buffer"):
        hidden, policy = peer.policy.mlp_extractor, peer.policy
        heads = [tensor for head in (policy.action_net, policy.value_net) for tensor in linear_layers(head)[0]]
        deviation = [policy.log_std.detach()] if hasattr(policy, "log_std") else []
        return {"model": [*stacked([hidden.policy_net, hidden.value_net]), *deviation, *heads]}
    if hasattr(peer, "q_net"):
        networks = {"model": peer.q_net, "target_model": peer.q_net_target}
        return {name: [tensor for pair in linear_layers(net) for tensor in pair] for name, net in networks.items()}
    critics = {"critic": peer.critic.q_networks, "target_critic": peer.critic_target.q_networks}
    found = {name: stacked(networks) for name, networks in critics.items()}
    if hasattr(peer, "actor_target"):
        return found | {"actor": stacked([peer.actor.mu]), "target_actor": stacked([peer.actor_target.mu])}
    heads = [tensor for head in (peer.actor.mu, peer.actor.log_std) for tensor in linear_layers(head)[0]]
    return found | {"actor": [*stacked([peer.actor.latent_pi]), *heads]}


def start_alike(ours: Any, peer: Any) -> None:
    """Give our networks the peer's weights."""
    with torch.no_grad():
        for name, tensors in weights_of_peer(peer).items():
            for parameter, tensor in zip(getattr(ours, name).parameters(), tensors, strict=True):
                parameter.copy_(tensor)


def close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one.detach(), other.detach(), rtol=1e-4, atol=1e-5)


def assert_alike(ours: Any, peer: Any) -> None:
    for name, tensors in weights_of_peer(peer).items():
        for parameter, tensor in zip(getattr(ours, name).parameters(), tensors, strict=True):
            close(parameter, tensor)

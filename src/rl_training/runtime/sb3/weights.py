"""The weights of Stable-Baselines3's MLP policies under the names and in the shapes of this package's networks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from rl_training.runtime.sb3.model_zip import ModelError, SavedModel

Layers = list[tuple[Tensor, Tensor]]
"""Weight [outputs, inputs] and bias [outputs] of each layer."""


@dataclass(frozen=True)
class ImportedWeights:
    """Weights by the parts of an algorithm, and the settings of its networks that follow from them."""

    state: dict[str, Any]
    settings: dict[str, Any]


def import_weights(algo: str, model: SavedModel) -> ImportedWeights:
    """Return a model's weights for an algorithm."""
    reader = _Reader(model)
    imported = _ALGORITHMS[algo](reader)
    reader.check_all_read()
    return imported


IMPORTED = ("ppo", "dqn", "sac", "td3")


class _Reader:
    """Takes weights out of a model and notes which were taken."""

    def __init__(self, model: SavedModel) -> None:
        self._path = model.path
        self._left = dict(model.weights)
        self.variables = model.variables

    def take(self, name: str) -> Tensor:
        """Return a tensor."""
        if name not in self._left:
            raise ModelError(
                f"{self._path} holds no weights `{name}`; is it a model of another algorithm? Choose it by --algo"
            )
        return self._left.pop(name).to(torch.float32)

    def has(self, name: str) -> bool:
        return name in self._left

    def linear(self, name: str) -> tuple[Tensor, Tensor]:
        """Return weight and bias of a layer."""
        weight, bias = self.take(f"{name}.weight"), self.take(f"{name}.bias")
        if weight.ndim != 2 or bias.shape != weight.shape[:1]:
            raise ModelError(f"{self._path}: `{name}` is no linear layer; only MLP policies are imported")
        return weight, bias

    def layers(self, name: str) -> Layers:
        """Return the layers of a perceptron; an activation stands between two of them."""
        found: Layers = []
        while self.has(f"{name}.{2 * len(found)}.weight"):
            found.append(self.linear(f"{name}.{2 * len(found)}"))
        for (_, bias), (weight, _) in pairwise(found):
            if weight.shape[1] != len(bias):
                raise ModelError(f"{self._path}: the layers of `{name}` do not fit each other; the file is damaged")
        return found

    def network(self, name: str) -> Layers:
        """Return the layers of a perceptron with at least one."""
        if not self.has(f"{name}.0.weight"):
            self.take(f"{name}.0.weight")  # raises
        return self.layers(name)

    def check_all_read(self) -> None:
        """Raise an error for weights that an MLP policy does not have."""
        if self._left:
            raise ModelError(
                f"{self._path} holds weights `{sorted(self._left)[0]:.100}`, which an MLP policy of this algorithm has "
                "not; only MLP policies are imported, of the algorithm named by --algo"
            )

    def refuse(self, fault: str) -> ModelError:
        return ModelError(f"{self._path}: {fault}")


def _widths(layers: Layers) -> list[int]:
    return [len(bias) for _, bias in layers]


def _stacked(networks: Iterable[Layers], prefix: str) -> dict[str, Tensor]:
    """Return perceptrons of one shape as the weights of a `StackedMLP`."""
    state = {}
    for number, layer in enumerate(zip(*networks, strict=True)):
        state[f"{prefix}weight_{number}"] = torch.stack([weight.T for weight, _ in layer]).contiguous()
        state[f"{prefix}bias_{number}"] = torch.stack([bias for _, bias in layer]).unsqueeze(1)
    return state


def _plain(layers: Layers, prefix: str) -> dict[str, Tensor]:
    """Return a perceptron as the weights of an `MLP`."""
    state = {}
    for number, (weight, bias) in enumerate(layers):
        state[f"{prefix}weight_{number}"], state[f"{prefix}bias_{number}"] = weight, bias
    return state


def _pair(layer: tuple[Tensor, Tensor], prefix: str) -> dict[str, Tensor]:
    return {f"{prefix}.weight": layer[0], f"{prefix}.bias": layer[1]}


def _ppo(reader: _Reader) -> ImportedWeights:
    actor, critic = reader.layers("mlp_extractor.policy_net"), reader.layers("mlp_extractor.value_net")
    if _widths(actor) != _widths(critic):
        raise reader.refuse(
            f"its actor has layers of {_widths(actor)} and its critic of {_widths(critic)}; only networks of equal "
            "widths are imported"
        )
    state = {
        **_stacked([actor, critic], "stacks."),
        **_pair(reader.linear("action_net"), "head.linear"),
        **_pair(reader.linear("value_net"), "value_head"),
    }
    if reader.has("log_std"):
        state["head.log_std"] = reader.take("log_std")
    return ImportedWeights({"model": state}, {"hidden_sizes": _widths(actor)})


def _dqn(reader: _Reader) -> ImportedWeights:
    online, target = reader.network("q_net.q_net"), reader.network("q_net_target.q_net")
    return ImportedWeights(
        {"model": _plain(online, "advantage."), "target_model": _plain(target, "advantage.")},
        {"hidden_sizes": _widths(online)[:-1]},
    )


def _critics(reader: _Reader, name: str) -> list[Layers]:
    found: list[Layers] = []
    while layers := reader.layers(f"{name}.qf{len(found)}"):
        found.append(layers)
    if not found or len({tuple(_widths(layers)) for layers in found}) > 1:
        raise reader.refuse(f"`{name}` is not one or several critics of one shape; is --algo right?")
    return found


def _sac(reader: _Reader) -> ImportedWeights:
    hidden = reader.layers("actor.latent_pi")
    actor = _stacked([hidden], "hidden.")
    if reader.has("actor.log_std"):  # state-dependent exploration
        actor |= _pair(reader.linear("actor.mu.0" if reader.has("actor.mu.0.weight") else "actor.mu"), "mean")
        actor["log_std"] = reader.take("actor.log_std")
    else:
        actor |= _pair(reader.linear("actor.mu"), "mean") | _pair(reader.linear("actor.log_std"), "log_std_head")
    critic, target = _critics(reader, "critic"), _critics(reader, "critic_target")
    settings: dict[str, Any] = {"hidden_sizes": _widths(hidden), "num_critics": len(critic)}
    if _widths(critic[0])[:-1] != _widths(hidden):
        settings["critic_hidden_sizes"] = _widths(critic[0])[:-1]
    log = reader.variables.get("log_ent_coef", torch.zeros(1))  # none: the temperature is fixed
    if log.numel() != 1:
        raise reader.refuse("its `log_ent_coef` is not one number; the file is damaged")
    return ImportedWeights(
        {
            "actor": actor,
            "critic": _stacked(critic, "networks."),
            "target_critic": _stacked(target, "networks."),
            "temperature": {"log": log.reshape(1).to(torch.float32)},
        },
        settings,
    )


def _td3(reader: _Reader) -> ImportedWeights:
    state: dict[str, Any] = {}
    for ours, theirs in (("actor", "actor"), ("target_actor", "actor_target")):
        layers = reader.network(f"{theirs}.mu")
        state[ours] = _stacked([layers], "network.")
        widths = _widths(layers)[:-1]
    for ours, theirs in (("critic", "critic"), ("target_critic", "critic_target")):
        critics = _critics(reader, theirs)
        state[ours] = _stacked(critics, "networks.")
    if _widths(critics[0])[:-1] != widths:
        raise reader.refuse(
            f"its actor has layers of {widths} and its critics of {_widths(critics[0])[:-1]}; only networks of equal "
            "widths are imported"
        )
    return ImportedWeights(state, {"hidden_sizes": widths, "num_critics": len(critics)})


_ALGORITHMS: dict[str, Callable[[_Reader], ImportedWeights]] = {"ppo": _ppo, "dqn": _dqn, "sac": _sac, "td3": _td3}

"""A feed-forward layer as a mixture of experts: a router sends each token to a few of them.

N is the number of tokens, E the number of experts, k the number of experts per token. All experts are one wide
perceptron: expert e is the e-th group of its hidden units, and the last group is the shared expert, which processes
every token. Gates multiply an expert's hidden units, which is the same as multiplying its output.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from rl_training.models.planning.adapters import ScaledLinear

# Up to this number of tokens, all experts are evaluated, those not chosen with a gate of 0: searches evaluate few
# tokens at a time, and sorting them costs more than the products it saves.
FEW_TOKENS = 256


class Routing(NamedTuple):
    """The router's choice of experts for tokens [...]."""

    probability: Tensor  # [..., E]
    chosen: Tensor  # [..., k] int64


def expert_usage(routing: Routing, mask: Tensor | None = None) -> Tensor:
    """Return each expert's share [E] of the choices; tokens where the mask [...] is 0 do not count."""
    hits = torch.zeros_like(routing.probability).scatter(-1, routing.chosen, 1.0)
    return _mean(hits, mask) / routing.chosen.shape[-1]


def load_balance(routing: Routing, mask: Tensor | None = None) -> Tensor:
    """Return E times the sum over experts of share of choices times mean probability (Fedus et al. 2021, 2101.03961).

    It is 1 if all experts are used equally and E if only one is used; gradients flow through the probabilities.
    """
    experts = routing.probability.shape[-1]
    return experts * (expert_usage(routing, mask) * _mean(routing.probability, mask)).sum()


def _mean(values: Tensor, mask: Tensor | None) -> Tensor:
    """Return the mean [E] of values [..., E] over the tokens where the mask is 1."""
    flat = values.flatten(0, -2)
    if mask is None:
        return flat.mean(0)
    return mask.flatten() @ flat / mask.sum().clamp(min=1)


class MixtureOfExperts(nn.Module):
    """Experts of one hidden layer: the k most probable ones, weighted by their probability, and a shared one.

    With one expert it is a plain feed-forward layer of (1 + k) * `expert_size` hidden units, as many as a token uses in
    a mixture. Both have equally many active parameters, apart from the router's E * width: experts have no output bias
    of their own, one is added to the sum.
    """

    def __init__(
        self,
        width: int,
        expert_size: int,
        *,
        experts: int,
        top_k: int,
        adapters: int,
        rank: int,
        generator: torch.Generator,
    ) -> None:
        """`expert_size` is the number of hidden units of each expert."""
        super().__init__()
        self.experts = experts
        self.top_k = top_k
        self.expert_size = expert_size
        hidden = (1 + top_k if experts == 1 else experts + 1) * expert_size
        self.first = ScaledLinear(width, hidden, adapters=adapters, rank=rank, generator=generator)
        self.second = ScaledLinear(hidden, width, adapters=adapters, rank=rank, generator=generator)
        self.router: nn.Parameter | None = None
        if experts > 1:
            bound = width**-0.5
            self.router = nn.Parameter(torch.empty(experts, width))
            nn.init.uniform_(self.router, -bound, bound, generator=generator)

    @property
    def active_parameters(self) -> int:
        """Number of parameters used for one token, without router and adapters."""
        width = len(self.second.bias)
        return (1 + self.top_k) * self.expert_size * (2 * width + 1) + width

    def forward(self, tokens: Tensor) -> tuple[Tensor, Routing | None]:
        """Map tokens [..., width] to [..., width] and return the routing as well; a dense layer has none."""
        if self.router is None:
            return self.second(torch.relu(self.first(tokens))), None
        flat = tokens.reshape(-1, tokens.shape[-1])
        probability = functional.linear(flat, self.router).softmax(-1)
        gate, chosen = probability.topk(self.top_k, dim=-1)  # [N, k] each
        if torch.compiler.is_exporting() or len(flat) <= FEW_TOKENS:  # an exported network has no branch by size
            gates = torch.zeros_like(probability).scatter(-1, chosen, gate)
            output = self._all_experts(flat, gates)
        else:
            output = self._chosen_experts(flat, gate, chosen)
        leading = tokens.shape[:-1]
        return output.view_as(tokens), Routing(probability.view(*leading, -1), chosen.view(*leading, -1))

    def _all_experts(self, tokens: Tensor, gates: Tensor) -> Tensor:
        """Evaluate every expert, with gates [N, E] that are 0 for those not chosen."""
        hidden = torch.relu(self.first(tokens)).unflatten(-1, (-1, self.expert_size))  # [N, E + 1, expert_size]
        gates = functional.pad(gates, (0, 1), value=1.0)  # the shared expert's
        return self.second((hidden * gates.unsqueeze(-1)).flatten(1))

    def _chosen_experts(self, tokens: Tensor, gate: Tensor, chosen: Tensor) -> Tensor:
        """Evaluate each expert on the tokens that chose it; this synchronises with the device to count them."""
        # One group of rows and columns per expert; the shared expert is last.
        first_weights = self.first.merged().split(self.expert_size)
        first_biases = self.first.bias.split(self.expert_size)
        second_weights = self.second.merged().split(self.expert_size, dim=1)
        order = chosen.flatten().argsort(stable=True)  # [N * k] choices, by expert
        counts = torch.bincount(chosen.flatten(), minlength=self.experts).tolist()
        parts = tokens[order // self.top_k].split(counts)
        answers = [
            functional.linear(torch.relu(functional.linear(part, weight, bias)), second)
            for part, weight, bias, second in zip(
                parts, first_weights[:-1], first_biases[:-1], second_weights[:-1], strict=True
            )
        ]
        routed = torch.cat(answers)[order.argsort()].view(*chosen.shape, -1)  # [N, k, width]
        shared = torch.relu(functional.linear(tokens, first_weights[-1], first_biases[-1]))
        shared = functional.linear(shared, second_weights[-1], self.second.bias)
        return shared + (routed * gate.unsqueeze(-1)).sum(1)

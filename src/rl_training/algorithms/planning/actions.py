"""Actions chosen from a policy or a search result. B is the batch size, A the number of actions."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_training.search.search import SearchResult


def actions_from_policy(logits: Tensor, mask: Tensor | None, generator: torch.Generator | None) -> Tensor:
    """Return the most probable legal actions [B] given logits [B, A], or sampled ones if a generator is given."""
    if mask is not None:
        logits = logits.masked_fill(~mask & mask.any(dim=1, keepdim=True), -torch.inf)
    if generator is None:
        return logits.argmax(dim=1)
    return torch.multinomial(logits.softmax(dim=1), 1, generator=generator).squeeze(1)


def actions_from_search(found: SearchResult, device: torch.device, generator: torch.Generator | None) -> Tensor:
    """Return the search's actions [B], or actions sampled from its policy if a generator is given."""
    if generator is None:
        return torch.as_tensor(found.action, device=device)
    weights = torch.as_tensor(found.weights, device=device)
    return torch.multinomial(weights, 1, generator=generator).squeeze(1)

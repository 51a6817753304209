"""A causal transformer over steps of two tokens each, a latent state and an action.

B is the number of rows, T the number of tokens. A sequence is cut into windows of `context_steps` steps, and attention
and positions restart with the first latent of each window. The first state of a window is thus processed like the root
of a search, from its latent alone. With this rule the cache never has to be rewritten, and passes with and without
cache give equal results on sequences of any length.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from rl_training.models.planning.adapters import ScaledLinear
from rl_training.models.planning.experts import MixtureOfExperts, Routing


class WorldTransformer(nn.Module):
    """Processes tokens [B, T, width] at once, or one token per row with a cache of the previous keys and values.

    The cache of a row is one flat vector: keys and values of every layer and position, then the next token's position.
    """

    hidden_places: Tensor

    def __init__(
        self,
        width: int,
        *,
        layers: int,
        heads: int,
        context_steps: int,
        expert_size: int,
        experts: int,
        top_k: int,
        adapters: int,
        adapter_rank: int,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.width = width
        self.window = 2 * context_steps
        self.cache_size = layers * self.window * 2 * width + 1
        self.positions = nn.Parameter(torch.empty(self.window, width))
        nn.init.normal_(self.positions, std=0.02, generator=generator)
        self.blocks = nn.ModuleList(
            TransformerBlock(
                width,
                heads=heads,
                expert_size=expert_size,
                experts=experts,
                top_k=top_k,
                adapters=adapters,
                rank=adapter_rank,
                generator=generator,
            )
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        # Row t is minus infinity at the positions that a token at position t cannot attend to.
        later = torch.full((self.window, self.window), -torch.inf).triu(1)
        self.register_buffer("hidden_places", later, persistent=False)

    def forward(self, tokens: Tensor) -> tuple[Tensor, list[Routing]]:
        """Return outputs [B, T, width] and each layer's routing of the tokens (none without experts)."""
        windows = [self._read(window) for window in tokens.split(self.window, dim=1)]
        outputs = torch.cat([output for output, _ in windows], 1)
        by_layer = zip(*(routings for _, routings in windows), strict=True)
        return outputs, [Routing(*(torch.cat(parts, 1) for parts in zip(*layer, strict=True))) for layer in by_layer]

    def _read(self, tokens: Tensor) -> tuple[Tensor, list[Routing]]:
        """Process at most one window."""
        hidden = tokens + self.positions[: tokens.shape[1]]
        routings = []
        for block in self.blocks:
            hidden, routing = block(hidden)
            if routing is not None:
                routings.append(routing)
        return self.norm(hidden), routings

    def empty_cache(self, rows: int) -> Tensor:
        """Return empty caches [rows, cache_size]."""
        return self.positions.new_zeros(rows, self.cache_size)

    def extend(self, cache: Tensor, token: Tensor) -> Tensor:
        """Return the outputs [B, width] for each row's next token [B, width]; the caches are updated in place."""
        memory = cache[:, :-1].view(len(cache), len(self.blocks), self.window, 2 * self.width)
        place = cache[:, -1].long()
        rows = torch.arange(len(cache), device=cache.device)
        mask = self.hidden_places.index_select(0, place)[:, None, None]  # [B, 1, 1, window]
        hidden = token + self.positions.index_select(0, place)
        for number, block in enumerate(self.blocks):
            assert isinstance(block, TransformerBlock)
            hidden = block.extend(hidden, memory[:, number], rows, place, mask)
        cache[:, -1] = (place + 1) % self.window
        return self.norm(hidden)


class TransformerBlock(nn.Module):
    """Attention, then a mixture of experts, each with a normalised input and a residual connection."""

    def __init__(
        self,
        width: int,
        *,
        heads: int,
        expert_size: int,
        experts: int,
        top_k: int,
        adapters: int,
        rank: int,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        # Query, key and value of all heads in one product.
        self.attention_input = ScaledLinear(width, 3 * width, adapters=adapters, rank=rank, generator=generator)
        self.attention_output = ScaledLinear(width, width, adapters=adapters, rank=rank, generator=generator)
        self.experts_norm = nn.LayerNorm(width)
        self.experts = MixtureOfExperts(
            width, expert_size, experts=experts, top_k=top_k, adapters=adapters, rank=rank, generator=generator
        )

    def forward(self, hidden: Tensor) -> tuple[Tensor, Routing | None]:
        """Map [B, T, width] to [B, T, width]; each token attends to itself and the tokens before it."""
        inputs = self.attention_input(self.attention_norm(hidden)).unflatten(-1, (3, self.heads, -1))
        query, key, value = inputs.transpose(1, 3).unbind(2)  # [B, heads, T, width / heads] each
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.attention_output(attended.transpose(1, 2).flatten(2))
        answer, routing = self.experts(self.experts_norm(hidden))
        return hidden + answer, routing

    def extend(self, hidden: Tensor, memory: Tensor, rows: Tensor, place: Tensor, mask: Tensor) -> Tensor:
        """Map one token [B, width] per row; write its key and value to its place in memory [B, window, 2 * width]."""
        query, pair = self.attention_input(self.attention_norm(hidden)).split((hidden.shape[1], memory.shape[2]), dim=1)
        memory[rows, place] = pair
        key, value = memory.unflatten(-1, (2, self.heads, -1)).transpose(1, 3).unbind(2)
        query = query.unflatten(-1, (self.heads, 1, -1))
        attended = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        hidden = hidden + self.attention_output(attended.flatten(1))
        answer, _ = self.experts(self.experts_norm(hidden))
        return hidden + answer

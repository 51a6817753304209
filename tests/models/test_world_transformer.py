"""The world model's transformer: causality, windows, and passes with and without a cache."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from planning_parts import generator, randomize
from rl_training.models.planning.adapters import ScaledLinear, activate_adapters
from rl_training.models.planning.world_transformer import TransformerBlock, WorldTransformer

WIDTH, CONTEXT, ROWS = 8, 3, 4
WINDOW = 2 * CONTEXT


def make_transformer(*, experts: int = 3, stage: int = 0) -> WorldTransformer:
    transformer = WorldTransformer(
        WIDTH,
        layers=2,
        heads=2,
        context_steps=CONTEXT,
        expert_size=5,
        experts=experts,
        top_k=1,
        adapters=2,
        adapter_rank=2,
        generator=generator(0),
    )
    randomize(transformer)
    activate_adapters(transformer, stage)
    return transformer


def make_tokens(count: int, seed: int = 1) -> Tensor:
    return torch.randn(ROWS, count, WIDTH, generator=generator(seed))


@pytest.mark.parametrize("experts", [1, 3])
@pytest.mark.parametrize("stage", [0, 2])
@torch.no_grad()
def test_passes_with_and_without_cache_agree_beyond_the_context(experts: int, stage: int) -> None:
    transformer = make_transformer(experts=experts, stage=stage)
    tokens = make_tokens(2 * WINDOW + 3)
    outputs, _ = transformer(tokens)
    cache = transformer.empty_cache(ROWS)
    for place in range(tokens.shape[1]):
        output = transformer.extend(cache, tokens[:, place])
        torch.testing.assert_close(output, outputs[:, place], rtol=1e-5, atol=1e-5)
    assert outputs.std() > 0.1


@torch.no_grad()
def test_rows_of_unlike_length_share_a_batch() -> None:
    """Each row's cache has its own place, as the leaves of several trees have."""
    transformer = make_transformer()
    tokens = make_tokens(2 * WINDOW + 1)
    lengths = [0, 2, WINDOW - 1, WINDOW + 3]
    caches = transformer.empty_cache(ROWS)
    for row, length in enumerate(lengths):
        own = caches[row : row + 1]
        for place in range(length):
            transformer.extend(own, tokens[row : row + 1, place])
    next_tokens = torch.stack([tokens[row, length] for row, length in enumerate(lengths)])
    together = transformer.extend(caches, next_tokens)
    for row, length in enumerate(lengths):
        alone, _ = transformer(tokens[row : row + 1, : length + 1])
        torch.testing.assert_close(together[row], alone[0, -1], rtol=1e-5, atol=1e-5)
    assert caches[:, -1].tolist() == [1, 3, 0, 4]


@pytest.mark.parametrize("changed", range(WINDOW + 2))
@torch.no_grad()
def test_a_token_changes_itself_and_what_comes_after_it_in_its_window(changed: int) -> None:
    transformer = make_transformer()
    tokens = make_tokens(WINDOW + 2)
    before, _ = transformer(tokens)
    tokens[:, changed] += 1
    after, _ = transformer(tokens)
    end = WINDOW if changed < WINDOW else WINDOW + 2
    moved = (after - before).abs().amax((0, 2)) > 0
    assert moved.tolist() == [changed <= place < end for place in range(WINDOW + 2)]


@torch.no_grad()
def test_a_new_window_begins_like_a_sequence() -> None:
    transformer = make_transformer()
    tokens = make_tokens(WINDOW + 4)
    outputs, _ = transformer(tokens)
    torch.testing.assert_close(outputs[:, WINDOW:], transformer(tokens[:, WINDOW:])[0])


@torch.no_grad()
def test_places_matter() -> None:
    transformer = make_transformer()
    repeated = make_tokens(1).expand(-1, WINDOW, -1)
    outputs, _ = transformer(repeated)
    assert (outputs[:, 1:] - outputs[:, :1]).abs().amax((0, 2)).min() > 1e-2


@torch.no_grad()
def test_a_block_is_attention_and_experts_written_out() -> None:
    block = make_transformer().blocks[0]
    assert isinstance(block, TransformerBlock)
    hidden = make_tokens(4)
    inputs = block.attention_input(block.attention_norm(hidden))  # [B, T, 3 * width]
    query, key, value = inputs.split(WIDTH, dim=2)
    half = WIDTH // 2
    heads = []
    for own in (slice(0, half), slice(half, WIDTH)):
        scores = query[..., own] @ key[..., own].transpose(1, 2) / half**0.5
        scores = scores.masked_fill(torch.ones(4, 4).triu(1).bool(), -torch.inf)
        heads.append(scores.softmax(2) @ value[..., own])
    attended = hidden + block.attention_output(torch.cat(heads, 2))
    normalised = functional.layer_norm(attended, (WIDTH,), block.experts_norm.weight, block.experts_norm.bias)
    expected = attended + block.experts(normalised)[0]
    torch.testing.assert_close(block(hidden)[0], expected, rtol=1e-5, atol=1e-5)


def test_routings_tell_of_every_token_in_every_layer() -> None:
    _, routings = make_transformer()(make_tokens(WINDOW + 3))
    assert [routing.probability.shape for routing in routings] == [(ROWS, WINDOW + 3, 3)] * 2
    assert [routing.chosen.shape for routing in routings] == [(ROWS, WINDOW + 3, 1)] * 2
    assert make_transformer(experts=1)(make_tokens(3))[1] == []


def test_attention_and_experts_have_adapters() -> None:
    names = {name for name, module in make_transformer().blocks[1].named_modules() if isinstance(module, ScaledLinear)}
    assert names == {"attention_input", "attention_output", "experts.first", "experts.second"}

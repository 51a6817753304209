"""A world transformer as a model, laid out in flat arrays for the compiled search.

A state is two tokens, the action that led to it and its latent. A sequence is cut into windows of so many tokens, and
attention and positions begin anew with the first latent of each. A node of the tree remembers the keys and values of
its own two tokens; those before them stand at the nodes above it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rl_training.kernels.search.perceptron_layout import padded, tiled
from rl_training.search.model import ModelOutput
from rl_training.search.rule import Rule
from rl_training.search.tree import Buffers, Leaves, Tree, make_leaves


@dataclass(frozen=True)
class Linear:
    """A linear layer; its weight is asked for at every refresh, as it may be composed of several parameters."""

    weight: Callable[[], Tensor]  # [outputs, inputs]
    bias: Tensor | None = None  # [outputs]


@dataclass(frozen=True)
class Norm:
    """A layer normalisation."""

    gain: Tensor  # [width]
    shift: Tensor  # [width]


@dataclass(frozen=True)
class Block:
    """Attention, then experts; each reads its input normalised and adds to it.

    The experts are one wide perceptron with groups of `expert_size` hidden units: one for each of the router's experts,
    and a last one that every token visits. Without a router there is but that one.
    """

    attention_norm: Norm
    attention_input: Linear  # queries, keys and values of all heads
    attention_output: Linear
    experts_norm: Norm
    experts_first: Linear
    experts_second: Linear
    expert_size: int
    router: Linear | None = None


@dataclass(frozen=True)
class TaskHeads:
    """What one task has for itself: tokens for its actions, heads on those of its states and actions."""

    action_rows: Tensor  # [actions, width]
    state_trunk: Linear
    policy: Linear
    value: Linear
    step_trunk: Linear
    latent: Linear
    reward: Linear


def _record(fields: str) -> np.dtype[Any]:
    return np.dtype([(name, np.int64) for name in fields.split()])


LINEAR = _record("weight bias inputs outputs width")
"""A linear layer: offsets among the weights, and sizes; `outputs` are padded, `width` of them are meant."""
BLOCK = _record("attention_norm attention_input attention_output experts_norm router experts")
"""A block: offsets of its norms, numbers of its linear layers; an expert has two of them one after the other."""
TASK = _record("actions action_rows state step")
"""A task: how many actions, the offset of their rows, and the numbers of its heads' linear layers for states and steps:

a trunk, then one head for a scalar (value, reward) and one for a vector (policy, latent).
"""


class Columns(NamedTuple):
    """Where intermediate results stand: a column c is at c * rows of the activations."""

    hidden: int
    normed: int
    projected: int
    attended: int
    scores: int
    gates: int
    gathered: int
    inner: int
    answer: int
    end: int


class PackedTransformer(NamedTuple):
    """What the compiled search reads."""

    weights: np.ndarray  # flat float32; weights of linear layers as [outputs / TILE, inputs, TILE]
    linears: np.ndarray  # of LINEAR
    blocks: np.ndarray  # [layers] of BLOCK
    tasks: np.ndarray  # [tasks] of TASK
    positions: int  # offset of what is added to the tokens, [window, width]
    norm: int  # offset of the last normalisation
    columns: Columns
    width: int
    stride: int  # the padded width
    window: int  # tokens
    heads: int
    experts: int  # that the router chooses from
    top_k: int
    group: int  # so many numbers of a latent are one distribution
    discount: float


class Workspace(NamedTuple):
    """Memory of a search from B roots with N nodes each."""

    memory: np.ndarray  # flat float32: of each node [layers, action and latent, key and value, width]
    depths: np.ndarray  # [B * N] int64
    seen: np.ndarray  # [B, window] int64, for each place of a path's present window where layer 0 remembers its token
    places: np.ndarray  # [B] int64, of the tokens that are read
    group: np.ndarray  # [B] int64, the rows that chose one expert
    activations: np.ndarray  # flat float32, by `Columns`


class Transformer:
    """Packed weights of a world transformer for all of its tasks.

    They are copied again where `changed` says that the originals are other ones since it was asked last.
    """

    def __init__(
        self,
        blocks: Sequence[Block],
        tasks: Sequence[TaskHeads],
        *,
        positions: Tensor,
        norm: Norm,
        heads: int,
        top_k: int,
        group: int,
        discount: float,
        changed: Callable[[], bool] = lambda: False,
    ) -> None:
        """`positions` is [window, width]; a latent's softmax is taken over groups of `group` numbers."""
        self.actions = [len(task.action_rows) for task in tasks]
        """How many actions each task has."""
        self._size = 0
        self._linears: list[tuple[int, ...]] = []
        self._copies: list[tuple[int, Tensor, slice]] = []  # offset, parameter, and the part of it
        self._weights: list[tuple[Callable[[], Tensor], list[tuple[int, slice, slice]]]] = []
        window, width = positions.shape
        packed_blocks = np.array([self._block(block) for block in blocks], BLOCK)
        packed_tasks = np.array([self._task(task) for task in tasks], TASK)
        router = blocks[0].router
        linears = np.array(self._linears, LINEAR)
        experts = 0 if router is None else len(router.weight())
        self._packed = PackedTransformer(
            linears=linears,
            blocks=packed_blocks,
            tasks=packed_tasks,
            positions=self._place(positions),
            norm=self._norm(norm),
            columns=_columns(width, window, experts, int(linears["outputs"].max())),
            width=width,
            stride=padded(width),
            window=window,
            heads=heads,
            experts=experts,
            top_k=top_k,
            group=group,
            discount=discount,
            weights=np.zeros(self._size, np.float32),
        )
        self._changed = changed
        self.refresh()
        self._buffers = Buffers()

    @property
    def node_size(self) -> int:
        """How many numbers a node of the tree remembers."""
        return len(self._packed.blocks) * 4 * self._packed.width

    @property
    def packed(self) -> PackedTransformer:
        """The weights as they are now."""
        if self._changed():
            self.refresh()
        return self._packed

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the current parameters into the flat array."""
        weights = self._packed.weights
        for offset, tensor, own in self._copies:
            part = tensor.detach().numpy()[own]
            weights[offset : offset + part.size] = part.ravel()
        for weight, pieces in self._weights:
            values = weight().detach().numpy()
            for offset, outputs, inputs in pieces:
                tiles = tiled(values[outputs, inputs])
                weights[offset : offset + tiles.size].reshape(tiles.shape)[:] = tiles

    def workspace(self, batch: int, nodes: int) -> Workspace:
        """Return memory for a search, uninitialised, valid until the next call."""
        array, packed = self._buffers.array, self._packed
        return Workspace(
            memory=array("memory", np.float32, batch * nodes * self.node_size),
            depths=array("depths", np.int64, batch * nodes),
            seen=array("seen", np.int64, batch, packed.window),
            places=array("places", np.int64, batch),
            group=array("group", np.int64, batch),
            activations=array("activations", np.float32, batch * packed.columns.end),
        )

    def _place(self, tensor: Tensor) -> int:
        offset = self._reserve(tensor.numel())
        self._copies.append((offset, tensor, slice(None)))
        return offset

    def _reserve(self, size: int) -> int:
        offset = self._size
        self._size += size
        return offset

    def _norm(self, norm: Norm) -> int:
        """Place gain and shift one after the other."""
        offset = self._place(norm.gain)
        self._place(norm.shift)
        return offset

    def _linear(self, linear: Linear) -> int:
        """Place a layer; return its number."""
        outputs, inputs = linear.weight().shape
        number, piece = self._piece(slice(0, outputs), slice(0, inputs), linear.bias)
        self._weights.append((linear.weight, [piece]))
        return number

    def _piece(self, outputs: slice, inputs: slice, bias: Tensor | None) -> tuple[int, tuple[int, slice, slice]]:
        """Make room for a part of a weight; return its number, and where it is to be copied."""
        width, size = outputs.stop - outputs.start, inputs.stop - inputs.start
        weight, shift = self._reserve(padded(width) * size), self._reserve(padded(width))
        if bias is not None:
            self._copies.append((shift, bias, outputs))
        self._linears.append((weight, shift, size, padded(width), width))
        return len(self._linears) - 1, (weight, outputs, inputs)

    def _experts(self, block: Block) -> int:
        """Place each expert as a perceptron of its own; return the number of the first one's first layer."""
        hidden, width = block.experts_first.weight().shape
        assert block.experts_first.bias is not None
        start = len(self._linears)
        firsts, seconds = [], []
        for group in range(0, hidden, block.expert_size):
            own, whole = slice(group, group + block.expert_size), slice(0, width)
            firsts.append(self._piece(own, whole, block.experts_first.bias)[1])
            # The bias of the sum is that of the expert whom every token visits.
            bias = block.experts_second.bias if own.stop == hidden else None
            seconds.append(self._piece(whole, own, bias)[1])
        self._weights += [(block.experts_first.weight, firsts), (block.experts_second.weight, seconds)]
        return start

    def _block(self, block: Block) -> tuple[int, ...]:
        return (
            self._norm(block.attention_norm),
            self._linear(block.attention_input),
            self._linear(block.attention_output),
            self._norm(block.experts_norm),
            -1 if block.router is None else self._linear(block.router),
            self._experts(block),
        )

    def _task(self, task: TaskHeads) -> tuple[int, ...]:
        return (
            len(task.action_rows),
            self._place(task.action_rows),
            self._heads(task.state_trunk, task.value, task.policy),
            self._heads(task.step_trunk, task.reward, task.latent),
        )

    def _heads(self, trunk: Linear, scalar: Linear, vector: Linear) -> int:
        """Place layers one after the other; return the first one's number."""
        first, *_ = (self._linear(layer) for layer in (trunk, scalar, vector))
        return first


def _columns(width: int, window: int, experts: int, widest: int) -> Columns:
    sizes = Columns(
        hidden=padded(width),
        normed=padded(width),
        projected=padded(3 * width),
        attended=padded(width),
        scores=window,
        gates=padded(experts),
        gathered=padded(width),
        inner=widest,
        answer=widest,
        end=0,
    )
    return Columns(*(sum(sizes[:position]) for position in range(len(sizes))))


class TransformerModel:
    """Some tasks of a transformer as a model: their roots are one batch, ordered by task.

    A task with fewer actions than another has illegal ones after its own.
    """

    def __init__(
        self, transformer: Transformer, tasks: Sequence[int], encode: Callable[[Any], Sequence[Tensor]]
    ) -> None:
        """`encode` returns the latents [rows, width] of each of the tasks, by any network."""
        self.transformer = transformer
        self.tasks = tuple(tasks)
        self.actions = max(transformer.actions[task] for task in tasks)
        self.spans = np.zeros((len(self.tasks), 3), np.int64)
        """Each task's number, first row and end in the search that `initial` began."""
        self._encode = encode

    def initial(self, observation: Any) -> ModelOutput:
        """Encode the roots' observations, and read them as the first tokens of their paths."""
        from rl_training.kernels.search.transformer_search import read_roots

        latents = self._encode(observation)
        ends = np.cumsum([len(latent) for latent in latents])
        self.spans[:, 0] = self.tasks
        self.spans[1:, 1] = ends[:-1]
        self.spans[:, 2] = ends
        rows = int(ends[-1])
        leaves: Leaves = make_leaves(rows, self.actions)
        workspace = self.transformer.workspace(rows, 1)
        read_roots(self.transformer.packed, self.spans, leaves, workspace, torch.cat(list(latents)).numpy())
        return ModelOutput(
            prior_logits=torch.from_numpy(leaves.logits),
            value=torch.from_numpy(leaves.values),
            reward=torch.zeros(rows),
            discount=torch.from_numpy(leaves.discounts),
            embedding=torch.from_numpy(workspace.memory.copy()).view(rows, -1),
        )

    def simulate(self, rule: Rule, tree: Tree, leaves: Leaves, root: ModelOutput) -> None:
        """Run all simulations of a search whose roots are made."""
        from rl_training.kernels.search.transformer_search import search_transformer

        batch, nodes = tree.nodes.shape
        workspace = self.transformer.workspace(batch, nodes)
        workspace.memory.reshape(batch, nodes, -1)[:, 0] = root.embedding.numpy()
        search_transformer(rule, tree, self.transformer.packed, self.spans, leaves, workspace)

"""The states that a model has evaluated, and how to find one again.

While the weights stay the same, so does what a model predicts after an action in a state. Where searches return to
states of earlier ones, as reanalysis does, they are found instead of being evaluated again: a root by its latent, any
other state by its parent and action. The numbers are the same bits, since a row of a compiled product does not depend
on the rows beside it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rl_training.kernels.search.perceptron_layout import PackedMLP
from rl_training.search.compilation import part

UNKNOWN = -1
REMEMBERED_BYTES = 1 << 26
"""Of latents and recurrent cells that are remembered at most, beyond what a single search needs."""
REMEMBERED_ROOTS = 1 << 13

STATE = np.dtype(
    [
        ("parent", np.int32),  # the state before
        ("action", np.int32),  # taken there
        ("value", np.float32),
        ("reward", np.float32),
        ("discount", np.float32),
        ("prefix", np.float32),  # rewards since the recurrent cell's last reset
        ("depth", np.float32),  # steps since then; 0 where the cell is empty
    ],
    align=True,
)


class States(NamedTuple):
    """Up to S states of a model with A actions, in flat arrays, in the order in which they were evaluated."""

    counts: np.ndarray  # [2] int64, how many states there are, and how many of them are remembered as roots
    states: np.ndarray  # [S] of STATE
    children: np.ndarray  # [S * A] int32, the state after each action, UNKNOWN where it is not evaluated
    logits: np.ndarray  # [S * A] float32
    latents: np.ndarray  # [S * latent stride] float32
    cells: np.ndarray  # [S * 2 * cell stride] float32, output and memory; undefined where the depth is 0
    roots: np.ndarray  # [power of two] int32, a hash table of roots; empty where nothing is remembered


class StateMemory:
    """Memory for states, kept from search to search and enlarged when a search needs more."""

    def __init__(self, network: PackedMLP, *, remembers: bool) -> None:
        """`remembers`: states are kept until they are forgotten; without, a search begins with none."""
        self._network = network
        self.remembers = remembers
        self.states = self._allocate(0, 0)

    def reserve(self, batch: int, nodes: int) -> States:
        """Return memory with room for the states of so many trees, with what is remembered."""
        wanted, counts = batch * nodes, self.states.counts
        fits = counts[0] + wanted <= len(self.states.states)
        if self.remembers and not (fits and 2 * (counts[1] + batch) <= len(self.states.roots)):
            self.forget()
        if wanted > len(self.states.states) or (self.remembers and 2 * batch > len(self.states.roots)):
            self.states = self._allocate(wanted, batch)
        if not self.remembers:
            self.forget()
        return self.states

    def forget(self) -> None:
        """Forget all states: the weights have changed, or the memory is full."""
        self.states.counts[:] = 0
        self.states.roots[:] = UNKNOWN

    def _allocate(self, count: int, batch: int) -> States:
        network = self._network
        stride, cell, actions, table = network.latent_stride, 2 * network.cell_stride, network.actions, 0
        if self.remembers and count:
            count = max(count, REMEMBERED_BYTES // (4 * (stride + cell)))
            table = 2 * max(REMEMBERED_ROOTS, 1 << (batch - 1).bit_length())
        return States(
            counts=np.zeros(2, np.int64),
            states=np.empty(count, STATE),
            children=np.empty(count * actions, np.int32),
            logits=np.empty(count * actions, np.float32),
            latents=np.empty(count * stride, np.float32),
            cells=np.empty(count * cell, np.float32),
            roots=np.full(table, UNKNOWN, np.int32),
        )


@part()
def add_state(network: PackedMLP, states: States, parent: int, action: int) -> int:
    """Return the number of a new state, which has yet to be evaluated."""
    number = int(states.counts[0])
    states.counts[0] = number + 1
    state = states.states[number]
    state.parent, state.action = parent, action
    for index in range(number * network.actions, (number + 1) * network.actions):
        states.children[index] = UNKNOWN
    return number


@part()
def state_after(network: PackedMLP, states: States, parent: int, action: int) -> int:
    """Return the state that an action leads to; where it is not known, it is a new one."""
    place = parent * network.actions + action
    child = int(states.children[place])
    if child == UNKNOWN:
        child = add_state(network, states, parent, action)
        states.children[place] = child
    return child


@part()
def root_state(network: PackedMLP, states: States, latents: np.ndarray, bits: np.ndarray, row: int) -> int:
    """Return the root state with a latent of [B, latent], whose bits are given as integers; add it if it is new."""
    width, stride, table = latents.shape[1], network.latent_stride, states.roots
    place = np.int64(0)
    if len(table) > 0:
        key = np.uint64(0)
        for index in range(width):
            key = (key ^ np.uint64(bits[row, index])) * np.uint64(0x9E3779B97F4A7C15)
            key ^= key >> np.uint64(32)
        place = np.int64(key & np.uint64(len(table) - 1))
        while table[place] != UNKNOWN:
            found = int(table[place])
            same = True
            for index in range(width):
                same &= states.latents[found * stride + index] == latents[row, index]
            if same:
                return found
            place = (place + 1) & (len(table) - 1)
    number = add_state(network, states, UNKNOWN, UNKNOWN)
    for index in range(width):
        states.latents[number * stride + index] = latents[row, index]
    state = states.states[number]
    state.prefix = state.depth = np.float32(0.0)
    if len(table) > 0:
        table[place] = number
        states.counts[1] += 1
    return number

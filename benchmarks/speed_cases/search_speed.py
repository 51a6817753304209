"""Simulations per second of the search: the compiled path against the torch path, mctx and LightZero.

All search with the same network: latent 128, two actions, 601 atoms. Times are of the processor, so that other
programs on the machine disturb less; against mctx, which computes on as many threads as JAX takes, both sides' are of
the clock.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from peers import lightzero_search
from records import why_missing
from rl_training.kernels.search.perceptron_layout import Dense
from rl_training.kernels.search.perceptron_model import MLPModel
from rl_training.models.planning.scalar_support import expected_scalar
from rl_training.search.gumbel import Gumbel
from rl_training.search.model import ModelOutput
from rl_training.search.puct import Puct
from rl_training.search.rule import Rule
from rl_training.search.search import TreeSearch
from speed_cases.speed_parts import Effort, Outcome, alternate, quickest, quotients

LATENT, ACTIONS, HEAD = 128, 2, 32
CLOCK = "processor time (against mctx: the clock's)"
DISCOUNT = 0.997
ATOMS = 601
SIZES = ((1, 25), (8, 25), (64, 50))
"""Roots and simulations."""
RULES: dict[str, Rule] = {"muzero": Puct(), "gumbel": Gumbel()}
OURS = {"torch": "compiled", "mctx": "compiled_by_the_clock", "lightzero": "compiled"}
"""What each path is compared with."""


class Network:
    """A network of the usual shape for a vector environment; an observation is already a latent."""

    def __init__(self, atoms: int) -> None:
        self.generator = torch.Generator().manual_seed(0)
        self.rows = torch.randn(ACTIONS, LATENT, generator=self.generator)
        self.dynamics = [self.layer(LATENT, LATENT), self.layer(LATENT, LATENT)]
        self.trunk = [self.layer(LATENT, LATENT), self.layer(LATENT, LATENT)]
        self.reward, self.value, self.policy = (
            [self.layer(LATENT, HEAD), self.layer(HEAD, outputs, "identity")] for outputs in (atoms, atoms, ACTIONS)
        )
        self.support = torch.arange(atoms) - atoms // 2.0

    def layer(self, inputs: int, outputs: int, activation: str = "relu") -> Dense:
        """Return a layer of random weights."""
        weight = torch.randn(outputs, inputs, generator=self.generator) * (2 / inputs) ** 0.5
        return Dense(weight, torch.zeros(outputs), activation)

    def compiled(self) -> MLPModel:
        """Return the network for the compiled path."""
        return MLPModel(
            lambda latent: latent,
            action_rows=self.rows,
            dynamics=self.dynamics,
            trunk=self.trunk,
            reward=self.reward,
            value=self.value,
            policy=self.policy,
            discount=DISCOUNT,
        )

    def initial(self, observation: Any) -> ModelOutput:
        """Return what the network says of the roots."""
        return self.predict(observation, observation.new_zeros(len(observation)))

    def recurrent(self, embedding: Tensor, action: Tensor) -> ModelOutput:
        """Return what the network says after an action."""
        latent = apply(self.dynamics, embedding, self.rows[action])
        return self.predict(latent, expected_scalar(apply(self.reward, latent)))

    def predict(self, latent: Tensor, reward: Tensor) -> ModelOutput:
        """Apply the heads of value and policy."""
        features = apply(self.trunk, latent)
        value = expected_scalar(apply(self.value, features))
        return ModelOutput(apply(self.policy, features), value, reward, torch.full_like(reward, DISCOUNT), latent)


def apply(layers: Sequence[Dense], hidden: Tensor, extra: Tensor | None = None) -> Tensor:
    """Return what the layers make of [B, inputs]; `extra` enters the first before its activation."""
    for layer in layers:
        hidden = torch.addmm(layer.bias, hidden, layer.weight.T)
        if extra is not None:
            hidden, extra = hidden + extra, None
        if layer.activation == "relu":
            hidden = hidden.relu_()
    return hidden


def mctx_search(network: Network, kind: str, roots: Tensor, simulations: int) -> Callable[[], Any]:
    """Return a search of mctx with the same weights."""
    import jax
    import jax.numpy as jnp
    import mctx

    def arrays(layers: Sequence[Dense]) -> list[Any]:
        return [(jnp.asarray(layer.weight.numpy().T), layer.activation == "relu") for layer in layers]

    parts = {name: arrays(getattr(network, name)) for name in ("dynamics", "trunk", "reward", "value", "policy")}
    rows, support = jnp.asarray(network.rows.numpy()), jnp.asarray(network.support.numpy())

    def run_layers(name: str, hidden: Any, extra: Any = 0.0) -> Any:
        for weight, activated in parts[name]:
            hidden = hidden @ weight + extra
            hidden, extra = (jax.nn.relu(hidden) if activated else hidden), 0.0
        return hidden

    def scalar(logits: Any) -> Any:
        mean = jax.nn.softmax(logits) @ support
        shifted = jnp.abs(mean) + 1.001
        return jnp.sign(mean) * ((2 * shifted / (jnp.sqrt(1 + 0.004 * shifted) + 1)) ** 2 - 1)

    def recurrent(_: Any, __: Any, action: Any, embedding: Any) -> Any:
        latent = run_layers("dynamics", embedding, rows[action])
        features, reward = run_layers("trunk", latent), scalar(run_layers("reward", latent))
        output = mctx.RecurrentFnOutput(
            reward=reward,
            discount=jnp.full_like(reward, DISCOUNT),
            prior_logits=run_layers("policy", features),
            value=scalar(run_layers("value", features)),
        )
        return output, latent

    policy = mctx.muzero_policy if kind == "muzero" else mctx.gumbel_muzero_policy

    @jax.jit
    def search(key: Any, latent: Any) -> Any:
        features = run_layers("trunk", latent)
        logits, value = run_layers("policy", features), scalar(run_layers("value", features))
        root = mctx.RootFnOutput(prior_logits=logits, value=value, embedding=latent)
        return policy((), key, root, recurrent, num_simulations=simulations).action_weights

    key, latent = jax.random.PRNGKey(0), jnp.asarray(roots.numpy())
    return lambda: search(key, latent).block_until_ready()


def settings(effort: Effort) -> str:
    """Return what is measured, in words."""
    return f"latent {LATENT}, {ACTIONS} actions, {ATOMS} atoms, one thread (mctx: as many as JAX takes)"


def measure(effort: Effort) -> Outcome:
    """Search by every path in turn, for every rule and size."""
    torch.set_num_threads(1)
    missing = [reason for reason in (why_missing("mctx"), lightzero_search.why_missing()) if reason is not None]
    ratios: dict[str, list[float]] = {}
    cases, rounds = [], []
    for kind in RULES:
        for roots, simulations in effort.choose(SIZES, SIZES[:2]):
            rows = _rates(kind, roots, simulations, effort)
            case: dict[str, Any] = {"rule": kind, "roots": roots, "simulations": simulations, "atoms": ATOMS}
            rounds += [{**case, **row} for row in rows]
            for path in rows[0]:
                case[f"{path}_simulations_per_second"] = round(statistics.median(row[path] for row in rows))
                if path in OURS:
                    found = quotients(rows, OURS[path], path)
                    case[f"compiled_to_{path}"] = round(statistics.median(found), 2)
                    ratios[ratio_name(case, path)] = found
            cases.append(case)
    return Outcome(
        ratios=ratios,
        missing=missing,
        details={"cases": cases, "rounds": rounds},
    )


def ratio_name(case: dict[str, Any], path: str) -> str:
    """Return what a ratio is called."""
    return f"{case['rule']} {case['roots']}x{case['simulations']}: {path}"


def _rates(kind: str, roots: int, simulations: int, effort: Effort) -> list[dict[str, float]]:
    """Return simulations per second of every path, round by round."""
    network = Network(ATOMS)
    latent = torch.rand(roots, LATENT, generator=network.generator)
    generator = np.random.default_rng(0)

    def ours(model: Any) -> Callable[[], Any]:
        search = TreeSearch(RULES[kind])
        return lambda: search.run(model, latent, num_simulations=simulations, exploration=0.25, generator=generator)

    compiled = ours(network.compiled())
    searches: dict[str, tuple[Callable[[], Any], Callable[[], float]]] = {
        "compiled": (compiled, time.thread_time),
        "torch": (ours(network), time.thread_time),
    }
    if why_missing("mctx") is None:
        searches[OURS["mctx"]] = (compiled, time.perf_counter)
        searches["mctx"] = (mctx_search(network, kind, latent, simulations), time.perf_counter)
    if lightzero_search.why_missing() is None:
        theirs = lightzero_search.make_search(network, apply, kind, latent, simulations, DISCOUNT)
        searches["lightzero"] = (theirs, time.thread_time)
    for search, _ in searches.values():
        search()  # compiles
    repeats = effort.choose(15, 3)
    return alternate(
        {path: partial(_rate, *search, roots * simulations, repeats) for path, search in searches.items()},
        effort.rounds,
    )


def _rate(search: Callable[[], Any], clock: Callable[[], float], work: int, repeats: int, _: int) -> float:
    """Return the work per second of the fastest search."""
    return work / quickest(search, repeats, clock)

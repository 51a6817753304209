"""LightZero's search as a peer, with the network of our benchmark.

LightZero's requirements contradict ours, so what its search imports is installed beside them:

    pip install --target build/lightzero --no-deps LightZero==0.2.0 DI-engine==0.5.3 DI-toolkit==0.3.0 \\
        DI-treetensor==0.5.0 treevalue==1.5.0 hbutils==0.14.2 easydict==1.13 gym==0.25.1 flask==3.1.3 \\
        blinker==1.9.0 itsdangerous==2.2.0 dill==0.4.1 graphviz==0.21 tabulate==0.10.0 tensorboardX==2.6.5 \\
        enum-tools==0.13.0 urlobject==3.0.0 deprecation==2.1.0
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from records import PEERS

FOLDER = PEERS / "lightzero"


@cache
def why_missing() -> str | None:
    """Return why LightZero cannot search here, or None where it can."""
    if not FOLDER.is_dir():
        return (
            "LightZero is not installed in build/lightzero: see benchmarks/peers/lightzero_search.py for how to "
            "install it"
        )
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))  # last: what both sides need is ours
    try:
        import lzero.mcts.tree_search.mcts_ctree  # noqa: F401
    except ImportError as error:
        return f"LightZero does not run here: {error}"
    return None


def make_search(
    network: Any, apply: Callable[..., Tensor], kind: str, latent: Tensor, simulations: int, discount: float
) -> Callable[[], Any]:
    """Return a search of LightZero from these latents, by the network of `search_speed`, whose layers `apply` runs."""
    from easydict import EasyDict
    from lzero.mcts.tree_search.mcts_ctree import GumbelMuZeroMCTSCtree, MuZeroMCTSCtree

    class Model(torch.nn.Module):
        def recurrent_inference(self, embedding: Tensor, action: Tensor) -> Any:
            following = apply(network.dynamics, embedding, network.rows[action.view(-1)])
            return self.outputs(following, apply(network.reward, following))

        def outputs(self, hidden: Tensor, reward: Tensor) -> Any:
            features = apply(network.trunk, hidden)
            return EasyDict(
                latent_state=hidden,
                reward=reward,
                value=apply(network.value, features),
                policy_logits=apply(network.policy, features),
            )

    actions = len(network.rows)
    tree = MuZeroMCTSCtree if kind == "muzero" else GumbelMuZeroMCTSCtree
    search = tree(
        EasyDict(
            num_simulations=simulations,
            discount_factor=discount,
            device="cpu",
            env_type="not_board_games",
            max_num_considered_actions=actions,
            model={"support_scale": len(network.support) // 2, "categorical_distribution": True},
        )
    )
    model, count = Model(), len(latent)
    legal = [list(range(actions)) for _ in range(count)]
    to_play = [-1] * count
    generator = np.random.default_rng(0)

    def run() -> Any:
        with torch.no_grad():
            root = model.outputs(latent, latent.new_zeros(count, len(network.support)))
            value = search.inverse_scalar_transform_handle(root.value)
        roots = tree.roots(count, legal)
        noise = generator.dirichlet([0.3] * actions, count).astype(np.float32).tolist()
        values = [value.reshape(-1).tolist()] if kind == "gumbel" else []
        roots.prepare(0.25, noise, [0.0] * count, *values, root.policy_logits.tolist(), to_play)
        search.search(roots, model, latent.numpy(), to_play)
        return roots.get_distributions()

    return run

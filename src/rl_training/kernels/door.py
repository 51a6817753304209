"""The one place where a faster twin steps in for a method of an algorithm.

An algorithm defines its run by methods that learn by autograd. When a run is set up, `attach` asks the kernel that
stands for the algorithm's class whether it knows this very one: the package's own loss, models of exactly the known
types. If so, faster twins take the place of methods on the instance; the first call of each compares it with what it
stands for, on the run's own data. No algorithm knows about this, and without it every algorithm works.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from rl_training.kernels.requires import NoKernel
from rl_training.search.compilation import prepare_compiler

# Module with the function `attach(algorithm, kernel, updates)`, by the class that it stands for. Where a kernel does
# less than it could, the function returns the reason.
_KERNELS = {
    "rl_training.algorithms.ppo.PPO": "rl_training.kernels.ppo",
    "rl_training.algorithms.dqn.DQN": "rl_training.kernels.dqn",
    "rl_training.algorithms.sac.SAC": "rl_training.kernels.sac",
    "rl_training.algorithms.td3.TD3": "rl_training.kernels.td3",
    "rl_training.algorithms.muzero.MuZero": "rl_training.kernels.muzero",
    "rl_training.algorithms.scalezero.ScaleZero": "rl_training.kernels.scalezero",
}
# The same for collectors of rollouts, by the class of the environments: `attach(collector, kernel)`.
_COLLECTING = {"rl_training.envs.families.vector_cartpole.VectorCartPole": "rl_training.kernels.poles"}
# What these import only where code is compiled, since numba takes a third of a second to import.
_COMPILED = (
    "rl_training.kernels.compiled_ppo",
    "rl_training.kernels.compiled.poles",
    "rl_training.kernels.compiled_dqn",
    "rl_training.kernels.continuous.compiled_sac",
    "rl_training.kernels.continuous.compiled_td3",
    "rl_training.kernels.compiled_muzero",
)


@dataclass(frozen=True)
class Acceleration:
    """What was attached to an algorithm, and why nothing or not all that there is."""

    kernel: str | None
    reason: str | None


def attach(algorithm: Any, updates: float | None = None) -> Acceleration:
    """Let the kernel of an algorithm's class step in for its methods, if it knows this algorithm.

    `updates` is about how many gradient steps the run takes, None where that does not matter.
    """
    for cls in type(algorithm).__mro__:
        module = _KERNELS.get(f"{cls.__module__}.{cls.__qualname__}")
        if module is None:
            continue
        kernel = module.rpartition(".")[2]
        try:
            return Acceleration(kernel, importlib.import_module(module).attach(algorithm, kernel, updates))
        except NoKernel as missing:
            return Acceleration(None, str(missing))
    return Acceleration(None, f"{type(algorithm).__qualname__} has no kernel")


def attach_collecting(collector: Any) -> Acceleration:
    """Let the kernel of the environments' class step in for a collector's steps, if it knows both of them."""
    cls = type(collector.env)
    module = _COLLECTING.get(f"{cls.__module__}.{cls.__qualname__}")
    if module is None:
        return Acceleration(None, f"{cls.__qualname__} has no kernel")
    kernel = module.rpartition(".")[2]
    try:
        importlib.import_module(module).attach(collector, kernel)
    except NoKernel as missing:
        return Acceleration(None, str(missing))
    return Acceleration(kernel, None)


def prepare_compiled() -> None:
    """Import all compiled kernels, and make numba ready to call them."""
    for module in _COMPILED:
        importlib.import_module(module)
    prepare_compiler()

"""The stable interface, tier `stable`: semantic versioning, no breaking change within a major release.

Contains the exports of `rl_training` itself and the stable algorithms with their parameters. Names are loaded on first
use.
"""

from typing import TYPE_CHECKING

from rl_training._lazy import STABLE, lazy_exports
from rl_training._version import __version__

if TYPE_CHECKING:
    from rl_training import (
        AxiomError,
        Callback,
        DefaultExperimentManager,
        EarlyStopping,
        TrainConfig,
        TrainingEvent,
        TrainResult,
        evaluate,
        load_config,
        load_policy,
        resume,
        train,
    )
    from rl_training.algorithms.dqn import DQN
    from rl_training.algorithms.gumbel_muzero import GumbelMuZero, GumbelMuZeroParams
    from rl_training.algorithms.params.dqn_params import DQNParams
    from rl_training.algorithms.params.ppo_params import PPOParams
    from rl_training.algorithms.params.sac_params import SACParams
    from rl_training.algorithms.ppo import PPO
    from rl_training.algorithms.sac import SAC
    from rl_training.algorithms.td3 import TD3, TD3Params

__all__ = [
    "DQN",
    "PPO",
    "SAC",
    "TD3",
    "AxiomError",
    "Callback",
    "DQNParams",
    "DefaultExperimentManager",
    "EarlyStopping",
    "GumbelMuZero",
    "GumbelMuZeroParams",
    "PPOParams",
    "SACParams",
    "TD3Params",
    "TrainConfig",
    "TrainResult",
    "TrainingEvent",
    "__version__",
    "evaluate",
    "load_config",
    "load_policy",
    "resume",
    "train",
]

_MODULES = {
    "dqn": ("DQN",),
    "gumbel_muzero": ("GumbelMuZero", "GumbelMuZeroParams"),
    "params.dqn_params": ("DQNParams",),
    "ppo": ("PPO",),
    "params.ppo_params": ("PPOParams",),
    "params.sac_params": ("SACParams",),
    "sac": ("SAC",),
    "td3": ("TD3", "TD3Params"),
}
_ALGORITHMS = {name: f"rl_training.algorithms.{module}" for module, names in _MODULES.items() for name in names}

__getattr__, __dir__ = lazy_exports(__name__, STABLE | _ALGORITHMS)

"""The stable interface, tier `stable`: semantic versioning, no breaking change within a major release.

Holds what `rl_training` itself exports and the stable algorithms with their parameters. Names are loaded on
first use.
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
    from rl_training.algorithms.ppo import PPO, A2CParams, PPOParams

__all__ = [
    "PPO",
    "A2CParams",
    "AxiomError",
    "Callback",
    "DefaultExperimentManager",
    "EarlyStopping",
    "PPOParams",
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

_ALGORITHMS = dict.fromkeys(("A2CParams", "PPO", "PPOParams"), "rl_training.algorithms.ppo")

__getattr__, __dir__ = lazy_exports(__name__, STABLE | _ALGORITHMS)

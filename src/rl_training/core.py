"""The stable interface, tier `stable`: semantic versioning, no breaking change within a major release.

Holds what `rl_training` itself exports and the stable algorithms with their parameters. Names are loaded on
first use.
"""

from typing import TYPE_CHECKING

from rl_training._lazy import lazy_exports
from rl_training._version import __version__

if TYPE_CHECKING:
    from rl_training.algorithms.ppo import PPO, A2CParams, PPOParams
    from rl_training.experiment.config import TrainConfig
    from rl_training.experiment.default_manager import DefaultExperimentManager
    from rl_training.runtime.policy import load_policy
    from rl_training.runtime.session import TrainResult
    from rl_training.runtime.workflows import evaluate, resume, train

__all__ = [
    "PPO",
    "A2CParams",
    "DefaultExperimentManager",
    "PPOParams",
    "TrainConfig",
    "TrainResult",
    "__version__",
    "evaluate",
    "load_policy",
    "resume",
    "train",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "A2CParams": "rl_training.algorithms.ppo",
        "DefaultExperimentManager": "rl_training.experiment.default_manager",
        "PPO": "rl_training.algorithms.ppo",
        "PPOParams": "rl_training.algorithms.ppo",
        "TrainConfig": "rl_training.experiment.config",
        "TrainResult": "rl_training.runtime.session",
        "evaluate": "rl_training.runtime.workflows",
        "load_policy": "rl_training.runtime.policy",
        "resume": "rl_training.runtime.workflows",
        "train": "rl_training.runtime.workflows",
    },
)

"""AxiomRL: train reinforcement-learning agents on one machine.

The names below are stable: they follow semantic versioning. They are loaded on first use, so that
`import rl_training` imports neither torch nor gymnasium.
"""

import os
from typing import TYPE_CHECKING

from rl_training._lazy import STABLE, lazy_exports
from rl_training._version import __version__

if TYPE_CHECKING:
    from rl_training.errors import AxiomError
    from rl_training.experiment.config import TrainConfig
    from rl_training.experiment.configuration.config_files import load_config
    from rl_training.experiment.default_manager import DefaultExperimentManager
    from rl_training.runtime.acting.policy import load_policy
    from rl_training.runtime.callbacks import Callback, EarlyStopping, TrainingEvent
    from rl_training.runtime.session import TrainResult
    from rl_training.runtime.workflows import evaluate, resume, train

__all__ = [
    "AxiomError",
    "Callback",
    "DefaultExperimentManager",
    "EarlyStopping",
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

# Threads of torch without work would keep looking for some, on cores that samplers and compiled updates need.
# Torch reads this when it is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__getattr__, __dir__ = lazy_exports(__name__, STABLE)

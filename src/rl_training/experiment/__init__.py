"""Records that describe an experiment, and the manager that runs it.

The names below are loaded on first use: importing this package imports neither torch nor gymnasium.
"""

from typing import TYPE_CHECKING

from rl_training._lazy import lazy_exports

if TYPE_CHECKING:
    from rl_training.experiment.algorithm_spec import AlgorithmSpec
    from rl_training.experiment.config import TrainConfig, check_config, config_to_dict, validate_config
    from rl_training.experiment.configuration.config_files import load_config, preset_names
    from rl_training.experiment.default_manager import DefaultExperimentManager
    from rl_training.experiment.manager import ExperimentManager, Runner, Trainer
    from rl_training.experiment.registry import get_algorithm_spec, list_algorithm_specs, list_algorithms
    from rl_training.experiment.sweeps import SeedSweepPlan, resolve_benchmark_seeds

__all__ = [
    "AlgorithmSpec",
    "DefaultExperimentManager",
    "ExperimentManager",
    "Runner",
    "SeedSweepPlan",
    "TrainConfig",
    "Trainer",
    "check_config",
    "config_to_dict",
    "get_algorithm_spec",
    "list_algorithm_specs",
    "list_algorithms",
    "load_config",
    "preset_names",
    "resolve_benchmark_seeds",
    "validate_config",
]

_MODULES = {
    "algorithm_spec": ("AlgorithmSpec",),
    "config": ("TrainConfig", "check_config", "config_to_dict", "validate_config"),
    "configuration.config_files": ("load_config", "preset_names"),
    "default_manager": ("DefaultExperimentManager",),
    "manager": ("ExperimentManager", "Runner", "Trainer"),
    "registry": ("get_algorithm_spec", "list_algorithm_specs", "list_algorithms"),
    "sweeps": ("SeedSweepPlan", "resolve_benchmark_seeds"),
}

__getattr__, __dir__ = lazy_exports(
    __name__, {name: f"{__name__}.{module}" for module, names in _MODULES.items() for name in names}
)

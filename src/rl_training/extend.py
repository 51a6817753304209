"""The extension interface: the classes and functions for user-defined algorithms, losses, networks and callbacks.

Tier `experimental`: names may change in a minor release, after a deprecation warning in an earlier one. They are loaded
on first use. docs/extending.md shows how to use them.
"""

from typing import TYPE_CHECKING

from rl_training._lazy import lazy_exports

if TYPE_CHECKING:
    from rl_training.algorithms.advantages import generalized_advantage
    from rl_training.algorithms.base import (
        Algorithm,
        OfflineAlgorithm,
        OffPolicyAlgorithm,
        OnPolicyAlgorithm,
        PlanningAlgorithm,
    )
    from rl_training.algorithms.dqn import DQN
    from rl_training.algorithms.offline.iql import IQL, IQLParams
    from rl_training.algorithms.offline.td3_bc import TD3BC, TD3BCParams
    from rl_training.algorithms.params.dqn_params import DQNParams
    from rl_training.algorithms.params.offline_params import OfflineParams, OfflineValueParams
    from rl_training.algorithms.params.on_policy_params import OnPolicyParams
    from rl_training.algorithms.params.ppo_params import PPOParams
    from rl_training.algorithms.params.replay_params import ReplayParams
    from rl_training.algorithms.params.sac_params import SACParams
    from rl_training.algorithms.planning.params import PlanningParams
    from rl_training.algorithms.ppo import PPO
    from rl_training.algorithms.sac import SAC
    from rl_training.algorithms.td3 import TD3, TD3Params
    from rl_training.data.replay import ReplayBatch
    from rl_training.data.rollout import Rollout
    from rl_training.experiment.algorithm_spec import AlgorithmSpec
    from rl_training.experiment.configuration.fork_rules import (
        FREE,
        NETWORKS,
        OPTIMIZER,
        REPLAY,
        ROLLOUT,
        rules,
        scheduled,
    )
    from rl_training.experiment.schedules import ScheduleSpec
    from rl_training.models.actor_critic import ActorCritic
    from rl_training.models.encoders import make_encoder
    from rl_training.models.optimizers import FlatOptimizer
    from rl_training.runtime.callbacks import Callback

__all__ = [
    "DQN",
    "FREE",
    "IQL",
    "NETWORKS",
    "OPTIMIZER",
    "PPO",
    "REPLAY",
    "ROLLOUT",
    "SAC",
    "TD3",
    "TD3BC",
    "ActorCritic",
    "Algorithm",
    "AlgorithmSpec",
    "Callback",
    "DQNParams",
    "FlatOptimizer",
    "IQLParams",
    "OffPolicyAlgorithm",
    "OfflineAlgorithm",
    "OfflineParams",
    "OfflineValueParams",
    "OnPolicyAlgorithm",
    "OnPolicyParams",
    "PPOParams",
    "PlanningAlgorithm",
    "PlanningParams",
    "ReplayBatch",
    "ReplayParams",
    "Rollout",
    "SACParams",
    "ScheduleSpec",
    "TD3BCParams",
    "TD3Params",
    "generalized_advantage",
    "make_encoder",
    "rules",
    "scheduled",
]

_MODULES = {
    "algorithms.advantages": ("generalized_advantage",),
    "algorithms.base": (
        "Algorithm",
        "OfflineAlgorithm",
        "OffPolicyAlgorithm",
        "OnPolicyAlgorithm",
        "PlanningAlgorithm",
    ),
    "algorithms.dqn": ("DQN",),
    "algorithms.params.dqn_params": ("DQNParams",),
    "algorithms.offline.iql": ("IQL", "IQLParams"),
    "algorithms.offline.td3_bc": ("TD3BC", "TD3BCParams"),
    "algorithms.params.offline_params": ("OfflineParams", "OfflineValueParams"),
    "algorithms.params.on_policy_params": ("OnPolicyParams",),
    "algorithms.planning.params": ("PlanningParams",),
    "algorithms.ppo": ("PPO",),
    "algorithms.params.ppo_params": ("PPOParams",),
    "algorithms.params.replay_params": ("ReplayParams",),
    "algorithms.params.sac_params": ("SACParams",),
    "algorithms.sac": ("SAC",),
    "algorithms.td3": ("TD3", "TD3Params"),
    "data.replay": ("ReplayBatch",),
    "data.rollout": ("Rollout",),
    "experiment.algorithm_spec": ("AlgorithmSpec",),
    "experiment.configuration.fork_rules": ("FREE", "NETWORKS", "OPTIMIZER", "REPLAY", "ROLLOUT", "rules", "scheduled"),
    "experiment.schedules": ("ScheduleSpec",),
    "models.actor_critic": ("ActorCritic",),
    "models.encoders": ("make_encoder",),
    "models.optimizers": ("FlatOptimizer",),
    "runtime.callbacks": ("Callback",),
}

__getattr__, __dir__ = lazy_exports(
    __name__, {name: f"rl_training.{module}" for module, names in _MODULES.items() for name in names}
)

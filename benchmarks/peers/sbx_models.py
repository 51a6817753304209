"""SBX, which is stable-baselines3 on JAX, with the settings of one of our configurations.

What SBX cannot do is refused. It differs in what no setting tells: PPO clips the gradients of actor and critic apart,
and the actor of TD3 follows the smaller of both critics.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from peers.peer_envs import vector_env
from peers.same_settings import PLAIN_DQN, PLAIN_SAC, linear, refuse
from peers.stable_baselines3_models import replay_settings, scheduled
from rl_training.experiment.config import TrainConfig, algorithm_params

_NAME = "SBX"


def make_sbx(config: TrainConfig) -> Any:
    """Return SBX's model for a configuration of ppo, dqn, sac or td3."""
    build = {"ppo": _ppo, "dqn": _dqn, "sac": _sac, "td3": _td3}[config.algo]
    return build(config, algorithm_params(config), vector_env(config))


def _activation(name: str) -> Any:
    import flax.linen as nn

    return getattr(nn, name)


def _ppo(config: TrainConfig, params: Any, env: Any) -> Any:
    from sbx import PPO

    refuse(
        _NAME,
        params,
        clip_value_loss=False,
        log_std="state_independent",
        optimizer="adam",
        ent_coef_schedule=None,
        ent_coef_warmup_steps=0,
        target_kl=None,
        use_sde=False,
    )
    return PPO(
        "MlpPolicy",
        env,
        learning_rate=scheduled(_NAME, config, params, "learning_rate"),
        clip_range=scheduled(_NAME, config, params, "clip_coef"),
        n_steps=params.num_steps,
        batch_size=params.minibatch_size or params.num_steps * config.num_envs,
        n_epochs=params.update_epochs,
        gamma=params.gamma,
        gae_lambda=params.gae_lambda,
        ent_coef=params.ent_coef,
        vf_coef=params.vf_coef,
        max_grad_norm=params.max_grad_norm,
        normalize_advantage=params.normalize_advantage,
        policy_kwargs={
            "net_arch": list(params.hidden_sizes or (64, 64)),
            "activation_fn": _activation(params.activation),
            "ortho_init": params.orthogonal_init,
            "log_std_init": params.log_std_init,
            "optimizer_kwargs": {"eps": params.optimizer_eps},
        },
        seed=config.seed,
    )


def _dqn(config: TrainConfig, params: Any, env: Any) -> Any:
    from sbx import DQN

    sizes = list(params.hidden_sizes or (64, 64))
    if len(sizes) != 2 or sizes[0] != sizes[1]:
        raise ValueError(f"{_NAME} has no hidden_sizes {tuple(sizes)}: both layers are equally wide")
    refuse(_NAME, params, **PLAIN_DQN, loss="huber", max_grad_norm=None, learning_rate_schedule=None)
    start, end, share = linear(_NAME, params, "epsilon", config.total_timesteps)
    return DQN(
        "MlpPolicy",
        env,
        **replay_settings(_NAME, config, params),
        target_update_interval=params.target_update_interval,
        exploration_initial_eps=start,
        exploration_final_eps=end,
        exploration_fraction=share,
        policy_kwargs={
            "net_arch": sizes,
            "activation_fn": _activation(params.activation),
            "optimizer_kwargs": {"eps": params.optimizer_eps},
        },
        seed=config.seed,
    )


def _sac(config: TrainConfig, params: Any, env: Any) -> Any:
    from sbx import SAC

    refuse(_NAME, params, **PLAIN_SAC, use_sde=False, optimizer_beta1=0.9)
    learned = params.temperature == "auto"
    return SAC(
        "MlpPolicy",
        env,
        **replay_settings(_NAME, config, params),
        ent_coef=f"auto_{params.temperature_init}" if learned else params.temperature,
        target_entropy=params.target_entropy,
        policy_kwargs={
            "net_arch": {
                "pi": list(params.hidden_sizes),
                "qf": list(params.critic_hidden_sizes or params.hidden_sizes),
            },
            "n_critics": params.num_critics,
            "activation_fn": _activation(params.activation),
        },
        seed=config.seed,
    )


def _td3(config: TrainConfig, params: Any, env: Any) -> Any:
    from sbx import TD3
    from stable_baselines3.common.noise import NormalActionNoise

    refuse(_NAME, params, max_grad_norm=None, learning_rate_schedule=None)
    actions = int(np.prod(env.action_space.shape))
    return TD3(
        "MlpPolicy",
        env,
        **replay_settings(_NAME, config, params),
        action_noise=NormalActionNoise(np.zeros(actions), np.full(actions, params.exploration_noise)),
        policy_delay=params.policy_delay,
        target_policy_noise=params.target_noise,
        target_noise_clip=params.target_noise_clip,
        policy_kwargs={
            "net_arch": list(params.hidden_sizes),
            "n_critics": params.num_critics,
            "activation_fn": _activation(params.activation),
            "optimizer_kwargs": {"eps": params.optimizer_eps},
        },
        seed=config.seed,
    )

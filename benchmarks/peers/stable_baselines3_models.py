"""Stable-baselines3 with the settings of one of our configurations, so that both sides learn by the same numbers.

What the peer cannot do is refused: a comparison whose settings differ would say nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from peers.clock import Clock
from peers.peer_envs import vector_env
from peers.same_settings import PLAIN_DQN, PLAIN_SAC, linear, linear_to_the_end, refuse
from rl_training.experiment.config import TrainConfig, algorithm_params
from rl_training.experiment.configuration.env_params import env_params
from rl_training.runtime.setup.streams import derive_seeds

_NAME = "stable-baselines3"
_ACTIVATIONS = {
    "tanh": torch.nn.Tanh,
    "relu": torch.nn.ReLU,
    "elu": torch.nn.ELU,
    "gelu": torch.nn.GELU,
    "silu": torch.nn.SiLU,
}
_HIDDEN = {"ppo": [64, 64], "dqn": [64, 64]}


def make_peer(config: TrainConfig) -> Any:
    """Return stable-baselines3's model for a configuration, or that of its package of contributions, sb3-contrib."""
    build = {"ppo": _ppo, "dqn": _dqn, "sac": _sac, "td3": _td3, "tqc": _tqc, "crossq": _crossq}[config.algo]
    return build(config, algorithm_params(config), vector_env(config))


def train_peer(config: TrainConfig, seeds: list[int]) -> dict[str, Any]:
    """Train it, evaluate the final policy on one complete episode per seed, and return what is stored of it."""
    if env_params(config, "evaluation").atari:
        raise ValueError(f"{_NAME} is not evaluated on Atari games here")
    torch.set_num_threads(config.torch_threads or 1)
    model, curve = make_peer(config), _curve(config)
    clock = Clock()
    model.learn(config.total_timesteps, callback=curve)
    curve.evaluate()
    times = clock.read()
    returns = [_play(model, config, seed) for seed in seeds]
    return {
        "steps": int(model.num_timesteps),
        **times,
        "evaluations": curve.evaluations,
        "eval_return_mean": float(np.mean(returns)),
        "eval_return_std": float(np.std(returns)),
        "eval_episodes": len(returns),
    }


def _curve(config: TrainConfig) -> Any:
    """Return the callback that evaluates as often, and on the same episodes, as ours does during training."""
    from stable_baselines3.common.callbacks import BaseCallback

    interval = config.eval_interval or config.total_timesteps

    class Curve(BaseCallback):
        def __init__(self) -> None:
            super().__init__()
            self.evaluations: list[list[float]] = []
            self.next = interval

        def _on_step(self) -> bool:
            return True

        def _on_rollout_start(self) -> None:
            # After the updates of the steps before, as ours.
            if self.num_timesteps >= self.next:
                self.evaluate()
                self.next += interval

        def evaluate(self) -> None:
            step = int(self.model.num_timesteps)
            seeds = derive_seeds(config.seed, "evaluation", step, count=config.eval_episodes)
            returns = [_play(self.model, config, seed) for seed in seeds]
            self.evaluations.append([step, round(float(np.mean(returns)), 2)])

    return Curve()


def _play(model: Any, config: TrainConfig, seed: int) -> float:
    """Return the real return of one deterministic episode, seen through the frozen normaliser of training."""
    env = gym.make(config.task_name, **env_params(config, "evaluation").make_kwargs)
    normalizer = model.get_vec_normalize_env()
    observation, _ = env.reset(seed=seed)
    total, ended = 0.0, False
    memory, starts = None, np.ones(1, np.bool_)
    while not ended:
        seen = observation if normalizer is None else normalizer.normalize_obs(observation)
        action, memory = model.predict(seen, state=memory, episode_start=starts, deterministic=True)
        starts = np.zeros(1, np.bool_)
        observation, reward, terminated, truncated, _ = env.step(action)
        total += float(reward)
        ended = terminated or truncated
    env.close()
    return total


def scheduled(peer: str, config: TrainConfig, params: Any, key: str) -> float | Callable[[float], float]:
    """Return a number, or the function of the remaining share of the run that the peer takes for a linear schedule."""
    start, end = linear_to_the_end(peer, params, key, config.total_timesteps)
    return start if start == end else lambda remaining: end + (start - end) * remaining


def _ppo(config: TrainConfig, params: Any, env: Any) -> Any:
    from stable_baselines3 import PPO

    refuse(
        _NAME,
        params,
        clip_value_loss=False,
        log_std="state_independent",
        optimizer="adam",
        ent_coef_schedule=None,
        ent_coef_warmup_steps=0,
    )
    images = env_params(config, "training").atari
    model: Any = PPO
    policy = "CnnPolicy" if images else "MlpPolicy"
    memory: dict[str, Any] = {}
    if params.recurrent is not None:
        model, policy, memory = _with_memory(params, images)
    network: dict[str, Any] = {
        **memory,
        "net_arch": list(params.hidden_sizes or ([] if images else _HIDDEN["ppo"])),
        "activation_fn": _ACTIVATIONS[params.activation],
        "ortho_init": params.orthogonal_init,
        "log_std_init": params.log_std_init,
        "optimizer_kwargs": {"eps": params.optimizer_eps},
    }
    return model(
        policy,
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
        target_kl=params.target_kl,
        use_sde=params.use_sde,
        sde_sample_freq=params.sde_sample_freq,
        policy_kwargs=network,
        seed=config.seed,
        device="cpu",
    )


def _with_memory(params: Any, images: bool) -> tuple[Any, str, dict[str, Any]]:
    """Return the model with a memory, the name of its policy, and the settings of its recurrent layers.

    It cuts a rollout into minibatches of consecutive steps and these at the ends of episodes, so that sequences are as
    long as a minibatch.
    """
    from sb3_contrib import RecurrentPPO

    recurrent = params.recurrent
    refuse(_NAME, recurrent, type="lstm", sequence_length=min(params.num_steps, params.minibatch_size))
    layers = {
        "lstm_hidden_size": recurrent.size,
        "n_lstm_layers": recurrent.layers,
        "enable_critic_lstm": recurrent.separate_critic,
        "shared_lstm": not recurrent.separate_critic,
    }
    return RecurrentPPO, "CnnLstmPolicy" if images else "MlpLstmPolicy", layers


def replay_settings(peer: str, config: TrainConfig, params: Any) -> dict[str, Any]:
    """Return the arguments that algorithms with a replay share, in the names of stable-baselines3 and SBX."""
    refuse(peer, params, hindsight="none")
    # The peer counts steps of all environments together.
    rounds, rest = divmod(params.train_interval, config.num_envs)
    if rest or not rounds:
        raise ValueError(f"{peer} has no train_interval {params.train_interval} with {config.num_envs} environments")
    return {
        "learning_rate": scheduled(peer, config, params, "learning_rate"),
        "buffer_size": params.buffer_size,
        "learning_starts": params.learning_starts,
        "batch_size": params.batch_size,
        "tau": params.tau,
        "gamma": params.gamma,
        "train_freq": rounds,
        "gradient_steps": params.gradient_steps,
        "n_steps": params.n_step,
    }


def _dqn(config: TrainConfig, params: Any, env: Any) -> Any:
    from stable_baselines3 import DQN

    refuse(_NAME, params, **PLAIN_DQN, loss="huber")
    start, end, share = linear(_NAME, params, "epsilon", config.total_timesteps)
    return DQN(
        "MlpPolicy",
        env,
        **replay_settings(_NAME, config, params),
        target_update_interval=params.target_update_interval,
        exploration_initial_eps=start,
        exploration_final_eps=end,
        exploration_fraction=share,
        max_grad_norm=float("inf") if params.max_grad_norm is None else params.max_grad_norm,
        policy_kwargs={
            "net_arch": list(params.hidden_sizes or _HIDDEN["dqn"]),
            "activation_fn": _ACTIVATIONS[params.activation],
            "optimizer_kwargs": {"eps": params.optimizer_eps},
        },
        seed=config.seed,
        device="cpu",
    )


def _sac(config: TrainConfig, params: Any, env: Any) -> Any:
    from stable_baselines3 import SAC

    refuse(_NAME, params, **PLAIN_SAC)
    return SAC("MlpPolicy", env, **_soft_settings(config, params))


def _tqc(config: TrainConfig, params: Any, env: Any) -> Any:
    from sb3_contrib import TQC

    refuse(_NAME, params, **PLAIN_SAC | {"num_quantiles": params.num_quantiles})
    settings = _soft_settings(config, params)
    settings["policy_kwargs"]["n_quantiles"] = params.num_quantiles
    return TQC("MlpPolicy", env, top_quantiles_to_drop_per_net=params.dropped_quantiles, **settings)


def _crossq(config: TrainConfig, params: Any, env: Any) -> Any:
    from sb3_contrib import CrossQ

    own = {"target_network": False, "batch_norm": True, "policy_delay": params.policy_delay}
    refuse(_NAME, params, **PLAIN_SAC | own)
    settings = _soft_settings(config, params)
    del settings["tau"]
    settings["policy_kwargs"]["renorm_warmup_steps"] = params.renorm_warmup
    return CrossQ("MlpPolicy", env, policy_delay=params.policy_delay, **settings)


def _soft_settings(config: TrainConfig, params: Any) -> dict[str, Any]:
    """Return the arguments that SAC and its relatives share."""
    learned = params.temperature == "auto"
    return {
        **replay_settings(_NAME, config, params),
        "ent_coef": f"auto_{params.temperature_init}" if learned else params.temperature,
        "target_entropy": params.target_entropy,
        "use_sde": params.use_sde,
        "sde_sample_freq": params.sde_sample_freq,
        "policy_kwargs": {
            "net_arch": {
                "pi": list(params.hidden_sizes),
                "qf": list(params.critic_hidden_sizes or params.hidden_sizes),
            },
            "n_critics": params.num_critics,
            "activation_fn": _ACTIVATIONS[params.activation],
            "log_std_init": params.log_std_init,
            "optimizer_kwargs": {"betas": (params.optimizer_beta1, 0.999)},
        },
        "seed": config.seed,
        "device": "cpu",
    }


def _td3(config: TrainConfig, params: Any, env: Any) -> Any:
    from stable_baselines3 import TD3
    from stable_baselines3.common.noise import NormalActionNoise

    refuse(_NAME, params, max_grad_norm=None)
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
            "activation_fn": _ACTIVATIONS[params.activation],
            "optimizer_kwargs": {"eps": params.optimizer_eps},
        },
        seed=config.seed,
        device="cpu",
    )

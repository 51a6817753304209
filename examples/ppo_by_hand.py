"""PPO without a session: the training loop on one screen.

`axiomrl train` adds files, checkpoints, evaluation, schedules and signals; the algorithm, the collector and the
environments are the same objects.

    python examples/ppo_by_hand.py
"""

from __future__ import annotations

import torch

from rl_training.algorithms.params.ppo_params import PPOParams
from rl_training.algorithms.ppo import PPO
from rl_training.envs.make import make_vector_env
from rl_training.envs.step import StepBatch
from rl_training.runtime.collector import RolloutCollector

CONTROLS = {"learning_rate": 1e-3, "clip_coef": 0.2, "ent_coef": 0.0}


def main(total_timesteps: int = 50_000, seed: int = 1) -> float:
    """Train on CartPole and return the mean return of the last 50 episodes."""
    torch.set_num_threads(1)  # small networks run best on one
    device = torch.device("cpu")
    generator = torch.Generator(device).manual_seed(seed)
    env = make_vector_env("CartPole-v1", {}, mode="training", num_envs=8, backend="auto")
    params = PPOParams(num_steps=32, minibatch_size=256, update_epochs=20, gamma=0.98, gae_lambda=0.8)
    algorithm = PPO(params, env.observation_space, env.action_space, device=device, generator=generator)
    collector = RolloutCollector(
        env, algorithm, num_steps=params.num_steps, seed=seed, device=device, generator=generator
    )
    returns: list[float] = []

    def count(step: StepBatch) -> None:
        returns.extend(episode.episode_return for episode in step.episodes)

    steps = 0
    while steps < total_timesteps:
        rollout = collector.collect(CONTROLS, on_step=count)
        assert rollout is not None
        metrics = algorithm.update(rollout, CONTROLS, generator)
        steps += rollout.transitions
        if steps % 10_240 == 0:
            latest = returns[-50:]
            print(f"step {steps}: return {sum(latest) / len(latest):.1f}, entropy {metrics['entropy']:.3f}")
    env.close()
    latest = returns[-50:]
    return sum(latest) / len(latest)


if __name__ == "__main__":
    main()

"""From the same weights and the same experience, updates here and in stable-baselines3 lead to the same weights.

By the same random numbers, runs also gather the same experience.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from learning import Job
from learning_suites import PROOF, Cell
from records import OURS
from replay_parts import CPU, generator
from rl_training.algorithms.dqn import DQN
from rl_training.algorithms.ppo import PPO
from rl_training.algorithms.sac import SAC
from rl_training.algorithms.td3 import TD3
from rl_training.data.replay import ReplayBatch
from rl_training.data.rollout import Rollout
from rl_training.envs.make import make_vector_env
from rl_training.envs.normalize import normalizers_of, with_normalization
from rl_training.experiment.config import TrainConfig, algorithm_params
from rl_training.experiment.configuration.env_params import env_params
from rl_training.runtime.collector import RolloutCollector

pytest.importorskip("stable_baselines3")

from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.type_aliases import ReplayBufferSamples

from peers.stable_baselines3_models import make_peer

ROWS, UPDATES, RATE = 32, 20, 1e-3
SEED, STEPS, ROLLOUTS = 1, 256, 3
TIME_LIMIT = 15  # steps, so that some episodes are cut off and others end
NOISE, ORDER = 5, 6  # seeds of the random numbers of both sides


def both(preset: str, *changes: str) -> tuple[Any, Any]:
    """Return our algorithm and the peer's model, by one configuration."""
    settings = tuple(f"algo_kwargs.{one}" for one in ("hidden_sizes=[16,16]", f"learning_rate={RATE}", *changes))
    config = Job(Cell(preset, settings), OURS, 1, Path("runs"), 1).config()
    peer = make_peer(config)
    peer.set_logger(Logger(None, []))
    return make_ours(config, peer), peer


def make_ours(config: TrainConfig, peer: Any) -> Any:
    kind: Any = {"dqn": DQN, "ppo": PPO, "td3": TD3}.get(config.algo, SAC)
    params = algorithm_params(config)
    return kind(params, peer.observation_space, peer.action_space, device=CPU, generator=generator(0))


def random_batch(peer: Any, seed: int) -> tuple[ReplayBatch, ReplayBufferSamples]:
    """Return the same transitions as both sides take them, a quarter of them terminated."""
    rng = np.random.default_rng(seed)
    width = peer.observation_space.shape[0]
    observation, successor = torch.from_numpy(rng.normal(size=(2, ROWS, width)).astype(np.float32))
    reward, ended = torch.from_numpy(rng.normal(size=(ROWS, 1)).astype(np.float32)), torch.zeros(ROWS, 1)
    ended[: ROWS // 4] = 1.0
    if hasattr(peer.action_space, "n"):
        action = torch.from_numpy(rng.integers(peer.action_space.n, size=(ROWS, 1)))
        ours = action.squeeze(1)
    else:
        ours = action = torch.from_numpy(rng.uniform(-1, 1, (ROWS, *peer.action_space.shape)).astype(np.float32))
    discount = (peer.gamma * (1 - ended)).squeeze(1)
    return (
        ReplayBatch(observation, ours, reward.squeeze(1), discount, successor, None),
        ReplayBufferSamples(observation, action, successor, ended, reward),
    )


def linear_layers(module: nn.Module) -> list[tuple[Tensor, Tensor]]:
    return [(layer.weight.detach(), layer.bias.detach()) for layer in module.modules() if isinstance(layer, nn.Linear)]


def stacked(networks: Sequence[nn.Module]) -> list[Tensor]:
    """Return the layers of networks of one shape as our stacks hold them: [count, in, out] and [count, 1, out]."""
    layers = zip(*map(linear_layers, networks), strict=True)
    pairs = [(torch.stack([w.T for w, _ in one]), torch.stack([b[None] for _, b in one])) for one in layers]
    norms = zip(*map(normalizing_layers, networks), strict=True)
    pairs += [(torch.stack([s[None] for s, _ in one]), torch.stack([b[None] for _, b in one])) for one in norms]
    return [tensor for pair in pairs for tensor in pair]


def normalizing_layers(module: nn.Module) -> list[tuple[Tensor, Tensor]]:
    """Return scale and shift of each layer of batch renormalisation, which CrossQ has."""
    layers = [layer for layer in module.modules() if hasattr(layer, "ra_mean")]
    return [(layer.scale.detach(), layer.bias.detach()) for layer in layers]  # type: ignore[operator]


def weights_of_peer(peer: Any) -> dict[str, list[Tensor]]:
    """Return its weights in the order and the shapes of ours."""
    if hasattr(peer, "rollout_buffer"):
        hidden, policy = peer.policy.mlp_extractor, peer.policy
        heads = [tensor for head in (policy.action_net, policy.value_net) for tensor in linear_layers(head)[0]]
        deviation = [policy.log_std.detach()] if hasattr(policy, "log_std") else []
        return {"model": [*stacked([hidden.policy_net, hidden.value_net]), *deviation, *heads]}
    if hasattr(peer, "q_net"):
        networks = {"model": peer.q_net, "target_model": peer.q_net_target}
        return {name: [tensor for pair in linear_layers(net) for tensor in pair] for name, net in networks.items()}
    critics = {"critic": peer.critic.q_networks}
    if hasattr(peer, "critic_target"):
        critics["target_critic"] = peer.critic_target.q_networks
    found = {name: stacked(networks) for name, networks in critics.items()}
    if hasattr(peer, "actor_target"):
        return found | {"actor": stacked([peer.actor.mu]), "target_actor": stacked([peer.actor_target.mu])}
    heads = [tensor for head in (peer.actor.mu, peer.actor.log_std) for tensor in linear_layers(head)[0]]
    return found | {"actor": [*stacked([peer.actor.latent_pi]), *heads]}


def start_alike(ours: Any, peer: Any) -> None:
    """Give our networks the peer's weights."""
    with torch.no_grad():
        for name, tensors in weights_of_peer(peer).items():
            for parameter, tensor in zip(getattr(ours, name).parameters(), tensors, strict=True):
                parameter.copy_(tensor)


def close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one.detach(), other.detach(), rtol=1e-4, atol=1e-5)


def assert_alike(ours: Any, peer: Any) -> None:
    for name, tensors in weights_of_peer(peer).items():
        for parameter, tensor in zip(getattr(ours, name).parameters(), tensors, strict=True):
            close(parameter, tensor)


def learn_alike(ours: Any, peer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the same updates on both sides and compare after every one."""
    start_alike(ours, peer)
    for step in range(UPDATES):
        batch, samples = random_batch(peer, step)
        monkeypatch.setattr(peer.replay_buffer, "sample", lambda *args, samples=samples, **kwargs: samples)
        noise = torch.empty((2, *batch.action.shape)).normal_(generator=generator(step))
        # The peer samples for the observations first, but not in CrossQ, and we for their successors.
        drawn = iter(noise.flip(0) if hasattr(peer, "critic_target") else noise)
        monkeypatch.setattr(
            torch.distributions.Normal, "rsample", lambda normal, drawn=drawn: normal.loc + normal.scale * next(drawn)
        )
        ours.update(batch, {"learning_rate": RATE}, generator(step))
        peer.train(1, ROWS)
        assert_alike(ours, peer)


def collect_alike(peer: Any, seed: int) -> Rollout:
    """Fill the peer's rollout with random experience, some of it cut short, and return the same as ours."""
    rng, shape = np.random.default_rng(seed), (peer.n_steps, peer.n_envs)
    terminated, truncated = rng.random((2, *shape)) < 0.1
    truncated &= ~terminated
    reward, final_value = rng.normal(size=(2, *shape)).astype(np.float32)
    observation = rng.normal(size=(peer.n_steps + 1, peer.n_envs, *peer.observation_space.shape)).astype(np.float32)
    peer.rollout_buffer.reset()
    actions: list[Tensor] = []
    started = np.ones(peer.n_envs)
    for step in range(peer.n_steps):
        with torch.no_grad():
            action, value, log_prob = peer.policy(torch.from_numpy(observation[step]))
        # The peer pays the value of what a time limit cut off with the reward.
        paid = reward[step] + peer.gamma * final_value[step] * truncated[step]
        columns = action.numpy().reshape(peer.n_envs, -1)
        peer.rollout_buffer.add(observation[step], columns, paid, started, value, log_prob)
        started = (terminated | truncated)[step]
        actions.append(action)
    last = torch.from_numpy(observation[-1])
    with torch.no_grad():
        peer.rollout_buffer.compute_returns_and_advantage(peer.policy.predict_values(last), started)
    return Rollout(
        observation=torch.from_numpy(observation[:-1]),
        action=torch.stack(actions),
        mask=None,
        reward=torch.from_numpy(reward),
        terminated=torch.from_numpy(terminated),
        truncated=torch.from_numpy(truncated),
        final_value=torch.from_numpy(final_value),
        last_observation=last,
    )


@pytest.mark.parametrize("preset", ["ppo-cartpole", "ppo-pendulum"])
def test_ppo_learns_as_the_peer_does(preset: str) -> None:
    # One minibatch per epoch, since every side shuffles by its own numbers.
    settings = ["num_steps=16", "update_epochs=4", "ent_coef=0.01", "clip_coef=0.1", "use_sde=false"]
    schedules = ["learning_rate_schedule=null", "clip_coef_schedule=null", "minibatch_size=null"]
    ours, peer = both(preset, *settings, *schedules)
    start_alike(ours, peer)
    for step in range(UPDATES):
        rollout = collect_alike(peer, step)
        ours.update(rollout, {"learning_rate": RATE, "clip_coef": 0.1, "ent_coef": 0.01}, generator(step))
        peer.train()
        assert_alike(ours, peer)


def test_sac_learns_as_the_peer_does(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, peer = both("sac-pendulum", "temperature_init=0.3")
    learn_alike(ours, peer, monkeypatch)
    close(ours.temperature.log, peer.log_ent_coef)


def test_tqc_learns_as_the_peer_does(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sb3_contrib")
    pytest.importorskip("mujoco")
    ours, peer = both("tqc-hopper", "temperature_init=0.3")
    learn_alike(ours, peer, monkeypatch)
    close(ours.temperature.log, peer.log_ent_coef)


def test_crossq_learns_as_the_peer_does(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sb3_contrib")
    ours, peer = both("crossq-pendulum", "temperature_init=0.3", "critic_hidden_sizes=[16,16]")
    variance = torch.Tensor.var
    # The peer's variance is that of a sample, larger by one part in as many as there are rows.
    monkeypatch.setattr(torch.Tensor, "var", lambda tensor, dim: variance(tensor, dim, correction=0))
    peer.actor.action_dist.epsilon = 0.0  # keeps its logarithm finite where actions are at their bounds
    learn_alike(ours, peer, monkeypatch)
    close(ours.temperature.log, peer.log_ent_coef)


def test_td3_learns_as_the_peer_does(monkeypatch: pytest.MonkeyPatch) -> None:
    learn_alike(*both("td3-pendulum", "target_noise=0"), monkeypatch)


def test_dqn_learns_as_the_peer_does(monkeypatch: pytest.MonkeyPatch) -> None:
    learn_alike(*both("dqn-cartpole", "max_grad_norm=0.5"), monkeypatch)


def test_images_that_the_peer_would_see_by_other_convolutions_are_refused() -> None:
    pytest.importorskip("ale_py")
    config = Job(Cell("ppo-pong", ("env_kwargs.screen_size=42",)), OURS, 1, Path("runs"), 1).config()
    with pytest.raises(ValueError, match="other convolutions for images of 42 pixels"):
        make_peer(config)


# -- whole runs, by the same random numbers ---------------------------------------------------------


def hopper() -> TrainConfig:
    """Return the configuration of the stored comparison on Hopper, with short rollouts."""
    cell = next(cell for cell in PROOF if cell.name == "ppo-hopper-1m")
    short = (f"algo_kwargs.num_steps={STEPS}", "algo_kwargs.update_epochs=2")
    return Job(replace(cell, changes=(*cell.changes, *short)), OURS, SEED, Path("runs"), 1).config()


class OurSide:
    """Our environments, collector and algorithm, which begin as the peer does."""

    def __init__(self, config: TrainConfig, peer: Any) -> None:
        env = make_vector_env(config.task_name, config.env_kwargs, mode="training", num_envs=1, backend="local_sync")
        env = with_normalization(env, env_params(config, "training"), gamma=peer.gamma)
        self.algorithm = PPO(
            algorithm_params(config), env.observation_space, env.action_space, device=CPU, generator=generator(0)
        )
        start_alike(self.algorithm, peer)
        self.collector = RolloutCollector(
            env, self.algorithm, num_steps=STEPS, seed=SEED, device=CPU, generator=generator(NOISE)
        )
        statistics: list[Any] = [*normalizers_of(env).moments()]
        for moments in statistics:
            moments.mean, moments.var = 0 * moments.mean, 0 * moments.var + 1
            moments.count = 1e-4  # the peer begins with this weight of mean 0 and variance 1, we with none
        self.collector._observation, _ = env.reset([SEED])
        self.order = generator(ORDER)


def test_ppo_gathers_and_learns_on_hopper_as_the_peer_does(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mujoco")
    monkeypatch.setattr(gymnasium.envs.registry["Hopper-v5"], "max_episode_steps", TIME_LIMIT)
    config = hopper()
    peer = make_peer(config)
    peer.set_logger(Logger(None, []))
    ours = OurSide(config, peer)
    noise, order = generator(NOISE), generator(ORDER)
    monkeypatch.setattr(
        torch.distributions.Normal,
        "rsample",
        lambda normal, shape=None: normal.loc + normal.scale * torch.empty(normal.loc.shape).normal_(generator=noise),
    )
    monkeypatch.setattr(np.random, "permutation", lambda rows: torch.randperm(rows, generator=order).numpy())
    compared: list[int] = []

    class Compare(BaseCallback):
        def _on_step(self) -> bool:
            return len(compared) < ROLLOUTS

        def _on_rollout_end(self) -> None:
            rate = config.algo_kwargs["learning_rate"] * (1 - self.num_timesteps / config.total_timesteps)
            controls = {"learning_rate": rate, "clip_coef": config.algo_kwargs["clip_coef"], "ent_coef": 0.0}
            rollout, theirs = ours.collector.collect(controls), peer.rollout_buffer
            assert rollout is not None
            batch = ours.algorithm.prepare(rollout)
            # The peer pays the value of what a time limit cut off with the reward.
            paid = rollout.reward + peer.gamma * rollout.final_value * rollout.truncated
            for mine, other in (
                (rollout.observation, theirs.observations),
                (rollout.action, theirs.actions),
                (paid, theirs.rewards),
                (batch.advantage.view(STEPS, 1), theirs.advantages),
            ):
                np.testing.assert_allclose(np.asarray(mine), other, rtol=1e-3, atol=1e-3)
            assert rollout.terminated.any()
            assert rollout.truncated.any()
            ours.algorithm.improve(batch, controls, ours.order)

        def _on_rollout_start(self) -> None:
            if self.num_timesteps:
                assert_alike(ours.algorithm, peer)
                compared.append(self.num_timesteps)

    peer.learn(config.total_timesteps, callback=Compare())
    assert compared == [STEPS * (rollout + 1) for rollout in range(ROLLOUTS)]

"""Kernels step in only for what they know, compute what autograd computes, and can be missing."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn import functional

from cli_parts import Command
from harness import only_run, weights
from planning_parts import random_unroll
from ppo_parts import make_rollout
from replay_parts import CPU, OBSERVATION, TORQUE, generator, random_batch
from rl_training.algorithms import dqn, muzero, ppo, sac, td3
from rl_training.algorithms.dqn import DQN
from rl_training.algorithms.efficientzero import EfficientZero, EfficientZeroParams
from rl_training.algorithms.gumbel_muzero import GumbelMuZero, GumbelMuZeroParams
from rl_training.algorithms.params.dqn_params import DQNParams
from rl_training.algorithms.params.ppo_params import PPOParams
from rl_training.algorithms.params.sac_params import SACParams
from rl_training.algorithms.ppo import PPO
from rl_training.algorithms.sac import SAC
from rl_training.algorithms.td3 import TD3, TD3Params
from rl_training.experiment.config import TrainConfig, algorithm_params
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.experiment.runs import read_metadata
from rl_training.kernels.search import perceptron_search
from rl_training.models.actor_critic import ActorCritic
from rl_training.models.continuous import DeterministicActor, SquashedActor, StackedCritic
from rl_training.models.planning.planning_network import PlanningNetwork
from rl_training.models.q_network import QNetwork
from rl_training.runtime.setup.acceleration import accelerate, planned_updates
from rl_training.runtime.workflows import train
from short_runs import config_of

pytestmark = pytest.mark.usefixtures("accelerate_short_runs")
KERNELS = {"ppo": "ppo", "dqn": "dqn", "sac": "sac", "td3": "td3", "gumbel_muzero": "muzero", "efficientzero": "muzero"}
UPDATES = 20
CONTROLS = {"learning_rate": 1e-3, "clip_coef": 0.2, "ent_coef": 0.01, "num_simulations": 8}
CHOICE = spaces.Discrete(3)
LATENTS: dict[str, Any] = {"latent_size": 6, "hidden_size": 7, "support_size": 4}
LEARNERS: dict[str, tuple[type, Any, spaces.Space[Any]]] = {
    "ppo": (PPO, PPOParams(num_steps=16, minibatch_size=8, update_epochs=2), CHOICE),
    "dqn": (DQN, DQNParams(target_update_interval=5), CHOICE),
    "sac": (SAC, SACParams(hidden_sizes=(16, 16)), TORQUE),
    "td3": (TD3, TD3Params(hidden_sizes=(16, 16)), TORQUE),
    "gumbel_muzero": (GumbelMuZero, GumbelMuZeroParams(unroll_steps=3, **LATENTS), CHOICE),
    # Of these sizes the gradient is compiled as well.
    "efficientzero": (
        EfficientZero,
        EfficientZeroParams(unroll_steps=3, value_prefix_horizon=2, latent_size=16, hidden_size=32, support_size=4),
        CHOICE,
    ),
}
PLANNERS = ("gumbel_muzero", "efficientzero")


def learner(algo: str, mode: str) -> Any:
    kind, params, actions = LEARNERS[algo]
    algorithm = kind(params, OBSERVATION, actions, device=CPU, generator=generator(0))
    found = accelerate(algorithm, mode)
    assert found["kernel"] == (KERNELS[algo] if mode == "auto" else None)
    return algorithm


def update(algorithm: Any, algo: str, number: int, batch: Any) -> None:
    """Make one update and whatever follows a step of the environments."""
    algorithm.update(batch, CONTROLS, generator(number))
    if hasattr(algorithm, "steps_taken"):
        algorithm.steps_taken(number, number + 1)


def parameters(algorithm: Any) -> Tensor:
    modules = [part for name in algorithm.parts if isinstance(part := getattr(algorithm, name), nn.Module)]
    return torch.cat([weight.detach().flatten() for module in modules for weight in module.parameters()])


@pytest.mark.parametrize("algo", KERNELS)
def test_twenty_updates_with_and_without_kernels_are_equal_up_to_rounding(algo: str) -> None:
    slow, fast = learner(algo, "off"), learner(algo, "auto")
    initial = parameters(slow)
    assert torch.equal(initial, parameters(fast))
    for number in range(UPDATES):
        if algo == "ppo":
            batch: Any = make_rollout(slow, seed=number)
        elif algo in PLANNERS:
            batch = random_unroll(seed=number, successors=algo == "efficientzero")
        else:
            batch = random_batch(LEARNERS[algo][2], seed=number)
        for algorithm in (slow, fast):
            update(algorithm, algo, number, batch)
        if algo in PLANNERS:
            observation = torch.randn(4, 3, generator=generator(number))
            one, other = (
                algorithm.plan(observation, None, CONTROLS, np.random.default_rng(number)) for algorithm in (slow, fast)
            )
            np.testing.assert_allclose(one.value, other.value, atol=1e-4)
            np.testing.assert_array_equal(one.action, other.action)
    assert (parameters(slow) - initial).abs().max() > 5e-3, "nothing was learned"
    torch.testing.assert_close(parameters(slow), parameters(fast), rtol=0.0, atol=2e-5)


# -- networks of another class ---------------------------------------------------------------------


class Normed(nn.Module):
    """An encoder with LayerNorm behind it."""

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.encoder, self.width, self.norm = encoder, encoder.width, nn.LayerNorm(encoder.width)

    def forward(self, observation: Any) -> Tensor:
        normed: Tensor = self.norm(self.encoder(observation))
        return normed


def with_layer_norm(network: type[nn.Module]) -> type[nn.Module]:
    class Subclass(network):  # type: ignore[misc, valid-type]
        def __init__(self, encoder: Any, *arguments: Any, **options: Any) -> None:
            super().__init__(Normed(encoder), *arguments, **options)

    Subclass.__qualname__ = f"Normed{network.__name__}"
    return Subclass


@pytest.mark.parametrize(
    ("algo", "module", "network"),
    [
        ("ppo", ppo, ActorCritic),
        ("dqn", dqn, QNetwork),
        ("sac", sac, SquashedActor),
        ("sac", sac, StackedCritic),
        ("td3", td3, DeterministicActor),
        ("td3", td3, StackedCritic),
        ("gumbel_muzero", muzero, PlanningNetwork),
    ],
)
def test_layer_norm_in_a_subclass_trains_by_autograd_and_the_metadata_says_so(
    algo: str, module: Any, network: type[nn.Module], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, network.__name__, with_layer_norm(network))
    run_dir = train(config_of(algo, tmp_path)).run_dir
    name = network.__name__
    assert read_metadata(run_dir)["acceleration"] == {"kernel": None, "reason": f"Normed{name} is not exactly {name}"}
    norms = [tensor for key, tensor in weights(run_dir).items() if key.endswith("encoder.norm.weight")]
    assert norms, sorted(weights(run_dir))
    assert any((norm != 1.0).any() for norm in norms)


def normalized(output: Any) -> Any:
    return functional.layer_norm(output, output.shape[1:])


def normalized_actor_critic(self: ActorCritic, observation: Any, mask: Tensor | None) -> Any:
    actor, critic = normalized(self.stacks(self.encoder(observation))).unbind(0)
    return self.head(actor, mask), self.value_head(critic).squeeze(-1)


@pytest.mark.parametrize(
    ("algo", "network", "method"),
    [
        ("ppo", ActorCritic, "forward"),
        ("dqn", QNetwork, "forward"),
        ("sac", SquashedActor, "latent"),
        ("sac", StackedCritic, "_features"),
        ("td3", DeterministicActor, "forward"),
        ("td3", StackedCritic, "_features"),
        ("gumbel_muzero", PlanningNetwork, "imagine"),
        ("gumbel_muzero", PlanningNetwork, "predict"),
        ("gumbel_muzero", PlanningNetwork, "rewards"),
        ("efficientzero", PlanningNetwork, "predict"),
    ],
)
def test_layer_norm_inside_of_a_built_in_network_ends_the_run_at_its_first_check(
    algo: str, network: type, method: str, axiomrl: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = getattr(network, method)
    edited: Any = normalized_actor_critic
    if network is not ActorCritic:
        edited = lambda *arguments: normalized(original(*arguments))  # noqa: E731
    if method in ("predict", "rewards"):
        edited = lambda self, latent: original(self, normalized(latent))  # noqa: E731
    monkeypatch.setattr(network, method, edited)
    config = config_of(algo, Path("runs"))
    settings = [f"algo_kwargs.{key}={json.dumps(value)}" for key, value in config.algo_kwargs.items()]
    command = ["train", "--algo", algo, "--env", config.env_id, "--total-timesteps", 64, "--eval-episodes", 0]
    command += [text for setting in settings for text in ("--set", setting)]
    answer = axiomrl(*command)
    assert answer.status == 1, answer.err
    assert f"the kernel `{KERNELS[algo]}` and the algorithm's own code disagree" in answer.err
    assert "--set acceleration=off" in answer.err
    assert "Traceback" not in answer.err
    assert read_metadata(only_run(Path("runs")))["status"] == "failed"
    assert axiomrl(*command, "--set", "acceleration=off").status == 0


@pytest.mark.parametrize("algo", PLANNERS)
def test_searches_run_in_compiled_code_unless_switched_off(
    algo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[int] = []
    original = perceptron_search.search_mlp

    def search(*arguments: Any) -> None:
        searched.append(1)
        original(*arguments)

    monkeypatch.setattr(perceptron_search, "search_mlp", search)
    train(config_of(algo, tmp_path, acceleration="off"))
    assert not searched
    result = train(config_of(algo, tmp_path, acceleration="auto"))
    steps = result.metrics["global_step"] // config_of(algo, tmp_path).num_envs
    assert len(searched) >= steps, "a search goes before every step"


@pytest.mark.parametrize("algo", KERNELS)
def test_without_the_kernels_package_runs_work_and_record_why(
    algo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("rl_training.kernels")]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "rl_training.kernels", None)
    result = train(config_of(algo, tmp_path))
    assert result.status == "completed"
    found = read_metadata(result.run_dir)["acceleration"]
    assert found["kernel"] is None
    assert found["reason"].startswith("rl_training.kernels cannot be imported (")


@pytest.mark.parametrize(
    ("algo", "settings", "updates"),
    [
        ("ppo", {"num_steps": 32, "minibatch_size": 256, "update_epochs": 20}, 7812.5),
        ("ppo", {"num_steps": 32, "minibatch_size": 100, "update_epochs": 2}, 2343.75),
        ("a2c", {"num_steps": 5}, 2500.0),
        ("dqn", {"learning_starts": 1000, "train_interval": 256, "gradient_steps": 128}, 49_500.0),
        ("sac", {"learning_starts": 1000, "gradient_steps": -1}, 99_000.0),
        ("gumbel_muzero", {"learning_starts": 1000, "replay_ratio": 0.25}, 24_750.0),
    ],
)
def test_how_many_gradient_steps_a_configuration_asks_for(
    algo: str, settings: dict[str, Any], updates: float, tmp_path: Path
) -> None:
    env_id = "Pendulum-v1" if algo == "sac" else "CartPole-v1"
    config = TrainConfig(algo, env_id, 0, 100_000, tmp_path, num_envs=8, algo_kwargs=settings)
    spec = get_algorithm_spec(algo)
    assert planned_updates(config, algorithm_params(config), spec.loop) == updates


def test_a_run_too_short_for_compiling_learns_by_autograd_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rl_training.kernels.requires.FEWEST_UPDATES", 2_000)
    found = read_metadata(train(config_of("ppo", tmp_path)).run_dir)["acceleration"]
    assert found["kernel"] is None
    assert "gradient steps are too few for compiling to pay" in found["reason"]

"""Encoders of the user's own by `algo_kwargs.encoder`: in every family, for every kind of observation, repeatable."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cli_parts import Command, assert_refused
from documents.docs_pages import ROOT, executable_blocks
from harness import assert_same_run, train_with_stops, weights
from own_code import copy_run
from ppo_parts import CHOICE, CPU, OBSERVATION, TORQUE, seeded
from rl_training import load_policy
from rl_training.algorithms.discrete_sac import DiscreteSAC, DiscreteSACParams
from rl_training.algorithms.dqn import DQN
from rl_training.algorithms.params.dqn_params import DQNParams
from rl_training.algorithms.params.ppo_params import PPOParams
from rl_training.algorithms.params.sac_params import SACParams
from rl_training.algorithms.ppo import PPO
from rl_training.algorithms.sac import SAC
from rl_training.algorithms.td3 import TD3, TD3Params
from rl_training.errors import AxiomError, ConfigError, UntrustedCodeError
from rl_training.experiment.config import TrainConfig, validate_config
from rl_training.experiment.configuration.forks import changed_settings
from rl_training.experiment.own_code.user_code import admit
from rl_training.experiment.registry import ALGORITHMS
from rl_training.experiment.runs import read_metadata
from rl_training.runtime.setup.user_networks import UserEncoder, check_networks
from rl_training.runtime.workflows import evaluate, train
from short_runs import config_of
from sweep_runs import only_summary, run_dirs

Forget = Callable[[], None]
EXAMPLE = ROOT / "examples" / "layer_norm_encoder.py"
EXTENDING = ROOT / "docs" / "extending.md"
ENCODERS = """
import torch
from torch import nn


class Vector(nn.Module):
    def __init__(self, observation_space, width=8):
        super().__init__()
        self.width = width
        self.layers = nn.Sequential(nn.Linear(observation_space.shape[0], width), nn.LayerNorm(width), nn.ReLU())

    def forward(self, observation):
        return self.layers(observation)


class Doubled(nn.Module):  # no weights
    def __init__(self, observation_space):
        super().__init__()
        self.width = observation_space.shape[0]

    def forward(self, observation):
        return 2.0 * observation


class Image(nn.Module):
    def __init__(self, observation_space):
        super().__init__()
        self.width = 5
        self.layers = nn.Sequential(nn.Conv2d(3, 2, 5, stride=4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(5))
        self.layers(torch.zeros(1, 3, *observation_space.shape[:2]))

    def forward(self, observation):
        assert observation.dtype == torch.uint8
        return self.layers(observation.permute(0, 3, 1, 2) / 255.0)


class Entries(nn.Module):
    def __init__(self, observation_space):
        super().__init__()
        self.width = 6
        self.numbers = nn.Linear(observation_space["numbers"].shape[0], 3)
        self.step = nn.Embedding(int(observation_space["step"].n), 3)

    def forward(self, observation):
        return torch.cat((self.numbers(observation["numbers"]), self.step(observation["step"].long())), 1)


def no_module(observation_space):
    return torch.zeros


def without_width(observation_space):
    return nn.Linear(3, 4)


def with_width(module, width=4):
    module.width = width
    return module


def fractional(observation_space):
    return with_width(nn.Linear(3, 4), 4.0)


def too_narrow(observation_space):
    return with_width(nn.Linear(3, 5))


def one_row(observation_space):
    return with_width(nn.Flatten(0), 6)


def a_tuple(observation_space):
    return with_width(nn.GRU(3, 4))


def double(observation_space):
    return with_width(nn.Linear(3, 4).double())


def elsewhere(observation_space):
    return with_width(nn.Linear(3, 4, device="meta"))


def frozen(observation_space):
    return with_width(nn.Linear(3, 4).requires_grad_(False))


def breaks(observation_space):
    return with_width(nn.Linear(7, 4))


def dropout(observation_space):
    return with_width(nn.Sequential(nn.Linear(3, 4), nn.Dropout()))


def batch_norm(observation_space):
    return with_width(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)))


shared = with_width(nn.Linear(3, 4))


def the_same(observation_space):
    return shared
"""


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_process: Forget) -> Path:
    """The working directory, with a file of encoders."""
    (tmp_path / "my_nets.py").write_text(ENCODERS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def with_encoder(config: TrainConfig, name: str, **kwargs: Any) -> TrainConfig:
    more = {"encoder": name, "encoder_kwargs": kwargs}
    return dataclasses.replace(config, algo_kwargs={**config.algo_kwargs, **more})


def factory(name: str, **kwargs: Any) -> UserEncoder:
    admit(f"my_nets:{name}", place="algo_kwargs.encoder")
    return UserEncoder(f"my_nets:{name}", kwargs)


REASONS = {
    "ppo": "the encoder has weights",
    "a2c": "the encoder has weights",
    "dqn": "the encoder has weights",
    "double_dqn": "the encoder has weights",
    "sac": "the actor's encoder has weights",
    "td3": "the actor's encoder has weights",
    "ddpg": "the actor's encoder has weights",
    "discrete_sac": "DiscreteSAC has no kernel",
    "tqc": "quantile critics have no written-out gradient",
    "crossq": "critics without targets have no written-out gradient",
    "c51": "the encoder has weights",
    "qr_dqn": "the encoder has weights",
    "rainbow": "the encoder has weights",
}


@pytest.mark.parametrize("algo", REASONS)
def test_an_encoder_trains_in_every_family_by_autograd_and_its_code_is_recorded(algo: str, directory: Path) -> None:
    run_dir = train(with_encoder(config_of(algo, directory / "runs"), "my_nets:Vector", width=6)).run_dir
    metadata = read_metadata(run_dir)
    assert metadata["acceleration"] == {"kernel": None, "reason": REASONS[algo]}
    (record,) = metadata["user_code"]
    assert (record["name"], record["file"]) == ("my_nets:Vector", str(directory / "my_nets.py"))
    norms = {key: tensor for key, tensor in weights(run_dir).items() if key.endswith("encoder.layers.1.weight")}
    networks = {key.partition(".encoder")[0] for key in norms if "target" not in key}
    assert len(networks) == (1 if any("model" in key for key in norms) else 2)
    assert all(len(norm) == 6 for norm in norms.values())
    assert all((norm != 1.0).any() for key, norm in norms.items() if "target" not in key)


@pytest.mark.parametrize("algo", ["muzero", "efficientzero", "gumbel_muzero"])
def test_an_encoder_trains_with_a_model_whose_searches_stay_compiled(algo: str, directory: Path) -> None:
    run_dir = train(with_encoder(config_of(algo, directory / "runs"), "my_nets:Vector", width=6)).run_dir
    assert read_metadata(run_dir)["acceleration"]["kernel"] == "muzero"
    assert [record["name"] for record in read_metadata(run_dir)["user_code"]] == ["my_nets:Vector"]
    learned = {key: tensor for key, tensor in weights(run_dir).items() if key.endswith("encoder.layers.1.weight")}
    assert len(learned) == 2  # the network's and the target network's
    assert all((norm != 1.0).any() for key, norm in learned.items() if "target" not in key)


@pytest.mark.parametrize(
    ("algo", "env_id", "encoder"),
    [
        ("ppo", "toy_envs:Toy/Image-v0", "Image"),
        ("ppo", "toy_envs:Toy/Dict-v0", "Entries"),
        ("dqn", "toy_envs:Toy/Image-v0", "Image"),
        ("dqn", "toy_envs:Toy/Dict-v0", "Entries"),
        ("discrete_sac", "toy_envs:Toy/Image-v0", "Image"),
        ("discrete_sac", "toy_envs:Toy/Dict-v0", "Entries"),
    ],
)
def test_images_and_dicts_come_as_the_package_s_own_encoders_get_them(
    algo: str, env_id: str, encoder: str, directory: Path
) -> None:
    config = dataclasses.replace(config_of(algo, directory / "runs"), env_id=env_id)
    result = train(with_encoder(config, f"my_nets.py:{encoder}"))
    assert result.status == "completed"
    policy = load_policy(result.run_dir)
    policy.observation_space.seed(0)
    assert policy.predict(policy.observation_space.sample()) in range(1, 5)


def test_no_kernel_steps_in_behind_an_encoder_without_weights_that_it_does_not_know(directory: Path) -> None:
    run_dir = train(with_encoder(config_of("td3", directory / "runs"), "my_nets:Doubled")).run_dir
    reason = "the actor's encoder Doubled is not the package's own"
    assert read_metadata(run_dir)["acceleration"] == {"kernel": None, "reason": reason}


# -- initial weights ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "params"), [(PPO, PPOParams()), (SAC, SACParams()), (TD3, TD3Params())])
def test_initial_weights_come_from_the_run_s_generator_and_the_global_one_stays(
    kind: Any, params: Any, directory: Path
) -> None:
    def made(seed: int) -> dict[str, torch.Tensor]:
        encoder = UserEncoder("my_nets:Vector", {"width": 4})
        algorithm = kind(params, OBSERVATION, TORQUE, device=CPU, generator=seeded(seed), encoder=encoder)
        state = algorithm.state_dict()
        found: dict[str, torch.Tensor] = dict(state.get("model", {}) | state.get("actor", {}))
        return found

    admit("my_nets:Vector", place="algo_kwargs.encoder")
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = made(0)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(2)
    again, other = made(0), made(5)
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not torch.equal(first["encoder.layers.0.weight"], other["encoder.layers.0.weight"])


def test_actor_and_critic_have_encoders_of_their_own(directory: Path) -> None:
    algorithm = SAC(SACParams(), OBSERVATION, TORQUE, device=CPU, generator=seeded(0), encoder=factory("Vector"))
    one, other = algorithm.actor.encoder, algorithm.critic.encoder
    assert one is not other
    assert not torch.equal(one.layers[0].weight, other.layers[0].weight)


def test_the_weights_of_built_in_networks_do_not_depend_on_torch_s_global_generator() -> None:
    states = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        states.append(PPO(PPOParams(), OBSERVATION, TORQUE, device=CPU, generator=seeded(0)).model.state_dict())
    assert all(torch.equal(tensor, states[1][key]) for key, tensor in states[0].items())


@pytest.mark.parametrize("algo", ["ppo", "sac", "gumbel_muzero"])
def test_runs_repeat_and_a_stopped_one_goes_on_exactly(algo: str, directory: Path) -> None:
    def config(place: str) -> TrainConfig:
        return with_encoder(config_of(algo, directory / place), "my_nets:Vector", width=5)

    torch.manual_seed(3)
    whole = train(config("whole")).run_dir
    torch.manual_seed(4)
    assert_same_run(whole, train(config("again")).run_dir)
    assert_same_run(whole, train_with_stops(config("stopped"), [6, 5]))


# -- mistakes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("encoder", "kwargs", "sentence"),
    [
        ("no_module", {}, r"gives an object of type builtin_function_or_method; return a torch\.nn\.Module"),
        ("without_width", {}, r"has no attribute `width`; set self\.width"),
        ("fractional", {}, r"has the width 4\.0; set self\.width"),
        ("too_narrow", {}, r"float32 of shape \[2, 5\] for 2 observations, not torch\.float32 of shape \[2, 4\]"),
        ("one_row", {}, r"returns torch\.float32 of shape \[6\] for 2 observations"),
        ("a_tuple", {}, r"returns a tuple for 2 observations"),
        ("double", {}, r"has weights of torch\.float64; make them float32"),
        ("elsewhere", {}, r"lies on meta; make it on the CPU"),
        ("frozen", {}, r"weights without requires_grad.*under torch\.no_grad\(\)"),
        ("breaks", {}, r"fails on 2 observations of Box\(.*RuntimeError.*; repair its forward"),
        ("dropout", {}, r"draws random numbers or changes its buffers.*LayerNorm"),
        ("batch_norm", {}, r"draws random numbers or changes its buffers.*LayerNorm"),
        ("Vector", {"depth": 2}, r"cannot be called with \(observation_space, depth=2\), TypeError.*encoder_kwargs"),
        ("Vectr", {}, r"has no `Vectr`; did you mean `Vector`"),
    ],
)
def test_an_encoder_that_cannot_be_used_is_refused_in_one_sentence(
    encoder: str, kwargs: dict[str, Any], sentence: str, directory: Path
) -> None:
    with pytest.raises(ConfigError, match=rf"^algo_kwargs\.encoder: `my_nets.*{sentence}"):
        factory(encoder, **kwargs)(OBSERVATION, orthogonal=False, generator=seeded(0))


def test_two_networks_with_the_same_weights_are_refused(directory: Path) -> None:
    with pytest.raises(ConfigError, match="gives the same weights twice; make new ones at each call"):
        SAC(SACParams(), OBSERVATION, TORQUE, device=CPU, generator=seeded(0), encoder=factory("the_same"))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (["encoder_kwargs.width=3"], "algo_kwargs.encoder_kwargs: there is no encoder to pass them to"),
        (["encoder=Vector"], "algo_kwargs.encoder: `Vector` names no module; write package.module:NAME"),
        (["encoder='my_nets:'"], "algo_kwargs.encoder: `my_nets:` names no module"),
        (["encoder=nothing:Here"], "algo_kwargs.encoder: cannot import `nothing` of `nothing:Here`"),
        (["encoder=my_nets:too_narrow"], "`my_nets:too_narrow` fails on 2 observations of Box"),
    ],
)
def test_mistakes_on_the_command_line_leave_no_run(
    settings: list[str], sentence: str, directory: Path, axiomrl: Command
) -> None:
    flags = [text for setting in settings for text in ("--set", f"algo_kwargs.{setting}")]
    assert_refused(axiomrl("train", "--algo", "ppo", "--env", "CartPole-v1", *flags), sentence)


def test_kwargs_that_no_file_can_hold_are_refused(tmp_path: Path) -> None:
    raw = {"algo": "ppo", "env_id": "CartPole-v1", "seed": 0, "total_timesteps": 9999, "output_dir": str(tmp_path)}
    with pytest.raises(ConfigError, match=r"algo_kwargs\.encoder_kwargs: must be finite"):
        validate_config({**raw, "algo_kwargs": {"encoder": "a:B", "encoder_kwargs": {"scale": np.inf}}})


def test_an_algorithm_without_the_key_refuses_it(directory: Path, axiomrl: Command) -> None:
    flags = ["--algo", "scalezero", "--env", "CartPole-v1", "--set", "algo_kwargs.encoder=my_nets:Vector"]
    answer = axiomrl("train", *flags)
    assert_refused(answer, "algo_kwargs.encoder: unknown key")


def test_a_fork_keeps_the_encoder(directory: Path) -> None:
    config = with_encoder(config_of("ppo", directory / "runs"), "my_nets:Vector", width=5)
    for other in (with_encoder(config, "my_nets:Vector", width=6), with_encoder(config, "my_nets:Doubled")):
        with pytest.raises(ConfigError, match=r"algo_kwargs\.encoder.*: must stay .*networks in the checkpoint"):
            changed_settings(config, other, fork=True)


def test_memory_is_not_estimated_from_observations_that_an_encoder_makes_narrow(directory: Path) -> None:
    from gymnasium import spaces

    from rl_training.runtime.setup.size_limits import check_policy_size

    huge = spaces.Box(-1, 1, (10,), np.float32)
    huge._shape = (10**11,)
    params = SACParams(hidden_sizes=(1000,))
    with pytest.raises(ConfigError, match="weights"):
        check_policy_size(params, [(huge, TORQUE)])
    check_policy_size(dataclasses.replace(params, encoder="my_nets:Vector"), [(huge, TORQUE)])


# -- whose code it is ---------------------------------------------------------------------------------


def test_a_policy_needs_its_encoder_and_executes_nobody_else_s(
    directory: Path, new_process: Forget, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = train(with_encoder(config_of("ppo", directory / "runs"), "my_nets:Vector")).run_dir
    observation = np.zeros(4, np.float32)
    action = load_policy(run_dir).predict(observation)
    new_process()
    assert load_policy(run_dir).predict(observation) == action  # the same file that a training used
    (directory / "my_nets.py").write_text(ENCODERS + "\nraise SystemExit('executed')\n")
    new_process()
    for enter in (load_policy, evaluate):
        with pytest.raises(UntrustedCodeError, match=r"algo_kwargs\.encoder: .*has changed since.*--trust-code"):
            enter(run_dir)
    (directory / "my_nets.py").write_text(ENCODERS + "\nCHANGED = True\n")
    new_process()
    assert load_policy(run_dir, trust_code=True).predict(observation) == action
    new_process()
    assert evaluate(run_dir, num_episodes=1, trust_code=True).episodes
    new_process()
    monkeypatch.setenv("AXIOMRL_STATE_DIR", str(directory / "of_somebody_else"))
    with pytest.raises(UntrustedCodeError, match="was not used by a training of yours"):
        load_policy(copy_run(run_dir, directory / "gift"))
    (directory / "my_nets.py").unlink()
    with pytest.raises(AxiomError, match=r"algo_kwargs\.encoder: cannot import `my_nets` of `my_nets:Vector`"):
        load_policy(run_dir)


def test_the_example_trains_on_seeds_from_the_command_line(
    directory: Path, axiomrl: Command, new_process: Forget
) -> None:
    code = [line for line in EXAMPLE.read_text().splitlines() if line.strip()]
    assert len(code) < 25
    flags = ["--set", f"algo_kwargs.encoder={EXAMPLE}:Residual", "--set", "algo_kwargs.encoder_kwargs.width=8"]
    small = ["--num-envs", 2, "--total-timesteps", 128, "--eval-episodes", 1, "--set", "algo_kwargs.num_steps=32"]
    answer = axiomrl("train", "--algo", "ppo", "--env", "CartPole-v1", "--seeds", "1,2", *flags, *small)
    assert answer.status == 0, answer.err
    found = run_dirs(only_summary(Path("runs")))
    assert set(found) == {1, 2}
    for run_dir in found.values():
        assert read_metadata(run_dir)["user_code"][0]["name"] == f"{EXAMPLE}:Residual"


# -- whole networks -----------------------------------------------------------------------------------


def documented(name: str) -> Any:
    """Return a class of the page's snippet."""
    (block,) = (block for block in executable_blocks(EXTENDING) if f"class {name}" in block.code)
    namespace: dict[str, Any] = {"__name__": "documentation"}
    exec(block.code, namespace)
    return namespace[name]


def test_a_network_by_an_overridden_method_trains_resumes_exactly_and_has_no_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ALGORITHMS, "ppo", dataclasses.replace(ALGORITHMS["ppo"], algorithm=documented("RecipePPO")))
    torch.manual_seed(1)
    whole = train(config_of("ppo", tmp_path / "whole")).run_dir
    reason = "Recipe is not exactly ActorCritic"
    assert read_metadata(whole)["acceleration"] == {"kernel": None, "reason": reason}
    torch.manual_seed(2)
    assert_same_run(whole, train_with_stops(config_of("ppo", tmp_path / "stopped"), [6]))
    assert load_policy(whole).predict(np.zeros(4, np.float32)) in (0, 1)


class WrongShape(torch.nn.Module):
    """Gives one dimension too many, or other numbers."""

    outputs = 1

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.shape = shape

    def forward(self, *inputs: Any) -> torch.Tensor:
        return self.weight.expand(2, *self.shape)


CASES: list[tuple[Any, Any, str, Any, str]] = [
    (DQN, DQNParams(), "make_model", WrongShape(3), r"outputs of shape \[2, 3\].*takes shape \[2, 3, 1\]"),
    (SAC, SACParams(), "make_critic", WrongShape(2, 5), r"values of shape \[2, 2, 5\].*takes shape \[2, 2, 1\]"),
    (SAC, SACParams(), "make_actor", WrongShape(7), r"means of shape \[7\].*takes shape \[2, 2\]"),
    (TD3, TD3Params(), "make_actor", WrongShape(7), r"actions of shape \[2, 7\].*takes shape \[2, 2\]"),
    (TD3, TD3Params(), "make_critic", WrongShape(2), r"values of shape \[2, 2\].*takes shape \[2, 2, 1\]"),
    (PPO, PPOParams(), "make_model", WrongShape(), r"a network of Own cannot be used, AttributeError.*`?policy"),
    (
        DiscreteSAC,
        DiscreteSACParams(),
        "make_networks",
        WrongShape(3),
        r"logits of shape \[2, 3\].*takes shape \[1, 2, 3\]",
    ),
]


@pytest.mark.parametrize(("kind", "params", "method", "network", "sentence"), CASES)
def test_networks_of_other_shapes_are_refused_before_they_learn(
    kind: Any, params: Any, method: str, network: Any, sentence: str
) -> None:
    own = type("Own", (kind,), {method: lambda self, *arguments: copy.deepcopy(network)})
    actions = CHOICE if kind in (DQN, DiscreteSAC) else TORQUE
    algorithm = own(params, OBSERVATION, actions, device=CPU, generator=seeded(0))
    with pytest.raises(ConfigError, match=f"^algo: .*{sentence}"):
        check_networks(algorithm, OBSERVATION)

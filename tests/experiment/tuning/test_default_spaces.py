"""The packaged search spaces: one for every algorithm, and every combination in it is a valid configuration."""

from __future__ import annotations

import dataclasses
import logging
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paths import ROOT
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig, algorithm_params
from rl_training.experiment.configuration.config_files import load_config, preset_names
from rl_training.experiment.configuration.safe_yaml import parse_yaml
from rl_training.experiment.registry import get_algorithm_spec, list_algorithms
from rl_training.experiment.tuning.adaptation import including, narrowed
from rl_training.experiment.tuning.domains import Choice, Domain, Range
from rl_training.experiment.tuning.space import Parameter, SearchSpace
from rl_training.experiment.tuning.space_files import default_space, space_names

SHORT = {"algo_kwargs.num_steps": 8, "algo_kwargs.minibatch_size": 8}
FILES = ROOT / "src" / "rl_training" / "zoo" / "spaces"


def plain_config(algo: str, **base: Any) -> TrainConfig:
    """Return the algorithm's defaults on an environment that it can learn."""
    spec = get_algorithm_spec(algo)
    if spec.many_tasks:
        return load_config(preset="scalezero-pair")
    env_id = "CartPole-v1" if "Discrete" in spec.action_spaces else "Pendulum-v1"
    dataset = {"dataset": "some/data-v0"} if spec.loop == "offline" else {}
    parallel = {"num_envs": 8} if spec.loop == "on_policy" else {}
    return load_config(base={"algo": algo, "env_id": env_id, **dataset, **parallel, **base})


@cache
def space_of(name: str) -> tuple[TrainConfig, SearchSpace]:
    config = load_config(preset=name) if name in preset_names() else plain_config(name)
    return config, default_space(config)


def drawn(data: st.DataObject, space: SearchSpace) -> dict[str, Any]:
    """Return values of the space, its ends and edges more often than a random search would."""
    values: dict[str, Any] = {}
    for parameter in space.parameters:
        if parameter.is_active(values):
            values[parameter.key] = data.draw(strategy(parameter.domain), label=parameter.key)
    return values


def strategy(domain: Domain) -> st.SearchStrategy[Any]:
    if isinstance(domain, Choice):
        return st.sampled_from(domain.values)
    low, high = domain.low, domain.high
    return st.integers(int(low), int(high)) if domain.integer else st.floats(low, high)


def content(algo: str) -> dict[str, Any]:
    return dict(parse_yaml((FILES / f"{algo}.yaml").read_text(encoding="utf-8"), algo))


def test_every_algorithm_has_a_space_and_every_space_an_algorithm() -> None:
    assert space_names() == list_algorithms()


@pytest.mark.parametrize("algo", list_algorithms())
def test_no_parameter_of_a_packaged_space_is_lost_on_the_defaults(algo: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "rl_training"):
        space = default_space(plain_config(algo))
    assert sorted(space.keys) == sorted(f"algo_kwargs.{name}" for name in content(algo))
    assert not caplog.records


@pytest.mark.parametrize("algo", list_algorithms())
def test_a_packaged_space_begins_with_a_comment_on_its_choice(algo: str) -> None:
    lines = (FILES / f"{algo}.yaml").read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("# ")
    assert all(len(line) <= 120 for line in lines)


@pytest.mark.parametrize("name", [*list_algorithms(), *preset_names()])
@settings(max_examples=6)
@given(data=st.data())
def test_every_combination_is_a_valid_configuration(name: str, data: st.DataObject) -> None:
    config, space = space_of(name)
    values = drawn(data, space)
    trial = space.apply(config, values)
    assert space.contains(values)
    params = algorithm_params(trial)
    for key, value in values.items():
        field, *inner = key.removeprefix("algo_kwargs.").split(".")
        found = getattr(params, field)
        found = getattr(found, inner[0]) if inner else found
        assert (list(found) if isinstance(found, tuple) else found) == value or dataclasses.is_dataclass(found)


@pytest.mark.parametrize("name", preset_names())
def test_the_space_of_a_preset_contains_the_preset_where_its_scales_allow(name: str) -> None:
    config, space = space_of(name)
    own = space.values_of(config)
    outside = [
        parameter.key
        for parameter in space.active(own)
        if not parameter.domain.contains(own[parameter.key])
        # null and 0 are on no scale of numbers
        and not (isinstance(parameter.domain, Range) and not own[parameter.key])
    ]
    assert not outside


@pytest.mark.parametrize(
    ("algo", "base", "lost", "kept"),
    [
        ("dqn", {"algo_kwargs.hindsight": "future"}, "n_step", "double"),
        ("sac", {"algo_kwargs.dataset_fraction": 0.5, "dataset": "some/data-v0"}, "n_step", "tau"),
        ("dqn", {"algo_kwargs.epsilon_schedule": None}, "epsilon_schedule.end", "n_step"),
        ("tqc", {"algo_kwargs.num_quantiles": 1, "algo_kwargs.dropped_quantiles": 0}, "dropped_quantiles", "tau"),
        (
            "ppo",
            {"num_envs": 1, "algo_kwargs.num_steps": 8, "algo_kwargs.minibatch_size": 8},
            "minibatch_size",
            "gamma",
        ),
    ],
)
def test_what_the_configuration_excludes_is_left_out(algo: str, base: dict[str, Any], lost: str, kept: str) -> None:
    space = default_space(plain_config(algo, **base))
    assert f"algo_kwargs.{lost}" not in space.keys
    assert f"algo_kwargs.{kept}" in space.keys


def values_of(space: SearchSpace, name: str) -> tuple[Any, ...]:
    (domain,) = (entry.domain for entry in space.parameters if entry.key == f"algo_kwargs.{name}")
    assert isinstance(domain, Choice)
    return domain.values


def test_rollouts_of_few_environments_are_long_enough_for_every_minibatch(caplog: pytest.LogCaptureFixture) -> None:
    assert values_of(default_space(plain_config("ppo", num_envs=8)), "num_steps")[0] == 32
    with caplog.at_level(logging.WARNING, "rl_training"):
        alone = default_space(plain_config("ppo", num_envs=2))
    assert values_of(alone, "minibatch_size") == (32, 64, 128, 256)
    assert values_of(alone, "num_steps") == (128, 256, 512, 1024, 2048)
    assert "leaves out what the configuration does not allow: algo_kwargs.num_steps 32, 64\n" in caplog.text


def test_a_warm_up_is_shorter_than_the_trial() -> None:
    short = plain_config("dqn", total_timesteps=2_000)
    assert max(values_of(default_space(short), "learning_starts")) < 2_000


def test_a_condition_follows_what_is_left_of_its_parameter() -> None:
    config = plain_config("sac", **{"algo_kwargs.hindsight": "future"})
    returns, rate = "algo_kwargs.n_step", "algo_kwargs.learning_rate"
    rest = narrowed(
        SearchSpace(
            (
                Parameter("algo_kwargs.use_sde", Choice((True, False))),
                Parameter(returns, Choice((1, 3))),
                Parameter(rate, Range(1e-4, 1e-3), {returns: (3,)}),
                Parameter("algo_kwargs.sde_sample_freq", Choice((-1, 0, 8)), {"algo_kwargs.use_sde": (True,)}),
            )
        ),
        config,
    )
    assert rest.keys == ("algo_kwargs.use_sde", "algo_kwargs.sde_sample_freq")
    assert rest.parameters[1].domain == Choice((-1, 8))
    assert rest.parameters[1].when == {"algo_kwargs.use_sde": (True,)}


def test_the_configurations_own_values_extend_a_space() -> None:
    config = plain_config(
        "ppo", **{"algo_kwargs.gamma": 0.8, "algo_kwargs.num_steps": 48, "algo_kwargs.max_grad_norm": None}
    )
    extended = including(
        SearchSpace(
            (
                Parameter("algo_kwargs.gamma", Range(0.9, 0.999, "one_minus_log")),
                Parameter("algo_kwargs.num_steps", Choice((32, 64))),
                Parameter("algo_kwargs.max_grad_norm", Range(0.3, 5, "log")),
                Parameter("algo_kwargs.ent_coef", Range(1e-4, 1e-2, "log")),
                Parameter("algo_kwargs.clip_coef", Range(0.3, 0.5, step=0.1)),
            )
        ),
        config,
    )
    assert [parameter.domain for parameter in extended.parameters] == [
        Range(0.8, 0.999, "one_minus_log"),
        Choice((32, 64, 48)),
        Range(0.3, 5, "log"),  # null is no number, and 0 has no logarithm
        Range(1e-4, 1e-2, "log"),
        Range(0.2, 0.5, step=0.1),
    ]


def test_an_algorithm_of_ones_own_needs_a_space_of_ones_own() -> None:
    config = dataclasses.replace(plain_config("ppo"), algo="my_package.reinforce:SPEC")
    with pytest.raises(ConfigError) as caught:
        default_space(config)
    assert str(caught.value).startswith("my_package.reinforce:SPEC has no packaged search space; write one")

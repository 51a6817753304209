"""Ranges, choices and the space made of them: what they contain, in which order, and the configurations they give."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.configuration.config_files import load_config
from rl_training.experiment.tuning.domains import Choice, Domain, Range
from rl_training.experiment.tuning.space import Parameter, SearchSpace
from rl_training.experiment.tuning.space_files import space_from_data

RATE, EPOCHS, SDE, FREQUENCY = (
    f"algo_kwargs.{name}" for name in ("learning_rate", "update_epochs", "use_sde", "sde_sample_freq")
)
RANGES = [
    Range(0.0, 0.02),
    Range(1e-5, 1e-2, "log"),
    Range(0.9, 0.9999, "one_minus_log"),
    Range(1, 20, integer=True),
    Range(10, 10_000, "log", integer=True),
    Range(0.0, 1.0, step=0.1),
    Range(-8, 8, integer=True, step=4),
]


def refusal(function: Any, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        function(*args, **kwargs)
    return str(caught.value)


def config(**base: Any) -> TrainConfig:
    return load_config(base={"algo": "ppo", "env_id": "Pendulum-v1", **base})


def space(*parameters: tuple[str, Domain] | tuple[str, Domain, dict[str, tuple[Any, ...]]]) -> SearchSpace:
    return SearchSpace(tuple(Parameter(*parameter) for parameter in parameters))


CONDITIONAL = space(
    (FREQUENCY, Choice((-1, 8)), {SDE: (True,)}),
    (RATE, Range(1e-5, 1e-2, "log")),
    (SDE, Choice((True, False))),
)


# -- ranges


@pytest.mark.parametrize("domain", RANGES, ids=str)
@given(seed=st.integers(0, 10_000))
def test_a_range_contains_what_it_draws(domain: Range, seed: int) -> None:
    value = domain.draw(Random(seed))
    assert domain.contains(value)
    assert isinstance(value, int) is domain.integer
    assert domain.value_at(domain.coordinate(value)) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize("domain", RANGES, ids=str)
def test_both_ends_of_a_range_belong_to_it_and_are_the_ends_of_its_coordinate(domain: Range) -> None:
    assert domain.contains(domain.low)
    assert domain.contains(domain.high)
    assert sorted(map(domain.value_at, domain.bounds)) == [domain.low, domain.high]
    assert not domain.contains(domain.low - 1)
    assert not domain.contains(domain.high + 1)


@pytest.mark.parametrize(
    ("domain", "value"),
    [
        (RANGES[0], True),
        (RANGES[0], "0.01"),
        (RANGES[0], None),
        (RANGES[0], float("nan")),
        (RANGES[3], 1.5),
        (RANGES[5], 0.15),
        (RANGES[6], 2),
    ],
)
def test_a_range_contains_only_numbers_of_its_kind(domain: Range, value: Any) -> None:
    assert not domain.contains(value)


def test_the_scale_decides_how_values_are_spread() -> None:
    random = Random(0)
    drawn = sorted(Range(1e-5, 1e-1, "log").draw(random) for _ in range(1000))
    assert 5e-4 < drawn[500] < 2e-3  # the middle of the exponents
    gammas = sorted(Range(0.9, 0.9999, "one_minus_log").draw(random) for _ in range(1000))
    assert 0.996 < gammas[500] < 0.998
    counts = [Range(1, 4, "log", integer=True).draw(random) for _ in range(1000)]
    assert 0 < counts.count(4) < counts.count(1)


def test_a_coordinate_just_outside_is_rounded_into_the_range() -> None:
    domain = Range(0.9, 0.9999, "one_minus_log")
    assert domain.value_at(domain.bounds[0] - 1e-17) == 0.9999
    assert domain.value_at(domain.bounds[1] + 1e-17) == 0.9


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ({"low": 1, "high": 1}, "is empty"),
        ({"low": 2, "high": 1}, "write the lower end first"),
        ({"low": 0, "high": 1, "scale": "log"}, "begin above 0"),
        ({"low": 0.5, "high": 1, "scale": "one_minus_log"}, "between 0 and 1, both excluded"),
        ({"low": 0, "high": 0.5, "scale": "one_minus_log"}, "between 0 and 1, both excluded"),
        ({"low": 0.5, "high": 3, "integer": True}, "must be integers, got 0.5"),
        ({"low": 0, "high": 1, "step": 0.3}, "do not reach 1; change the step, or end at 0.9"),
        ({"low": 0, "high": 1, "step": 2}, "do not reach 1"),
        ({"low": 0, "high": 1, "step": -1}, "must be above 0"),
        ({"low": 1, "high": 3, "scale": "log", "step": 1}, "uniform and int only"),
        ({"low": 0, "high": True}, "must be finite numbers, got True"),
        ({"low": 0, "high": float("inf")}, "must be finite numbers, got inf"),
        ({"low": 0.1, "high": 0.5, "scale": "cube"}, "there is no scale 'cube'"),
    ],
)
def test_an_impossible_range_is_refused_with_the_repair(arguments: dict[str, Any], part: str) -> None:
    assert part in refusal(Range, **arguments)


# -- choices


def test_a_choice_contains_values_by_meaning() -> None:
    domain = Choice((None, True, 0.5, 2, "auto", [64, 64], {"type": "linear", "end": 0}))
    for value in (None, True, 0.5, 2.0, "auto", (64, 64), {"end": 0.0, "type": "linear"}):
        assert domain.contains(value), value
    for other in (False, 1, "true", "0.5", [64], [64, True], {"type": "linear"}):
        assert not domain.contains(other), other
    assert domain.index([64, 64]) == 5


def test_the_labels_of_a_choice_are_different_texts() -> None:
    assert Choice((None, "auto", [64, 64])).labels == ("null", "auto", "[64, 64]")
    assert Choice((1, "1", True, "true")).labels == ("1", '"1"', "true", '"true"')


def test_an_impossible_choice_is_refused_with_the_repair() -> None:
    assert "list the values" in refusal(Choice, ())
    assert refusal(Choice, (1, 2, 1.0, 1)) == "1.0 is listed twice; remove one of them"
    assert "must be plain data" in refusal(Choice, (object(),))
    assert "must be finite" in refusal(Choice, (float("nan"),))
    assert "must be a list" in refusal(Choice, "ab")


def test_what_a_choice_gives_away_cannot_change_it() -> None:
    domain = Choice(([64, 64],))
    domain.draw(Random(0)).append(3)
    domain.to_data()["choice"][0].append(3)
    assert domain.values == ([64, 64],)


# -- order and conditions


def test_parameters_come_after_those_that_their_conditions_name() -> None:
    assert CONDITIONAL.keys == (RATE, SDE, FREQUENCY)


def test_a_condition_holds_only_while_its_parameter_is_active_itself() -> None:
    chain = space(("a", Choice((1, 2))), ("b", Choice((1, 2)), {"a": (1,)}), ("c", Range(0.0, 1.0), {"b": (1, 2)}))

    def names(**values: Any) -> str:
        return "".join(parameter.key for parameter in chain.active(values))

    assert names(a=1, b=2, c=0.5) == "abc"
    assert names(a=2, b=2, c=0.5) == "a"
    assert names() == "a"


def test_conditions_that_form_a_circle_name_the_chain() -> None:
    message = refusal(
        space,
        ("a", Choice((1,))),
        ("b", Choice((1,)), {"d": (1,)}),
        ("c", Choice((1,)), {"b": (1,)}),
        ("d", Choice((1,)), {"a": (1,), "c": (1,)}),
    )
    assert "the conditions b -> d -> c -> b form a circle; remove one of them" in message


@pytest.mark.parametrize(
    ("when", "part"),
    [
        ({"aa": (1,)}, "when: `aa` is no parameter of this space; did you mean `a`?"),
        ({"zzz": (1,)}, "add it, or leave the condition out"),
        ({"a": (3,)}, "`a` is never 3 in this space; it is one of 1, 2"),
        ({"a": (True,)}, "`a` is never true"),
        ({"r": (2,)}, "`r` is never 2 in this space; it is from 0 to 1"),
        ({"a": ()}, "lists no value of `a`"),
        ({"b": (1,)}, "b -> b form a circle"),
    ],
)
def test_a_condition_that_can_never_hold_is_refused(when: dict[str, tuple[Any, ...]], part: str) -> None:
    assert part in refusal(space, ("a", Choice((1, 2))), ("r", Range(0, 1)), ("b", Choice((1,)), when))


def test_a_key_is_searched_once_and_not_both_as_a_whole_and_in_part() -> None:
    twice = refusal(space, ("a", Choice((1,))), ("a", Choice((2,))))
    assert "a: `a` is in the space already; remove one of them" in twice
    assert "a.end: `a` is searched as a whole, too" in refusal(space, ("a", Choice((1,))), ("a.end", Choice((2,))))


# -- values and configurations


def test_values_of_inactive_parameters_are_no_settings() -> None:
    values = {RATE: 1e-3, SDE: False, FREQUENCY: 8}
    assert CONDITIONAL.overrides(values) == {RATE: 1e-3, SDE: False}
    assert CONDITIONAL.apply(config(), values).algo_kwargs["sde_sample_freq"] == -1
    assert CONDITIONAL.apply(config(), {**values, SDE: True}).algo_kwargs["sde_sample_freq"] == 8


def test_values_that_the_space_does_not_contain_are_reported_together() -> None:
    message = refusal(CONDITIONAL.overrides, {RATE: 1.0, SDE: True, "algo_kwargs.use_sd": 1})
    assert f"{RATE}: 1.0 is not in the space; it is from 1e-05 to 0.01" in message
    assert f"{FREQUENCY}: has no value; it is one of -1, 8" in message
    assert "algo_kwargs.use_sd: is no parameter of this space; did you mean" in message


def test_null_is_a_setting() -> None:
    clipped = space(("algo_kwargs.max_grad_norm", Choice((0.5, None))))
    assert clipped.apply(config(), {"algo_kwargs.max_grad_norm": None}).algo_kwargs["max_grad_norm"] is None


def test_a_mapping_replaces_the_one_of_the_configuration() -> None:
    schedule = "algo_kwargs.learning_rate_schedule"
    chosen = space((schedule, Choice(({"type": "cosine"}, "linear"))))
    start = config(**{schedule: {"type": "linear", "end": 1e-4, "duration": 0.5}})
    assert chosen.apply(start, {schedule: {"type": "cosine"}}).algo_kwargs["learning_rate_schedule"] == {
        "type": "cosine"
    }
    assert chosen.apply(start, {schedule: "linear"}).algo_kwargs["learning_rate_schedule"] == "linear"


def test_a_part_of_a_schedule_leaves_the_rest() -> None:
    end = "algo_kwargs.learning_rate_schedule.end"
    chosen = space((end, Range(0, 1e-4)))
    for schedule in ("linear", {"type": "linear"}):
        trial = chosen.apply(config(**{"algo_kwargs.learning_rate_schedule": schedule}), {end: 5e-5})
        assert trial.algo_kwargs["learning_rate_schedule"] == {"type": "linear", "end": 5e-5}


def test_an_invalid_combination_is_reported_with_its_source() -> None:
    sizes = space(("algo_kwargs.num_steps", Choice((8,))))
    message = refusal(sizes.apply, config(), {"algo_kwargs.num_steps": 8}, source=lambda path: "trial 3")
    assert message.startswith("trial 3: algo_kwargs.minibatch_size: 64 is larger than the rollout of 8")


def test_applying_values_changes_neither_space_nor_configuration() -> None:
    start = config()
    before = json.dumps(start.algo_kwargs)
    CONDITIONAL.apply(start, {RATE: 1e-3, SDE: True, FREQUENCY: 8})
    assert json.dumps(start.algo_kwargs) == before


def test_the_values_of_a_configuration_are_those_of_the_active_parameters() -> None:
    stacked = space(
        *((parameter.key, parameter.domain, dict(parameter.when)) for parameter in CONDITIONAL.parameters),
        ("env_kwargs.frame_stack", Choice((1, 4))),
        ("env_kwargs.training.frame_stack", Choice((1, 4))),
        ("env_kwargs.training.gravity", Range(-12, -8)),
        ("num_envs", Choice((1, 8))),
    )
    values = stacked.values_of(config(**{"env_kwargs.frame_stack": 4}))
    assert values == {
        RATE: 3e-4,
        SDE: False,
        "env_kwargs.frame_stack": 4,
        "env_kwargs.training.frame_stack": 4,
        "env_kwargs.training.gravity": None,
        "num_envs": 1,
    }
    assert not stacked.contains(values)
    assert stacked.contains({**values, "env_kwargs.training.gravity": -9.8})
    assert not stacked.contains({**values, "env_kwargs.training.gravity": -9.8, FREQUENCY: 8})


@given(seed=st.integers(0, 1000))
def test_a_space_contains_what_it_draws(seed: int) -> None:
    assert CONDITIONAL.contains(CONDITIONAL.draw(Random(seed)))


# -- grids and files


def test_a_grid_has_every_combination_once() -> None:
    points = space(
        ("a", Choice((True, False))),
        ("b", Range(1, 3, integer=True)),
        ("c", Range(0, 1, step=0.5), {"a": (True,)}),
    ).grid()
    assert len(points) == 3 * 3 + 3
    assert points[:2] == [{"a": True, "b": 1, "c": 0.0}, {"a": True, "b": 1, "c": 0.5}]
    assert points[-1] == {"a": False, "b": 3}
    assert len({json.dumps(point) for point in points}) == len(points)


def test_a_grid_names_every_parameter_without_a_finite_number_of_values() -> None:
    message = refusal(space(("a", Range(0, 1)), ("b", Range(1, 9, "log", integer=True)), ("c", Choice((1,)))).grid)
    assert message.splitlines() == [
        f"{name}: has no finite number of values for a grid; list them by choice, or give a step" for name in "ab"
    ]


def test_a_grid_that_is_too_large_is_refused_before_it_fills_the_memory() -> None:
    assert "1,000,000 values" in refusal(space(("a", Range(1, 1_000_000, integer=True))).grid)
    thousand = Range(1, 1000, integer=True)
    assert "more than 100,000" in refusal(space(("a", thousand), ("b", thousand)).grid)


def test_a_space_is_read_back_from_its_data() -> None:
    own = "env_kwargs.training"
    written = space(
        *((f"{own}.k{number}", domain) for number, domain in enumerate(RANGES)),
        (f"{own}.sizes", Choice((None, [64], [64, 64], 64))),
        (f"{own}.b", Choice(("x", {"y": 1})), {f"{own}.sizes": ([64, 64],), f"{own}.k3": (1, 2)}),
        (f"{own}.c", Choice((1,)), {f"{own}.sizes": (64,)}),
        (RATE, Range(1e-5, 1e-2, "log")),
    )
    data = json.loads(json.dumps(written.to_data()))
    assert space_from_data(data, config(), "study.yaml") == written
    assert data[f"{own}.k2"] == {"one_minus_log": [0.9, 0.9999]}
    assert data[f"{own}.k6"] == {"int": [-8, 8], "step": 4}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "study.yaml: must be a mapping `parameter: {kind: values}`, got list"),
        ({RATE: {"log": [3, 1]}}, f"study.yaml: {RATE}.log: [3.0, 1.0] is empty"),
        ({"output_dir": {"choice": ["/etc"]}}, "study.yaml: output_dir: cannot be searched"),
        ({3: {"choice": [1]}}, "study.yaml: 3: unknown key"),
    ],
)
def test_damaged_data_of_a_space_names_its_place(data: Any, message: str) -> None:
    assert message in refusal(space_from_data, data, config(), "study.yaml")

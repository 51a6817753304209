"""Scheduled scalars: every schedule type by hand, warm-up, clamping and the resolvers."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.schedules import SCHEDULE_KINDS, Schedule
from rl_training.runtime import controls
from rl_training.runtime.controls import Control, resolve_control, resolve_num_simulations, schedule_value


def value_at(schedule: Any, step: float, *, value: float = 1.0, horizon: int = 1000) -> float:
    return schedule_value(schedule, step=step, horizon=horizon, value=value)


def config(total_timesteps: int = 1000, **algo_kwargs: Any) -> TrainConfig:
    return TrainConfig("ppo", "CartPole-v1", 0, total_timesteps, "runs", algo_kwargs=algo_kwargs)  # type: ignore[arg-type]


def test_without_a_schedule_the_fixed_value_holds() -> None:
    assert value_at(None, 500, value=0.3) == 0.3


@pytest.mark.parametrize(
    ("schedule", "step", "expected"),
    [
        ({"type": "constant"}, 700, 2.0),
        ({"type": "constant", "start": 0.5}, 700, 0.5),
        ({"type": "linear"}, 0, 2.0),
        ({"type": "linear"}, 250, 1.5),
        ({"type": "linear"}, 1000, 0.0),
        ({"type": "linear", "start": 4.0, "end": 8.0}, 500, 6.0),
        ({"type": "linear", "end": 1.0, "duration": 100}, 50, 1.5),
        ({"type": "linear", "end": 1.0, "duration": 0.5}, 250, 1.5),
        ({"type": "linear", "end": 1.0, "duration": 1}, 500, 1.5),
        ({"type": "cosine"}, 0, 2.0),
        ({"type": "cosine"}, 250, 1.0 + math.sqrt(0.5)),
        ({"type": "cosine"}, 500, 1.0),
        ({"type": "cosine", "end": 1.0}, 500, 1.5),
        ({"type": "exponential", "start": 1.0, "end": 0.01}, 500, 0.1),
        ({"type": "exponential"}, 1000, 0.02),
        ({"type": "exponential", "start": 1.0, "end": 16.0, "duration": 0.5}, 250, 4.0),
        ({"type": "step"}, 499, 2.0),
        ({"type": "step"}, 500, 0.2),
        ({"type": "step"}, 750, 0.02),
        ({"type": "step", "milestones": [100, 200], "factor": 0.5}, 150, 1.0),
        ({"type": "step", "milestones": [100, 200], "factor": 0.5}, 200, 0.5),
        ({"type": "step", "milestones": [0.1, 0.2], "values": [7.0, 9.0]}, 99, 2.0),
        ({"type": "step", "milestones": [0.1, 0.2], "values": [7.0, 9.0]}, 100, 7.0),
        ({"type": "step", "milestones": [0.1, 0.2], "values": [7.0, 9.0]}, 900, 9.0),
        ({"type": "piecewise", "points": [[100, 1.0], [300, 3.0], [400, 0.0]]}, 0, 1.0),
        ({"type": "piecewise", "points": [[100, 1.0], [300, 3.0], [400, 0.0]]}, 200, 2.0),
        ({"type": "piecewise", "points": [[100, 1.0], [300, 3.0], [400, 0.0]]}, 350, 1.5),
        ({"type": "piecewise", "points": [[0.0, 1.0], [0.5, 0.0]]}, 250, 0.5),
    ],
)
def test_schedule_takes_its_hand_computed_value(schedule: Any, step: int, expected: float) -> None:
    assert value_at(schedule, step, value=2.0) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("schedule", "last"),
    [
        ({"type": "linear", "end": 0.25}, 0.25),
        ({"type": "cosine", "end": 0.25}, 0.25),
        ({"type": "exponential", "end": 0.25}, 0.25),
        ({"type": "step", "milestones": [10], "values": [0.25]}, 0.25),
        ({"type": "piecewise", "points": [[0, 1.0], [500, 0.25]]}, 0.25),
        ({"type": "linear", "end": 0.25, "duration": 5000}, 1.0 - 0.75 * 2000 / 5000),
    ],
)
def test_past_the_horizon_the_last_value_is_held(schedule: Any, last: float) -> None:
    assert value_at(schedule, 2000) == pytest.approx(last)


def test_a_negative_step_counts_as_the_start() -> None:
    assert value_at("linear", -5) == 1.0


def test_positions_are_steps_as_soon_as_one_exceeds_1() -> None:
    assert value_at({"type": "step", "milestones": [1, 500], "factor": 0.5}, 2) == 0.5


@pytest.mark.parametrize("kind", [kind for kind in SCHEDULE_KINDS if kind != "piecewise"])
def test_a_string_kind_is_that_type_with_its_defaults(kind: Any) -> None:
    for step in (0, 333, 600, 1000):
        assert value_at(kind, step) == value_at({"type": kind}, step) == value_at(Schedule(type=kind), step)


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        ("lineer", "`linear`"),
        ("piecewise", "needs points"),
        ({"start": 1.0}, "needs a type"),
        ({"type": "linear", "stop": 1.0}, "unknown schedule key `stop`"),
        ({"type": "exponential", "end": 0.0}, "above 0"),
    ],
)
def test_a_schedule_that_cannot_be_followed_is_refused(schedule: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        value_at(schedule, 10)


ends = st.floats(1e-6, 1e6)


@given(
    kind=st.sampled_from(["linear", "cosine", "exponential"]),
    start=ends,
    end=ends,
    duration=st.none() | st.floats(1e-3, 1e7),
    step=st.integers(0, 10**7),
    horizon=st.integers(1, 10**7),
)
def test_a_fading_schedule_never_leaves_its_ends(
    kind: Any, start: float, end: float, duration: Any, step: int, horizon: int
) -> None:
    schedule = Schedule(type=kind, start=start, end=end, duration=duration)
    assert min(start, end) <= value_at(schedule, step, horizon=horizon) <= max(start, end)


@given(start=st.floats(0, 1e4), end=st.floats(0, 1e4), step=st.integers(0, 2000), warmup=st.integers(0, 3000))
def test_num_simulations_is_an_integer_of_at_least_1(start: float, end: float, step: int, warmup: int) -> None:
    scheduled = config(
        num_simulations=50,
        num_simulations_schedule={"type": "linear", "start": start, "end": end},
        num_simulations_warmup_steps=warmup,
    )
    resolved = resolve_num_simulations(scheduled, step=step, default=50)
    assert type(resolved) is int
    assert resolved >= 1


def test_num_simulations_rounds_halves_up() -> None:
    scheduled = config(num_simulations_schedule={"type": "linear", "start": 2.0, "end": 3.0})
    assert resolve_num_simulations(scheduled, step=499, default=8) == 2
    assert resolve_num_simulations(scheduled, step=500, default=8) == 3


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"num_simulations": 12}, {0: 12, 500: 12, 2000: 12}),
        ({}, {0: 8, 999: 8}),  # the default
        ({"num_simulations": 4, "num_simulations_schedule": {"type": "linear", "end": 20}}, {0: 4, 500: 12, 1000: 20}),
        (
            {"num_simulations_schedule": {"type": "step", "milestones": [0.5], "values": [32]}},
            {499: 8, 500: 32, 5000: 32},
        ),
        ({"num_simulations_schedule": {"type": "piecewise", "points": [[100, 2], [200, 6]]}}, {0: 2, 150: 4, 300: 6}),
        ({"num_simulations": 10, "num_simulations_warmup_steps": 100}, {0: 1, 4: 1, 50: 5, 94: 9, 100: 10}),
        (
            {"num_simulations": 10, "num_simulations_schedule": "linear", "num_simulations_warmup_steps": 100},
            {0: 1, 50: 5, 100: 9, 960: 1, 1000: 1},  # 10 * 0.95 * 0.5, then 10 * 0.9; never below 1
        ),
    ],
)
def test_num_simulations_by_hand(settings: dict[str, Any], expected: dict[int, int]) -> None:
    scheduled = config(**settings)
    before = repr(scheduled)
    found = {step: resolve_num_simulations(scheduled, step=step, default=8) for step in expected}
    assert found == expected
    assert {type(count) for count in found.values()} == {int}
    assert repr(scheduled) == before


def test_a_counted_control_is_an_integer_by_whatever_name_it_is_resolved() -> None:
    scheduled = config(num_simulations=8, num_simulations_schedule={"type": "linear", "end": 2})
    control = Control.of(scheduled, "num_simulations", default=1)
    assert (control.at(480), type(control.at(480))) == (5, int)
    assert type(Control.of(scheduled, "temperature", default=1).at(480)) is float


def test_warm_up_rises_linearly_from_zero_and_then_leaves_the_schedule_alone() -> None:
    warmed = config(learning_rate=1.0, learning_rate_schedule="linear", learning_rate_warmup_steps=100)
    at = {step: resolve_control(warmed, "learning_rate", step=step, default=9.0) for step in (0, 50, 100, 500)}
    assert at == {0: 0.0, 50: pytest.approx(0.95 * 0.5), 100: pytest.approx(0.9), 500: pytest.approx(0.5)}


def test_the_default_stands_in_where_the_config_has_no_value() -> None:
    assert resolve_control(config(), "epsilon", step=5, default=0.1) == 0.1
    assert resolve_control(config(epsilon=None), "epsilon", step=5, default=0.1) == 0.1
    assert resolve_control(config(epsilon_schedule="linear"), "epsilon", step=500, default=0.2) == pytest.approx(0.1)


def test_a_fixed_value_of_zero_is_a_value() -> None:
    assert resolve_control(config(ent_coef=0.0), "ent_coef", step=5, default=0.1) == 0.0


@pytest.mark.parametrize(
    "key",
    [
        "learning_rate",
        "clip_coef",
        "ent_coef",
        "epsilon",
        "temperature",
        "root_exploration_fraction",
        "gumbel_scale",
        "per_beta",
    ],
)
def test_every_control_has_a_resolver_for_its_key(key: str) -> None:
    resolve = getattr(controls, f"resolve_{key}")
    settings: dict[str, Any] = {key: 0.8, f"{key}_schedule": {"type": "linear", "end": 0.4}}
    scheduled = config(**settings)
    assert resolve(scheduled, step=500, default=5.0) == pytest.approx(0.6)


def test_resolving_does_not_change_the_config() -> None:
    scheduled = config(learning_rate=1.0, learning_rate_schedule={"type": "step", "milestones": [0.5]})
    before = repr(scheduled)
    controls.resolve_learning_rate(scheduled, step=700, default=1.0)
    assert repr(scheduled) == before

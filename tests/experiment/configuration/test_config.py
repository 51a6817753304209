"""Validation: all problems together, each with its place and its repair; what a good config becomes."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pytest
from annotated_types import Ge, Gt

from rl_training.errors import ConfigError
from rl_training.experiment import registry
from rl_training.experiment.config import (
    TrainConfig,
    algorithm_params,
    check_config,
    config_to_dict,
    tracking_params,
    validate_config,
    video_params,
)
from rl_training.experiment.configuration.config_blocks import (
    BenchmarkParams,
    MlflowParams,
    TrackingParams,
    TrackioParams,
    VideoParams,
    WandbParams,
)
from rl_training.experiment.configuration.validation import build_record
from rl_training.experiment.schedules import Schedule, ScheduleSpec


@dataclass(frozen=True)
class ToyParams:
    """Parameters of an algorithm that exists only here."""

    controls: ClassVar[tuple[str, ...]] = ("rate",)

    rate: Annotated[float, Ge(0)] = 0.5
    """Step size."""
    rate_schedule: ScheduleSpec | None = None
    """How it changes."""
    rate_warmup_steps: Annotated[int, Ge(0)] = 0
    """How it starts."""
    batch: Annotated[int, Ge(1)] = 4
    """Size of a batch."""
    limit: Annotated[float, Gt(0)] | None = None
    """Optional bound."""
    sizes: tuple[Annotated[int, Ge(1)], ...] = (8, 8)
    """Widths."""
    kind: Literal["soft", "hard"] = "soft"
    """Flavour."""
    exact: bool = False
    """Switch."""

    def problems(self, *, num_envs: int, total_timesteps: int) -> list[str]:
        if self.batch <= num_envs * 8:
            return []
        return [f"algo_kwargs.batch: {self.batch} is larger than {num_envs * 8}; lower it"]


@pytest.fixture(autouse=True)
def toy_algorithm(monkeypatch: pytest.MonkeyPatch) -> None:
    ppo = registry.get_algorithm_spec("ppo")
    spec = dataclasses.replace(ppo, name="toy", params=f"{__name__}:ToyParams")
    monkeypatch.setitem(registry.ALGORITHMS, "toy", spec)


def raw(**changes: Any) -> dict[str, Any]:
    base = {"algo": "toy", "env_id": "CartPole-v1", "seed": 1, "total_timesteps": 1000, "output_dir": "runs"}
    return base | changes


def problems(**changes: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        validate_config(raw(**changes))
    return list(caught.value.problems)


def toy(**algo_kwargs: Any) -> dict[str, Any]:
    return validate_config(raw(algo_kwargs=algo_kwargs)).algo_kwargs


def test_a_minimal_config_gets_every_documented_default() -> None:
    config = validate_config(raw())
    assert config.output_dir == Path("runs")
    assert (config.device, config.num_envs, config.execution_backend) == ("auto", 1, "auto")
    assert (config.eval_episodes, config.eval_interval, config.keep_checkpoints) == (10, None, 5)
    assert (config.tags, config.env_kwargs, config.benchmark, config.tracking) == ((), {}, {}, {})


def test_algorithm_parameters_are_completed_as_plain_data() -> None:
    assert toy(batch=2, rate_schedule={"type": "linear", "end": 0.1}) == {
        "rate": 0.5,
        "rate_schedule": {"type": "linear", "end": 0.1},
        "rate_warmup_steps": 0,
        "batch": 2,
        "limit": None,
        "sizes": [8, 8],
        "kind": "soft",
        "exact": False,
    }


def test_algorithm_params_rebuilds_the_dataclass() -> None:
    config = validate_config(raw(algo_kwargs={"rate_schedule": {"type": "step", "milestones": [0.5]}}))
    params = algorithm_params(config)
    assert params == ToyParams(rate_schedule=Schedule(type="step", milestones=(0.5,)))
    assert params.sizes == (8, 8)


def test_validating_twice_changes_nothing() -> None:
    config = validate_config(raw(tags=["a"], env_kwargs={"frame_stack": 4}, tracking={"wandb": {}}))
    assert check_config(config) == config
    assert validate_config(config_to_dict(config)) == config


def test_python_callers_may_build_the_dataclass_themselves() -> None:
    built = TrainConfig(
        "toy",
        "CartPole-v1",
        np.int64(3),  # type: ignore[arg-type]
        1000,
        "runs",  # type: ignore[arg-type]
        tags=["a"],  # type: ignore[arg-type]
        algo_kwargs={"rate_schedule": Schedule(type="cosine")},
    )
    assert (built.output_dir, built.tags) == (Path("runs"), ("a",))
    checked = check_config(built)
    assert type(checked.seed) is int
    assert checked.algo_kwargs["rate_schedule"] == {"type": "cosine"}
    with pytest.raises(ConfigError, match="seed: must be an integer"):
        check_config(dataclasses.replace(built, seed=-1))
    with pytest.raises(ConfigError, match="tags: must be a list"):
        check_config(dataclasses.replace(built, tags="abc"))  # type: ignore[arg-type]


def test_plain_form_has_text_paths_and_lists() -> None:
    plain = config_to_dict(validate_config(raw(tags=["a", "b"])))
    assert plain["output_dir"] == "runs"
    assert plain["tags"] == ["a", "b"]
    assert list(plain) == [field.name for field in dataclasses.fields(TrainConfig)]


def test_config_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        validate_config(raw()).seed = 2  # type: ignore[misc]


def test_every_problem_is_reported_together() -> None:
    found = problems(
        seed=-1,
        device="gpu",
        colour="red",
        algo_kwargs={"batch": 0, "siezs": []},
        env_kwargs={"frame_stack": 0, "training": {"atari": 1}},
        tracking={"tensorbord": True},
        benchmark={"seeds": []},
    )
    assert [line.split(": ")[0] for line in found] == [
        "seed",
        "device",
        "colour",
        "algo_kwargs.batch",
        "algo_kwargs.siezs",
        "env_kwargs.frame_stack",
        "env_kwargs.training.atari",
        "tracking.tensorbord",
        "benchmark.seeds",
    ]


@pytest.mark.parametrize("missing", ["algo", "env_id", "seed", "total_timesteps", "output_dir"])
def test_required_keys_are_required(missing: str) -> None:
    incomplete = raw()
    del incomplete[missing]
    with pytest.raises(ConfigError, match=f"^{missing}: is required"):
        validate_config(incomplete)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sede": 1}, "sede: unknown key; did you mean `seed`?"),
        ({"n_envs": 1}, "n_envs: unknown key; it is called `num_envs` here"),
        ({"algo_kwargs": {"btach": 1}}, "algo_kwargs.btach: unknown key; did you mean `batch`"),
        (
            {"algo_kwargs": {"rate_schedule": {"type": "linear", "strat": 1}}},
            "algo_kwargs.rate_schedule.strat: unknown key; did you mean `start`",
        ),
        (
            {"tracking": {"wandb": {"projct": "x"}}},
            "tracking.wandb.projct: unknown key; did you mean `project`?",
        ),
        ({"benchmark": {"seed": [1]}}, "benchmark.seed: unknown key; did you mean `seeds`?"),
        ({"algo": "pppo"}, "algo: unknown algorithm `pppo`; did you mean `ppo`"),
    ],
)
def test_an_unknown_name_at_any_level_names_the_nearest(changes: Any, message: str) -> None:
    assert problems(**changes)[0].startswith(message)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": True}, "seed: must be an integer >= 0, got True"),
        ({"seed": "8"}, "seed: must be an integer >= 0, got '8'; write the number without quotes"),
        ({"seed": 1.5}, "seed: must be an integer >= 0, got 1.5"),
        ({"seed": None}, "seed: must be an integer >= 0, got None"),
        ({"seed": float("nan")}, "seed: must be an integer >= 0, got nan, which is not finite"),
        ({"total_timesteps": 0}, "total_timesteps: must be an integer >= 1, got 0"),
        ({"num_envs": 0}, "num_envs: must be an integer >= 1, got 0"),
        ({"eval_episodes": -1}, "eval_episodes: must be an integer >= 0, got -1"),
        ({"eval_interval": 0}, "eval_interval: must be an integer >= 1 or null, got 0"),
        ({"log_interval": 0}, "log_interval: must be an integer >= 1 or null, got 0"),
        ({"checkpoint_interval": 0}, "checkpoint_interval: must be an integer >= 1 or null, got 0"),
        ({"env_id": ""}, "env_id: must be text that is not empty or null, got ''"),
        ({"device": "cuda:x"}, "device: must be auto, cpu, cuda, cuda:N or mps, got 'cuda:x'"),
        ({"deterministic": 1}, "deterministic: must be true or false, got 1"),
        ({"deterministic": "no"}, "deterministic: must be true or false, got 'no'; write true or false"),
        ({"tags": "a"}, "tags: must be a list (each item text), got 'a'"),
        ({"tags": [1]}, "tags: must be a list (each item text), got [1]"),
        ({"algo_kwargs": [1]}, "algo_kwargs: must be a mapping, got [1]"),
        (
            {"execution_backend": "local_asink"},
            "execution_backend: must be one of auto, local_sync, local_async, vector, ale_vector, envpool, got "
            "'local_asink'; did you mean `local_async`",
        ),
    ],
)
def test_a_wrong_value_says_what_belongs_there(changes: Any, message: str) -> None:
    assert problems(**changes)[0].startswith(message)


@pytest.mark.parametrize(
    ("algo_kwargs", "message"),
    [
        ({"rate": "fast"}, "rate: must be a number >= 0, got 'fast'"),
        ({"rate": True}, "rate: must be a number >= 0, got True"),
        ({"rate": float("inf")}, "rate: must be a number >= 0, got inf, which is not finite"),
        ({"limit": 0}, "limit: must be a number > 0 or null, got 0"),
        ({"sizes": [8, "a"]}, "sizes: must be a list (each item an integer >= 1), got [8, 'a']"),
        ({"sizes": 8}, "sizes: must be a list (each item an integer >= 1), got 8"),
        ({"kind": "sof"}, "kind: must be one of soft, hard, got 'sof'; did you mean `soft`?"),
        ({"batch": 9}, "batch: 9 is larger than 8; lower it"),
        ({"rate": object}, "rate: must be a number >= 0, got <class 'object'>"),
        ({"rate_schedule": "lineer"}, "rate_schedule: must be one of constant, linear"),
        ({"rate_schedule": 3}, "rate_schedule: must be one of constant, linear"),
        ({"rate_schedule": {}}, "rate_schedule.type: is required; set it to one of constant"),
        ({"rate_schedule": "piecewise"}, "rate_schedule.points: is required for type piecewise"),
        (
            {"rate_schedule": {"type": "linear", "end": -1}},
            "rate_schedule.end: must be a number >= 0 or null",
        ),
        (
            {"rate_schedule": {"type": "linear", "points": [[0, 1]]}},
            "rate_schedule.points: has no meaning for type linear, which takes start, end, duration",
        ),
        (
            {"rate_schedule": {"type": "exponential", "end": 0}},
            "rate_schedule: an exponential schedule never",
        ),
        (
            {"rate": 0, "rate_schedule": "exponential"},
            "rate_schedule: an exponential schedule cannot start from 0",
        ),
        (
            {"rate_schedule": {"type": "step", "milestones": [5, 4]}},
            "rate_schedule.milestones: positions must increase",
        ),
        (
            {"rate_schedule": {"type": "step", "milestones": [4, 5], "values": [1]}},
            "rate_schedule.values: must be one per milestone, got 1 for 2",
        ),
        ({"rate_schedule": {"type": "step", "values": [1]}}, "rate_schedule.milestones: is required"),
        (
            {"rate_schedule": {"type": "step", "milestones": [4], "values": [1], "factor": 1}},
            "rate_schedule.values: exclude factor",
        ),
        ({"rate_schedule": {"type": "piecewise", "points": [[1]]}}, "rate_schedule.points: must be a list"),
    ],
)
def test_parameters_are_held_to_their_types_ranges_and_pairs(algo_kwargs: Any, message: str) -> None:
    assert problems(algo_kwargs=algo_kwargs)[0].startswith(f"algo_kwargs.{message}")


def test_numbers_written_with_an_exponent_are_numbers() -> None:
    config = validate_config(raw(total_timesteps="1e6", num_envs=8.0, algo_kwargs={"rate": "1e-3", "limit": "2E5"}))
    assert (config.total_timesteps, config.num_envs) == (1_000_000, 8)
    assert type(config.total_timesteps) is type(config.num_envs) is int
    assert (config.algo_kwargs["rate"], config.algo_kwargs["limit"]) == (0.001, 200_000.0)
    assert validate_config(raw(tags=["1e5"])).tags == ("1e5",)
    assert toy(sizes=["1e2", 8.0])["sizes"] == [100, 8]


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:3", "mps"])
def test_devices_that_may_exist_pass(device: str) -> None:
    assert validate_config(raw(device=device)).device == device


def test_an_empty_block_is_an_empty_mapping() -> None:
    config = validate_config(raw(algo_kwargs=None, env_kwargs=None, benchmark=None, tracking=None))
    assert (config.env_kwargs, config.benchmark, config.tracking) == ({}, {}, {})


def test_source_of_each_key_opens_its_message() -> None:
    with pytest.raises(ConfigError) as caught:
        validate_config(raw(seed=-1, algo_kwargs={"batch": 0}), source=lambda path: f"<{'/'.join(path)}>")
    assert [line.split(": ")[0] for line in caught.value.problems] == ["<seed>", "<algo_kwargs/batch>"]


def test_a_config_that_is_no_mapping_is_refused() -> None:
    with pytest.raises(ConfigError, match="must be a mapping"):
        validate_config(["algo"])  # type: ignore[arg-type]


def test_minibatch_larger_than_the_rollout_is_an_inconsistent_pair() -> None:
    found = problems(algo="ppo", num_envs=2, algo_kwargs={"num_steps": 16, "minibatch_size": 64})
    assert found[0].startswith("algo_kwargs.minibatch_size: 64 is larger than the rollout of 32")


# tracking, benchmark and early_stopping


def test_tracking_defaults_and_overrides() -> None:
    assert tracking_params(validate_config(raw())) == TrackingParams(tensorboard=True, wandb=None)
    tracking = {"tensorboard": False, "wandb": {"project": "p", "mode": "offline"}}
    config = validate_config(raw(tracking=tracking))
    assert config.tracking == tracking
    assert tracking_params(config).wandb == WandbParams(project="p", mode="offline")
    assert tracking_params(validate_config(raw(tracking={"wandb": {}}))).wandb == WandbParams()
    for given, meant in ((True, WandbParams()), ({}, WandbParams()), (False, None), (None, None)):
        assert tracking_params(validate_config(raw(tracking={"wandb": given}))).trackers.get("wandb") == meant


def test_several_trackers_at_once() -> None:
    config = validate_config(raw(tracking={"wandb": {}, "mlflow": {"uri": "http://localhost:5000"}, "trackio": True}))
    assert tracking_params(config).trackers == {
        "wandb": WandbParams(),
        "mlflow": MlflowParams(uri="http://localhost:5000"),
        "trackio": TrackioParams(),
    }


def test_a_sweep_on_ray_needs_a_server_of_mlflow() -> None:
    sweep = {"seeds": [1, 2], "executor": "ray"}
    (problem,) = problems(tracking={"mlflow": {}}, benchmark=sweep)
    assert problem.startswith("tracking.mlflow.uri: a worker of Ray trains in a temporary directory")
    validate_config(raw(tracking={"mlflow": {"uri": "http://server:5000"}}, benchmark=sweep))
    validate_config(raw(tracking={"mlflow": False, "trackio": {}}, benchmark=sweep))


def test_films_need_an_interval() -> None:
    assert video_params(validate_config(raw())) is None
    assert video_params(validate_config(raw(video={"interval": 1000}))) == VideoParams(1000, episodes=1)
    for video, message in (
        ({"episodes": 2}, "video.interval: is required; set it to an integer >= 1"),
        ({"interval": 0}, "video.interval: must be an integer >= 1, got 0"),
        ({"interval": 5, "episodes": 0}, "video.episodes: must be an integer >= 1 and <= 100, got 0"),
        ({"interval": 5, "fps": 1}, "video.fps: unknown key"),
    ):
        (problem,) = problems(video=video)
        assert problem.startswith(message), problem


@pytest.mark.parametrize(
    ("tracking", "message"),
    [
        ({"tensorboard": "yes"}, "tracking.tensorboard: must be true or false, got 'yes'"),
        ({"wandb": 1}, "tracking.wandb: must be a mapping or true or false or null, got 1"),
        (
            {"wandb": {"mode": "on"}},
            "tracking.wandb.mode: must be one of online, offline, disabled or null, got 'on'",
        ),
        ({"wandb": {"project": ""}}, "tracking.wandb.project: must be text that is not empty, got ''"),
    ],
)
def test_tracking_is_checked(tracking: Any, message: str) -> None:
    assert problems(tracking=tracking)[0].startswith(message)


def test_benchmark_seeds_are_distinct_non_negative_integers() -> None:
    assert validate_config(raw(benchmark={"seeds": (3, 1)})).benchmark == {"seeds": [3, 1]}
    assert build_record(BenchmarkParams, {"seeds": [0, 1]}).seeds == (0, 1)


@pytest.mark.parametrize(
    ("seeds", "words"),
    [
        ([], "must be a list of integers >= 0 such as [1, 2, 3]"),
        ([1, -1], "must be a list"),
        ([1, True], "must be a list"),
        ([1, "2"], "must be a list"),
        ("1,2", "must be a list"),
        (3, "must be a list"),
        ([1, 2, 1, 2], "must be distinct; remove the repeated 1, 2"),
    ],
)
def test_benchmark_seeds_that_cannot_make_a_sweep_are_refused(seeds: Any, words: str) -> None:
    (problem,) = problems(benchmark={"seeds": seeds})
    assert problem.startswith("benchmark.seeds: ")
    assert words in problem


def test_early_stopping_needs_something_that_stops() -> None:
    assert validate_config(raw()).early_stopping == {}
    assert validate_config(raw(early_stopping={"target": 475})).early_stopping == {"target": 475}
    assert problems(early_stopping={"mode": "min"})[0].startswith("early_stopping: nothing would ever stop")
    assert problems(early_stopping={"patience": 0})[0].startswith("early_stopping.patience: must be an integer")

"""The configuration of one run, and its validation."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from annotated_types import DocInfo, Ge, MaxLen, MinLen, Predicate

from rl_training.errors import ConfigError
from rl_training.experiment.configuration.block_checks import check_blocks
from rl_training.experiment.configuration.config_blocks import (
    TrackingParams,
    VideoParams,
)
from rl_training.experiment.configuration.env_params import check_env_kwargs
from rl_training.experiment.configuration.fork_rules import (
    ALGORITHM,
    DATASET,
    ENVIRONMENTS,
    FREE,
    ONE_RUN,
    ORIGIN,
    START,
    STREAMS,
    rules,
)
from rl_training.experiment.configuration.names_elsewhere import unknown_parameter, unknown_top_level_key
from rl_training.experiment.configuration.validation import (
    Problem,
    Source,
    build_record,
    check_record,
    file_problems,
    raise_problems,
    record_to_dict,
)
from rl_training.experiment.named_callbacks import check_callbacks
from rl_training.experiment.registry import find_algorithm, get_algorithm_spec, list_algorithm_specs, unknown_algorithm
from rl_training.experiment.schedules import Schedule, as_schedule
from rl_training.experiment.tasks import TASKS, check_suite, lists_environments, tasks_of
from rl_training.experiment.workers.device_checks import check_devices
from rl_training.experiment.workers.sampler_checks import check_samplers


def _is_device(name: str) -> bool:
    return re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", name) is not None


NonEmptyText: TypeAlias = Annotated[str, MinLen(1)]
# Used in tables, legends and on terminals: one line, without control characters.
Label: TypeAlias = Annotated[
    str, MinLen(1), MaxLen(80), Predicate(str.isprintable), DocInfo("printable text of at most 80 characters")
]


@dataclass(frozen=True)
class TrainConfig:
    """All settings of a run; two runs with equal configurations are repetitions of each other."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "use_attribute_docstrings": True}
    on_fork: ClassVar[Mapping[str, str]] = {
        **rules(FREE, "total_timesteps", "output_dir", "eval_episodes", "eval_interval", "log_interval"),
        **rules(FREE, "checkpoint_interval", "keep_checkpoints", "deterministic", "torch_threads"),
        **rules(FREE, "acceleration", "callbacks", "samplers", "sampler_backend", "policy_lag"),
        **rules(FREE, "ray_address"),
        **rules(FREE, "name", "tags", "early_stopping", "tracking", "video"),
        **rules(ALGORITHM, "algo"),
        **rules(ENVIRONMENTS, "env_id", "num_envs", "execution_backend", "env_kwargs", "devices"),
        **rules(DATASET, "dataset"),
        **rules(STREAMS, "seed", "device"),
        **rules(START, "init"),
        **rules(ORIGIN, "preset"),
        **rules(ONE_RUN, "benchmark"),
    }

    algo: NonEmptyText
    """Name of the algorithm (`axiomrl algos` lists them), or user code: `module:SPEC`, `path/to/file.py:SPEC`."""

    env_id: NonEmptyText | None
    """Gymnasium id, or user code: `module:Name`, `path/to/file.py:Name`. With `env_kwargs.tasks`, the suite's name.
    Offline algorithms need none: null is the environment that the dataset names, and no evaluation if it names none."""

    seed: Annotated[int, Ge(0)]
    """Seed of all random streams of the run."""

    total_timesteps: Annotated[int, Ge(1)]
    """Environment steps to train for, summed over all parallel environments; the horizon of schedules. Offline
    algorithms take no environment steps: for them this, and everything counted in environment steps, is gradient steps
    (updates)."""

    output_dir: Path
    """Directory in which the run directory is created."""

    device: Annotated[str, Predicate(_is_device), DocInfo("auto, cpu, cuda, cuda:N or mps")] = "auto"
    """Device of the networks; auto: a GPU if there is one."""

    devices: Annotated[int, Ge(1)] | None = None
    """Learners that share the environments and every batch, and learn the same weights: each a process, on a GPU of its
    own if there are any; null: one. `num_envs` and sizes of batches count for all together. For algorithms that learn
    on-policy or from a replay."""

    num_envs: Annotated[int, Ge(1)] = 1
    """Parallel copies of the environment."""

    execution_backend: Literal["auto", "local_sync", "local_async", "vector", "ale_vector", "envpool"] = "auto"
    """How environments are vectorised: `vector`: the environment's own vectorised form; `local_sync`: one process;
    `local_async`: worker processes; `ale_vector`: Atari in threads of ale-py; `envpool`: threads of EnvPool; `auto`:
    chosen and reported."""

    samplers: Annotated[int, Ge(1)] | None = None
    """Processes that hold a copy of the policy and collect, each in its share of the environments, with the same
    results however many they are; null: the run itself collects."""

    sampler_backend: Literal["process", "ray"] = "process"
    """Where samplers run, with the same results: `process`: on this machine, with shared memory and one thread each;
    `ray`: as actors with one CPU each, spread over a Ray cluster (extra `ray`)."""

    ray_address: NonEmptyText | None = None
    """Address of the Ray cluster for `sampler_backend: ray`, such as `10.0.0.5:6379`; null: that of the variable
    RAY_ADDRESS, or else one that is started on this machine and ends with the run."""

    policy_lag: Literal[0, 1] = 0
    """1: samplers collect with the weights from before the last update, or round of updates, while it is made; 0: they
    wait for it."""

    eval_episodes: Annotated[int, Ge(0)] = 10
    """Complete episodes per evaluation; 0: no evaluation."""

    eval_interval: Annotated[int, Ge(1)] | None = None
    """Environment steps between evaluations; null: only at the end."""

    log_interval: Annotated[int, Ge(1)] | None = None
    """Environment steps between rows of metrics; null: a hundredth of total_timesteps."""

    checkpoint_interval: Annotated[int, Ge(1)] | None = None
    """Environment steps between checkpoints; null: a tenth of total_timesteps."""

    keep_checkpoints: Annotated[int, Ge(1)] | None = 5
    """Number of newest checkpoints to keep besides the best one; null: all."""

    deterministic: bool = True
    """Use only operations whose results are reproducible bit for bit; false may be faster on a GPU."""

    torch_threads: Annotated[int, Ge(1)] | None = None
    """Threads of PyTorch; null: one for small networks, else as many as affinity, quota and OMP_NUM_THREADS allow."""

    acceleration: Literal["auto", "off"] = "auto"
    """Use faster kernels for the algorithm's formulas if there are any; auto: checked against autograd in the first
    update; off: never used."""

    name: Label | None = None
    """Name of the run in reports, plots and comparisons; null: named by its settings."""

    tags: tuple[str, ...] = ()
    """Labels to find the run by in reports."""

    preset: NonEmptyText | None = None
    """Packaged preset that the configuration started from, which reports compare the run with; set by `--preset` and by
    a link `config: preset:NAME`."""

    init: Path | None = None
    """Run directory or checkpoint whose weights and observation statistics the run starts with; nothing else is taken
    from it. null: random weights."""

    dataset: NonEmptyText | None = None
    """Dataset that an offline algorithm learns from, or that `algo_kwargs.dataset_fraction` mixes into the batches of
    an off-policy one: an id below `MINARI_DATASETS_PATH`, or the path of a Minari dataset."""

    algo_kwargs: dict[str, Any] = field(default_factory=dict)
    """Parameters of the algorithm; `axiomrl algos NAME` lists them with their defaults."""

    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Wrapper settings and arguments of `gymnasium.make`; the blocks `training:` and `evaluation:` override the shared
    keys for that mode."""

    callbacks: Annotated[
        tuple[str | dict[str, Any], ...], DocInfo("a list of `module:Name` and `{use: module:Name, <arguments>}`")
    ] = ()
    """User-defined callback classes, made once per run: `module:Name`, `path/to/file.py:Name`, or a mapping with that
    name as `use` and the arguments."""

    early_stopping: dict[str, Any] = field(default_factory=dict)
    """When to end before `total_timesteps`: a `target` or `patience` for a metric; empty: never."""

    benchmark: dict[str, Any] = field(default_factory=dict)
    """A sweep: `seeds: [1, 2, 3]` trains the configuration once per seed; empty: one run with `seed`."""

    tracking: dict[str, Any] = field(default_factory=dict)
    """Dashboards in addition to `metrics.jsonl`: TensorBoard, Weights & Biases, MLflow, trackio."""

    video: dict[str, Any] = field(default_factory=dict)
    """Films during training: `interval` in environment steps, and `episodes` each time; empty: none."""

    @property
    def task_name(self) -> str:
        """The environment, or the dataset of a run without one: how files and reports name what is learned."""
        return self.env_id or self.dataset or ""

    def __post_init__(self) -> None:
        # Python callers may write a string and a list; anything else is reported by `check_config`.
        for name in ("output_dir", "init"):
            if isinstance(getattr(self, name), str):
                object.__setattr__(self, name, Path(getattr(self, name)))
        if isinstance(self.dataset, Path):
            object.__setattr__(self, "dataset", str(self.dataset))
        for name in ("tags", "callbacks"):
            if isinstance(getattr(self, name), list):
                object.__setattr__(self, name, tuple(getattr(self, name)))


def validate_config(raw: Mapping[str, Any], *, source: Source | None = None) -> TrainConfig:
    """Return the complete config described by `raw`, or raise one `ConfigError` with all problems.

    `source` maps a key path to where the key was set (a file, `--set`, a flag), for error messages. The algorithm's
    defaults are filled into `algo_kwargs`, so that the saved config repeats the run. A user's algorithm must have been
    admitted before (`registry.admit_algorithm`); otherwise its name is treated as one from a loaded file.
    """
    if not isinstance(raw, Mapping):
        raise ConfigError(f"a configuration must be a mapping of keys, got {raw!r:.200}")
    if _is_offline(raw.get("algo")):
        raw = {"env_id": None, **raw}
    values, problems = check_record(
        TrainConfig, raw, unknown=lambda name, fields: unknown_top_level_key(name, fields, raw)
    )
    parts = (check_blocks, check_callbacks, check_samplers, check_devices, _check_dataset)
    for check in (_check_algorithm, _check_environment, *parts):
        problems += check(values)
    if not problems:
        problems += _check_tasks(values)
    raise_problems(problems, source)
    return TrainConfig(**values)


def check_config(config: TrainConfig) -> TrainConfig:
    """Return `config` validated and completed, for callers who made the dataclass themselves."""
    return validate_config(config_to_dict(config))


def config_to_dict(config: TrainConfig) -> dict[str, Any]:
    """Return the config as plain data: paths as text, tuples as lists."""
    return record_to_dict(config)


def algorithm_params(config: TrainConfig) -> Any:
    """Return the algorithm's parameter dataclass, filled from `algo_kwargs`."""
    return build_record(get_algorithm_spec(config.algo).load_params(), config.algo_kwargs, path=("algo_kwargs",))


def parameter_problems(params: Any, *, num_envs: int, total_timesteps: int) -> list[Problem]:
    """Return the problems of an algorithm's parameters that are valid one by one but not together."""
    given = {entry.name: getattr(params, entry.name) for entry in dataclasses.fields(params)}
    texts = params.problems(num_envs=num_envs, total_timesteps=total_timesteps) if hasattr(params, "problems") else []
    return _schedule_problems(type(params), given) + file_problems(params, texts, ("algo_kwargs",))


def tracking_params(config: TrainConfig) -> TrackingParams:
    """Return the settings of the dashboards."""
    return build_record(TrackingParams, config.tracking, path=("tracking",))


def video_params(config: TrainConfig) -> VideoParams | None:
    """Return the settings of films during training, None if there are none."""
    return build_record(VideoParams, config.video, path=("video",)) if config.video else None


# Each check reads one block, writes its completed form back to `values` and returns the problems.


def _check_algorithm(values: dict[str, Any]) -> list[Problem]:
    if "algo" not in values:
        return []
    spec = find_algorithm(values["algo"])
    if spec is None:
        return [Problem(("algo",), unknown_algorithm(values["algo"]))]
    record = spec.load_params()
    top_level = [entry.name for entry in dataclasses.fields(TrainConfig)]
    given, problems = check_record(
        record,
        values.get("algo_kwargs", {}),
        ("algo_kwargs",),
        unknown=lambda name, fields: unknown_parameter(spec, name, fields, top_level=top_level),
    )
    problems += _schedule_problems(record, given)
    if problems:
        return problems
    params = record(**given)
    values["algo_kwargs"] = record_to_dict(params)
    return _inconsistent_pairs(params, values)


def _schedule_problems(record: type, given: dict[str, Any]) -> list[Problem]:
    """Return the problems of schedules that are valid alone but do not fit the fixed value of their key."""
    fixed_values = {entry.name: entry.default for entry in dataclasses.fields(record)} | given
    problems = []
    for name, spec in given.items():
        if not name.endswith("_schedule") or spec is None:
            continue
        path = ("algo_kwargs", name)
        schedule = as_schedule(spec)
        if not isinstance(spec, Schedule):  # the problems of a mapping were reported when it was read
            problems += file_problems(schedule, schedule.problems(), path)
        fixed = fixed_values.get(name.removesuffix("_schedule"))
        if schedule.type == "exponential" and schedule.start is None and fixed == 0:
            text = "an exponential schedule cannot start from 0; set start above 0 or use type linear"
            problems.append(Problem(path, text))
    return problems


def _inconsistent_pairs(params: Any, values: dict[str, Any]) -> list[Problem]:
    if not hasattr(params, "problems") or "total_timesteps" not in values:
        return []
    num_envs = values.get("num_envs", TrainConfig.num_envs)
    texts = params.problems(num_envs=num_envs, total_timesteps=values["total_timesteps"])
    return file_problems(params, texts, ("algo_kwargs",))


def _check_environment(values: dict[str, Any]) -> list[Problem]:
    env_kwargs = values.get("env_kwargs", {})
    spec = find_algorithm(values.get("algo"))
    many = spec is not None and spec.many_tasks
    if not (many and TASKS in env_kwargs) and not lists_environments(env_kwargs):
        values["env_kwargs"], problems = check_env_kwargs(env_kwargs)
        return problems
    values["env_kwargs"], problems = check_suite(env_kwargs)
    if spec is not None and not many:
        several = ", ".join(other.name for other in list_algorithm_specs() if other.many_tasks)
        text = f"{values['algo']} learns one task; name it by env_id, or choose an algorithm for several ({several})"
        problems.append(Problem(("env_kwargs", TASKS), text))
    return problems


def _is_offline(algo: Any) -> bool:
    spec = find_algorithm(algo)
    return spec is not None and spec.loop == "offline"


def _check_dataset(values: dict[str, Any]) -> list[Problem]:
    """Return the problems of what only offline algorithms need, or only others."""
    spec = find_algorithm(values.get("algo"))
    if spec is None:
        return []
    if spec.loop == "offline":
        return _check_offline(values, spec.name)
    problems = []
    if "env_id" in values and values["env_id"] is None:
        problems.append(Problem(("env_id",), "is required; name the environment to train in"))
    mixes = "dataset_fraction" in (entry.name for entry in dataclasses.fields(spec.load_params()))
    fraction = values.get("algo_kwargs", {}).get("dataset_fraction") or 0
    if values.get("dataset") is not None and not fraction:
        offline = ", ".join(other.name for other in list_algorithm_specs() if other.loop == "offline")
        mixed = "set algo_kwargs.dataset_fraction to mix it into the batches, " if mixes else ""
        text = f"{spec.name} learns in an environment; {mixed}leave it out, or choose an offline algorithm ({offline})"
        problems.append(Problem(("dataset",), text))
    if fraction and values.get("dataset") is None:
        text = "there is no dataset to mix in; name its id or path (--set dataset=ID), or set this to 0"
        problems.append(Problem(("algo_kwargs", "dataset_fraction"), text))
    return problems


def _check_offline(values: dict[str, Any], algo: str) -> list[Problem]:
    problems = []
    if values.get("dataset") is None:
        text = f"is required, because {algo} learns from one; name its id or path (--set dataset=ID)"
        problems.append(Problem(("dataset",), text))
    problems += [
        Problem((key,), f"{algo} steps no environment in training; leave it out")
        for key in ("num_envs", "execution_backend")
        if values.get(key, getattr(TrainConfig, key)) != getattr(TrainConfig, key)
    ]
    for key in ("normalize_observation", "normalize_reward"):
        if values.get("env_kwargs", {}).get(key):
            text = f"{algo} normalises what it reads from the dataset; set algo_kwargs.{key} instead"
            problems.append(Problem(("env_kwargs", key), text))
    return problems


def _check_tasks(values: dict[str, Any]) -> list[Problem]:
    """Return the problems that an algorithm for many tasks finds in the tasks and their evaluation."""
    if not hasattr(get_algorithm_spec(values["algo"]).load_params(), "task_problems"):
        return []
    config = TrainConfig(**values)
    return [
        Problem(tuple(key.split(".")), text)
        for key, text in algorithm_params(config).task_problems(tasks_of(config), config)
    ]

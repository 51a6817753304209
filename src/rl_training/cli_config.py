"""The flags of `train` and `config`, and how they override a file, a preset or an algorithm's defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_training.cli_output import whole_number
from rl_training.errors import ConfigError

if TYPE_CHECKING:
    from rl_training.experiment.config import TrainConfig
    from rl_training.experiment.own_code.user_code import LoadedFrom


def integer_option(flag: str, help: str) -> Any:
    """Return a typer option for an integer."""
    return typer.Option(flag, parser=whole_number, metavar="INTEGER", help=help)


RunName = Annotated[
    str | None, typer.Option("--name", metavar="TEXT", help="What reports, plots and comparisons call the run.")
]
RunTags = Annotated[
    list[str] | None,
    typer.Option("--tag", metavar="TEXT", help="Label for finding the run again, in place of the file's; repeatable."),
]


@dataclass(frozen=True)
class ConfigRequest:
    """The source of a configuration, and the flags that change it."""

    config: Annotated[Path | None, typer.Option("--config", metavar="FILE", help="A YAML file.")] = None
    preset: Annotated[
        str | None, typer.Option("--preset", metavar="NAME", help="A packaged preset: see `axiomrl zoo`.")
    ] = None
    algo: Annotated[str | None, typer.Option("--algo", metavar="NAME", help="An algorithm: see `axiomrl algos`.")] = (
        None
    )
    env: Annotated[str | None, typer.Option("--env", metavar="ID", help="The environment for --algo.")] = None
    seed: Annotated[int | None, integer_option("--seed", "Root of every random stream.")] = None
    seeds: Annotated[
        str | None, typer.Option("--seeds", metavar="LIST", help="Seeds of a sweep, one run each: 1,2,3 or 1-10.")
    ] = None
    jobs: Annotated[
        str | None,
        typer.Option(
            "--jobs",
            metavar="INTEGER|auto",
            help="Seeds trained at the same time, in processes; by default as many as there are cores.",
        ),
    ] = None
    executor: Annotated[
        str | None, typer.Option("--executor", metavar="NAME", help="How seeds are run: serial, processes or ray.")
    ] = None
    ray_address: Annotated[
        str | None,
        typer.Option("--ray-address", metavar="ADDRESS", help="The Ray cluster of --executor ray or of samplers."),
    ] = None
    total_timesteps: Annotated[int | None, integer_option("--total-timesteps", "Environment steps to train for.")] = (
        None
    )
    num_envs: Annotated[int | None, integer_option("--num-envs", "Parallel environments.")] = None
    devices: Annotated[
        int | None, integer_option("--devices", "Learners that share environments and batches, each on its own GPU.")
    ] = None
    output_dir: Annotated[
        Path | None,
        typer.Option("--output-dir", metavar="DIRECTORY", help="Where the run directory is made."),
    ] = None
    name: RunName = None
    tag: RunTags = None
    init: Annotated[
        Path | None,
        typer.Option("--init", metavar="RUN", help="Start with the weights of this run directory or checkpoint."),
    ] = None
    device: Annotated[str | None, typer.Option("--device", metavar="NAME", help="auto, cpu, cuda, cuda:N or mps.")] = (
        None
    )
    execution_backend: Annotated[
        str | None,
        typer.Option(
            "--execution-backend", metavar="NAME", help="auto, local_sync, local_async, vector, ale_vector or envpool."
        ),
    ] = None
    eval_episodes: Annotated[
        int | None, integer_option("--eval-episodes", "Episodes per evaluation; 0 never evaluates.")
    ] = None
    set_values: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Set any key, such as algo_kwargs.learning_rate=1e-3; repeatable.",
        ),
    ] = None


CheckpointPath = Annotated[
    Path,
    typer.Option("--checkpoint", metavar="PATH", help="A run directory, a checkpoint, or RUN/checkpoints/best."),
]


EvaluatedPath = Annotated[
    Path | None,
    typer.Option("--checkpoint", metavar="PATH", help="A run directory, a checkpoint, or RUN/checkpoints/best."),
]


TrustCode = Annotated[
    bool,
    typer.Option("--trust-code", help="Execute code that the loaded file names and that you did not use before."),
]


_KEYS = (
    *("seed", "total_timesteps", "num_envs", "devices", "output_dir", "name", "init"),
    *("device", "execution_backend", "eval_episodes"),
)
"""Flags that have the name of their key."""


def _apply_overrides(
    request: ConfigRequest, continue_from: Path | None = None, *, trust_code: bool = False
) -> TrainConfig:
    """Apply the flags and `--set` to the file, the preset or the algorithm's defaults, and validate the result.

    If none of the three is given, a continued sweep uses the configuration in its summary; `trust_code` permits the
    execution of the code that it names.
    """
    from rl_training.experiment.configuration.config_files import load_config
    from rl_training.experiment.sweeps import parse_seeds

    base: Mapping[str, Any] | None = None
    loaded: LoadedFrom | None = None
    if continue_from is not None and not (request.config or request.preset or request.algo or request.env):
        from rl_training.experiment.benchmarking import read_summary
        from rl_training.experiment.own_code.run_code import loaded_from_sweep

        base = read_summary(continue_from).config
        loaded = loaded_from_sweep(continue_from, trust_code=trust_code)
    if request.algo is not None or request.env is not None:
        base = _algorithm_and_environment(request)
    if request.seed is not None and request.seeds is not None:
        raise ConfigError("--seed does not go with --seeds; leave one of them out")
    overrides: dict[str, Any] = {
        "benchmark.seeds": None if request.seeds is None else parse_seeds(request.seeds),
        "benchmark.jobs": _jobs(request.jobs),
        "benchmark.executor": request.executor,
        "tags": request.tag,
    }
    overrides |= {name: getattr(request, name) for name in _KEYS}

    def load(**address: str) -> TrainConfig:
        return load_config(
            request.config,
            preset=request.preset,
            base=base,
            overrides=overrides | address,
            set_values=request.set_values or (),
            loaded=loaded,
        )

    config = load()
    if request.ray_address is not None:
        of_samplers = config.sampler_backend == "ray" and config.benchmark.get("executor") != "ray"
        config = load(**{"ray_address" if of_samplers else "benchmark.ray_address": request.ray_address})
    seeds = config.benchmark.get("seeds")
    if request.seed is not None and seeds is not None:
        raise ConfigError(
            f"--seed: the configuration has the seeds {', '.join(map(str, seeds))}; name others by --seeds, "
            "or make it one run by --set benchmark.seeds=null"
        )
    chosen = request.jobs is not None or request.executor is not None  # a block leaves out what equals its defaults
    if request.seeds is not None and not chosen and not {"jobs", "executor"} & config.benchmark.keys():
        return replace(config, benchmark={**config.benchmark, "jobs": "auto"})
    return config


def _jobs(text: str | None) -> int | str | None:
    """Return what `--jobs` says."""
    return text if text is None or text == "auto" else whole_number(text)


def _algorithm_and_environment(request: ConfigRequest) -> dict[str, Any]:
    """Return the configuration made of `--algo` and `--env`, which must be given together, without another source."""
    if request.config is not None or request.preset is not None:
        source = "--preset" if request.config is None else "--config"
        given, key = ("--env", "env_id") if request.algo is None else ("--algo", "algo")
        raise ConfigError(f"{given} does not go with {source}; write --set {key}=VALUE to change it")
    if request.algo is not None and request.env is None and _needs_no_environment(request.algo):
        return {"algo": request.algo}
    missing = "--algo NAME" if request.algo is None else "--env ID" if request.env is None else ""
    if missing:
        raise ConfigError(f"--algo and --env belong together; add {missing}")
    return {"algo": request.algo, "env_id": request.env}


def _needs_no_environment(algo: str) -> bool:
    """Return whether an algorithm may learn from a dataset; user code is asked only when it is loaded."""
    from rl_training.experiment.registry import ALGORITHMS, algorithm_code

    return algorithm_code(algo) is not None or (algo in ALGORITHMS and ALGORITHMS[algo].loop == "offline")

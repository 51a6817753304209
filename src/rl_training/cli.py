"""The command `axiomrl`: parses arguments, calls a workflow, prints the result."""

from __future__ import annotations

import dataclasses
import functools
import gc
import logging
import shlex
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rl_training._version import __version__
from rl_training.cli_config import (
    CheckpointPath,
    ConfigRequest,
    EvaluatedPath,
    RunName,
    RunTags,
    TrustCode,
    _apply_overrides,
    integer_option,
)
from rl_training.cli_dataset import app as dataset_app
from rl_training.cli_offline import OfflineRequest, show_offline_evaluation
from rl_training.cli_output import Help, Output, add_command, key_value_lines, make_app, run_app
from rl_training.cli_report import compare, leaderboard, plot, report
from rl_training.cli_zoo import zoo
from rl_training.commands.hand_over import ExportedRequest, export, import_sb3, show_exported_evaluation
from rl_training.commands.tuning import tune
from rl_training.commands.watching import watch
from rl_training.errors import ConfigError

if TYPE_CHECKING:
    from rl_training.runtime.session import TrainResult

logger = logging.getLogger("rl_training")

app = make_app("Train, evaluate and resume reinforcement-learning agents.")


def main(argv: list[str] | None = None) -> int:
    """Run `axiomrl` with the given arguments (by default those of the process) and return the exit status."""
    arguments = sys.argv[1:] if argv is None else argv
    return run_app(app, arguments or ["--help"], name="axiomrl")


def _show_version(asked: bool) -> None:
    if asked:
        print(f"axiomrl {__version__}")
        raise typer.Exit


@app.callback(add_help_option=False)
def _global_options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
    help: Help = False,
) -> None:
    pass


@functools.cache
def _workflows() -> Any:
    """Import the workflows, with torch; what they import stays, so that nobody need search it for garbage again."""
    from rl_training.runtime import workflows

    gc.freeze()
    return workflows


def train(
    request: ConfigRequest,
    output: Output,
    continue_from: Annotated[
        Path | None,
        typer.Option("--continue", metavar="SUMMARY", help="Train only what is missing of the sweep in this file."),
    ] = None,
    trust_code: TrustCode = False,
) -> int:
    """Train from a file, a preset, or an algorithm and an environment; with --seeds, once per seed."""
    config = _apply_overrides(request, continue_from, trust_code=trust_code)
    from rl_training.experiment.sweeps import chosen_executor, trains_in_this_process

    if chosen_executor(config) == "processes":
        from rl_training.runtime.sweep.server import start_sweep_server

        start_sweep_server()
    elif (config.devices or 1) > 1:
        from rl_training.runtime.sweep.server import start_rank_server

        start_rank_server()
    workflows = _workflows()
    from rl_training.runtime.recording.progress import make_progress

    # Seeds in other processes report their progress as log messages.
    progress = make_progress(quiet=output.quiet) if trains_in_this_process(config) else []
    result = workflows.train(config, callbacks=progress, continue_from=continue_from, trust_code=trust_code)
    return _print_result(result, output)


def evaluate(
    output: Output,
    request: OfflineRequest,
    exported: ExportedRequest,
    checkpoint: EvaluatedPath = None,
    num_episodes: Annotated[
        int | None, integer_option("--num-episodes", "Episodes to play; the configuration's by default.")
    ] = None,
    seed: Annotated[int | None, integer_option("--seed", "Other episodes than the run's own seed gives.")] = None,
    task: Annotated[
        str | None, typer.Option("--task", metavar="NAME", help="Only this task of a suite; all by default.")
    ] = None,
    stochastic: Annotated[
        bool, typer.Option("--stochastic", help="Sample actions instead of taking the best.")
    ] = False,
    video: Annotated[bool, typer.Option("--video", help="Record the first episode (of each task).")] = False,
    device: Annotated[str, typer.Option("--device", metavar="NAME", help="auto, cpu, cuda, cuda:N or mps.")] = "auto",
    trust_code: TrustCode = False,
) -> int:
    """Evaluate a checkpoint on new episodes, or on a dataset; or an exported policy."""
    if num_episodes is not None and num_episodes < 1:
        raise ConfigError(f"--num-episodes: must be an integer >= 1, got {num_episodes}")
    if seed is not None and seed < 0:
        raise ConfigError(f"--seed: must be an integer >= 0, got {seed}")
    request.check(num_episodes=num_episodes, video=video)
    exported.check(checkpoint, offline=request.offline, task=task, stochastic=stochastic, video=video)
    if checkpoint is None:
        return show_exported_evaluation(exported, output, num_episodes=num_episodes, seed=seed, trust_code=trust_code)
    chosen: Any = {"seed": seed, "task": task, "stochastic": stochastic, "device": device, "trust_code": trust_code}
    if request.offline is not None:
        return show_offline_evaluation(checkpoint, request, output, **chosen)
    result = _workflows().evaluate(
        checkpoint,
        num_episodes=num_episodes,
        video_episodes=1 if video else 0,
        **chosen,
    )
    record = {
        "run_dir": result.run_dir,
        "checkpoint_path": result.checkpoint_path,
        "resume_mode": result.resume_mode,
        **_video_paths(result.video_paths),
    }
    episodes = [episode.as_row() for episode in result.episodes]
    output.show(
        {**record, "metrics": result.metrics, "episodes": episodes},
        key_value_lines({**record, **result.metrics}),
    )
    return 0


def resume(
    checkpoint: CheckpointPath,
    output: Output,
    total_timesteps: Annotated[
        int | None, integer_option("--total-timesteps", "A new horizon; the original one by default.")
    ] = None,
    fork: Annotated[
        bool, typer.Option("--fork", help="Go on in a new run directory that names this run as its parent.")
    ] = False,
    eval_episodes: Annotated[
        int | None, integer_option("--eval-episodes", "Episodes per evaluation; 0 never evaluates.")
    ] = None,
    set_values: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="With --fork: set a key that the checkpoint does not depend on, such as a learning rate; repeatable.",
        ),
    ] = None,
    name: RunName = None,
    tag: RunTags = None,
    trust_code: TrustCode = False,
    seeds: Annotated[str | None, typer.Option("--seeds", hidden=True)] = None,
) -> int:
    """Continue a run from its checkpoint as if it had never stopped."""
    if seeds is not None:
        raise ConfigError(
            "--seeds: resume is for one run; the missing seeds of a sweep are trained by "
            "`axiomrl train --continue SUMMARY`"
        )
    workflows = _workflows()
    from rl_training.runtime.recording.progress import make_progress

    result = workflows.resume(
        checkpoint,
        total_timesteps=total_timesteps,
        eval_episodes=eval_episodes,
        fork=fork,
        overrides={"name": name, "tags": tag},
        set_values=set_values or (),
        trust_code=trust_code,
        callbacks=make_progress(quiet=output.quiet),
    )
    return _print_result(result, output)


def config(
    request: ConfigRequest,
    output: Output,
    format: Annotated[Literal["yaml", "json"], typer.Option("--format", help="How to print it.")] = "yaml",
) -> int:
    """Print the configuration `train` would use with these arguments."""
    resolved = _apply_overrides(request)
    import yaml

    from rl_training.experiment.config import config_to_dict

    record = config_to_dict(resolved)
    text = yaml.safe_dump(record, sort_keys=False, allow_unicode=True).rstrip("\n")
    dataclasses.replace(output, json=output.json or format == "json").show(record, [text])
    return 0


def algos(
    output: Output,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Show this one's parameters.")] = None,
) -> int:
    """List the algorithms, or one algorithm's parameters."""
    from rl_training.experiment.registry import (
        admit_algorithm,
        get_algorithm_spec,
        installed_algorithms,
        list_algorithm_specs,
    )

    if name is None:
        rows = [(spec.name, spec.tier, spec.summary) for spec in list_algorithm_specs()]
        rows += [(key, "contrib", f"Of an installed package: {code}.") for key, code in installed_algorithms().items()]
        width = max(len(row[0]) for row in rows)
        output.show(
            {"algorithms": [dict(zip(("name", "tier", "summary"), row, strict=True)) for row in rows]},
            [f"{key:<{width}}  {tier:<12}  {summary}" for key, tier, summary in rows],
        )
        return 0
    admit_algorithm(name)
    spec = get_algorithm_spec(name)
    from rl_training.experiment.configuration.config_docs import describe_fields

    fields = describe_fields(spec.load_params())
    record = {
        "name": spec.name,
        "tier": spec.tier,
        "summary": spec.summary,
        "observation_spaces": spec.observation_spaces,
        "action_spaces": spec.action_spaces,
        "parameters": [field._asdict() for field in fields],
    }
    lines = [
        f"{spec.name} ({spec.tier}): {spec.summary}",
        f"observations: {', '.join(spec.observation_spaces)}; actions: {', '.join(spec.action_spaces)}",
    ]
    for field in fields:
        default = f"default {field.default}" if field.default else "required"
        lines += ["", f"{field.name}: {field.accepts}; {default}", f"    {field.text}"]
    output.show(record, lines)
    return 0


def doctor(output: Output) -> int:
    """Show versions, devices and supported features as key=value lines."""
    from rl_training.runtime.setup.doctor import examine

    findings = examine()
    output.show(findings, key_value_lines(findings))
    return 0


for command in (
    train,
    evaluate,
    resume,
    tune,
    export,
    import_sb3,
    config,
    algos,
    doctor,
    zoo,
    report,
    leaderboard,
    compare,
    plot,
    watch,
):
    add_command(app, command, name="eval" if command is evaluate else command.__name__.replace("_", "-"))
app.add_typer(dataset_app, name="dataset")


def _video_paths(paths: tuple[Path, ...]) -> dict[str, Any]:
    """Return the path of a video, or the paths of several tasks' videos, as result fields."""
    if len(paths) == 1:
        return {"video_path": paths[0]}
    return {"video_paths": [str(path) for path in paths]} if paths else {}


def _print_result(result: TrainResult, output: Output) -> int:
    """Print the result of a run and return its exit status."""
    record = {
        "run_dir": result.run_dir,
        "checkpoint_path": result.checkpoint_path,
        "best_checkpoint_path": result.best_checkpoint_path,
        "status": result.status,
        "resume_mode": result.resume_mode,
    }
    if result.benchmark_summary_path is not None:
        record["benchmark_summary_path"] = result.benchmark_summary_path
    if result.stop_reason is not None:
        record["stop_reason"] = result.stop_reason
    output.show({**record, "metrics": result.metrics}, key_value_lines({**record, **result.metrics}))
    return _exit_status(result)


def _exit_status(result: TrainResult) -> int:
    """Log how to continue a run that was not completed, and return the exit status."""
    place = shlex.quote(str(result.benchmark_summary_path or result.run_dir))
    command = "train --continue" if result.benchmark_summary_path is not None else "resume --checkpoint"
    if result.signal is not None:
        name = signal.Signals(result.signal).name
        logger.warning("interrupted by %s; `axiomrl %s %s` goes on", name, command, place)
        return 128 + result.signal
    if result.status == "failed":
        logger.error("some seeds failed; `axiomrl %s %s` tries them again", command, place)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

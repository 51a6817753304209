"""The commands that hand policies over: `export` writes one for use elsewhere, `import-sb3` reads one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from rl_training.cli_config import CheckpointPath, TrustCode, integer_option
from rl_training.cli_output import Output, key_value_lines
from rl_training.errors import ConfigError


@dataclass(frozen=True)
class ExportedRequest:
    """An exported policy to evaluate in place of a checkpoint."""

    exported: Annotated[
        Path | None,
        typer.Option("--exported", metavar="FILE", help="An exported policy (see `export`) in place of a checkpoint."),
    ] = None
    env: Annotated[
        str | None, typer.Option("--env", metavar="ID", help="With --exported: another environment of the same spaces.")
    ] = None

    def check(
        self, checkpoint: Path | None, *, offline: str | None, task: str | None, stochastic: bool, video: bool
    ) -> None:
        """Raise an error unless one policy is named, with options that belong to it."""
        if (checkpoint is None) == (self.exported is None):
            raise ConfigError("give the policy to evaluate by one of --checkpoint PATH and --exported FILE")
        given = {"--offline": offline, "--task": task, "--stochastic": stochastic, "--video": video}
        if self.exported is None and self.env is not None:
            raise ConfigError("--env goes with --exported; a checkpoint is evaluated in its own environment")
        for flag, value in given.items():
            if self.exported is not None and value:
                raise ConfigError(f"{flag} does not go with --exported; leave one of the two out")


def export(
    checkpoint: CheckpointPath,
    output: Output,
    format: Annotated[
        Literal["onnx", "pt2"], typer.Option("--format", help="ONNX, or a program of torch.export.")
    ] = "onnx",
    file: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE", help="The file to write; by default one in the run's `exports`."),
    ] = None,
    episodes: Annotated[
        int, integer_option("--episodes", "Episodes played with policy and file to compare them; 10 by default.")
    ] = 10,
    task: Annotated[str | None, typer.Option("--task", metavar="NAME", help="The task of a suite.")] = None,
    stochastic: Annotated[
        bool, typer.Option("--stochastic", help="Add inputs of noise, with which actions can be sampled.")
    ] = False,
    trust_code: TrustCode = False,
) -> int:
    """Write a policy as one file from observations to actions, and prove that it acts alike."""
    if episodes < 1:
        raise ConfigError(f"--episodes: must be an integer >= 1, got {episodes}")
    from rl_training.runtime.export.export import export_policy

    result = export_policy(
        checkpoint,
        format=format,
        output=file,
        episodes=episodes,
        task=task,
        stochastic=stochastic,
        trust_code=trust_code,
    )
    parity = result.record["parity"]
    shown = {
        "exported_path": result.path,
        "record_path": result.record_path,
        "checkpoint_path": result.checkpoint_path,
        "policy": result.record["policy"],
        "inputs": ", ".join(one["name"] for one in result.record["inputs"]),
        "parity": "passed",
        "largest_difference_recorded": parity["recorded"]["largest_difference"],
        "largest_difference_random": parity["random"]["largest_difference"],
        "largest_difference_returns": parity["returns"]["largest_difference"],
        "episodes": parity["returns"]["episodes"],
    }
    output.show({**shown, "record": result.record}, key_value_lines(shown))
    return 0


def show_exported_evaluation(
    request: ExportedRequest,
    output: Output,
    *,
    num_episodes: int | None,
    seed: int | None,
    trust_code: bool,
) -> int:
    """Evaluate an exported policy and print the result like that of a checkpoint."""
    from rl_training.runtime.export.playing import evaluate_exported

    assert request.exported is not None
    result = evaluate_exported(
        request.exported, env_id=request.env, num_episodes=num_episodes, seed=seed, trust_code=trust_code
    )
    record = {"exported_path": result.path}
    output.show(
        {**record, "metrics": result.metrics, "episodes": [episode.as_row() for episode in result.episodes]},
        key_value_lines({**record, **result.metrics}),
    )
    return 0


def import_sb3(
    output: Output,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The zip that model.save(...) wrote.")],
    algo: Annotated[str, typer.Option("--algo", metavar="NAME", help="The model's algorithm: ppo, dqn, sac or td3.")],
    env: Annotated[str, typer.Option("--env", metavar="ID", help="The environment that it was trained in.")],
    total_timesteps: Annotated[
        int | None, integer_option("--total-timesteps", "Environment steps that `resume` trains for; the model's own.")
    ] = None,
    seed: Annotated[int | None, integer_option("--seed", "Root of every random stream.")] = None,
    output_dir: Annotated[
        Path | None, typer.Option("--output-dir", metavar="DIRECTORY", help="Where the run directory is made.")
    ] = None,
    set_values: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Set any key, such as env_kwargs.frame_stack=4; repeatable."),
    ] = None,
) -> int:
    """Make a run of a model of Stable-Baselines3, to evaluate, to export and to go on training."""
    from rl_training.runtime.sb3.importing import import_model

    overrides = {"total_timesteps": total_timesteps, "seed": seed, "output_dir": output_dir}
    result = import_model(file, algo=algo, env_id=env, overrides=overrides, set_values=set_values or ())
    record = {
        "run_dir": result.run_dir,
        "checkpoint_path": result.checkpoint_path,
        "status": result.status,
        "resume_mode": result.resume_mode,
    }
    output.show(record, key_value_lines(record))
    return 0

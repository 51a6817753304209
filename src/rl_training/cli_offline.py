"""The options of `eval --offline`, and how its result is shown."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from rl_training.cli_config import integer_option
from rl_training.cli_output import Output, key_value_lines
from rl_training.errors import ConfigError

logger = logging.getLogger("rl_training")


@dataclass(frozen=True)
class OfflineRequest:
    """A dataset to evaluate on instead of an environment."""

    offline: Annotated[
        str | None,
        typer.Option(
            "--offline", metavar="DATASET", help="Estimate the policy's value from this dataset, without episodes."
        ),
    ] = None
    updates: Annotated[
        int | None, integer_option("--updates", "With --offline: gradient steps of fitted Q evaluation.")
    ] = None
    gamma: Annotated[
        float | None, typer.Option("--gamma", metavar="NUMBER", help="With --offline: discount; by default the run's.")
    ] = None

    def check(self, *, num_episodes: int | None, video: bool) -> None:
        """Raise an error for options that do not belong together."""
        if self.offline is None:
            for flag, value in (("--updates", self.updates), ("--gamma", self.gamma)):
                if value is not None:
                    raise ConfigError(f"{flag}: belongs to an evaluation on a dataset; add --offline DATASET")
        elif num_episodes is not None or video:
            flag = "--video" if video else "--num-episodes"
            raise ConfigError(f"{flag}: --offline plays no episodes; leave one of the two out")


def show_offline_evaluation(
    checkpoint: Path,
    request: OfflineRequest,
    output: Output,
    *,
    seed: int | None,
    task: str | None,
    stochastic: bool,
    device: str,
    trust_code: bool,
) -> int:
    """Evaluate a checkpoint on a dataset and print the estimates."""
    from rl_training.runtime import workflows

    assert request.offline is not None
    result = workflows.evaluate_offline(
        checkpoint,
        request.offline,
        **({} if request.updates is None else {"updates": request.updates}),
        gamma=request.gamma,
        seed=seed,
        task=task,
        stochastic=stochastic,
        device=device,
        trust_code=trust_code,
        quiet=output.quiet,
    )
    for sentence in result.left_out:
        logger.info("left out: %s", sentence)
    for sentence in result.doubts:
        logger.warning("do not rely on this: %s", sentence)
    record = {"run_dir": result.run_dir, "checkpoint_path": result.checkpoint_path, "dataset": result.dataset}
    output.show(
        {
            **record,
            "metrics": result.metrics,
            "doubts": list(result.doubts),
            "left_out": list(result.left_out),
        },
        key_value_lines({**record, **result.metrics}),
    )
    return 0

"""The commands `axiomrl dataset ...`: datasets of recorded episodes in Minari's format."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_training.cli_config import CheckpointPath, TrustCode, integer_option
from rl_training.cli_output import Output, add_command, key_value_lines, make_app
from rl_training.errors import AxiomError, ConfigError

if TYPE_CHECKING:
    from rl_training.data.datasets.dataset import Dataset
    from rl_training.runtime.datasets.recording import Recorded

logger = logging.getLogger("rl_training")

app = make_app("Record, look at, check, merge and split datasets of episodes, in Minari's format.")
NewName = Annotated[
    str | None,
    typer.Option("--name", metavar="ID", help="The new dataset's id, such as `pendulum/expert-v0`; chosen by default."),
]
Name = Annotated[str, typer.Argument(metavar="DATASET", help="An id below MINARI_DATASETS_PATH, or a path.")]


def record(
    checkpoint: CheckpointPath,
    output: Output,
    steps: Annotated[
        int | None, integer_option("--steps", "Record whole episodes until they have these steps.")
    ] = None,
    episodes: Annotated[int | None, integer_option("--episodes", "Record so many episodes.")] = None,
    stochastic: Annotated[
        bool, typer.Option("--stochastic", help="Sample actions instead of taking the best.")
    ] = False,
    epsilon: Annotated[
        float | None,
        typer.Option("--epsilon", metavar="NUMBER", help="Take a random action with this probability, else the best."),
    ] = None,
    random: Annotated[bool, typer.Option("--random", help="Take random actions only.")] = False,
    name: NewName = None,
    seed: Annotated[int | None, integer_option("--seed", "Other episodes than the run's own seed gives.")] = None,
    task: Annotated[str | None, typer.Option("--task", metavar="NAME", help="The task of a suite.")] = None,
    num_envs: Annotated[
        int | None, integer_option("--num-envs", "Episodes played at the same time; at most 16 by default.")
    ] = None,
    device: Annotated[str, typer.Option("--device", metavar="NAME", help="auto, cpu, cuda, cuda:N or mps.")] = "cpu",
    trust_code: TrustCode = False,
) -> int:
    """Play episodes of a checkpoint and write them as a dataset; the same command goes on after an interruption."""
    given = [
        flag
        for flag, on in (("--stochastic", stochastic), ("--epsilon", epsilon is not None), ("--random", random))
        if on
    ]
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(given)} exclude each other; give one of them")
    from rl_training.runtime.datasets import recording
    from rl_training.runtime.datasets.behaviour import Behaviour

    if epsilon is not None:
        behaviour = Behaviour("epsilon", epsilon)
    else:
        behaviour = Behaviour("stochastic" if stochastic else "random" if random else "deterministic")
    request = recording.RecordRequest(checkpoint, steps, episodes, behaviour, name, seed, task, num_envs, device)
    return _print_made(recording.record(request, quiet=output.quiet, trust_code=trust_code), output)


def replay(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory or a checkpoint with a replay.")],
    output: Output,
    name: NewName = None,
    trust_code: TrustCode = False,
) -> int:
    """Write the replay of an off-policy run as a dataset."""
    from rl_training.runtime.datasets.replay_export import export_replay

    return _print_made(export_replay(run, name, quiet=output.quiet, trust_code=trust_code), output)


def show(
    name: Name,
    output: Output,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE", help="Draw the returns into a file: .png, .svg or .pdf."),
    ] = None,
) -> int:
    """Show what a dataset holds, and how its episodes' returns are distributed."""
    from rl_training.data.datasets.dataset import open_dataset
    from rl_training.data.datasets.histogram import histogram_lines, write_histogram
    from rl_training.data.datasets.inspection import describe, summarize
    from rl_training.zoo.page.picture import check_picture

    if plot is not None:
        check_picture(plot, "--plot")
    dataset = open_dataset(name)
    with _progress(f"reading {dataset.name}", dataset, output) as add:
        summary = summarize(dataset, progress=add)
    facts = describe(dataset) | summary.as_record()
    if plot is not None:
        write_histogram(plot, summary.returns, dataset.name, flag="--plot")
        facts["plot"] = str(plot)
    shown = {key: ", ".join(value) if isinstance(value, list) else value for key, value in facts.items()}
    lines = [*key_value_lines(shown), "", "returns:", *histogram_lines(summary.returns)]
    output.show({**facts, "returns": summary.returns}, lines)
    return 0


def check(name: Name, output: Output) -> int:
    """Read a whole dataset and list what is wrong with it; the exit status is 1 if something is."""
    from rl_training.data.datasets.dataset import open_dataset
    from rl_training.data.datasets.inspection import check as check_dataset

    dataset = open_dataset(name)
    with _progress(f"checking {dataset.name}", dataset, output) as add:
        findings = check_dataset(dataset, progress=add)
    for fault in findings.faults:
        logger.error("%s", fault)
    for oddity in findings.oddities:
        logger.warning("%s", oddity)
    record = {
        "dataset": dataset.name,
        "path": dataset.path,
        "status": "faulty" if findings.faults else "sound",
        "faults": findings.faults,
        "oddities": findings.oddities,
    }
    counted = {**record, "faults": len(findings.faults), "oddities": len(findings.oddities)}
    output.show(record, key_value_lines(counted))
    return 1 if findings.faults else 0


def merge(
    names: Annotated[list[str], typer.Argument(metavar="DATASET...", help="Ids or paths of two or more datasets.")],
    output: Output,
    name: Annotated[str, typer.Option("--name", metavar="ID", help="The new dataset's id.")],
) -> int:
    """Write the episodes of several datasets to a new one."""
    if len(names) < 2:
        raise ConfigError("merge needs two datasets or more")
    from rl_training.data.datasets import editing
    from rl_training.data.datasets.dataset import open_dataset
    from rl_training.runtime.datasets.progress import progress_of

    sources = [open_dataset(one) for one in names]
    total = sum(source.total_steps for source in sources)
    with progress_of(f"merging into {name}", total, quiet=output.quiet) as progress:
        editing.merge(sources, name, progress=progress.add)
    return _print_named([name], output)


def split(
    name: Name,
    output: Output,
    fraction: Annotated[
        float | None, typer.Option("--fraction", metavar="NUMBER", help="Part of the episodes for the first dataset.")
    ] = None,
    episodes: Annotated[int | None, integer_option("--episodes", "Number of episodes for the first dataset.")] = None,
    seed: Annotated[int, integer_option("--seed", "Which episodes go where.")] = 0,
    into: Annotated[
        list[str] | None,
        typer.Option(
            "--into", metavar="ID", help="The new datasets' ids, given twice; x-train-v0 and x-test-v0 by default."
        ),
    ] = None,
) -> int:
    """Divide the episodes of a dataset at random between two new ones."""
    if (fraction is None) == (episodes is None):
        raise ConfigError("give --fraction or --episodes: how much the first dataset gets")
    if fraction is not None and not 0.0 < fraction < 1.0:
        raise ConfigError(f"--fraction: must be a number between 0 and 1, got {fraction}")
    if into is not None and len(into) != 2:
        raise ConfigError(f"--into: is given twice, once for each part, not {len(into)} times")
    if seed < 0:
        raise ConfigError(f"--seed: must be an integer >= 0, got {seed}")
    from rl_training.data.datasets import editing
    from rl_training.data.datasets.dataset import open_dataset

    source = open_dataset(name)
    names = into or list(editing.split_names(source.name))
    with _progress(f"splitting {source.name}", source, output) as add:
        editing.split(source, names, fraction=fraction, episodes=episodes, seed=seed, progress=add)
    return _print_named(names, output)


def list_datasets(output: Output) -> int:
    """List the datasets below MINARI_DATASETS_PATH."""
    from rl_training.data.datasets.location import dataset_ids, datasets_root
    from rl_training.data.datasets.metadata import headline, read_metadata

    root = datasets_root()
    found: list[dict[str, Any]] = []
    for one in dataset_ids():
        try:
            found.append(headline(one, read_metadata(root / one)))
        except AxiomError as error:
            logger.warning("%s", error)
    logger.info("datasets in %s", root)
    columns = ("dataset", "episodes", "steps", "env_id", "algorithm")
    rows = [columns, *(tuple(str(entry[key] or "") for key in columns) for entry in found)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(columns))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    output.show({"root": root, "datasets": found}, lines if found else [])
    return 0


@contextlib.contextmanager
def _progress(what: str, dataset: Dataset, output: Output) -> Iterator[Callable[[int], None]]:
    """Report on reading all steps of a dataset."""
    from rl_training.runtime.datasets.progress import progress_of

    with progress_of(what, dataset.total_steps, quiet=output.quiet) as progress:
        yield progress.add


def _print_named(names: Sequence[str], output: Output) -> int:
    """Print datasets that were just made."""
    from rl_training.data.datasets.location import datasets_root
    from rl_training.data.datasets.metadata import headline, read_metadata

    made = [headline(name, read_metadata(datasets_root() / name)) for name in names]
    record = {"datasets": made}
    lines = [f"dataset={one['dataset']} episodes={one['episodes']} steps={one['steps']}" for one in made]
    output.show(record, lines)
    return 0


def _print_made(made: Recorded, output: Output) -> int:
    record = {"dataset": made.name, "path": made.path, "episodes": made.episodes, "steps": made.steps}
    output.show(record, key_value_lines(record))
    return 0


for command in (record, replay, show, check, merge, split):
    add_command(app, command, name=command.__name__)
add_command(app, list_datasets, name="list")

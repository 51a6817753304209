"""The commands that only read runs: `report`, `leaderboard`, `compare`, `plot`."""

from __future__ import annotations

import contextlib
import logging
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rl_training.cli_output import Output, key_value_lines
from rl_training.errors import ConfigError

if TYPE_CHECKING:
    from rl_training.zoo.entries import Entry
    from rl_training.zoo.reporting import Filters, Report

logger = logging.getLogger("rl_training")

GATE_FIRED = 3
DEFAULT_RUNS = Path("runs")
DEFAULT_PORT = 8700
_FORMAT_OF_SUFFIX = {".json": "json", ".csv": "csv", ".md": "markdown", ".txt": "text", ".html": "html"}


def _several(flag: str, metavar: str, help: str) -> Any:
    return typer.Option(flag, metavar=metavar, help=f"{help}; repeatable.")


@dataclass(frozen=True)
class RunChoice:
    """Where runs are searched for and which of them are selected."""

    runs: Annotated[
        list[Path] | None,
        _several("--runs", "PATH", "A run directory, or a directory with runs below it; `runs` by default"),
    ] = None
    algo: Annotated[list[str] | None, _several("--algo", "NAME", "Only this algorithm")] = None
    env: Annotated[list[str] | None, _several("--env", "ID", "Only this environment")] = None
    preset: Annotated[list[str] | None, _several("--preset", "NAME", "Only entries of this preset")] = None
    suite: Annotated[list[str] | None, _several("--suite", "NAME", "Only environments of this suite")] = None
    tag: Annotated[list[str] | None, _several("--tag", "TEXT", "Only runs with this tag")] = None
    status: Annotated[
        list[str] | None,
        _several("--status", "NAME", "Only runs that are completed, running, interrupted or failed"),
    ] = None
    min_seeds: Annotated[
        int, typer.Option("--min-seeds", metavar="INTEGER", help="Only entries with this many completed seeds.")
    ] = 0

    def paths(self, named: list[Path] | None = None) -> list[Path]:
        """Return the directories to search; `named` are the positional arguments."""
        return [*(named or ()), *(self.runs or ())] or [DEFAULT_RUNS]

    def given(self) -> list[str]:
        """Return the flags of the filters that were given."""
        flags: dict[str, Any] = {"--algo": self.algo, "--env": self.env, "--preset": self.preset, "--suite": self.suite}
        flags |= {"--tag": self.tag, "--status": self.status, "--min-seeds": self.min_seeds}
        return [flag for flag, value in flags.items() if value]

    def filters(self) -> Filters:
        """Return the filters."""
        from rl_training.zoo.manifests import check_suites
        from rl_training.zoo.reporting import Filters
        from rl_training.zoo.run_files import STATUSES

        check_suites(self.suite or ())
        for status in self.status or ():
            if status not in STATUSES:
                raise ConfigError(f"--status {status}: no such status; use {', '.join(STATUSES)}")

        return Filters(
            algo=self.algo or (),
            env=self.env or (),
            preset=self.preset or (),
            suite=self.suite or (),
            tag=self.tag or (),
            status=self.status or (),
            min_seeds=self.min_seeds,
        )


@dataclass(frozen=True)
class Rendering:
    """The format of a report, and its destination."""

    output_format: Annotated[
        Literal["text", "json", "csv", "markdown", "html"] | None,
        typer.Option("--output-format", help="By default what the name of --output says, else text."),
    ] = None
    output_file: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Write the report to a file.")
    ] = None

    def show(self, report: Report, kind: Literal["report", "leaderboard"], output: Output) -> int:
        """Print the report or write it to the file, and return the exit status."""
        from rl_training.zoo.rendering import render

        counts = {"runs": len(report.runs), "unreadable": len(report.unreadable), "entries": len(report.standings)}
        self._write(lambda output_format, **place: render(report, kind, output_format, **place), counts, output)
        return gate_status(report)

    def show_study(self, directory: Path, output: Output) -> int:
        """Print the report on a study or write it to the file, and return the exit status."""
        from rl_training.zoo.studies.rendering import render_study
        from rl_training.zoo.studies.report import build_study_report

        report = build_study_report(directory)
        facts = {"trials": len(report.trials), "verdict": report.verdict}
        self._write(lambda output_format, **place: render_study(report, output_format, **place), facts, output)
        return 0

    def _write(self, render: Callable[..., str], facts: Mapping[str, Any], output: Output) -> None:
        """Print what `render` returns for the chosen format, or write it to the file and print the facts."""
        chosen = self.output_format or ("json" if output.json and self.output_file is None else None)
        if self.output_file is None:
            width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
            output.show_text(render(chosen or "text", width=width))
            return
        by_name = _FORMAT_OF_SUFFIX.get(self.output_file.suffix, "text")
        text = render(chosen or by_name, folder=self.output_file.parent)
        try:
            self.output_file.write_text(text, encoding="utf-8")
        except OSError as error:
            reason = error.strerror or error
            raise ConfigError(f"--output {self.output_file}: cannot be written ({reason}); name another") from None
        record = {"output": self.output_file, **facts}
        output.show(record, key_value_lines(record))


@dataclass(frozen=True)
class DriftGate:
    """Whether drift from the manifests is a failure."""

    fail_on_manifest_drift: Annotated[
        bool,
        typer.Option("--fail-on-manifest-drift", help="Exit with 3 when runs were made under another protocol."),
    ] = False
    drift_severity: Annotated[
        Literal["minor", "major", "critical"],
        typer.Option("--drift-severity", help="The least severity that fires the gate."),
    ] = "major"

    @property
    def threshold(self) -> str | None:
        """The lowest severity that is a failure, None if drift is not."""
        return self.drift_severity if self.fail_on_manifest_drift else None


@dataclass(frozen=True)
class BaselineGate:
    """The baseline of a leaderboard, and whether a regression is a failure."""

    baseline: Annotated[
        str | None,
        typer.Option("--baseline", metavar="FILE|ENTRY", help="A leaderboard stored as JSON, or an entry's name."),
    ] = None
    fail_on_regression: Annotated[
        bool,
        typer.Option("--fail-on-regression", help="Exit with 3 when an entry is worse than its baseline or gone."),
    ] = False

    def check(self) -> None:
        """Raise an error if there is nothing to compare with."""
        if self.fail_on_regression and self.baseline is None:
            raise ConfigError("--fail-on-regression needs something to compare with; add --baseline FILE or ENTRY")


Paths = Annotated[
    list[Path] | None, typer.Argument(metavar="[PATH]...", help="The same as --runs.", show_default=False)
]


@dataclass(frozen=True)
class Serving:
    """Whether the page is served instead of written."""

    serve: Annotated[
        bool, typer.Option("--serve", help="Show the page in a browser on this machine, up to date as runs go on.")
    ] = False
    port: Annotated[
        int | None, typer.Option("--port", metavar="INTEGER", help="Where --serve listens: 8700 by default; 0: any.")
    ] = None

    def check(self, rendering: Rendering, drift: DriftGate) -> None:
        """Raise an error for options that do not go together."""
        if self.port is not None and not self.serve:
            raise ConfigError("--port is where --serve listens; add --serve, or leave it out")
        if self.serve and (rendering.output_format or rendering.output_file or drift.fail_on_manifest_drift):
            raise ConfigError("--serve shows the HTML page and writes no file; leave out --output and the gates")

    def run(self, choice: RunChoice, paths: list[Path], output: Output, study: Path | None) -> int:
        """Serve the page until Ctrl-C."""
        from rl_training.zoo.page.live_report import serve_report, serve_study

        port = DEFAULT_PORT if self.port is None else self.port
        page = serve_report(paths, choice.filters(), port) if study is None else serve_study(study, port)
        with contextlib.suppress(KeyboardInterrupt), page as server:
            logger.info("Ctrl-C ends it")
            output.show({"address": server.address}, [f"address={server.address}"])
            server.serve_forever()
        return 0


def report(
    choice: RunChoice,
    rendering: Rendering,
    drift: DriftGate,
    serving: Serving,
    output: Output,
    paths: Paths = None,
) -> int:
    """Show runs, what cannot be read, and the groups they form; or a study, if that is what PATH is."""
    serving.check(rendering, drift)
    study = _only_study(choice, choice.paths(paths), drift)
    if serving.serve:
        return serving.run(choice, choice.paths(paths), output, study)
    if study is not None:
        return rendering.show_study(study, output)
    from rl_training.zoo.reporting import build_report

    built = build_report(choice.paths(paths), choice.filters(), fail_on_drift=drift.threshold)
    return rendering.show(built, "report", output)


def _only_study(choice: RunChoice, paths: list[Path], drift: DriftGate) -> Path | None:
    """Return the study to report on, None if the paths are of runs; raise an error for what does not go together."""
    from rl_training.experiment.tuning.study import RUNS, STUDY, is_study

    study = next((path for path in paths if is_study(path)), None)
    if study is None:
        below = sorted(file.parent for path in paths for file in path.glob(f"*/{STUDY}"))
        if below:
            logger.info("these are runs; `axiomrl report %s` reports on a study", shlex.quote(str(below[0])))
        return None
    its_runs = f"`axiomrl report {shlex.quote(str(study / RUNS))}` reports on its runs"
    if len(paths) > 1:
        raise ConfigError(f"{study} is a study, which has a report of its own; name it alone, or {its_runs}")
    given = choice.given()
    if drift.fail_on_manifest_drift:
        given.append("--fail-on-manifest-drift")
    if given:
        raise ConfigError(f"{given[0]} goes with runs, and {study} is a study; leave it out, or {its_runs}")
    return study


def leaderboard(
    choice: RunChoice,
    rendering: Rendering,
    baseline: BaselineGate,
    drift: DriftGate,
    output: Output,
    paths: Paths = None,
) -> int:
    """Rank entries by the scores of their seeds, per environment and per suite."""
    baseline.check()
    from rl_training.zoo.reporting import build_report

    built = build_report(
        choice.paths(paths),
        choice.filters(),
        baseline=baseline.baseline,
        fail_on_regression=baseline.fail_on_regression,
        fail_on_drift=drift.threshold,
    )
    return rendering.show(built, "leaderboard", output)


def compare(
    a: Annotated[
        str,
        typer.Argument(
            metavar="A",
            help="An entry, by its name or by a name or tag of its runs; or a directory with the runs of one.",
        ),
    ],
    b: Annotated[str, typer.Argument(metavar="B", help="What A is compared with.")],
    choice: RunChoice,
    output: Output,
    fail_on_regression: Annotated[
        bool, typer.Option("--fail-on-regression", help="Exit with 3 when A is worse than B.")
    ] = False,
    min_probability: Annotated[
        float | None,
        typer.Option(
            "--min-probability", metavar="NUMBER", help="Exit with 3 when A improves on B with a lower probability."
        ),
    ] = None,
) -> int:
    """Show whether A is better than B, with the evidence."""
    if min_probability is not None and not 0 <= min_probability <= 1:
        raise ConfigError(f"--min-probability: must lie between 0 and 1, got {min_probability}")
    from rl_training.zoo.comparison import Scored
    from rl_training.zoo.comparison import compare as compare_scores
    from rl_training.zoo.labels import entry_labels

    sides = [_side(text, choice) for text in (a, b)]
    comparison = compare_scores(*map(Scored.of, sides))
    reasons = comparison.regressions if fail_on_regression else []
    if min_probability is not None and comparison.probability < min_probability:
        reasons.append(f"the probability of improvement {comparison.probability:.3f} is below {min_probability:g}")
    labels = dict(zip(("label_a", "label_b"), entry_labels(sides), strict=True))
    record = {**comparison.as_record(), **labels}
    output.show({**record, "gates": reasons}, key_value_lines(_with_words(record)))
    return _gate_result(reasons)


def plot(
    choice: RunChoice,
    output: Output,
    output_file: Annotated[
        Path, typer.Option("--output", metavar="FILE", help="The picture: a file that ends in .png, .svg or .pdf.")
    ],
    x: Annotated[
        Literal["steps", "time"], typer.Option("--x", help="Over environment steps or over training time.")
    ] = "steps",
    metric: Annotated[
        str, typer.Option("--metric", metavar="NAME", help="What the curves show: any metric in `metrics.jsonl`.")
    ] = "eval_return_mean",
    paths: Paths = None,
) -> int:
    """Draw learning curves, one panel per environment, with intervals over seeds."""
    from rl_training.zoo.page.plot import write_plot
    from rl_training.zoo.reporting import build_report

    built = build_report(choice.paths(paths), choice.filters())
    drawn, problems = write_plot(built, output_file, metric=metric, axis=x)
    unreadable = [f"{run.path} cannot be read: {run.reason}" for run in built.unreadable]
    for sentence in (*unreadable, *problems):
        logger.warning("%s", sentence)
    record = {"output": output_file, "runs": len(built.runs), "unreadable": len(built.unreadable), "entries": drawn}
    output.show(record, key_value_lines(record))
    return 0


def gate_status(report: Report) -> int:
    """Log which gates failed and return the exit status."""
    return _gate_result([f"{gate.name}: {reason}" for gate in report.gates for reason in gate.reasons])


def _gate_result(reasons: list[str]) -> int:
    for reason in reasons:
        logger.error("gate fired: %s", reason)
    return GATE_FIRED if reasons else 0


def _side(text: str, choice: RunChoice) -> Entry:
    """Return the entry of a name or tag, or the only entry in a directory, named after it."""
    from rl_training.zoo.entries import find_entry, group_runs
    from rl_training.zoo.run_index import index_runs

    filters = choice.filters()
    path = Path(text)
    index = index_runs([path] if path.is_dir() else choice.paths())
    entries = filters.select_entries(group_runs(filters.select_runs(index.runs)))
    if not path.is_dir():
        return find_entry(entries, text)
    if len(entries) != 1:
        names = ", ".join(f"`{entry.name}`" for entry in entries) or "no runs"
        raise ConfigError(f"{text} holds {names}, and one entry is needed; narrow it by --env, --algo or --preset")
    return replace(entries[0], name=text)


def _with_words(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record with intervals as text, `low to high`."""
    return {key: f"{value[0]} to {value[1]}" if isinstance(value, tuple) else value for key, value in record.items()}

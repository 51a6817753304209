"""Shared parts of all commands: the flags --debug, --quiet and --json, error messages, exit statuses."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import json
import logging
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from rl_training.envs.families.sdl import silence_sdl
from rl_training.errors import AxiomError, ConfigError, RunFailure, StorageError, nearest
from rl_training.experiment.storage.printing import printable, printable_lines

INTERRUPTED = 130


@dataclass(frozen=True)
class Output:
    """The output of a command: results on stdout, everything else on stderr."""

    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False
    quiet: Annotated[bool, typer.Option("--quiet", help="Show only warnings and errors on stderr.")] = False
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False

    def show(self, record: Mapping[str, Any], lines: Iterable[str]) -> None:
        """Print a result: `record` as one JSON object, or the lines for people."""
        if not _speaks():
            return
        with _reader_may_leave():
            for line in [json.dumps(_strict(record), allow_nan=False)] if self.json else lines:
                print(line)
            sys.stdout.flush()

    def show_text(self, text: str) -> None:
        """Print a rendered result."""
        with _reader_may_leave():
            sys.stdout.write(text)
            sys.stdout.flush()

    def report(self, error: BaseException) -> int:
        """Print an error message on stderr and return the exit status."""
        if self.debug:
            import traceback

            print(printable_lines("".join(traceback.format_exception(error))), file=sys.stderr)
        sentences, status = _explain(error)
        for sentence in sentences if _speaks() or getattr(error, "of_every_rank", False) else ():
            print(f"axiomrl: error: {printable_lines(sentence)}", file=sys.stderr)
        if self.json:
            self.show({"error": "\n".join(sentences), "exit_status": status}, ())
        return status


def _speaks() -> bool:
    """Return whether this process is no other rank than the first of a run that torchrun has started."""
    return os.environ.get("WORLD_SIZE", "1") == "1" or os.environ.get("RANK", "0") == "0"


def _show_help(context: typer.Context, asked: bool) -> None:
    if asked:
        print(context.get_help())
        raise typer.Exit


# pydantic would check typer's default --help of a group of commands, and its import doubles the time of `train --help`.
Help = Annotated[bool, typer.Option("--help", callback=_show_help, is_eager=True, help="Show this message.")]


def make_app(summary: str) -> typer.Typer:
    """Return an empty application with plain, fast help and without completion commands."""
    return typer.Typer(help=summary, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


def add_command(app: typer.Typer, function: Callable[..., int], *, name: str) -> None:
    """Register a function that takes an `output` as a command.

    Each field of a parameter that is a dataclass becomes an option, so that commands can share options.
    """
    signature = inspect.signature(function, eval_str=True)
    groups: dict[str, type] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        record = parameter.annotation
        if isinstance(record, type) and dataclasses.is_dataclass(record):
            groups[parameter.name] = record
            parameters += _options(record)
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    @functools.wraps(function)
    def command(**values: Any) -> int:
        for key, group in groups.items():
            values[key] = group(**{field: values.pop(field) for field in _field_names(group)})
        output: Output = values["output"]
        with _logging_to_stderr(quiet=output.quiet):
            try:
                return function(**values)
            except SystemExit as error:  # raised by an environment or a callback; it must not count as success
                return output.report(RunFailure(f"the run was ended by a call of sys.exit({error.code!r}) inside it"))
            except (KeyboardInterrupt, Exception) as error:
                return output.report(error)

    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    app.command(name)(command)


def run_app(app: typer.Typer, arguments: Sequence[str], *, name: str) -> int:
    """Run a command line and return its exit status; no exception is raised."""
    silence_sdl()
    try:
        return int(typer.main.get_command(app).main(list(arguments), prog_name=name, standalone_mode=False) or 0)
    except SystemExit:  # typer exits if the reader of a help text closes the pipe
        return 0
    except (KeyboardInterrupt, Exception) as error:
        # Parsing failed, but the flags about errors still apply.
        return Output(**{flag: f"--{flag}" in arguments for flag in _field_names(Output)}).report(error)


def key_value_lines(record: Mapping[str, Any]) -> list[str]:
    """Return `key=value` for every entry; nothing follows the sign if there is no value.

    A value may come from somebody else's file; it is escaped to stay on its line.
    """
    return [printable(f"{key}={'' if value is None else value}") for key, value in record.items()]


def whole_number(text: str) -> int:
    """Read a flag's integer; `1e6` and `1_000_000` are integers too."""
    with contextlib.suppress(ValueError):
        return int(text)
    with contextlib.suppress(ValueError, OverflowError):
        if float(text).is_integer():
            return int(float(text))
    raise typer.BadParameter(f"{text!r} is not an integer")


def _field_names(record: type) -> list[str]:
    return [field.name for field in dataclasses.fields(record)]


def _options(record: type) -> list[inspect.Parameter]:
    hints = get_type_hints(record, include_extras=True)
    return [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
        )
        for field in dataclasses.fields(record)
    ]


def _explain(error: BaseException) -> tuple[list[str], int]:
    """Return the messages and the exit status of an error."""
    if isinstance(error, ConfigError):
        return list(error.problems), error.exit_status
    if isinstance(error, AxiomError):
        return [str(error)], error.exit_status
    if hasattr(error, "format_message"):  # a usage error; its class moved between releases of typer
        return [_usage_sentence(error)], 2
    if isinstance(error, (KeyboardInterrupt, typer.Abort)):
        return ["interrupted"], INTERRUPTED
    cause = " ".join(f"{type(error).__name__}: {error}".split())
    return [f"unexpected {cause} (this is a bug; --debug shows where it happened)"], 1


def _usage_sentence(error: Any) -> str:
    context = getattr(error, "ctx", None)
    help_hint = f"; `{context.command_path} --help` lists what there is" if context is not None else ""
    option = getattr(error, "option_name", None)
    if option is not None and context is not None and type(error).__name__ == "NoSuchOption":
        known = [name for parameter in context.command.params for name in parameter.opts]
        close = nearest(option, known, limit=1)
        return f"no such option `{option}`" + (f"; did you mean `{close[0]}`?" if close else help_hint)
    sentence = " ".join(error.format_message().split()).removesuffix(".").replace(": Value error,", ":")
    return sentence if sentence.endswith("?") else f"{sentence}{help_hint}"


class _StderrHandler(logging.Handler):
    """Writes to the current stderr, which a live progress line may replace."""

    def emit(self, record: logging.LogRecord) -> None:
        level = "" if record.levelno < logging.WARNING else f"axiomrl: {record.levelname.lower()}: "
        with contextlib.suppress(OSError, ValueError):
            print(f"{level}{printable_lines(record.getMessage())}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _logging_to_stderr(*, quiet: bool) -> Iterator[None]:
    logger = logging.getLogger("rl_training")
    handler, level, propagate = _StderrHandler(), logger.level, logger.propagate
    logger.addHandler(handler)
    # A library of an environment may add a handler to the root logger, which would show every line a second time.
    logger.propagate = bool(logging.getLogger().handlers)
    logger.setLevel(logging.CRITICAL if not _speaks() else logging.WARNING if quiet else logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate


@contextlib.contextmanager
def _reader_may_leave() -> Iterator[None]:
    """Allow a reader of stdout such as `head` to close it early; any other write error is reported."""
    try:
        yield
    except OSError as error:
        # Buffered output would raise again when the interpreter flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise StorageError(f"cannot write the result to stdout: {error.strerror or error}") from error


def _strict(value: Any) -> Any:
    """Return a value that strict JSON can represent: paths as text, not-a-number as null."""
    if isinstance(value, Mapping):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value

"""Errors that a user can act on: one sentence that names the place and the repair.

The command line prints the message and exits with `exit_status`; anything that is not an
`AxiomError` is a bug and keeps its traceback.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class AxiomError(Exception):
    """Base class of all errors whose message is meant for the user."""

    exit_status = 2
    of_every_rank = False
    """Whether any rank of a run that torchrun has started prints the message, because rank 0 may be unable to."""


class ConfigError(AxiomError):
    """The configuration is invalid; `problems` contains all faults found."""

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems: tuple[str, ...] = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__("\n".join(self.problems))


class MeetingError(ConfigError):
    """A rank of a run cannot reach the others."""

    of_every_rank = True


class MissingExtraError(AxiomError):
    """A feature needs packages that are not installed."""

    def __init__(self, what: str, extra: str) -> None:
        from rl_training.install_hint import install_hint

        self.extra = extra
        super().__init__(f"{what} needs the extra `{extra}`: {install_hint(extra)}")


class UntrustedCodeError(AxiomError):
    """A loaded file names code that this user has neither installed nor used."""


class CheckpointError(AxiomError):
    """A checkpoint is missing, damaged, unsafe or does not fit."""


class DatasetError(AxiomError):
    """A dataset is missing, damaged, unsafe or does not fit."""


class RunFailure(AxiomError):
    """A run started but could not continue."""

    exit_status = 1


class StorageError(RunFailure):
    """Files of the run could not be written."""


class EnvironmentFailure(RunFailure):
    """An environment raised, died or hung; the message shows the original cause."""


class NonFiniteError(RunFailure):
    """NaN or infinity appeared in an environment's output, a loss or a gradient."""


def nearest(name: str, candidates: Iterable[str], *, limit: int = 3) -> list[str]:
    """Return the candidates closest to `name`, best first."""
    import difflib  # takes longer to import than an exported policy to load

    by_lower = {candidate.lower(): candidate for candidate in candidates}
    matches = difflib.get_close_matches(name.lower(), by_lower, n=limit, cutoff=0.5)
    return [by_lower[match] for match in matches]


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """Return `; did you mean a or b?` for the nearest candidates, or an empty string."""
    close = nearest(name, candidates)
    return f"; did you mean {' or '.join(f'`{match}`' for match in close)}?" if close else ""

"""Schemas of the JSON files of a run.

Somebody else may have made the files: numbers are bounded and types are checked; unknown keys of later releases are
accepted. The state of an algorithm is checked where it is loaded, against the algorithm itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from annotated_types import Ge, Le, Len
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FiniteFloat,
    StringConstraints,
    ValidationError,
    model_validator,
)

from rl_training.errors import AxiomError
from rl_training.experiment.runs import EVALUATIONS, METRICS
from rl_training.experiment.storage.untrusted import UntrustedFileError, read_json

LARGEST_COUNT = 1 << 62  # serial numbers have 64 bits, and sums of two must fit as well
MOST_THREADS = 1024
LARGEST_SCORE = 1e100  # means, squares and differences of smaller numbers are finite
LARGEST_SPACE = 1 << 24  # elements of one observation or action: five times a stack of large images
MOST_AXES = 32
_SHOWN = 80  # characters shown of an unexpected value

Count = Annotated[int, Ge(0), Le(LARGEST_COUNT)]
Text = Annotated[str, StringConstraints(max_length=10_000)]
Score = Annotated[FiniteFloat, Ge(-LARGEST_SCORE), Le(LARGEST_SCORE)]
Seed = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,19}$")]  # the key of a mapping
Hash = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class _Plain(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")


class FileEntry(_Plain):
    """One file of a checkpoint."""

    size: Count
    sha256: Hash


class SegmentEntry(FileEntry):
    """One file of a replay's rows, and their serial numbers [first, last)."""

    name: Text
    transitions: Annotated[list[Count], Len(2, 2)]
    observations: Annotated[list[Count], Len(2, 2)]
    replay: Count = 0

    @model_validator(mode="after")
    def _ranges_go_up(self) -> SegmentEntry:
        for name in ("transitions", "observations"):
            first, last = getattr(self, name)
            if first > last:
                raise ValueError(f"{name} end before they begin")
        return self


def _bounded_space(value: Any) -> Any:
    """Check the sizes of a described space before anything is allocated; `space_from_json` checks the rest."""
    if not isinstance(value, Mapping):
        raise ValueError("a space must be a mapping")
    for part in _parts(value):
        sizes = part.get("shape", part.get("n", 1))
        sizes = sizes if isinstance(sizes, list) else [sizes]
        if len(sizes) > MOST_AXES or not all(type(size) is int and size >= 0 for size in sizes):
            raise ValueError("a size of the space is not a whole number")
        if math.prod(sizes) > LARGEST_SPACE:
            raise ValueError(f"the space has {math.prod(sizes):,} numbers; at most {LARGEST_SPACE:,} can be")
        if any(type(size) is not int or not 0 < size <= LARGEST_SPACE for size in _flat(part.get("nvec", []))):
            raise ValueError("a choice of the space has no possible number of options")
    return value


def _parts(space: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the parts of a space; the reader of the file has bounded the depth."""
    if space.get("type") != "Dict":
        return [space]
    try:
        return [part for _, below in space["spaces"] for part in _parts(below)]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError("a Dict space must list pairs of a key and a space") from error


def _flat(value: Any) -> list[Any]:
    return [item for part in value for item in _flat(part)] if isinstance(value, list) else [value]


Space = Annotated[dict[str, Any], BeforeValidator(_bounded_space)]


class Spaces(_Plain):
    """The observation space and the action space."""

    observation: Space
    action: Space


class Manifest(_Plain):
    """`manifest.json` of a checkpoint."""

    format_version: int
    step: Count
    algo: Text
    env_id: Text
    resume_mode: Literal["exact", "episode-boundary"]
    config: dict[str, Any]
    spaces: Spaces
    torch_threads: Annotated[int, Ge(1), Le(MOST_THREADS)]
    segments: list[SegmentEntry] = []
    versions: dict[str, Text | None]
    files: dict[str, FileEntry]


class Metadata(_Plain):
    """The parts of `metadata.json` that are needed to continue a run."""

    status: Text
    resumed_at_steps: list[Count] = []
    notices: list[Text]
    hardware: dict[str, Any]
    trackers: dict[str, dict[str, Text | None]] = {}
    latest_metrics: dict[str, Any]


class Best(_Plain):
    """The best evaluation so far."""

    path: Annotated[str, StringConstraints(pattern=r"^checkpoints/step_[0-9]{1,19}$")]
    metric: Text
    value: FiniteFloat
    step: Count


class Episodes(_Plain):
    """The latest training episodes."""

    count: Count
    latest: Annotated[list[tuple[float, Count]], Len(0, 10_000)]

    model_config = ConfigDict(strict=False, extra="allow")  # pairs come as lists


class Means(_Plain):
    """Sums of the updates' metrics since the last row."""

    sums: dict[str, Any]
    counts: dict[str, Annotated[int, Ge(1), Le(LARGEST_COUNT)]]

    @model_validator(mode="after")
    def _match(self) -> Means:
        if self.sums.keys() != self.counts.keys():
            raise ValueError("sums and counts are not of the same metrics")
        if any(getattr(value, "shape", None) != () for value in self.sums.values()):
            raise ValueError("a sum is not a single number")
        return self


class Times(_Plain):
    """Seconds spent so far."""

    time_collect: float
    time_update: float
    time_eval: float


class Logged(_Plain):
    """Values that callbacks logged for the next row, and the names so far."""

    waiting: dict[str, FiniteFloat] = {}
    names: list[Text] = []


class GivenMetrics(_Plain):
    """Metrics that environments gave since the last row."""

    sums: dict[str, FiniteFloat] = {}
    counts: dict[str, Annotated[int, Ge(1), Le(LARGEST_COUNT)]] = {}

    @model_validator(mode="after")
    def _both_have_the_same_names(self) -> GivenMetrics:
        if self.sums.keys() != self.counts.keys():
            raise ValueError("sums and counts have different names")
        return self


class Counters(_Plain):
    """Counters and pending metrics of a run."""

    step: Count
    update_count: Count
    stop_reason: Text | None
    times: Times
    resolved: dict[str, float]
    latest: dict[str, float | Text | None]
    best: Best | None
    logged_step: Count
    evaluated_step: Count | None
    evaluation_due: bool
    metrics: Means
    episodes: Episodes
    task_episodes: dict[str, Episodes] = {}
    env_metrics: GivenMetrics = GivenMetrics()
    logged: Logged = Logged()
    film_due: bool = False


def _both_files(lengths: dict[str, int]) -> dict[str, int]:
    for name in (METRICS, EVALUATIONS):
        if name not in lengths:
            raise ValueError(f"{name} is missing")
    return lengths


class Generators(_Plain):
    """The state of the random streams."""

    torch: dict[str, Any]
    numpy: dict[str, dict[str, Any]]


class SessionState(_Plain):
    """The state of the run itself, without algorithm and environments."""

    counters: Counters
    streams: Generators
    callbacks: dict[str, dict[str, Any]]
    file_lengths: Annotated[dict[str, Count], AfterValidator(_both_files)]


class RankState(_Plain):
    """What a rank of a run with several learners has of its own; most of rank 0's is that of the run."""

    episodes: Annotated[list[Annotated[list[Any], Len(2, 2)]], Len(0, LARGEST_COUNT)]
    moments: list[dict[str, Any]]
    acting: dict[str, Any] = {}
    normalizers: dict[str, Any] | None = None
    collector: dict[str, Any] = {}
    counters: Counters | None = None
    streams: Generators | None = None


class State(_Plain):
    """The tree that `state.json` describes."""

    algorithm: dict[str, Any]
    normalizers: dict[str, Any] | None
    collector: dict[str, Any]
    session: SessionState
    ranks: list[RankState] = []

    @model_validator(mode="after")
    def _other_ranks_are_complete(self) -> State:
        if any(rank.counters is None or rank.streams is None for rank in self.ranks[1:]):
            raise ValueError("the state of a rank is missing")
        return self


class SweepRun(_Plain):
    """The entry of one seed in a sweep's summary."""

    seed: Annotated[int, Ge(0), Le(LARGEST_COUNT)]
    run_dir: Text | None = None
    checkpoint_path: Text | None = None
    best_checkpoint_path: Text | None = None
    metrics: dict[str, Any] = {}
    status: Literal["pending", "running", "completed", "interrupted", "failed"] = "completed"
    resume_mode: Text | None = None
    stop_reason: Text | None = None
    duration_seconds: float | None = None
    error: str | None = None
    traceback: str | None = None
    signal: Annotated[int, Ge(0), Le(255)] | None = None


class Summary(_Plain):
    """`benchmark_summary__*.json` of a sweep."""

    schema_version: int
    status: Text
    created_at_utc: Text
    finished_at_utc: Text | None
    config: dict[str, Any] | None
    runs: Annotated[list[SweepRun], Len(0, 1_000_000)]


class TrialNotes(_Plain):
    """What the journal of a study notes about a trial."""

    value: Score | None
    settings: dict[str, Any] = {}
    runs: dict[Seed, SweepRun] = {}
    error: str | None = None
    generation: Count | None = None
    parent: Count | None = None


class ConfirmedSide(_Plain):
    """One side in a study's `confirmation.json`."""

    trial: Count
    searched: Score | None
    scores: Annotated[dict[Seed, Score], Len(1, 1_000_000)]


class BestSide(ConfirmedSide):
    """The side that the search chose, by its score there."""

    searched: Score


class StoredConfirmation(_Plain):
    """`confirmation.json` of a study; all else in it is computed from these."""

    trials: Annotated[int, Ge(1), Le(LARGEST_COUNT)]
    best: BestSide
    baseline: ConfirmedSide


Schema = TypeVar("Schema", bound=BaseModel)


class OtherVersionError(AxiomError):
    """A file has another version of its format than this release reads."""

    def __init__(self, version: int) -> None:
        super().__init__(f"version {version}")
        self.version = version


def read_checked(path: Path, schema: type[Schema], *, version_key: str, version: int) -> dict[str, Any]:
    """Return the content of a JSON file that fits a schema.

    Raises `FileNotFoundError`, `OtherVersionError` if `version_key` has another value than `version`, and
    `UntrustedFileError` for anything else that does not fit.
    """
    content: dict[str, Any] = read_json(path)
    found = content.get(version_key) if isinstance(content, dict) else None
    if type(found) is int and found != version:
        raise OtherVersionError(found)
    problem = mismatch(schema, content)
    if problem is not None:
        raise UntrustedFileError(problem)
    return content


def mismatch(schema: type[Schema], content: Any) -> str | None:
    """Return the first field that does not fit and the reason, or None if all fit."""
    try:
        schema.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "the whole"
        found = repr(first["input"])
        shown = found if len(found) <= _SHOWN else f"{found[:_SHOWN]}..."
        return f"{place[:200]}: {first['msg']}, got {shown}"
    return None

"""Files with pictures, drawn by matplotlib: their formats, and the same bytes for the same content."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rl_training.errors import ConfigError, MissingExtraError

SUFFIXES = (".png", ".svg", ".pdf")
# Pictures of the same content have the same bytes: no dates, no random ids in SVG. Names are not parsed as mathematics.
_SETTINGS: dict[Any, Any] = {"svg.hashsalt": "axiomrl", "text.parse_math": False, "legend.fontsize": 9}
_METADATA = {".png": {"Software": None}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}


def check_picture(file: Path, flag: str) -> None:
    """Raise an error for a file name without a known format; `flag` is the option that gave it."""
    if file.suffix not in SUFFIXES:
        raise ConfigError(f"{flag} {file}: a picture is a file that ends in {', '.join(SUFFIXES)}")


@contextmanager
def new_picture(file: Path, flag: str, *, size: tuple[float, float]) -> Iterator[Any]:
    """Give an empty figure of a size in inches, and write it to `file` when the block ends."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("a plot", "plot") from error
    with mpl.rc_context(_SETTINGS):
        figure = Figure(figsize=size, layout="constrained", dpi=150)
        yield figure
        try:
            figure.savefig(file, metadata=_METADATA[file.suffix])
        except OSError as error:
            raise ConfigError(f"{flag} {file}: cannot be written ({error.strerror or error}); name another") from None

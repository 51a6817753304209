"""Reads the text of a YAML file that the user named."""

from __future__ import annotations

from pathlib import Path

from rl_training.errors import ConfigError, did_you_mean
from rl_training.experiment.storage.untrusted import UntrustedFileError, read_text


def read_settings_file(path: Path, *, inside: str | None = None) -> str:
    """Return the text of a file; `inside` is the file that a directory may contain, for the message about one."""
    try:
        # Reading a device never ends and a pipe can be read only once: both are refused.
        return read_text(path).removeprefix("\N{BYTE ORDER MARK}")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file{_suggestion(path)}") from None
    except UntrustedFileError as error:
        if path.is_dir():
            found = inside is not None and (path / inside).is_file()
            hint = f"; did you mean `{path / str(inside)}`?" if found else "; name a YAML file"
            raise ConfigError(f"{path}: is a directory{hint}") from None
        if isinstance(error.__cause__, UnicodeDecodeError):
            start = error.__cause__.start
            raise ConfigError(f"{path}: byte {start} is not UTF-8 text; save it as UTF-8") from None
        raise ConfigError(f"{error}; name a YAML file") from None


def _suggestion(path: Path) -> str:
    if not path.parent.is_dir():
        return ""
    names = [entry.name for entry in path.parent.iterdir() if entry.suffix in (".yaml", ".yml", ".json")]
    return did_you_mean(path.name, names)

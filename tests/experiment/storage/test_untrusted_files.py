"""Files that somebody else may have made are read without blocking, recursing or trusting their size."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rl_training.experiment.storage.untrusted import MAX_DEPTH, UntrustedFileError, parse_json, read_json, read_text


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


def test_plain_data_comes_back_unchanged(tmp_path: Path) -> None:
    data = {"a": [1, -2.5, None, True, "text"], "generator": 2**128 - 1}
    (tmp_path / "x.json").write_text(json.dumps(data))
    assert read_json(tmp_path / "x.json") == data


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (nested(MAX_DEPTH + 1), "levels deep"),
        (nested(25_000), "levels deep"),
        ("1" * 5_000, "not valid JSON"),
        (str(2**128), "128 bits"),
        ("1e999", "too large"),
        ('{"a": NaN}', "NaN"),
        ("[-Infinity]", "Infinity"),
        ('{"a": ', "not valid JSON"),
    ],
)
def test_what_no_run_writes_is_refused_in_one_sentence_that_names_the_source(text: str, says: str) -> None:
    with pytest.raises(UntrustedFileError) as raised:
        parse_json(text, "state.json")
    assert says in str(raised.value)
    assert "state.json" in str(raised.value)
    assert len(str(raised.value)) < 300


def test_the_deepest_allowed_nesting_is_read() -> None:
    assert parse_json(nested(MAX_DEPTH), "x") is not None


def test_a_pipe_a_device_and_a_directory_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(UntrustedFileError, match="not a regular file"):
            read_text(path)


def test_a_file_beyond_the_bound_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 40)  # sparse: a terabyte that takes no room
    with pytest.raises(UntrustedFileError, match="bytes"):
        read_text(tmp_path / "large")


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UntrustedFileError, match="cannot be read"):
        read_text(tmp_path / "x")


def test_a_missing_file_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_text(tmp_path / "none")

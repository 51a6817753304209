"""The journal of a study: what a killed writer leaves, and files that somebody else made."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from pathlib import Path

import pytest

from rl_training.errors import ConfigError
from rl_training.experiment.tuning.journal import open_journal, read_trials
from rl_training.experiment.tuning.study import JOURNAL, STUDY, read_study
from study_parts import make_study, search


def test_a_line_that_a_killed_writer_cut_off_is_removed_before_the_next_is_written(tmp_path: Path) -> None:
    directory = make_study(tmp_path, trials=3, seeds_per_trial=1)
    search(directory)
    whole = (directory / JOURNAL).read_bytes()
    (directory / JOURNAL).write_bytes(whole + b'{"op_code":4,"trial_id":1,"na')
    assert len(read_trials(directory)) == 3
    open_journal(directory).ask()
    lines = (directory / JOURNAL).read_bytes()
    assert lines.startswith(whole)
    assert b'"na{' not in lines
    assert len(read_trials(directory)) == 4


def test_the_lock_of_a_killed_writer_is_free_at_once(tmp_path: Path) -> None:
    directory = make_study(tmp_path)
    context = multiprocessing.get_context("fork")
    ready = context.Event()

    def hold() -> None:
        open_journal(directory)._storage._backend._lock.acquire()  # type: ignore[attr-defined]
        ready.set()
        time.sleep(60)

    holder = context.Process(target=hold)
    holder.start()
    assert ready.wait(30)
    assert holder.pid is not None
    os.kill(holder.pid, signal.SIGKILL)
    holder.join()
    began = time.monotonic()
    open_journal(directory).ask()
    assert time.monotonic() - began < 5  # Optuna's own lock would wait for half a minute


@pytest.mark.parametrize(
    "damage", ["not json\n", '{"op_code": 99}\n', "[1, 2]\n", '{"op_code":4,"worker_id":"x","study_id":0}\n', "\x00\n"]
)
def test_a_damaged_journal_is_one_sentence(tmp_path: Path, damage: str) -> None:
    directory = make_study(tmp_path, trials=2, seeds_per_trial=1)
    search(directory)
    with (directory / JOURNAL).open("a") as journal:
        journal.write(damage + '{"op_code":4')
    with pytest.raises(ConfigError, match=r"journal.log is damaged .*; restore it from a copy"):
        read_trials(directory)


def test_random_bytes_in_a_journal_are_refused_or_harmless(tmp_path: Path) -> None:
    directory = make_study(tmp_path, trials=2, seeds_per_trial=1)
    search(directory)
    whole, generator = bytearray((directory / JOURNAL).read_bytes()), random.Random(3)
    for _ in range(150):
        damaged = bytearray(whole)
        for _ in range(generator.randint(1, 4)):
            damaged[generator.randrange(len(damaged))] = generator.randrange(256)
        (directory / JOURNAL).write_bytes(damaged)
        try:
            trials = read_trials(directory)
        except ConfigError:
            continue
        assert len(trials) <= 2


def test_a_study_without_its_journal_says_so(tmp_path: Path) -> None:
    directory = make_study(tmp_path)
    (directory / JOURNAL).unlink()
    with pytest.raises(ConfigError, match="has no trials"):
        read_trials(directory)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("schema_version: 1", "schema_version: 2", "schema version 2, this release reads 1"),
        ("sampler: tpe", "sampler: magic", "sampler"),
        ("trials: 6", "trials: 0", "trials"),
        ("trials: 6", "trials: 6\nextra: 1", "extra"),
        ("confirm_seeds:\n- 6", "confirm_seeds:\n- 1", "1 is a seed of the trials too"),
        ("confirm_seeds:\n- 6", "confirm_seeds:\n- 3", "3 is a seed of the trials too"),
        ("trials: 6", "trials: !!python/object/apply:os.system [ls]", "study.yaml"),
    ],
)
def test_a_study_file_that_somebody_changed_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    directory = make_study(tmp_path)
    text = (directory / STUDY).read_text()
    assert old in text
    (directory / STUDY).write_text(text.replace(old, new))
    with pytest.raises(ConfigError, match=message):
        read_study(directory)


def test_a_directory_without_a_study_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give the directory that `axiomrl tune` made"):
        read_study(tmp_path)

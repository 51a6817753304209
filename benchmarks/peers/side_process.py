"""A side of a benchmark in a process of its own, on one thread of one core or on as many as it likes."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import rl_training

ONE_THREAD = {
    **{f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS", "NUMBA")},
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
}
"""Variables of the environment that keep libraries on one thread."""
_BENCHMARKS = Path(__file__).resolve().parents[1]


def measure_alone(
    script: Path, arguments: Sequence[str], *, one_thread: bool = True, source: Path | None = None
) -> Any:
    """Run a script that writes what it measured as JSON to the file after `--output`, and return that.

    `source` is a checkout of this package to use in place of the one that is imported here.
    """
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "measured.json"
        command = [sys.executable, str(script.resolve()), *arguments, "--output", str(output)]
        with one_core() if one_thread else contextlib.nullcontext():
            done = subprocess.run(
                command,
                cwd=folder,  # MuJoCo writes its warnings to where it is
                env=environment(os.environ, one_thread=one_thread, source=source),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
            )
        if done.returncode:
            raise RuntimeError(f"{script.name} {' '.join(arguments)} failed:\n{done.stderr}")
        return json.loads(output.read_text(encoding="utf-8"))


def environment(given: Mapping[str, str], *, one_thread: bool, source: Path | None = None) -> dict[str, str]:
    """Return the environment of a side's process."""
    # A limit that the caller's shell has set would otherwise hold for the side that takes what it likes.
    variables = {name: value for name, value in given.items() if name not in ONE_THREAD}
    if one_thread:
        variables |= ONE_THREAD
    package = Path(rl_training.__file__).parents[1] if source is None else source.resolve() / "src"
    # Absolute, because a side may run in another folder.
    others = [str(Path(path).resolve()) for path in given.get("PYTHONPATH", "").split(os.pathsep) if path]
    variables["PYTHONPATH"] = os.pathsep.join([str(package), str(_BENCHMARKS), *others])
    return variables


def usable_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """Let processes that are started meanwhile run on one core: JAX heeds that where it does not heed variables."""
    if not hasattr(os, "sched_setaffinity"):  # Linux has it
        yield
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)

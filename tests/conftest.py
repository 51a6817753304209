"""Settings for all tests."""

import atexit
import gc
import os
import shutil
import tempfile
from multiprocessing import forkserver
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Every core has a test of its own: threads that wait for each other's cores make all of them slow.
os.environ.setdefault("OMP_NUM_THREADS", "1")

MEMORY = Path("/dev/shm")
MEMORY_BYTES = 2 << 30  # several times what the quick tests have there at once


def memory_folder() -> str | None:
    """Return a folder in memory with room for the quick tests' files, whose programs may be executed, or None."""
    try:
        numbers = os.statvfs(MEMORY)
    except OSError:
        return None
    roomy = numbers.f_bavail * numbers.f_frsize >= MEMORY_BYTES and os.access(MEMORY, os.W_OK)
    return str(MEMORY) if roomy and not numbers.f_flag & os.ST_NOEXEC else None


def pytest_configure(config: pytest.Config) -> None:
    """Keep the files of quick tests in memory: runs write, sync and delete tens of thousands of them."""
    folder = memory_folder()
    if folder is not None and config.getoption("markexpr") == "not slow":
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", folder)


@pytest.hookimpl(trylast=True)  # when what is not to run has been left out
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let several processes share the tests well."""
    if hasattr(config, "workerinput"):
        items[:] = shared_order(items, config.workerinput["workercount"])


def pytest_collection_finish() -> None:
    """Spare the garbage collector what stays until the end; searching it took up to a tenth of the time."""
    gc.collect()
    gc.freeze()


def _preload(modules_names: list[str]) -> None:
    """Have the server from which sweeps and vectors get their processes import what a training imports, too."""
    _preload_named([*modules_names, "rl_training.runtime.session", "torch._dynamo"])


# A test process has one such server, and only its first user says what it imports.
_preload_named, forkserver.set_forkserver_preload = forkserver.set_forkserver_preload, _preload

# What trainings of the tests used is no word of the user's; processes that tests start inherit the place.
os.environ["AXIOMRL_STATE_DIR"] = tempfile.mkdtemp(prefix="axiomrl-state-", dir=memory_folder())
atexit.register(shutil.rmtree, os.environ["AXIOMRL_STATE_DIR"], ignore_errors=True)

# The helpers' assertions explain themselves like those of the tests.
pytest.register_assert_rewrite("harness", "processes", "cli_parts", "own_code")

# No test may fail because the machine is busy; the same examples every time, so that a failure can be repeated.
settings.register_profile("axiomrl", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("axiomrl")

# Fixtures of several files of tests.
# What a process has imported may be named by anybody: these stand for installed packages in most tests.
import corridor_envs  # noqa: E402, F401
import run_samples  # noqa: E402, F401
import toy_envs  # noqa: E402, F401
from cli_parts import axiomrl, finished_run, own_run  # noqa: E402, F401
from own_code import new_process  # noqa: E402, F401
from suite_order import shared_order  # noqa: E402


@pytest.fixture
def accelerate_short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attach kernels to runs of any length, as if compiling always paid."""
    monkeypatch.setattr("rl_training.kernels.requires.FEWEST_UPDATES", 0)

"""Settings for all tests."""

import atexit
import os
import shutil
import tempfile

import pytest
from hypothesis import HealthCheck, settings

# What trainings of the tests used is no word of the user's; processes that tests start inherit the place.
os.environ["AXIOMRL_STATE_DIR"] = tempfile.mkdtemp(prefix="axiomrl-state-")
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


@pytest.fixture
def accelerate_short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attach kernels to runs of any length, as if compiling always paid."""
    monkeypatch.setattr("rl_training.kernels.requires.FEWEST_UPDATES", 0)

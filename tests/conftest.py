"""Settings for all tests."""

import pytest
from hypothesis import HealthCheck, settings

# The helpers' assertions explain themselves like those of the tests.
pytest.register_assert_rewrite("harness", "processes", "cli_parts")

# No test may fail because the machine is busy; the same examples every time, so that a failure can be repeated.
settings.register_profile("axiomrl", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("axiomrl")

# Fixtures of several files of tests.
from cli_parts import axiomrl, finished_run, own_run  # noqa: E402, F401

"""Settings for all tests."""

import pytest

# The helpers' assertions explain themselves like those of the tests.
pytest.register_assert_rewrite("harness", "processes")

"""Settings for the tests of environments."""

import env_samples  # noqa: F401 - what a process has imported may be named without the user's word

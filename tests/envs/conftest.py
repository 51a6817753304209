"""Settings for the tests of environments."""

import importlib

importlib.import_module("env_samples")  # what a process has imported may be named without the user's word

"""The command line as a fixture."""

from cli_parts import axiomrl as axiomrl

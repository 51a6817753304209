"""`axiomrl` in a process whose files may not grow beyond a limit."""

import resource

from rl_training import cli


def main(arguments):
    """Run `axiomrl` with all arguments but the first, which is the limit in bytes, and return its exit status."""
    limit, *arguments = arguments
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
    return cli.main(arguments)

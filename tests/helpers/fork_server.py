"""Starts programs in processes of their own that need not import torch and the rest anew.

Reads one JSON request per line on stdin and answers with one JSON value per line on stdout:
`{"action": "start", "module": name, "arguments": [...], "output": path, "directory": path, "environment": {...}}` calls
`main(arguments)` of a module in a new process and gives its process id, `{"action": "poll", "pid": n}` the exit status
(negative for a signal) or null while the process runs.
"""

import gc
import importlib
import json
import os
import sys

# What commands import when they are used: a fork finds it in place.
USUAL = (
    "rl_training.cli",
    "rl_training.runtime.workflows",
    "gymnasium.envs.classic_control.cartpole",
    "matplotlib.backends.backend_agg",
    "numba",
    "pydantic",
    "tensorboard.summary.writer.event_file_writer",
    "torch._dynamo",
)


def start(module, arguments, output, directory, environment):
    pid = os.fork()
    if pid:
        return pid
    status = 70
    try:
        os.setsid()  # a signal to its group is for it and its own children alone
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(directory)
        os.environ.clear()
        os.environ.update(environment)
        status = importlib.import_module(module).main(arguments)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def poll(pid):
    finished, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if finished else None


def serve():
    for name in USUAL:
        importlib.import_module(name)
    gc.freeze()  # what is imported stays, also in the forks: nobody need search it for garbage
    actions = {"start": start, "poll": poll}
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(actions[request.pop("action")](**request)), flush=True)


if __name__ == "__main__":  # workers of `local_async` import this module again
    serve()

"""Starts `axiomrl` commands in processes of their own without importing torch anew for each.

Reads one JSON request per line on stdin and answers with one JSON value per line on stdout:
`{"action": "start", "arguments": [...], "output": path}` gives a process id, `{"action": "poll", "pid": n}` the exit
status (negative for a signal) or null while the process runs.
"""

import importlib
import json
import os
import sys


def start(arguments, output, main):
    pid = os.fork()
    if pid:
        return pid
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    status = 70
    try:
        status = main(arguments)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def poll(pid):
    finished, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if finished else None


def serve():
    importlib.import_module("rl_training.runtime.ppo_trainer")
    main = importlib.import_module(sys.argv[1]).main
    for line in sys.stdin:
        request = json.loads(line)
        if request["action"] == "start":
            answer = start(request["arguments"], request["output"], main)
        else:
            answer = poll(request["pid"])
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":  # workers of `local_async` import this module again
    serve()

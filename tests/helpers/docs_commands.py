"""`axiomrl` for the commands in the documentation, in processes of their own that need not import torch anew.

`main([SOCKET])`, started by the fork server, forks for every request. `docs_commands.py SOCKET ARGS` has it run
`axiomrl ARGS` with the caller's directory and standard streams, and exits with its status.
"""

import contextlib
import json
import os
import socket
import sys

BUG = 70
FORWARDED = ("MINARI_DATASETS_PATH", "XDG_CACHE_HOME")
"""Variables of the caller that a command sees."""


def run(request, streams):
    """Become `axiomrl` as if it had been started where the request was made, and return its exit status."""
    for target, stream in enumerate(streams):
        os.dup2(stream, target)
    os.chdir(request["directory"])
    os.environ.update(request["environment"])
    sys.argv = ["axiomrl", *request["arguments"]]
    from rl_training import cli

    try:
        return cli.main(request["arguments"])
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def main(arguments):
    """Answer requests until the process is ended."""
    (address,) = arguments
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
    while True:
        connection, _ = listener.accept()
        reap()
        message, streams, _, _ = socket.recv_fds(connection, 1 << 16, 3)
        if os.fork() == 0:
            status = BUG
            try:
                listener.close()
                status = run(json.loads(message), streams)
            finally:
                connection.sendall(str(status).encode())
                os._exit(status)
        for descriptor in (connection.detach(), *streams):
            os.close(descriptor)


def reap():
    """Wait for the children that have ended, so that their processor time counts as that of the tests."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def ask(address, arguments):
    """Have the server run a command and return its exit status."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address)
    forwarded = {name: os.environ[name] for name in FORWARDED if name in os.environ}
    request = json.dumps({"directory": os.getcwd(), "arguments": arguments, "environment": forwarded})
    socket.send_fds(connection, [request.encode()], [0, 1, 2])
    return int(connection.recv(16) or BUG)


if __name__ == "__main__":
    sys.exit(ask(sys.argv[1], sys.argv[2:]))

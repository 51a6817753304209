"""`axiomrl` for the commands in the documentation, in processes of their own that need not import torch anew.

`docs_commands.py serve SOCKET` imports the package once and forks for every request. `docs_commands.py SOCKET ARGS`
has it run `axiomrl ARGS` with the caller's directory and standard streams, and exits with its status.
"""

import json
import os
import signal
import socket
import sys

BUG = 70


def run(request, streams):
    """Become `axiomrl` as if it had been started where the request was made, and return its exit status."""
    for target, stream in enumerate(streams):
        os.dup2(stream, target)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.chdir(request["directory"])
    sys.argv = ["axiomrl", *request["arguments"]]
    from rl_training.cli import main

    try:
        return main(request["arguments"])
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def serve(address):
    """Answer requests until the process is ended."""
    import rl_training.runtime.workflows  # noqa: F401 - what every request would import

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the children here
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
    print("ready", flush=True)
    while True:
        connection, _ = listener.accept()
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


def ask(address, arguments):
    """Have the server run a command and return its exit status."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address)
    request = json.dumps({"directory": os.getcwd(), "arguments": arguments})
    socket.send_fds(connection, [request.encode()], [0, 1, 2])
    return int(connection.recv(16) or BUG)


if __name__ == "__main__":  # workers of `local_async` import this module again
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        sys.exit(ask(sys.argv[1], sys.argv[2:]))

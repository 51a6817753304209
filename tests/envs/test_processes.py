"""Processes beside a run come from a server that has imported what they need."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

# What imports torch stands below the guard: every process reads the script's upper part again.
SCRIPT = """
import os
import sys


def tell(sender):
    sender.send((os.getpid(), "torch" in sys.modules, "rl_training.runtime.session" in sys.modules))


if __name__ == "__main__":
    from rl_training.envs.workers.processes import fresh_processes
    from rl_training.runtime.sweep.server import sweep_processes

    context = sweep_processes() if sys.argv[1] == "sweep" else fresh_processes()
    receiver, sender = context.Pipe(duplex=False)
    for _ in range(2):
        process = context.Process(target=tell, args=(sender,))
        process.start()
        print(*receiver.recv())
        process.join()
"""


def _told(folder: Path, which: str) -> list[list[str]]:
    """Return what two processes say of themselves: their number, and whether they have torch and a run's modules."""
    script = folder / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, str(script), which], capture_output=True, text=True, check=True)
    return [line.split() for line in done.stdout.splitlines()]


def test_a_sweep_s_processes_have_imported_torch_already(tmp_path: Path) -> None:
    first, second = _told(tmp_path, "sweep")
    assert first[1:] == second[1:] == ["True", "True"]
    assert first[0] != second[0]


def test_other_processes_import_only_what_they_use(tmp_path: Path) -> None:
    plain, _ = _told(tmp_path, "plain")
    assert plain[1:] == ["False", "False"]

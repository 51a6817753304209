"""Checkpoints that somebody changed on purpose: a seeded mutator of every field and file, and what must hold for each.

As a program (`python hostile_checkpoints.py DIRECTORY --cases N --seed S`) it works with bounded memory and under the
eye of the interpreter's audit hooks, and prints how many cases were refused and how many did no harm.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import logging
import os
import pickle
import random
import resource
import shutil
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from harness import last_checkpoint, tiny_config
from planning_runs import SMALL as SMALL_PLANNING
from replays import off_policy_config
from rl_training.errors import AxiomError
from rl_training.experiment.storage.segments import SEGMENTS
from rl_training.runtime.acting.policy import load_policy
from rl_training.runtime.workflows import evaluate, resume, train

SECONDS_PER_CASE = 30
MEMORY = 3 << 30  # bytes beyond what the process has mapped before the first case
LONGEST_MESSAGE = 3000


class Bomb:
    """A pickle that would run a command."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch exploded",)


VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    -1,
    7,
    10**6,
    2**31,
    2**53 + 1,
    2**63,
    2**64,
    2**127,
    10**40,
    1.5,
    -1e308,
    5e-324,
    "",
    "text",
    "nan",
    "../../secret",
    "/etc/passwd",
    "\x1b[31mred\n",
    "a" * 100_000,
    [],
    {},
    [None],
    [0, 2**62],
    [2**40, 2**40],
    {"__tensor__": "nowhere"},
    {"__array__": ["list"]},
    {"__float__": "nan"},
    {"__float__": []},
    {"type": "Box", "shape": [10**6, 10**6], "dtype": "float32", "low": 0, "high": 1},
    {"type": "Discrete", "n": 2**62, "start": 0, "dtype": "int64"},
    {"a": {"b": {"c": {}}}},
]


def base_runs(directory: Path) -> list[Path]:
    """Return small runs of three families: without a replay, with one, and with trajectories and a search."""
    short: dict[str, Any] = {"eval_interval": None, "torch_threads": 1, "checkpoint_interval": 16}
    normalised = {"normalize_observation": True, "normalize_reward": True}
    configs = [
        tiny_config(
            directory / "ppo",
            total_timesteps=16,
            algo_kwargs={"num_steps": 4, "minibatch_size": 8, "hidden_sizes": [8]},
            env_kwargs=normalised,
            early_stopping={"patience": 99},
            **short,
        ),
        off_policy_config(
            "dqn",
            directory / "dqn",
            algo_kwargs={"prioritized": True, "n_step": 2, "learning_starts": 8, "batch_size": 4},
            total_timesteps=24,
            **short,
        ),
        tiny_config(
            directory / "muzero",
            algo="gumbel_muzero",
            algo_kwargs={**SMALL_PLANNING, "num_simulations": 2, "learning_starts": 8, "batch_size": 4},
            total_timesteps=16,
            **short,
        ),
    ]
    return [train(config).run_dir for config in configs]


# -- changing ------------------------------------------------------------------------------------------


def places(tree: Any, avoid: tuple[str, ...] = ()) -> list[tuple[Any, Any]]:
    """Return (container, key) of every value in a tree of JSON, but for what is below some keys of the whole."""
    keys = list(tree) if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ()
    return [place for key in keys if key not in avoid for place in [(tree, key), *places(tree[key])]]


def change_json(tree: Any, draw: random.Random, avoid: tuple[str, ...] = ()) -> None:
    """Replace, remove, add or exchange one value."""
    every = places(tree, avoid)
    container, key = draw.choice(every)
    kind = draw.random()
    if kind < 0.15:
        del container[key]
    elif kind < 0.25 and isinstance(container[key], dict):
        container[key]["added"] = draw.choice(VALUES)
    elif kind < 0.35:
        other, other_key = draw.choice(every)
        container[key] = json.loads(json.dumps(other[other_key]))
    else:
        container[key] = draw.choice(VALUES)


def change_file_of_json(path: Path, draw: random.Random, avoid: tuple[str, ...] = ()) -> None:
    """Change a value, or the text itself, of a JSON file."""
    if draw.random() < 0.1:
        depth = draw.choice([120, 30_000])
        path.write_text(draw.choice(["[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth, "1" * 5000, "[]"]))
        return
    tree = json.loads(path.read_text())
    change_json(tree, draw, avoid)
    path.write_text(json.dumps(tree))


def change_tensors(path: Path, draw: random.Random) -> None:
    """Change the header of a safetensors file, or the numbers behind it."""
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header, body = json.loads(raw[8 : 8 + size]), bytearray(raw[8 + size :])
    kind = draw.random()
    if kind < 0.35:
        change_json(header, draw)
    elif kind < 0.6:  # another shape or type of the same bytes, which only the component can notice
        entry = header[draw.choice([name for name in header if name != "__metadata__"])]
        if draw.random() < 0.5:
            count = int(np.prod(entry["shape"], dtype=int))
            entry["shape"] = draw.choice([[count], [1, count], [count, 1], [*entry["shape"], 1]])
        else:
            entry["dtype"] = draw.choice(
                ["F32", "I32", "U32", "F16", "BF16", "I64", "F64", "BOOL", "U8", "F8_E4M3", "X"]
            )
    elif body:
        start = draw.randrange(len(body))
        length = min(len(body) - start, draw.choice([1, 4, 8, 64]))
        body[start : start + length] = draw.choice([b"\xff" * length, bytes(length), draw.randbytes(length)])
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(body))


def spoil(path: Path, draw: random.Random) -> None:
    """Put something in place of a file that is no such file."""
    content = path.read_bytes()
    kind = draw.choice(["empty", "cut", "noise", "pickle", "missing", "directory", "pipe", "device", "loop", "sparse"])
    path.unlink()
    if kind in ("empty", "cut", "noise", "pickle"):
        parts = {"empty": b"", "cut": content[: len(content) // 2], "noise": draw.randbytes(200)}
        path.write_bytes(parts[kind] if kind in parts else pickle.dumps(Bomb()))
    elif kind == "directory":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind in ("device", "loop"):
        path.symlink_to("/dev/zero" if kind == "device" else path.name)
    elif kind == "sparse":
        with path.open("wb") as file:
            file.truncate(1 << 40)


def hash_anew(run: Path) -> None:
    """Make the manifest's hashes those of the files as they are, as an attacker would."""
    manifest_path = last_checkpoint(run) / "manifest.json"
    manifest = json.loads(manifest_path.read_text())
    with contextlib.suppress(KeyError, TypeError, AttributeError, OSError):
        for name, entry in manifest["files"].items():
            entry.update(_entry(manifest_path.parent / name))
    with contextlib.suppress(KeyError, TypeError, AttributeError, OSError):
        for entry in manifest["segments"]:
            entry.update(_entry(run / SEGMENTS / entry["name"]))
    manifest_path.write_text(json.dumps(manifest))


def _entry(path: Path) -> dict[str, Any]:
    if not path.is_file() or path.stat().st_size > 1 << 30:
        return {}
    return {"size": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def mutate(run: Path, draw: random.Random, *, to_resume: bool) -> str:
    """Change one thing in a run and return what."""
    checkpoint = last_checkpoint(run)
    kind = draw.choice(["manifest", "state", "state", "tensors", "segment", "metadata", "spoil"])
    segments = sorted((run / SEGMENTS).iterdir()) if (run / SEGMENTS).is_dir() else []
    if kind == "segment" and not segments:
        kind = "tensors"
    if kind == "manifest":
        # What a configuration asks of a run that goes on is checked with every configuration, not here.
        change_file_of_json(checkpoint / "manifest.json", draw, ("config", "env_id") if to_resume else ("env_id",))
    elif kind == "metadata":
        change_file_of_json(run / "metadata.json", draw)
    elif kind == "spoil":
        files = [*checkpoint.iterdir(), *segments, run / "metadata.json", run / "metrics.jsonl"]
        spoil(draw.choice(sorted(files)), draw)
    else:
        if kind == "state":
            change_file_of_json(checkpoint / "state.json", draw)
        else:
            change_tensors(checkpoint / "tensors.safetensors" if kind == "tensors" else draw.choice(segments), draw)
        if draw.random() < 0.95:
            hash_anew(run)
    return kind


# -- judging -------------------------------------------------------------------------------------------


def use(run: Path, way: str) -> None:
    """Use a run as its owner would."""
    if way == "load_policy":
        policy = load_policy(run)
        policy.predict(np.zeros(policy.observation_space.shape or (), np.float32))
    elif way == "evaluate":
        evaluate(run, num_episodes=1)
    else:
        resume(run, total_timesteps=40, eval_episodes=0)


def try_case(run: Path, way: str) -> str:
    """Use a run and return `refused` or `harmless`; anything but an error for the user is raised."""
    signal.signal(signal.SIGALRM, _too_slow)
    signal.alarm(SECONDS_PER_CASE)
    try:
        use(run, way)
    except AxiomError as error:
        refusal: AxiomError = error
    else:
        return "harmless"
    finally:
        signal.alarm(0)
    assert 0 < len(str(refusal)) < LONGEST_MESSAGE, f"a message of {len(str(refusal))} characters"
    cause: BaseException | None = refusal
    while cause is not None:
        assert not isinstance(cause, MemoryError | RecursionError), f"refused only by its size: {refusal}"
        assert "allocate memory" not in str(cause), f"refused only by its size: {refusal}"
        cause = cause.__cause__
    return "refused"


def _too_slow(number: int, frame: Any) -> None:
    raise TimeoutError("the case takes too long")


def cases(bases: list[Path], directory: Path, count: int, seed: int) -> Iterator[tuple[str, str, Callable[[], str]]]:
    """Yield a name, a way of using the run and a function that tries it, each with its own changed copy."""
    for number in range(count):
        draw = random.Random(f"{seed}/{number}")
        base = draw.choice(bases)
        way = draw.choices(["load_policy", "evaluate", "resume"], [3, 1, 3])[0]
        run = Path(shutil.copytree(base, directory / "case" / base.name, symlinks=True))
        kind = mutate(run, draw, to_resume=way == "resume")
        yield f"{seed}/{number} {base.name.split('_')[0]} {kind}", way, partial(try_case, run, way)
        shutil.rmtree(directory / "case")


FORBIDDEN = ("os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "pickle.find_class", "socket.connect")


def watch(directory: Path) -> list[str]:
    """Note from now on whatever executes something, or writes and deletes outside of a directory."""
    seen: list[str] = []
    inside = str(directory)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in FORBIDDEN:
            seen.append(f"{event} {arguments!r:.200}")
        elif event in ("os.remove", "os.rmdir", "os.rename", "os.truncate", "shutil.rmtree"):
            named = isinstance(arguments[0], str | Path) and -1 in (*arguments[1:], -1 if len(arguments) == 1 else 0)
            if named and not os.path.abspath(arguments[0]).startswith(inside):
                seen.append(f"{event} {arguments[0]}")

    sys.addaudithook(hook)
    return seen


def main() -> int:
    """Try many cases in this process and print what came of them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--cases", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    bases = base_runs(options.directory / "bases")
    for way in ("load_policy", "evaluate", "resume"):  # what is imported on first use is not an attack
        for base in bases:
            run = Path(shutil.copytree(base, options.directory / "case" / base.name, symlinks=True))
            assert try_case(run, way) == "harmless"
            shutil.rmtree(options.directory / "case")
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + MEMORY, mapped + MEMORY))
    seen = watch(options.directory)
    outcomes: Counter[str] = Counter()
    started, failures = time.monotonic(), []
    for name, way, attempt in cases(bases, options.directory, options.cases, options.seed):
        try:
            outcomes[f"{way} {attempt()}"] += 1
        except BaseException as error:
            frames = traceback.extract_tb(error.__traceback__)
            place = " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames[::-1][:4])
            failures.append(f"{name} {way}: {type(error).__name__}: {str(error)[:150]} at {place}")
    print(json.dumps({"cases": options.cases, "outcomes": outcomes, "seconds": round(time.monotonic() - started)}))
    print("\n".join([*failures, *sorted(set(seen))]))
    return 1 if failures or seen else 0


if __name__ == "__main__":
    sys.exit(main())

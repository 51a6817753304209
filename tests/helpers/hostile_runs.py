"""Run directories that somebody has damaged or made up, by a seeded generator: for tests of what reads them."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fake_runs import fake_run
from rl_training.experiment.configuration.safe_yaml import parse_yaml
from rl_training.experiment.runs import CONFIG, METADATA, METRICS

ESCAPE = "\x1b[31m"
FORGED = "eval_return_mean=9999"
FILES = (METADATA, CONFIG, METRICS)


def nested(depth: int) -> Any:
    """Return lists inside each other."""
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 2**63, 2**70, 10**200, -(10**200), 0.5, -0.0, 1e-308, 1e99, 1e308, -1e308),
    *(float("nan"), float("inf"), float("-inf"), "", "x", "=1+1", "-1", "<script>alert(1)</script>", "a|b`*_[x](y)"),
    *(f"exact\n{FORGED}", f"exact\r{FORGED}\r\n", f"{ESCAPE}red", "\u202egnp.exe", "\u2028line", "\x00", "\ud800"),
    *("x" * 10_000, [], {}, [1], ["a", None], {"a": 1}, {"a": {"b": [1, {"c": None}]}}, nested(50), nested(500)),
    *([{"env_id": "a"}, {"env_id": "a"}], [{"env_id": "a", "random_return": 1e308, "target_return": -1e308}]),
    *(
        [{"env_id": "a", "random_return": 0.0, "target_return": 1e-300}],
        list(range(1000)),
        "checkpoints/step_" + "9" * 40,
    ),
)
KEYS = ("name", "tags", "preset", "env_kwargs", f"a\n{FORGED}", f"{ESCAPE}key", "eval_return_mean", "tasks", "<b>", "")
TEXTS = (
    *("", "{", "[]", "null", "\x00" * 10, "\ufeff{}", "{" * 25_000, "[" * 25_000 + "]" * 25_000, '{"a":' * 2_000),
    *("a: &a [*a]", "!!python/object/apply:os.abort []", f'x: "{FORGED}"\n{FORGED}\n', "- " * 3_000, "1" * 10_000),
    "a: &a {b: 1, c: 2}\n"
    + "".join(f"{y}: &{y} {{<<: [{','.join([f'*{x}'] * 40)}]}}\n" for x, y in zip("abcdef", "bcdefg", strict=True)),
)


def hostile_run(root: Path, seed: int, generator: random.Random) -> Path:
    """Write a run and damage it in one to three ways."""
    env_id = generator.choice(("CartPole-v1", "CartPole-v1", "Of-No-Suite-v0"))
    changes = {"name": "mine", "tags": ["a", "b"], "env_id": env_id, "env_kwargs": {"tasks": None}}
    run_dir = fake_run(
        root, seed, float(seed), rows=12, changes=changes, status=generator.choice(("completed", "failed"))
    )
    for _ in range(generator.randint(1, 3)):
        harm = generator.choice((_change_field, _change_field, _change_field, _replace_file, _change_bytes))
        harm(run_dir / generator.choice(FILES), generator)
    return run_dir


def _change_field(file: Path, generator: random.Random) -> None:
    """Set, remove or add a field somewhere in the file's data; what is no data any more stays as it is."""
    if not file.is_file() or file.is_symlink():
        return
    try:
        if file.name == METRICS:
            lines = file.read_text().splitlines()
            number = generator.randrange(len(lines))
            lines[number] = _changed(json.loads(lines[number]), generator)
            file.write_text("\n".join(lines) + "\n")
        elif file.name == METADATA:
            file.write_text(_changed(json.loads(file.read_text()), generator))
        else:
            file.write_text(_changed(parse_yaml(file.read_text(), CONFIG, quick=True), generator))
    except Exception:  # an earlier harm has left no data
        return


def _changed(content: Any, generator: random.Random) -> str:
    block = content
    while True:
        inner = [value for value in block.values() if isinstance(value, dict) and value]
        if not inner or generator.random() < 0.6:
            break
        block = generator.choice(inner)
    key = generator.choice(list(block)) if generator.random() < 0.8 else generator.choice(KEYS)
    if generator.random() < 0.1:
        block.pop(key, None)
    else:
        block[key] = generator.choice(VALUES)
    return json.dumps(content)


def _replace_file(file: Path, generator: random.Random) -> None:
    replacements: tuple[Callable[[], object], ...] = (
        lambda: os.mkfifo(file),
        lambda: file.symlink_to("/dev/zero"),
        lambda: file.symlink_to(file.name),
        file.mkdir,
        lambda: None,
        lambda: file.write_bytes(generator.randbytes(200)),
        *(lambda text=text: file.write_text(text) for text in TEXTS),
    )
    if file.is_dir() and not file.is_symlink():
        return
    file.unlink(missing_ok=True)
    generator.choice(replacements)()


def _change_bytes(file: Path, generator: random.Random) -> None:
    if not file.is_file() or file.is_symlink() or not file.stat().st_size:
        return
    data = bytearray(file.read_bytes())
    if generator.random() < 0.5:
        del data[generator.randrange(len(data)) :]
    else:
        for _ in range(generator.randint(1, 8)):
            data[generator.randrange(len(data))] = generator.randrange(256)
    file.write_bytes(bytes(data))

"""What the pages of results share: parts of tables, and how stored summaries are named, repeated and versioned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_VERSIONS_SHOWN = (
    *("axiomrl", "torch", "gymnasium"),
    *("stable_baselines3", "sbx-rl", "cleanrl", "mctx", "jax", "LightZero", "envpool", "mujoco", "ale-py", "Box2D"),
)


def heading(*columns: str) -> list[str]:
    """Return the first two lines of a table."""
    return [row(*columns), f"|{'---|' * len(columns)}"]


def row(*cells: object) -> str:
    """Return one line of a table."""
    return f"| {' | '.join(map(str, cells))} |"


def span(values: Sequence[int]) -> str:
    """Return one number, or the smallest and the largest of several."""
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def score_text(value: float) -> str:
    """Return a score with as many digits as are worth reading."""
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def repeat_command(entry: dict[str, Any]) -> str:
    """Return the command that trains every stored seed; that of a preset may be stored for the last seed only."""
    if "preset" not in entry or "offline.py" in entry["command"]:
        return str(entry["command"])
    seeds = ",".join(str(run["seed"]) for run in sorted(entry["runs"], key=lambda run: run["seed"]))
    command = f"python benchmarks/learning.py --preset {entry['preset']} --seeds {seeds}"
    if "--total-timesteps" in entry["command"]:
        command += f" --total-timesteps {entry['config']['total_timesteps']}"
    return command


def package_versions(entries: Sequence[dict[str, Any]], packages: Sequence[str] = _VERSIONS_SHOWN) -> str:
    """Return every version that took part, by package."""
    shown = []
    for name in packages:
        found = {entry["versions"].get(name) for entry in entries} - {None}
        if found:
            shown.append(f"{name} {' and '.join(sorted(found))}")
    return ", ".join(shown)


def machine(entries: Sequence[dict[str, Any]]) -> str:
    """Return the Python and the processors of some results."""
    python = " and ".join(sorted({entry["machine"]["python"] for entry in entries}))
    processor = " and ".join(sorted({_processor(entry["machine"]) for entry in entries}))
    return f"Python {python} on {processor}"


def _processor(machine: dict[str, Any]) -> str:
    """Return the processor in words; older results know its architecture alone."""
    if not machine.get("model"):
        return str(machine["processor"])
    return f"{machine['processor']} ({machine['model']}, {machine['cores']} cores)"


def versions(entries: Sequence[dict[str, Any]]) -> list[str]:
    """Return the line about where some results come from."""
    return [f"Versions: {machine(entries)}, {package_versions(entries)}."]

"""Numba's cache does not notice changes in functions that a cached one calls: drop what is older than any source."""

from pathlib import Path

import rl_training.search

_package = Path(rl_training.search.__file__).parent
_changed = max(source.stat().st_mtime for source in _package.glob("*.py"))
for _index in _package.glob("__pycache__/*.nbi"):
    if _index.stat().st_mtime < _changed:
        _index.unlink()

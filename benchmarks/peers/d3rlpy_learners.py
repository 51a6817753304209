"""d3rlpy as a peer of the offline algorithms, for their speed and for tests that compare updates.

d3rlpy's newest release pins an old Gymnasium, and an older one takes packages that we do not need, so it is installed
beside ours:

    pip install --target build/d3rlpy --no-deps d3rlpy==2.8.0 gym==0.26.2 gym-notices==0.1.0 colorama==0.4.6 \\
        dataclasses-json==0.6.7 marshmallow==3.26.2 typing-inspect==0.9.0 structlog==26.1.0
    pip install scikit-learn

Its `get_minari` joins the T + 1 observations of an episode with its T actions, so it is handed arrays instead.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from records import PEERS

FOLDER = PEERS / "d3rlpy"
CONFIGURATIONS = {"td3_bc": "TD3PlusBCConfig", "iql": "IQLConfig"}


@cache
def why_missing() -> str | None:
    """Return why d3rlpy cannot learn here, or None where it can."""
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))  # last: what both sides need is ours
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # gym announces there that nobody maintains it
            import d3rlpy  # noqa: F401
    except ImportError as error:
        return f"d3rlpy is not installed in build/d3rlpy: see benchmarks/peers/d3rlpy_learners.py ({error})"
    return None


def dataset_of(episodes: Sequence[Mapping[str, np.ndarray]]) -> Any:
    """Return episodes as d3rlpy holds them; it has no final observations, which its algorithms do not use."""
    import d3rlpy

    joined = {
        name: np.concatenate([episode[name] for episode in episodes])
        for name in ("observations", "actions", "rewards", "terminals", "timeouts")
    }
    return d3rlpy.dataset.MDPDataset(**joined)


def make_learner(algo: str, **settings: Any) -> Any:
    """Return one of d3rlpy's algorithms with its defaults, which are ours, and normalised observations."""
    import d3rlpy

    scaler = d3rlpy.preprocessing.StandardObservationScaler()
    return getattr(d3rlpy.algos, CONFIGURATIONS[algo])(observation_scaler=scaler, **settings).create()


def learn(learner: Any, dataset: Any, updates: int) -> None:
    """Make updates without files, evaluations and progress bars."""
    from d3rlpy.logging import NoopAdapterFactory

    learner.fit(
        dataset,
        n_steps=updates,
        n_steps_per_epoch=updates,
        logger_adapter=NoopAdapterFactory(),
        show_progress=False,
        save_interval=updates + 1,
    )

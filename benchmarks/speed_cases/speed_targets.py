"""What the package is to reach: ratios by benchmark, as medians of at least `ROUNDS` rounds."""

from __future__ import annotations

from speed_cases.training_cases import BEST_THREADS

ROUNDS = 5
_SB3, _SBX = "stable-baselines3", "SBX"
TARGETS: dict[str, dict[str, float]] = {
    "ppo": {_SB3: 5.0, _SBX: 2.5},
    "ppo-long": {_SB3: 4.5, _SBX: 2.5},
    "ppo-halfcheetah": {_SB3: 3.0},
    "ppo-pong": {_SB3: 1.5},
    "recurrent": {_SB3: 3.0},
    "dqn": {_SB3: 5.0},
    "sac": {_SB3: 2.0, BEST_THREADS: 1.15},
    "td3": {_SB3: 2.0},
    "efficientzero": {"itself before": 4.0},
    "search": {f"gumbel {size}: mctx": 1.3 for size in ("1x25", "8x25", "64x50")},
    "export": {"ppo, 2x64, normalised": 2.0, "sac, 2x256": 2.0, "loading: import torch": 10.0},
    "seeds": {"stable-baselines3, one seed after another": 10.0},
}

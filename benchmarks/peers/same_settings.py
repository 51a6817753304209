"""What the peers cannot do is refused: a comparison whose settings differ would say nothing."""

from __future__ import annotations

from typing import Any

from rl_training.experiment.schedules import as_schedule

PLAIN_DQN: dict[str, Any] = {
    "double": False,
    "dueling": False,
    "prioritized": False,
    "noisy": False,
    "distribution": "none",
    "repeat_exponent": None,
}
PLAIN_SAC: dict[str, Any] = {
    "target_network": True,
    "policy_delay": 1,
    "num_quantiles": 1,
    "target_critics": None,
    "policy_value": "min",
    "critic_layer_norm": False,
    "critic_dropout": 0.0,
    "batch_norm": False,
    "max_grad_norm": None,
    "optimizer_eps": 1e-8,  # of the temperature too, whose optimizer takes no setting from peers
}


def refuse(peer: str, params: Any, **expected: Any) -> None:
    """Refuse options that a peer lacks, unless they are set to what it does."""
    different = [f"{key} {getattr(params, key)}" for key, value in expected.items() if getattr(params, key) != value]
    if different:
        raise ValueError(f"{peer} has no {', '.join(different)}")


def linear(peer: str, params: Any, key: str, total_timesteps: int) -> tuple[float, float, float]:
    """Return where a scalar starts and ends, and the share of the run in between; peers know no other schedule."""
    if getattr(params, f"{key}_warmup_steps"):
        raise ValueError(f"{peer} has no warm-up of {key}")
    fixed, schedule = getattr(params, key), getattr(params, f"{key}_schedule")
    if schedule is None:
        return float(fixed), float(fixed), 1.0
    shape = as_schedule(schedule)
    if shape.type != "linear":
        raise ValueError(f"{peer} has no {shape.type} schedule of {key}")
    duration = 1.0 if shape.duration is None else shape.duration
    share = duration if duration <= 1 else duration / total_timesteps
    return float(fixed if shape.start is None else shape.start), shape.end or 0.0, share


def linear_to_the_end(peer: str, params: Any, key: str, total_timesteps: int) -> tuple[float, float]:
    """Return where a scalar starts, and where it ends with the run."""
    start, end, share = linear(peer, params, key, total_timesteps)
    if share != 1:
        raise ValueError(f"{peer} has no schedule of {key} that lasts for a share of {share:g} of the run")
    return start, end

"""What `offline.py` trains, by task: presets of offline algorithms, changes of them, and the peer beside them."""

from __future__ import annotations

from learning_suites import Cell
from records import D3RLPY, OURS

BOTH = (OURS, D3RLPY)
# Half of every batch from the dataset, and critics with layer normalisation (RLPD, which makes 20 updates per step: two
# are as many in half the steps as SAC makes in all).
ONE_UPDATE = ("algo_kwargs.dataset_fraction=0.5", "algo_kwargs.critic_layer_norm=true")
FROM_A_DATASET = (*ONE_UPDATE, "algo_kwargs.gradient_steps=2")
# Without its penalty, and with SAC's targets, conservative Q-learning is SAC.
PLAIN_SAC = ("algo_kwargs.conservative_weight=0.0", "algo_kwargs.soft_target=true", "algo_kwargs.action_samples=1")


def _cell(
    preset: str,
    *changes: str,
    label: str = "",
    sides: tuple[str, ...] = (OURS,),
    seeds: tuple[int, ...] = (1, 2, 3, 4, 5),
) -> Cell:
    return Cell(preset, changes, label, sides, seeds=seeds, suite="offline")


TEN, TWENTY = tuple(range(1, 11)), tuple(range(1, 21))
"""Where five seeds a side could not tell the sides apart; TD3+BC's final policies vary most."""

CELLS = {
    "pendulum": (
        _cell("bc-pendulum", sides=BOTH, seeds=TEN),
        _cell("bc-pendulum", "dataset=pendulum/medium-replay-v0", label="replay"),
        _cell("bc-pendulum", "dataset=pendulum/medium-replay-v0", "algo_kwargs.top_fraction=0.1", label="top10"),
        _cell("td3_bc-pendulum", sides=BOTH, seeds=TWENTY),
        _cell("iql-pendulum", sides=BOTH),
        _cell("cql-pendulum", "dataset=pendulum/expert-v0", *PLAIN_SAC, label="plain_sac"),
        _cell("cql-pendulum", sides=BOTH),
        _cell("rebrac-pendulum"),
    ),
    "cartpole": (_cell("bc-cartpole", sides=BOTH), _cell("discrete_cql-cartpole", sides=BOTH)),
    "hopper": (
        _cell("td3_bc-hopper", sides=BOTH),
        _cell("iql-hopper", sides=BOTH),
    ),
    "pendulum-online": (
        _cell(
            "sac-pendulum",
            *("dataset=pendulum/expert-v0", *FROM_A_DATASET, "total_timesteps=10_000", "eval_interval=1_000"),
            label="from_dataset",
        ),
        # What was tried first: an update per step, as SAC.
        _cell(
            "sac-pendulum",
            *("dataset=pendulum/expert-v0", *ONE_UPDATE, "total_timesteps=10_000", "eval_interval=1_000"),
            label="one_update",
            seeds=(1, 2, 3, 4),
        ),
    ),
    "hopper-online": (
        _cell(
            "sac-hopper",
            *("dataset=hopper/expert-v0", *FROM_A_DATASET, "total_timesteps=50_000", "eval_interval=5_000"),
            label="from_dataset",
            seeds=(1, 2, 3),
        ),
    ),
}

"""What `offline.py` trains, by task: presets of offline algorithms, changes of them, and the peer beside them."""

from __future__ import annotations

from learning_suites import ZOO_SAC, Cell
from records import D3RLPY, OURS

BOTH = (OURS, D3RLPY)
# Half of every batch from the dataset (RLPD).
FROM_A_DATASET = ("algo_kwargs.dataset_fraction=0.5",)
LAYER_NORM = ("algo_kwargs.critic_layer_norm=true",)
TWICE = ("algo_kwargs.gradient_steps=2",)
"""As many updates in half of the steps; RLPD makes twenty."""
FOUR_TIMES = ("algo_kwargs.gradient_steps=4",)
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


def _online(source: str, steps: int) -> tuple[str, ...]:
    """Return the changes of a preset that begins with the expert's dataset of a source, for half of SAC's steps."""
    length = (f"total_timesteps={steps}", f"eval_interval={steps // 10}")
    return (f"dataset={source}/expert-v0", *FROM_A_DATASET, *length)


TEN, TWENTY, THIRTY = (tuple(range(1, count + 1)) for count in (10, 20, 30))
"""Where five seeds a side could not tell the sides apart; final policies on medium-replay vary most."""

CELLS = {
    "pendulum": (
        _cell("bc-pendulum", sides=BOTH, seeds=TEN),
        _cell("bc-pendulum", "dataset=pendulum/medium-replay-v0", label="replay"),
        _cell("bc-pendulum", "dataset=pendulum/medium-replay-v0", "algo_kwargs.top_fraction=0.1", label="top10"),
        _cell("td3_bc-pendulum", sides=BOTH, seeds=TWENTY),
        _cell("iql-pendulum", sides=BOTH, seeds=THIRTY),
        _cell("cql-pendulum", "dataset=pendulum/expert-v0", *PLAIN_SAC, label="plain_sac"),
        _cell("cql-pendulum", sides=BOTH, seeds=THIRTY),
        _cell("rebrac-pendulum"),
    ),
    "cartpole": (_cell("bc-cartpole", sides=BOTH), _cell("discrete_cql-cartpole", sides=BOTH)),
    "hopper": (
        _cell("td3_bc-hopper", sides=BOTH),
        _cell("iql-hopper", sides=BOTH),
    ),
    # SAC alone is nearly as good at half of its steps. What is left to gain takes updates, not data.
    "pendulum-online": (
        _cell("sac-pendulum", *_online("pendulum", 10_000), *FOUR_TIMES, label="from_dataset_four_updates"),
        _cell("sac-pendulum", *_online("pendulum", 10_000), label="from_dataset"),
        _cell("sac-pendulum", *_online("pendulum", 10_000), *LAYER_NORM, label="from_dataset_layer_norm"),
    ),
    "hopper-online": (
        _cell(
            "sac-hopper",
            *(*ZOO_SAC, *_online("hopper", 50_000), *LAYER_NORM, *TWICE),
            label="from_dataset",
            seeds=(1, 2, 3),
        ),
    ),
}

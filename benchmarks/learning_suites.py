"""What `learning.py` trains: presets, and what is changed in them so that a comparison fits into its time."""

from __future__ import annotations

from dataclasses import dataclass, replace

from records import OURS, SB3

SEEDS = (1, 2, 3, 4, 5)


@dataclass(frozen=True)
class Cell:
    """One comparison: a preset, and what is changed so that both sides can do it within the suite's time."""

    preset: str
    changes: tuple[str, ...] = ()
    """As `--set` writes them."""
    label: str = ""
    """Tells the changed preset from the packaged one."""
    sides: tuple[str, ...] = (OURS, SB3)
    total_timesteps: int | None = None
    """The budget among the changes where the command line gives it."""
    seeds: tuple[int, ...] = SEEDS
    peer_seeds: tuple[int, ...] | None = None
    """Where the peer, which takes longer, is trained on fewer."""
    suite: str = "full"
    """Which suite trains it."""
    variant: str = ""
    """What tells the algorithm with other options apart, in words for tables."""
    beside_other_lengths: bool = False
    """Whether one picture shows it with trainings of other lengths: how many steps each algorithm needs."""

    @property
    def name(self) -> str:
        """The preset, and how it is changed."""
        return f"{self.preset}-{self.label}" if self.label else self.preset

    def seeds_of(self, side: str) -> tuple[int, ...]:
        """Return the seeds that a side is trained on."""
        return self.seeds if side == OURS or self.peer_seeds is None else self.peer_seeds


# Smaller networks and batches than the presets', so that a short budget learns something in little time.
SHORT_LANDER = (
    "total_timesteps=60_000",
    "eval_interval=6_000",
    "algo_kwargs.learning_starts=2_000",
    "algo_kwargs.hidden_sizes=[64,64]",
    "algo_kwargs.batch_size=128",
)
CELLS = (
    Cell("ppo-cartpole"),
    Cell("ppo-pendulum"),
    Cell("ppo-mountaincar"),
    # With the preset's rollouts of 16,384 steps a fifth of its budget would be over before anything is learned.
    Cell(
        "ppo-lunarlander",
        ("total_timesteps=200_000", "eval_interval=20_000", "algo_kwargs.num_steps=128"),
        "short",
    ),
    Cell("dqn-cartpole"),
    # Random actions that last are ours alone; without them the settings are nearly RL Zoo's.
    Cell("dqn-mountaincar", ("algo_kwargs.repeat_exponent=null",), "plain"),
    Cell("dqn-lunarlander", ("total_timesteps=50_000", "eval_interval=5_000"), "short"),
    Cell("sac-pendulum"),
    # Some seeds land and the others hover, on both sides: five of them left all open.
    Cell("sac-lunarlandercontinuous", SHORT_LANDER, "short", seeds=tuple(range(1, 11))),
    Cell("td3-pendulum"),
    Cell("td3-lunarlandercontinuous", SHORT_LANDER, "short"),
    Cell("muzero-cartpole", sides=(OURS,)),
    Cell("gumbel_muzero-cartpole", sides=(OURS,)),
    Cell("efficientzero-cartpole", sides=(OURS,)),
)
QUICK = (
    Cell("ppo-cartpole", ("total_timesteps=20_000",), "quick", seeds=(1, 2)),
    Cell("dqn-cartpole", ("total_timesteps=10_000",), "quick", seeds=(1, 2)),
    Cell("sac-pendulum", ("total_timesteps=2_500",), "quick", seeds=(1, 2)),
)

# The same settings by autograd and by the kernels that stand in for it: both must learn.
ACCELERATION = tuple(
    Cell(
        preset,
        (*changes, f"acceleration={acceleration}"),
        f"acceleration-{acceleration}",
        (OURS,),
        seeds=(1, 2, 3),
        suite="acceleration",
    )
    for preset, changes in {
        "ppo-cartpole": (),
        "dqn-cartpole": (),
        "sac-pendulum": ("total_timesteps=10_000",),
        "td3-pendulum": ("total_timesteps=10_000",),
        "gumbel_muzero-cartpole": ("total_timesteps=12_000",),
    }.items()
    for acceleration in ("auto", "off")
)


def _proof(
    preset: str,
    steps: int,
    label: str = "",
    ours: int = 3,
    peers: int = 0,
    changes: tuple[str, ...] = (),
    variant: str = "",
    beside_other_lengths: bool = False,
) -> Cell:
    """Return a comparison at a length that counts: evaluated twenty times, and resumable from as many checkpoints."""
    interval = steps // 20
    every = (f"total_timesteps={steps}", f"eval_interval={interval}", f"checkpoint_interval={interval}")
    sides = (OURS, SB3) if peers else (OURS,)
    seeds, peer_seeds = (tuple(range(1, count + 1)) for count in (ours, peers))
    return Cell(
        preset,
        (*changes, *every),
        label,
        sides,
        seeds=seeds,
        peer_seeds=peer_seeds,
        suite="proof",
        variant=variant,
        beside_other_lengths=beside_other_lengths,
    )


_ZOO = "RL Zoo's settings"
# Which the preset had before, and which learn to stand still: the policy begins with little noise.
_ZOO_HOPPER = (
    "algo_kwargs.learning_rate=9.80828e-05",
    "algo_kwargs.learning_rate_schedule=null",
    "algo_kwargs.num_steps=512",
    "algo_kwargs.minibatch_size=32",
    "algo_kwargs.update_epochs=5",
    "algo_kwargs.gamma=0.999",
    "algo_kwargs.gae_lambda=0.99",
    "algo_kwargs.ent_coef=0.00229519",
    "algo_kwargs.vf_coef=0.835671",
    "algo_kwargs.max_grad_norm=0.7",
    "algo_kwargs.hidden_sizes=[256,256]",
    "algo_kwargs.activation=relu",
    "algo_kwargs.orthogonal_init=false",
    "algo_kwargs.log_std_init=-2.0",
)
ZOO_SAC = ("env_kwargs.normalize_observation=false", "algo_kwargs.learning_rate_schedule=null")
"""RL Zoo's settings, which the preset had before."""
# In the order of what people look at first: where hours run out, the end is missing.
PROOF = (
    _proof("ppo-hopper", 1_000_000, "1m", ours=10, peers=10),
    _proof("ppo-hopper", 1_000_000, "zoo-1m", ours=5, changes=_ZOO_HOPPER, variant=_ZOO),
    _proof("ppo-halfcheetah", 1_000_000, "1m", ours=5, peers=3),
    _proof("sac-hopper", 200_000, "200k", ours=3, peers=2),
    _proof("sac-hopper", 200_000, "zoo-200k", changes=ZOO_SAC, variant=_ZOO),
    _proof("sac-hopper", 100_000, "100k"),
    _proof("crossq-hopper", 100_000, "100k"),
    _proof(
        "crossq-hopper",
        100_000,
        "falling_rate-100k",
        changes=("algo_kwargs.learning_rate_schedule=linear",),
        variant="falling learning rate",
    ),
    _proof(
        "sac-hopper",
        100_000,
        "layer_norm-100k",
        changes=(*ZOO_SAC, "algo_kwargs.critic_layer_norm=true"),
        variant="LayerNorm in the critics",
    ),
    # Two updates per step; the paper's twenty would take ten times as long.
    _proof(
        "droq-hopper",
        100_000,
        "two_updates-100k",
        changes=("algo_kwargs.gradient_steps=2", "algo_kwargs.policy_delay=2"),
        variant="two updates per step",
    ),
    _proof("ppo-lunarlander", 1_000_000, "1m", ours=20, peers=10),
    _proof("dqn-lunarlander", 100_000, "100k", ours=10, peers=10),
    _proof("gumbel_muzero-lunarlander", 400_000, "400k", ours=5),
    # The preset's settings before its noise fell.
    Cell(
        "gumbel_muzero-lunarlander",
        (
            "algo_kwargs.gumbel_scale_schedule=null",
            "algo_kwargs.learning_rate_schedule={type: linear, end: 0.0002}",
            "total_timesteps=200000",
            "eval_interval=20000",
        ),
        "steady_noise-200k",
        (OURS,),
        seeds=(1,),
        suite="proof",
        variant="steady noise",
    ),
    # Images of 42 pixels a side instead of 84, whose gradients take half of the time, and twice the learning rate,
    # since the run is a third as long as the preset's.
    _proof(
        "ppo-pong",
        3_000_000,
        "small_images-3m",
        ours=2,
        changes=("env_kwargs.screen_size=42", "algo_kwargs.learning_rate=0.0005", "eval_episodes=5"),
        variant="images of 42x42 pixels",
    ),
    *(
        _proof(f"{algo}-minatar{game}", steps, label, beside_other_lengths=True)
        for algo, steps, label in (("ppo", 1_000_000, "1m"), ("dqn", 500_000, "500k"))
        for game in ("breakout", "spaceinvaders")
    ),
    # The presets' entropy bonus before.
    *(
        _proof(
            f"ppo-minatar{game}",
            1_000_000,
            "small_entropy_bonus-1m",
            changes=("algo_kwargs.ent_coef=0.01",),
            variant="entropy bonus of 0.01",
            beside_other_lengths=True,
        )
        for game in ("breakout", "spaceinvaders")
    ),
    _proof("gumbel_muzero-breakout", 200_000, "200k", ours=2, beside_other_lengths=True),
    _proof("rainbow-minatarbreakout", 500_000, "500k", beside_other_lengths=True),
    _proof("ppo-walker2d", 1_000_000, "1m"),
    _proof("tqc-hopper", 200_000, "200k"),
    _proof("td3-hopper", 200_000, "200k"),
    _proof("sac-lunarlandercontinuous", 300_000, "300k"),
    _proof("td3-lunarlandercontinuous", 300_000, "300k"),
)
# Tasks that need a memory: recurrent policies, those of the peer's contrib package where it can do the same, and the
# usual way without a memory, which sees the last four observations.
_STACKED = ("algo_kwargs.recurrent=null", "algo_kwargs.hidden_sizes=[64,64]", "env_kwargs.frame_stack=4")
_ZOO_PENDULUM = (
    "algo_kwargs.recurrent.type=lstm",
    "algo_kwargs.num_steps=1024",
    "algo_kwargs.learning_rate_schedule=null",
)
MEMORY = (
    Cell("ppo-cartpolenovel", ("algo_kwargs.num_steps=32", "algo_kwargs.update_epochs=20"), "zoo", suite="memory"),
    Cell("ppo-cartpolenovel", sides=(OURS,), suite="memory"),
    # The peer's sequences are as long as its minibatches.
    Cell("ppo-pendulumnovel", (*_ZOO_PENDULUM, "algo_kwargs.recurrent.sequence_length=128"), "zoo", suite="memory"),
    Cell("ppo-pendulumnovel", _ZOO_PENDULUM, "zoo_short", (OURS,), suite="memory"),
    Cell("ppo-pendulumnovel", sides=(OURS,), suite="memory"),
    Cell("ppo-mountaincarcontinuousnovel", sides=(OURS,), suite="memory"),
    Cell("ppo-tmaze", sides=(OURS,), suite="memory"),
    Cell("ppo-tmaze", ("algo_kwargs.recurrent.separate_critic=true",), "separate", (OURS,), suite="memory"),
    *(
        Cell(preset, _STACKED, "stacked", (OURS,), suite="memory")
        for preset in ("ppo-cartpolenovel", "ppo-pendulumnovel", "ppo-mountaincarcontinuousnovel", "ppo-tmaze")
    ),
)
# What a lag costs in learning: each beside the stored results of the same without one, which samplers do not change by
# a bit.
_LAG = ("samplers=1", "policy_lag=1")
_VTRACE = (*_LAG, "algo_kwargs.vtrace=true")
_TWENTY = tuple(range(1, 21))  # ten left open whether a lag costs PPO anything on Pendulum
LAGGED = (
    ("ppo-cartpole", Cell("ppo-cartpole", _LAG, "lag_1", (OURS,), suite="workers")),
    ("ppo-pendulum", Cell("ppo-pendulum", _LAG, "lag_1", (OURS,), seeds=_TWENTY, suite="workers")),
    ("ppo-pendulum", Cell("ppo-pendulum", _VTRACE, "lag_1-vtrace", (OURS,), suite="workers", variant="V-trace")),
    (
        "ppo-lunarlander-1m",
        replace(_proof("ppo-lunarlander", 1_000_000, "lag_1-1m", ours=10, changes=_LAG), suite="workers"),
    ),
    ("sac-pendulum", Cell("sac-pendulum", _LAG, "lag_1", (OURS,), suite="workers")),
)
WORKERS = tuple(cell for _, cell in LAGGED)
SHOWN = (*CELLS, *PROOF)
"""What docs/results.md compares."""

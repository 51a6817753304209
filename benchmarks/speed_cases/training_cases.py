"""What is trained to compare speed: settings, the sides that train with them, and the ratios of the sides.

Everything of this package is imported from its stable names, so that an older checkout can train the same cases.
"""

from __future__ import annotations

from dataclasses import dataclass

from peers.side_process import usable_cores
from records import OURS, SB3
from rl_training import TrainConfig, load_config
from speed_cases.speed_parts import Effort

SBX, CLEANRL, BEFORE = "sbx", "cleanrl", "before"
"""Who trains, beside ours and stable-baselines3; `BEFORE` is an older checkout of this package."""
BEST_THREADS = "SBX, each with its best threads, by the clock"


@dataclass(frozen=True)
class Side:
    """Who trains, and what is set beyond the case's settings."""

    who: str
    changes: tuple[str, ...] = ()
    one_thread: bool = True
    """Whether it computes on one thread of one core, or on as many as it likes."""


@dataclass(frozen=True)
class Ratio:
    """Which sides are compared; of several sides the one with the higher median counts."""

    ours: tuple[str, ...]
    peer: tuple[str, ...]
    by_clock: bool = False
    """Whether the clock's time is compared instead of the processor's."""


@dataclass(frozen=True)
class Case:
    """The same work for several sides."""

    words: str
    preset: str
    settings: tuple[str, ...]
    """As `--set` writes them."""
    sides: dict[str, Side]
    ratios: dict[str, Ratio]
    steps: int
    """Environment steps of one training."""
    quick_steps: int
    warm_up: int = 0
    """Environment steps without updates."""
    left_out: int = 0
    """Environment steps at the start that are not measured: the warm-up, and updates that compile."""
    episodes: int = 20
    """Evaluated after a training; none where its steps are too few to learn anything."""
    needs: tuple[str, ...] = ()
    """Packages of the environment."""

    @property
    def algo(self) -> str:
        """The algorithm's name, with which the names of presets begin."""
        return self.preset.partition("-")[0]

    def config(self, side: Side, seed: int, effort: Effort, directory: str) -> TrainConfig:
        """Return the configuration of one side's training."""
        fixed = {
            "seed": seed,
            "total_timesteps": effort.choose(self.steps, self.quick_steps),
            "eval_episodes": 0,
            "torch_threads": 1 if side.one_thread else usable_cores(),
            "output_dir": directory,
        }
        return load_config(preset=self.preset, overrides=fixed, set_values=(*self.settings, *side.changes))


# CleanRL's network and loss are written down in its script; SBX's DQN does not clip gradients.
_AS_CLEANRL = ("algo_kwargs.hidden_sizes=[120,84]", "algo_kwargs.loss=squared", "algo_kwargs.max_grad_norm=null")
_AS_SBX = ("algo_kwargs.max_grad_norm=null",)
_OURS_AND_SB3 = {"ours": Side(OURS), "stable_baselines3": Side(SB3)}
_AGAINST_SB3 = {"stable-baselines3": Ratio(("ours",), ("stable_baselines3",))}
# Small networks are fastest on one thread; only wide ones are also compared on several.
_SBX_SIDE = {"sbx": Side(SBX)}
_AGAINST_BOTH = {**_AGAINST_SB3, "SBX": Ratio(("ours",), ("sbx",))}
_WIDE_SIDES = {
    **_OURS_AND_SB3,
    **_SBX_SIDE,
    "ours_threads": Side(OURS, one_thread=False),
    "sbx_threads": Side(SBX, one_thread=False),
}
_WIDE_RATIOS = {
    **_AGAINST_BOTH,
    BEST_THREADS: Ratio(("ours", "ours_threads"), ("sbx", "sbx_threads"), by_clock=True),
}

CASES = {
    "ppo": Case(
        words="CartPole-v1, 8 envs, 32 steps, 20 epochs, minibatch 256, 64x64",
        preset="ppo-cartpole",
        settings=(),
        sides={
            **_OURS_AND_SB3,
            **_SBX_SIDE,
            "cleanrl": Side(CLEANRL),
        },
        ratios={
            **_AGAINST_BOTH,
            "CleanRL": Ratio(("ours",), ("cleanrl",)),
        },
        steps=100_000,
        quick_steps=8_000,
        left_out=512,
    ),
    "ppo-long": Case(
        words="CartPole-v1, 8 envs, 256 steps, 10 epochs, minibatch 256, 64x64",
        preset="ppo-cartpole",
        settings=("algo_kwargs.num_steps=256", "algo_kwargs.update_epochs=10"),
        sides={**_OURS_AND_SB3, **_SBX_SIDE},
        ratios=_AGAINST_BOTH,
        steps=102_400,
        quick_steps=10_240,
        left_out=4_096,
    ),
    "ppo-halfcheetah": Case(
        words="HalfCheetah-v5, RL Zoo's settings: 1 env, 512 steps, 20 epochs, minibatch 64, 256x256",
        preset="ppo-halfcheetah",
        settings=(),
        sides=_OURS_AND_SB3,
        ratios=_AGAINST_SB3,
        steps=30_720,
        quick_steps=2_560,
        left_out=1_024,
        episodes=0,
        needs=("mujoco",),
    ),
    "ppo-pong": Case(
        words="ALE/Pong-v5, RL Zoo's settings: 8 envs, 128 steps, 4 epochs, minibatch 256, three convolutions",
        preset="ppo-pong",
        settings=(),
        sides=_OURS_AND_SB3,
        ratios=_AGAINST_SB3,
        steps=8_192,
        quick_steps=2_048,
        episodes=0,
        needs=("ale_py",),
    ),
    "recurrent": Case(
        words="CartPoleNoVel-v1, RL Zoo's settings: 8 envs, 32 steps, 20 epochs, minibatch 256, two LSTMs of 64",
        preset="ppo-cartpolenovel",
        settings=("algo_kwargs.num_steps=32", "algo_kwargs.update_epochs=20"),
        sides=_OURS_AND_SB3,
        ratios=_AGAINST_SB3,
        steps=20_480,
        quick_steps=4_096,
        left_out=512,
        episodes=0,
        needs=("sb3_contrib",),
    ),
    "dqn": Case(
        words="CartPole-v1, 64x64 (against CleanRL 120x84), batch 64, one gradient step per environment step",
        preset="dqn-cartpole",
        settings=(
            "algo_kwargs.learning_rate=5e-4",
            "algo_kwargs.learning_rate_schedule=null",
            "algo_kwargs.n_step=1",
            "algo_kwargs.batch_size=64",
            "algo_kwargs.buffer_size=50_000",
            "algo_kwargs.train_interval=1",
            "algo_kwargs.gradient_steps=1",
            "algo_kwargs.target_update_interval=250",
            "algo_kwargs.epsilon_schedule={type: linear, end: 0.05, duration: 0.5}",
            "algo_kwargs.hidden_sizes=[64,64]",
        ),
        sides={
            **_OURS_AND_SB3,
            "ours_as_sbx": Side(OURS, _AS_SBX),
            "sbx": Side(SBX, _AS_SBX),
            "ours_as_cleanrl": Side(OURS, _AS_CLEANRL),
            "cleanrl": Side(CLEANRL, _AS_CLEANRL),
        },
        ratios={
            **_AGAINST_SB3,
            "SBX": Ratio(("ours_as_sbx",), ("sbx",)),
            "CleanRL": Ratio(("ours_as_cleanrl",), ("cleanrl",)),
        },
        steps=20_000,
        quick_steps=3_000,
        warm_up=1_000,
        left_out=1_100,
    ),
    "sac": Case(
        words="Pendulum-v1, 256x256, batch 256, one gradient step per environment step",
        preset="sac-pendulum",
        settings=("algo_kwargs.buffer_size=1_000_000",),
        sides={**_WIDE_SIDES, "cleanrl": Side(CLEANRL)},
        ratios={**_WIDE_RATIOS, "CleanRL": Ratio(("ours",), ("cleanrl",))},
        steps=3_000,
        quick_steps=1_400,
        warm_up=1_000,
        left_out=1_100,
    ),
    "td3": Case(
        words="Pendulum-v1, 256x256, batch 256, one gradient step per environment step",
        preset="td3-pendulum",
        settings=("algo_kwargs.hidden_sizes=[256,256]", "algo_kwargs.learning_starts=1_000"),
        sides={**_OURS_AND_SB3, **_SBX_SIDE},
        ratios=_AGAINST_BOTH,
        steps=5_000,
        quick_steps=1_400,
        warm_up=1_000,
        left_out=1_100,
    ),
    "efficientzero": Case(
        words="CartPole-v1, 8 envs, 16 simulations, batch 64, 99 % of its policies searched again",
        preset="efficientzero-cartpole",
        settings=("algo_kwargs.learning_starts=400",),
        sides={"ours": Side(OURS), "before": Side(BEFORE)},
        ratios={"itself before": Ratio(("ours",), ("before",))},
        steps=2_000,
        quick_steps=800,
        warm_up=400,
        left_out=500,
        episodes=0,
    ),
}

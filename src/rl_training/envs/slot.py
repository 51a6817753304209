"""One environment of a batch: creation, steps without autoreset, saving and restoring."""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec

from rl_training.envs.checks import (
    BrokenContract,
    MaskCheck,
    check_info,
    check_observation,
    check_reset,
    explain_failure,
)
from rl_training.envs.info_metrics import METRICS, SUCCESS, InfoMetrics, success_of
from rl_training.envs.lookup import explain_make_failure
from rl_training.envs.snapshots import snapshot
from rl_training.envs.spaces import mask_width
from rl_training.envs.step import Episode
from rl_training.envs.tracker import EpisodeTracker, find_tracker
from rl_training.envs.workers.native_messages import redirect_native_messages
from rl_training.envs.wrapping import wrap_task
from rl_training.errors import AxiomError, EnvironmentFailure, NonFiniteError
from rl_training.experiment.configuration.env_params import EnvParams
from rl_training.experiment.own_code.user_code import NO_CODE, AdoptedCode

_ARRAY = np.ndarray


@dataclass(frozen=True)
class EnvFactory:
    """Makes one wrapped environment; can be sent to another process.

    It contains the registered `spec`, so that a worker need not register it, and the user `code` that the spec refers
    to.
    """

    spec: EnvSpec
    params: EnvParams
    render_mode: str | None = None
    code: AdoptedCode = NO_CODE

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (self.code, self.spec, self.params, self.render_mode)

    def __call__(self) -> gym.Env[Any, Any]:
        """Make the environment: wrappers for training outermost, below them the tracker of real rewards."""
        try:
            return wrap_base(wrap_task(self._make_base(), self.params), self.params)
        except Exception as error:
            explanation = explain_make_failure(self.spec, self.params, error)
            if explanation is None:
                raise
            raise explanation from error

    def _make_base(self) -> gym.Env[Any, Any]:
        params = self.params
        # A slot itself ensures the order of reset and step; a wrapper that checks it costs time on every step.
        spec = dataclasses.replace(self.spec, order_enforce=False)
        make_kwargs = dict(params.make_kwargs)
        if self.render_mode is not None:
            make_kwargs["render_mode"] = self.render_mode
        redirect_native_messages(spec)
        if params.atari:
            from rl_training.envs.families.atari import make_preprocessed

            return make_preprocessed(spec, params, make_kwargs)
        env = gym.make(spec, max_episode_steps=params.max_episode_steps, disable_env_checker=True, **make_kwargs)
        if type(env.unwrapped).__module__.startswith("gymnasium.envs.mujoco."):
            from rl_training.envs.families.mujoco import bind_simulation

            bind_simulation(env.unwrapped)
        return env


def wrap_base(base: gym.Env[Any, Any], params: EnvParams) -> gym.Env[Any, Any]:
    """Add the tracker of real rewards, and the wrappers for training above it."""
    env = EpisodeTracker(base)
    if params.episodic_life or params.fire_reset or params.reward_sign or params.frame_stack > 1:
        from rl_training.envs.families.atari import wrap_for_agent

        return wrap_for_agent(env, params)
    return env


def _received(code: AdoptedCode, spec: EnvSpec, params: EnvParams, render_mode: str | None) -> EnvFactory:
    """Return a factory in another process: the code is loaded first, so that unpickling the spec finds it."""
    return EnvFactory(spec, params, render_mode, code)


class SlotStep(NamedTuple):
    """One step of one environment; `episodes` are the real episodes that ended since the last step."""

    obs: Any
    reward: float
    terminated: bool
    truncated: bool
    action_mask: np.ndarray | None
    episodes: Sequence[Episode]
    metrics: dict[str, float] | None = None
    """The content of `info["metrics"]`; None if the environment gave none."""


class EnvSlot:
    """One environment without autoreset: after the end of an episode the caller has to call `reset`.

    Any exception of the environment, and any result that does not fit its spaces, becomes an `EnvironmentFailure` with
    its index, seed and traceback.
    """

    def __init__(self, make: Callable[[], gym.Env[Any, Any]], index: int) -> None:
        self.index = index
        self.seed: int | None = None
        try:
            env = make()
        except AxiomError:
            raise
        except Exception as error:
            raise self._failure("when it was made", error) from error
        tracker = find_tracker(env)
        if tracker is None:
            env = tracker = EpisodeTracker(env)
        self.env: gym.Env[Any, Any] = env
        self._tracker: EpisodeTracker = tracker
        tracker.warns = index == 0
        self.observation_space = env.observation_space
        self.action_space = env.action_space
        # Arrays of this shape and dtype fit the space.
        self._shape: tuple[int, ...] | None = None
        self._dtype: np.dtype[Any] | None = None
        # Legal actions: `info["action_mask"]`, or a method `action_masks()` as in SB3-contrib.
        self._mask_width = mask_width(env.action_space)
        self._mask_method: Callable[[], Any] | None = None
        if self._mask_width and env.has_wrapper_attr("action_masks"):
            self._mask_method = env.get_wrapper_attr("action_masks")
        self._leaves_a_choice = MaskCheck(env.action_space)
        self._info_metrics = InfoMetrics()

    def reset(self, seed: int | None = None) -> tuple[Any, np.ndarray | None]:
        """Start an episode; without a seed the environment's generator continues."""
        if seed is not None:
            self.seed = seed = int(seed)
        try:
            result = self.env.reset(seed=seed)
            check_reset(result)
            obs, info = result
            self._check_observation(obs)
            mask = self._action_mask(info)
        except Exception as error:
            raise self._failure("in reset", error) from error
        return obs, mask

    def step(self, action: Any) -> SlotStep:
        """Take one action."""
        try:
            obs, reward, terminated, truncated, info = self.env.step(action)
            if type(obs) is not _ARRAY or obs.dtype is not self._dtype or obs.shape != self._shape:
                self._check_observation(obs)
            mask = metrics = None
            if type(info) is not dict or (self._mask_width and (info or self._mask_method is not None)):
                mask = self._action_mask(info, ended=terminated or truncated)
            if METRICS in info:
                metrics = self._info_metrics.read(info[METRICS])
            if (terminated or truncated) and (reached := success_of(info)) is not None:
                metrics = {**(metrics or {}), SUCCESS: reached}
        except Exception as error:
            raise self._failure("in step", error) from error
        episodes: Sequence[Episode] = ()
        if self._tracker.finished:
            episodes = [Episode(self.index, *finished) for finished in self._tracker.take_finished()]
        return SlotStep(obs, float(reward), terminated, truncated, mask, episodes, metrics)

    def non_finite(self, what: str, *, place: str | None = None) -> NonFiniteError:
        """Return the error for NaN or infinity in the environment's results."""
        place = self._place() if place is None else place
        return NonFiniteError(
            f"{self._name()}, {place}, gave NaN or infinity as {what}; repair the environment, or clip what it returns"
        )

    def snapshot(self) -> dict[str, Any] | None:
        """Return the complete state of the environment, or None if it cannot be saved."""
        state = snapshot.take(self.env)
        return None if state is None else {"seed": self.seed, "env": state}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore a saved state."""
        self.seed = state["seed"]
        snapshot.put(self.env, state["env"])

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _check_observation(self, obs: Any) -> None:
        check_observation(obs, self.observation_space)
        if isinstance(obs, np.ndarray) and isinstance(self.observation_space, gym.spaces.Box):
            self._shape, self._dtype = obs.shape, obs.dtype

    def _action_mask(self, info: Any, *, ended: bool = False) -> np.ndarray | None:
        """Return the environment's action mask, None if it gives none or if no action can follow."""
        check_info(info)
        if not self._mask_width:
            return None
        mask = self._mask_method() if self._mask_method is not None else info.get("action_mask")
        if mask is None:
            return None
        mask = np.asarray(mask, dtype=np.bool_)
        if mask.shape != (self._mask_width,):
            kind = type(self.action_space).__name__
            raise BrokenContract(
                f"gave an action mask of shape {mask.shape}", f"its {kind} actions need shape ({self._mask_width},)"
            )
        if self._leaves_a_choice(mask):
            return mask
        if not ended:
            raise BrokenContract(
                "gave an action mask that allows nothing",
                "allow at least one action, or end the episode with terminated or truncated",
            )
        return None

    def _name(self) -> str:
        return f"environment {self.index} (seed {self.seed})"

    def _place(self) -> str:
        return f"at step {self._tracker.length} of its episode"

    def _failure(self, moment: str, error: Exception) -> EnvironmentFailure:
        broken = error if isinstance(error, BrokenContract) else explain_failure(error)
        if broken is not None:
            place = self._place() if moment == "in step" else moment
            return EnvironmentFailure(f"{self._name()}, {place}, {broken.fault}; {broken.repair}")
        cause = "".join(traceback.format_exception(error)).rstrip()
        return EnvironmentFailure(f"{self._name()} failed {moment} with {type(error).__name__}: {error}\n{cause}")

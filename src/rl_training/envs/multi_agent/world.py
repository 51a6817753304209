"""One PettingZoo parallel environment: its agents come and go, and all of them have the same spaces."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from rl_training.envs.arrays import all_finite
from rl_training.envs.checks import (
    BrokenContract,
    MaskCheck,
    check_info,
    check_observation,
    check_reset,
    plain_flag,
    plain_reward,
)
from rl_training.envs.snapshots.object_graph import Unsavable, put_graph, take_graph
from rl_training.envs.snapshots.snapshot import copy_plain
from rl_training.envs.spaces import mask_width
from rl_training.envs.step import copy_obs
from rl_training.errors import AxiomError, ConfigError, EnvironmentFailure, NonFiniteError


class AgentStep(NamedTuple):
    """One step of an agent that acted."""

    agent: int
    """Its number among the agents that the world may have."""
    obs: Any
    """What it sees after the step."""
    reward: float
    terminated: bool
    truncated: bool
    mask: np.ndarray | None
    """Its legal actions after the step, if the world names them."""
    episode: tuple[float, int] | None
    """Return and length of its episode, if that ended."""


class World:
    """A parallel environment without autoreset: once nobody is present, the caller has to call `reset`.

    An agent's episode begins when it appears and ends when it is terminated or truncated, even if the others go on.
    """

    def __init__(self, make: Callable[[], Any], index: int, *, max_steps: int | None = None) -> None:
        self.index = index
        self.seed: int | None = None
        try:
            self.env: Any = make()
        except AxiomError:
            raise
        except Exception as error:
            raise self._failure("when it was made", error) from error
        self.agents: list[Any] = list(getattr(self.env, "possible_agents", ()))
        self.observation_space = self._shared_space("observation_space")
        self.action_space = self._shared_space("action_space")
        self._width = mask_width(self.action_space)
        self._leaves_a_choice = MaskCheck(self.action_space)
        self._max_steps = max_steps
        self.steps = 0
        """Steps since the last reset."""
        count = len(self.agents)
        self.present = np.zeros(count, np.bool_)
        """[agents] who acts next."""
        self.observations: list[Any] = [None] * count
        """What each agent saw last."""
        self.masks: list[np.ndarray | None] = [None] * count
        self._returns, self._lengths = [0.0] * count, [0] * count

    @property
    def names(self) -> list[str]:
        """The agents by name."""
        return [str(agent) for agent in self.agents]

    @property
    def over(self) -> bool:
        """Whether nobody is left to act."""
        return not self.present.any()

    def so_far(self, number: int) -> tuple[float, int]:
        """Return the return and length of an agent's episode in progress."""
        return self._returns[number], self._lengths[number]

    def reset(self, seed: int | None = None) -> None:
        """Start an episode; without a seed the world's generator continues."""
        if seed is not None:
            self.seed = seed = int(seed)
        try:
            result = self.env.reset(seed=seed)
            check_reset(result)
            shown, infos = result
            self.steps = 0
            self.present[:] = False
            self._admit(shown, infos)
            if self.over:
                raise BrokenContract("began without any agent", "let reset return an observation for each agent")
        except Exception as error:
            raise self._failure("in reset", error) from error
        # Somebody who appears later has seen nothing yet; a place for an observation needs some all the same.
        first = self.observations[int(np.argmax(self.present))]
        for number in np.flatnonzero(~self.present):
            self.observations[number], self.masks[number] = first, None

    def step(self, actions: Mapping[int, Any]) -> list[AgentStep]:
        """Let all agents that are present act at once, `actions` by their numbers."""
        self.steps += 1
        try:
            taken = {self.agents[number]: action for number, action in actions.items()}
            shown, rewards, terminations, truncations, infos = self.env.step(taken)
            cut = self._max_steps is not None and self.steps >= self._max_steps
            steps = [
                self._agent_step(number, shown, rewards, terminations, truncations, infos, cut=cut)
                for number in actions
            ]
            self.present[[step.agent for step in steps if step.episode is not None]] = False
            if not cut:
                self._admit(shown, infos)
        except Exception as error:
            raise self._failure(f"at step {self.steps} of its episode", error) from error
        return steps

    def _agent_step(
        self, number: int, shown: Any, rewards: Any, terminations: Any, truncations: Any, infos: Any, *, cut: bool
    ) -> AgentStep:
        agent = self.agents[number]
        here = agent in self.env.agents
        obs = shown.get(agent)
        if obs is None:
            obs = self.observations[number]  # it left without a last look
        self._look(number, obs)
        terminated = plain_flag(terminations.get(agent, not here), "terminated")
        truncated = plain_flag(truncations.get(agent, False), "truncated")
        if not here and not truncated:
            terminated = True
        truncated |= cut and not terminated
        reward = plain_reward(rewards.get(agent, 0.0), warn=False)
        ended = terminated or truncated
        mask = self._mask(infos.get(agent), ended=ended)
        self.masks[number] = mask
        self._returns[number] += reward
        self._lengths[number] += 1
        episode = None
        if ended:
            episode = (self._returns[number], self._lengths[number])
            obs = self.observations[number] = copy_obs(obs)  # the world may use the same memory again
        return AgentStep(number, obs, reward, terminated, truncated, mask, episode)

    def _admit(self, shown: Mapping[Any, Any], infos: Mapping[Any, Any]) -> None:
        """Let agents begin that are there and were not before."""
        for number, agent in enumerate(self.agents):
            if self.present[number] or agent not in shown or agent not in self.env.agents:
                continue
            self._look(number, shown[agent])
            self.masks[number] = self._mask(infos.get(agent), ended=False)
            self.present[number] = True
            self._returns[number], self._lengths[number] = 0.0, 0

    def _look(self, number: int, obs: Any) -> None:
        check_observation(obs, self.observation_space)
        parts = obs.values() if isinstance(obs, dict) else (np.asarray(obs),)
        if not all(map(all_finite, parts)):
            raise NonFiniteError(f"{self.agents[number]} saw NaN or infinity")
        self.observations[number] = obs

    def _mask(self, info: Any, *, ended: bool) -> np.ndarray | None:
        check_info({} if info is None else info)
        given = None if not info or not self._width else info.get("action_mask")
        if given is None:
            return None
        mask = np.array(given, dtype=np.bool_)
        if mask.shape != (self._width,):
            raise BrokenContract(
                f"gave an action mask of shape {mask.shape}", f"its actions need shape ({self._width},)"
            )
        if not self._leaves_a_choice(mask):
            if ended:
                return None
            raise BrokenContract(
                "gave an action mask that allows nothing", "allow an action, or end the agent's episode"
            )
        return mask

    def _shared_space(self, kind: str) -> gym.Space[Any]:
        if not self.agents:
            raise ConfigError(
                "env_id: the environment names no possible_agents, so that nobody knows how many may come; set them"
            )
        first, *others = self.agents
        space: gym.Space[Any] = getattr(self.env, kind)(first)
        for agent in others:
            other = getattr(self.env, kind)(agent)
            if other != space:
                raise ConfigError(
                    f"env_id: one policy acts for all agents, and the {kind.replace('_', ' ')} of {agent} is {other}, "
                    f"that of {first} is {space}; choose an environment in which they are equal, or pad them in a "
                    "module of your own (supersuit.pad_observations_v0, supersuit.pad_action_space_v0)"
                )
        return space

    def snapshot(self) -> dict[str, Any] | None:
        """Return the complete state of the world, or None if it cannot be saved."""
        own = callable(getattr(type(self.env), "state_dict", None))
        try:
            env = copy_plain(self.env.state_dict()) if own else take_graph(self.env, self._packages())
        except Unsavable:
            return None
        masks = {str(number): mask.copy() for number, mask in enumerate(self.masks) if mask is not None}
        return {
            "env": env,
            "seed": self.seed,
            "steps": self.steps,
            "present": self.present.copy(),
            "returns": np.array(self._returns),
            "lengths": np.array(self._lengths),
            "observations": [copy_obs(obs) for obs in self.observations],
            "masks": masks,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state."""
        if callable(getattr(type(self.env), "load_state_dict", None)):
            self.env.load_state_dict(copy_plain(state["env"]))
        else:
            put_graph(self.env, state["env"], self._packages())
        self.seed, self.steps = state["seed"], state["steps"]
        self.present = np.array(state["present"], np.bool_)
        self._returns, self._lengths = state["returns"].tolist(), state["lengths"].tolist()
        self.observations = list(state["observations"])
        self.masks = [state["masks"].get(str(number)) for number in range(len(self.agents))]

    def _packages(self) -> frozenset[str]:
        return frozenset({"pettingzoo", type(self.env.unwrapped).__module__.partition(".")[0]})

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _failure(self, moment: str, error: Exception) -> AxiomError:
        name = f"world {self.index} (seed {self.seed}), {moment},"
        if isinstance(error, BrokenContract):
            return EnvironmentFailure(f"{name} {error.fault}; {error.repair}")
        if isinstance(error, NonFiniteError):
            return NonFiniteError(f"{name} failed: {error}; repair the environment, or clip what it returns")
        cause = "".join(traceback.format_exception(error)).rstrip()
        return EnvironmentFailure(f"{name} failed with {type(error).__name__}: {error}\n{cause}")

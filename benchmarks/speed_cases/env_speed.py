"""Steps per second of every execution backend, beside a plain loop over Gymnasium's environments.

The loop makes environments by `gymnasium.make`, steps one after another and resets what ended; it stores nothing.
EnvPool, where it is installed, is measured against the same loop, alone and as the backend `envpool`. Atari is measured
against ale-py's own vector environment, all on one thread. Times are of the processor, so that other programs
on the machine disturb less, and of the clock where worker processes or threads do the work; each is the shortest of
several stretches.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np

from records import why_missing
from rl_training.envs.families.envpool_vector import envpool_obstacle
from rl_training.envs.lookup import find_spec
from rl_training.envs.make import check_environment, make_vector_env
from rl_training.experiment.configuration.env_params import EnvParams
from rl_training.experiment.machine import usable_cores
from speed_cases.speed_parts import Effort, Outcome, alternate, quickest, quotients

CLOCKS = "processor time (local_async, EnvPool: the clock's)"
PROCESSOR, CLOCK = time.thread_time, time.perf_counter
THREADS = time.process_time  # of the processor, by all threads
LOOPS = {"loop": PROCESSOR, "loop by the clock": CLOCK}
BACKENDS = {"vector": PROCESSOR, "local_sync": PROCESSOR, "local_async": CLOCK}
"""How each is timed."""
SIZES = {"HalfCheetah-v5": (1, 8)}
USUAL_SIZES = (8, 64)
PONG = "ALE/Pong-v5"
PREPROCESSED = {"atari": True, "frame_stack": 4, "repeat_action_probability": 0.0, "num_workers": 1}
Step = Callable[[np.ndarray], Any]
Timed = tuple[Step, Callable[[], float]]


def settings(effort: Effort) -> str:
    """Return what is measured, in words."""
    return "steps per second with actions drawn beforehand, relative to a plain loop over the environments"


def measure(effort: Effort) -> Outcome:
    """Step every backend in turn, with actions drawn beforehand."""
    missing, env_ids = [], ["CartPole-v1"]
    for package, env_id in (("Box2D", "LunarLander-v3"), ("mujoco", "HalfCheetah-v5")):
        reason = why_missing(package)
        if reason is None:
            env_ids.append(env_id)
        else:
            missing.append(reason)
    pooled, unpooled = pooled_tasks(env_ids)
    missing += unpooled
    ratios: dict[str, list[float]] = {}
    rounds: list[dict[str, Any]] = []
    for env_id in env_ids:
        for count in SIZES.get(env_id, USUAL_SIZES):
            with ExitStack() as stack:
                steppers = _steppers(env_id, count, stack, pooled=env_id in pooled)
                rows = _rows(env_id, count, steppers, effort, effort.choose(40_000, 4_000))
            rounds += rows
            for name, (_, clock) in steppers.items():
                if name not in LOOPS:
                    loop = next(loop for loop, its_clock in LOOPS.items() if its_clock is clock)
                    ratios[f"{env_id}, {count} envs: {name}"] = quotients(rows, name, loop)
    reason = why_missing("ale_py")
    if reason is None:
        with ExitStack() as stack:
            rows = _rows(PONG, 8, _pong_steppers(8, stack), effort, effort.choose(4_000, 400))
        rounds += rows
        for name in ("local_sync", "ale_vector"):
            ratios[f"{PONG}, 8 envs: {name}, relative to ale-py's vector environment"] = quotients(rows, name, "ale-py")
    else:
        missing.append(reason)
    return Outcome(
        ratios=ratios,
        missing=missing,
        details={"rounds": rounds},
    )


def _rows(env_id: str, count: int, steppers: dict[str, Timed], effort: Effort, steps: int) -> list[dict[str, Any]]:
    """Return the rates of every round."""
    actions = _drawn(env_id, steps // count, count)
    timed = {name: partial(_rate, *timed, actions, count, effort.choose(5, 2)) for name, timed in steppers.items()}
    return [{"env_id": env_id, "num_envs": count, **row} for row in alternate(timed, effort.rounds)]


def pooled_tasks(env_ids: list[str]) -> tuple[list[str], list[str]]:
    """Return the environments that EnvPool has, and why it is not measured on the others."""
    reason = why_missing("envpool")
    if reason is not None:
        return [], [reason]
    import envpool

    known = envpool.list_all_envs()
    return (
        [env_id for env_id in env_ids if env_id in known],
        [f"EnvPool has no {env_id}" for env_id in env_ids if env_id not in known],
    )


def _drawn(env_id: str, steps: int, count: int) -> np.ndarray:
    """Return random actions [steps, count, ...]."""
    space = check_environment(env_id, {})[1]
    generator = np.random.default_rng(0)
    if isinstance(space, gym.spaces.Discrete):
        return generator.integers(0, int(space.n), size=(steps, count))
    assert isinstance(space, gym.spaces.Box)
    return generator.uniform(space.low, space.high, size=(steps, count, *space.shape)).astype(np.float32)


def _pong_steppers(count: int, stack: ExitStack) -> dict[str, Timed]:
    """Return how Atari's backends take a step on one thread, and ale-py's vector environment itself."""
    from ale_py.vector_env import AtariVectorEnv

    games = AtariVectorEnv("pong", count, num_threads=1, autoreset_mode="SameStep")
    games.reset(seed=0)
    steppers: dict[str, Timed] = {"ale-py": (games.step, THREADS)}
    for backend in ("local_sync", "ale_vector"):
        env = make_vector_env(PONG, PREPROCESSED, mode="training", num_envs=count, backend=backend)
        stack.callback(env.close)
        env.reset(list(range(count)))
        steppers[backend] = (env.step, THREADS)
    return steppers


def _steppers(env_id: str, count: int, stack: ExitStack, *, pooled: bool) -> dict[str, Timed]:
    """Return how each backend takes a step, after its reset, and how it is timed."""
    loop = _loop(env_id, count, stack)
    steppers: dict[str, Timed] = {name: (loop, clock) for name, clock in LOOPS.items()}
    for backend, clock in BACKENDS.items():
        if backend == "vector" and env_id != "CartPole-v1":
            continue
        env = make_vector_env(env_id, {}, mode="training", num_envs=count, backend=backend)
        stack.callback(env.close)
        env.reset(list(range(count)))
        steppers[backend] = (env.step, clock)
    if pooled:
        import envpool

        pool_threads = min(count, usable_cores().number)
        pool = envpool.make_gymnasium(env_id, num_envs=count, seed=0, num_threads=pool_threads)
        stack.callback(pool.close)
        pool.reset()
        dtype = pool.action_space.dtype
        steppers["EnvPool"] = (lambda actions: pool.step(np.asarray(actions, dtype)), CLOCK)
        if envpool_obstacle(find_spec(env_id), EnvParams()) is None:
            kwargs = {"num_workers": pool_threads}
            env = make_vector_env(env_id, kwargs, mode="training", num_envs=count, backend="envpool")
            stack.callback(env.close)
            env.reset(list(range(count)))
            steppers["envpool"] = (env.step, CLOCK)
    return steppers


def _loop(env_id: str, count: int, stack: ExitStack) -> Step:
    envs = [gym.make(env_id) for _ in range(count)]
    for seed, env in enumerate(envs):
        stack.callback(env.close)
        env.reset(seed=seed)

    def step(actions: np.ndarray) -> None:
        for env, action in zip(envs, actions, strict=True):
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()

    return step


def _rate(step: Step, clock: Callable[[], float], actions: np.ndarray, count: int, stretches: int, _: int) -> float:
    """Return environment steps per second of the fastest stretch."""

    def stretch() -> None:
        for drawn in actions:
            step(drawn)

    return len(actions) * count / quickest(stretch, stretches, clock)

"""Steps per second of every execution backend, beside a plain loop over Gymnasium's environments.

The loop makes environments by `gymnasium.make`, steps one after another and resets what ended; it stores nothing.
EnvPool, where it is installed, is measured against the same loop. Times are of the processor, so that other programs
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
from rl_training.envs.make import make_vector_env
from speed_parts import Effort, Outcome, alternate, quickest, quotients

CLOCKS = "processor time (local_async, EnvPool: the clock's)"
PROCESSOR, CLOCK = time.thread_time, time.perf_counter
LOOPS = {"loop": PROCESSOR, "loop by the clock": CLOCK}
BACKENDS = {"vector": PROCESSOR, "local_sync": PROCESSOR, "local_async": CLOCK}
"""How each is timed."""
SIZES = (8, 64)
Step = Callable[[np.ndarray], Any]
Timed = tuple[Step, Callable[[], float]]


def settings(effort: Effort) -> str:
    """Return what is measured, in words."""
    return "steps per second with actions drawn beforehand, relative to a plain loop over the environments"


def measure(effort: Effort) -> Outcome:
    """Step every backend in turn, with actions drawn beforehand."""
    missing, env_ids = [], ["CartPole-v1"]
    without_box2d = why_missing("Box2D")
    if without_box2d is None:
        env_ids.append("LunarLander-v3")
    else:
        missing.append(without_box2d)
    pooled, unpooled = pooled_tasks(env_ids)
    missing += unpooled
    ratios: dict[str, list[float]] = {}
    rounds: list[dict[str, Any]] = []
    for env_id in env_ids:
        for count in SIZES:
            with ExitStack() as stack:
                steppers = _steppers(env_id, count, stack, pooled=env_id in pooled)
                draws = effort.choose(40_000, 4_000) // count
                actions = np.random.default_rng(0).integers(0, _actions(env_id), size=(draws, count))
                rows = alternate(
                    {name: partial(_rate, *timed, actions, effort.choose(5, 2)) for name, timed in steppers.items()},
                    effort.rounds,
                )
            rounds += [{"env_id": env_id, "num_envs": count, **row} for row in rows]
            for name, (_, clock) in steppers.items():
                if name not in LOOPS:
                    loop = next(loop for loop, its_clock in LOOPS.items() if its_clock is clock)
                    ratios[f"{env_id}, {count} envs: {name}"] = quotients(rows, name, loop)
    return Outcome(
        ratios=ratios,
        missing=missing,
        details={"rounds": rounds},
    )


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


def _actions(env_id: str) -> int:
    env = gym.make(env_id)
    try:
        return int(env.action_space.n)  # type: ignore[attr-defined]
    finally:
        env.close()


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

        pool = envpool.make_gymnasium(env_id, num_envs=count, seed=0)
        stack.callback(pool.close)
        pool.reset()
        steppers["EnvPool"] = (pool.step, CLOCK)
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


def _rate(step: Step, clock: Callable[[], float], actions: np.ndarray, stretches: int, _: int) -> float:
    """Return environment steps per second of the fastest stretch."""

    def stretch() -> None:
        for drawn in actions:
            step(drawn)

    return actions.size / quickest(stretch, stretches, clock)

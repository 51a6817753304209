"""Gymnasium's MuJoCo environments, stepped with less Python and the same results."""

from __future__ import annotations

from typing import Any

import numpy as np


def bind_simulation(env: Any) -> None:
    """Let one of Gymnasium's MuJoCo environments advance its physics with everything looked up beforehand.

    Gymnasium copies the action to look at its shape, and asks the bindings anew for the model, the data and the view of
    the controls, which takes a tenth of the time of the physics. The calls of MuJoCo stay the same.
    """
    import mujoco
    from gymnasium.envs.mujoco.mujoco_env import MujocoEnv

    replaced = ("do_simulation", "_step_mujoco_simulation")
    if any(getattr(type(env), name) is not getattr(MujocoEnv, name) for name in replaced):
        return  # it advances the physics in its own way
    model, data, control = env.model, env.data, env.data.ctrl
    step, update_forces = mujoco.mj_step, mujoco.mj_rnePostConstraint
    shape = (model.nu,)

    def do_simulation(ctrl: Any, n_frames: int) -> None:
        if (ctrl.shape if type(ctrl) is np.ndarray else np.shape(ctrl)) != shape:
            raise ValueError(f"an action of shape {np.shape(ctrl)}; expected {shape}")
        control[:] = ctrl
        step(model, data, n_frames)
        update_forces(model, data)

    env.do_simulation = do_simulation

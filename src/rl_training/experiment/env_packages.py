"""Which package, and which extra of this project, an environment comes from, by its name alone."""

from __future__ import annotations

from rl_training.experiment.own_code.world_names import is_world

# The extra that provides a module, by the module of an entry point or of a failed import.
EXTRA_OF_MODULE = {
    "gymnasium.envs.box2d": "box2d",
    "Box2D": "box2d",
    "gymnasium.envs.mujoco": "mujoco",
    "mujoco": "mujoco",
    "ale_py": "atari",
    "cv2": "atari",
    "minatar": "minatar",
    "gymnasium_robotics": "robotics",
    "shimmy": "dmc",
    "dm_control": "dmc",
    "minigrid": "minigrid",
    "highway_env": "highway",
    "popgym": "popgym",
    "mpe2": "pettingzoo",
}
# Packages that register their ids when they are imported, by how these ids begin.
_REGISTERED_BY = {
    ("dm_control/",): "shimmy",
    ("MiniGrid-", "BabyAI-"): "minigrid",
    ("popgym-",): "popgym",
    ("Fetch", "HandReach", "HandManipulate", "AdroitHand", "FrankaKitchen-"): "gymnasium_robotics",
    ("PointMaze_", "AntMaze_"): "gymnasium_robotics",
    ("highway-", "merge-", "roundabout-", "parking-", "intersection-", "racetrack-", "lane-keeping-"): "highway_env",
}


def registering_package(name: str) -> str | None:
    """Return the package that registers an id when it is imported, None if there is none known."""
    return next((package for prefixes, package in _REGISTERED_BY.items() if name.startswith(prefixes)), None)


def extra_of_package(env_id: str) -> str | None:
    """Return the extra of an environment that another package registers or holds, None if it is not known."""
    if is_world(env_id):
        return "pettingzoo"
    module, _, name = env_id.rpartition(":")
    package = module.partition(".")[0] or registering_package(name)
    return None if package is None else EXTRA_OF_MODULE.get(package)

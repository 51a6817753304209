"""Finds the registered spec of an environment by its name, with error messages that name the repair."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import inspect
import os
import re
from typing import Any

import gymnasium as gym
from gymnasium.envs import registration
from gymnasium.envs.registration import EnvSpec

from rl_training.errors import AxiomError, ConfigError, MissingExtraError, did_you_mean
from rl_training.experiment.configuration.env_params import WRAPPER_KEYS, EnvParams
from rl_training.experiment.env_packages import EXTRA_OF_MODULE, registering_package
from rl_training.experiment.own_code.user_code import load_module, load_object, split_name
from rl_training.experiment.own_code.world_names import MAKER, code_of, is_world
from rl_training.install_hint import install_hint, unmet_requirements


def find_spec(env_id: str) -> EnvSpec:
    """Return the spec of an environment given by a registered id, `module:Name` or `path/to/file.py:Name`.

    `Name` is an id that the module registers, or a class or function in it. The ids of Atari, MinAtar and the packages
    of `env_packages` are registered on demand.
    """
    if is_world(env_id):
        return _spec_of_world(env_id)
    module, name = split_name(env_id)
    if module:
        code = _load_code(env_id, module)  # importing it may register the name
        if name not in registration.registry and (hasattr(code, name) or not _may_be_an_id(name)):
            return _spec_of_code(env_id)
    if name not in registration.registry:
        if name.startswith("MinAtar/"):
            _register_minatar(env_id)
        elif (package := registering_package(name)) is not None:
            _register(package, env_id)
        elif _looks_like_atari(name):
            _register_atari(env_id)
    spec = _registered_spec(name, env_id)
    if spec.entry_point == "minatar.gym:BaseEnv":
        return dataclasses.replace(spec, entry_point="rl_training.envs.families.minatar:MinAtarEnv")
    return spec


def _registered_spec(name: str, env_id: str) -> EnvSpec:
    try:
        if name in registration.registry:
            return registration.registry[name]
        newest = _newest_id(name)
        if registration.parse_env_id(name)[2] is None and newest is not None:
            return registration.registry[newest]
        return gym.spec(name)  # raises the error that describes the problem
    except gym.error.DeprecatedEnv as error:
        raise ConfigError(f"env_id: `{env_id}` is no longer available{_use_newest(name)}") from error
    except gym.error.VersionNotFound as error:
        raise ConfigError(f"env_id: `{env_id}` has no such version{_use_newest(name)}") from error
    except gym.error.Error as error:
        hint = did_you_mean(name, registration.registry)
        advice = hint or "; your own code is named as `package.module:Name` or `path/to/file.py:Name`"
        raise ConfigError(f"env_id: unknown environment `{env_id}`{advice}") from error


def check_make_kwargs(spec: EnvSpec, params: EnvParams) -> None:
    """Raise an error for arguments that the environment's constructor does not take."""
    accepted = _constructor_arguments(spec, params)
    if accepted is None:
        return
    taken = f" (it takes {', '.join(sorted(accepted))})" if accepted else ""
    problems = [
        f"env_kwargs.{key}: `{spec.id}` takes no such argument{taken}{did_you_mean(key, [*accepted, *WRAPPER_KEYS])}"
        for key in params.make_kwargs
        if key not in accepted
    ]
    if problems:
        raise ConfigError(problems)


def explain_make_failure(spec: EnvSpec, params: EnvParams, error: Exception) -> AxiomError | None:
    """Return an error with a repair for an environment that could not be made, None if the fault is its own."""
    if isinstance(error, AxiomError):
        return error
    if isinstance(error, (ImportError, gym.error.DependencyNotInstalled)):
        extra = _missing_extra(spec, error)
        if extra is not None:
            return MissingExtraError(f"environment `{spec.id}`", extra)
        newest = _use_newest(spec.id)
        if newest:
            return ConfigError(f"env_id: `{spec.id}` is no longer available{newest}")
        return ConfigError(f"env_id: `{spec.id}` cannot be imported: {error}")
    misfits = _misfits(spec)
    if misfits is not None:
        return ConfigError(f"env_id: `{spec.id}` does not start with the packages that are installed: {misfits}")
    expected = (TypeError, ValueError, LookupError, AssertionError, OSError, gym.error.Error)
    if params.make_kwargs and isinstance(error, expected):
        given = ", ".join(f"{key}={value!r}" for key, value in params.make_kwargs.items())
        return ConfigError(f"env_kwargs: `{spec.id}` refuses {given}: {error}")
    return None


def _looks_like_atari(name: str) -> bool:
    return name.startswith("ALE/") or name.endswith(("-v0", "-v4", "-v5"))


def _register_atari(env_id: str) -> None:
    """Register the Atari ids; without ale-py only a name that is clearly an Atari id is an error."""
    if importlib.util.find_spec("ale_py") is None:
        if env_id.startswith("ALE/") or "NoFrameskip-v" in env_id:
            raise MissingExtraError(f"environment `{env_id}`", "atari")
        return
    gym.register_envs(importlib.import_module("ale_py"))


def _register(package: str, env_id: str) -> None:
    """Import a package that registers environments."""
    if importlib.util.find_spec(package) is None:
        raise MissingExtraError(f"environment `{env_id}`", EXTRA_OF_MODULE[package])
    try:
        code = importlib.import_module(package)
    except ImportError as error:
        root = (error.name or "").partition(".")[0]
        if EXTRA_OF_MODULE.get(root) == EXTRA_OF_MODULE[package]:
            raise MissingExtraError(f"environment `{env_id}`", EXTRA_OF_MODULE[package]) from error
        raise ConfigError(f"env_id: `{env_id}` cannot be used: importing {package} failed: {error}") from error
    gym.register_envs(code)


def _register_minatar(env_id: str) -> None:
    if importlib.util.find_spec("minatar") is None:
        raise MissingExtraError(f"environment `{env_id}`", "minatar")
    if not any(name.startswith("MinAtar/") for name in registration.registry):
        importlib.import_module("minatar.gym").register_envs()


def _load_code(env_id: str, module: str) -> Any:
    """Return the module in an environment's name; if it needs a missing extra, the error names the extra."""
    try:
        return load_module(env_id, place="env_id")
    except ConfigError as error:
        cause = error.__cause__
        missing = cause.name if isinstance(cause, ModuleNotFoundError) and cause.name else module
        root = missing.partition(".")[0]
        extra = EXTRA_OF_MODULE.get(root)
        if extra is not None and importlib.util.find_spec(root) is None:
            raise MissingExtraError(f"environment `{env_id}`", extra) from error
        raise


def _may_be_an_id(name: str) -> bool:
    """Return whether a name cannot be a class name, or is a registered id without its version."""
    return not name.isidentifier() or _newest_id(name) is not None


def _spec_of_code(env_id: str) -> EnvSpec:
    """Return a spec without time limit for a class or function that makes environments."""
    module, name = split_name(env_id)
    make = load_object(env_id, place="env_id", fits=_is_env_class, wanted="environment class (gymnasium.Env)")
    if not callable(make) or (inspect.isclass(make) and not _is_env_class(make)):
        kind = "class" if inspect.isclass(make) else type(make).__name__
        raise ConfigError(
            f"env_id: `{env_id}` is a {kind}, which makes no environment; name a subclass of gymnasium.Env, or a "
            "function that returns one"
        )
    # An id may contain neither slashes nor blanks.
    return EnvSpec(id=re.sub(r"[^\w.:-]", "_", f"{os.path.basename(module)}:{name}"), entry_point=make)


def _spec_of_world(env_id: str) -> EnvSpec:
    """Return a spec whose entry point makes an environment with several agents."""
    code = code_of(env_id)
    module, maker = split_name(code)
    if importlib.util.find_spec("pettingzoo") is None:
        raise MissingExtraError(f"environment `{env_id}`", "pettingzoo")
    _load_code(code, module)
    make = load_object(
        code,
        place="env_id",
        # PettingZoo's own name for what makes an environment; a file may name nothing else.
        fits=lambda value: callable(value) and maker == MAKER,
        wanted=f"function `{MAKER}`",
    )
    if not callable(make):
        raise ConfigError(f"env_id: `{env_id}` is a {type(make).__name__}, which makes no environment")
    return EnvSpec(id=re.sub(r"[^\w.:-]", "_", env_id), entry_point=make)


def _is_env_class(value: Any) -> bool:
    return inspect.isclass(value) and issubclass(value, gym.Env)


def _newest_id(env_id: str) -> str | None:
    """Return the newest registered version of the same environment."""
    namespace, name, _ = registration.parse_env_id(env_id)
    version = registration.find_highest_version(namespace, name)
    return None if version is None else registration.get_env_id(namespace, name, version)


def _use_newest(env_id: str) -> str:
    newest = _newest_id(env_id)
    return "" if newest in (None, env_id) else f"; use `{newest}`"


def _missing_extra(spec: EnvSpec, error: ImportError | gym.error.DependencyNotInstalled) -> str | None:
    missing: Any = error
    while missing is not None:
        root = (getattr(missing, "name", None) or "").split(".")[0]
        if root in EXTRA_OF_MODULE:
            return EXTRA_OF_MODULE[root]
        missing = missing.__cause__ or missing.__context__
    if isinstance(error, gym.error.DependencyNotInstalled) and isinstance(spec.entry_point, str):
        for module, extra in EXTRA_OF_MODULE.items():
            if spec.entry_point.startswith(module):
                return extra
    return None


def _misfits(spec: EnvSpec) -> str | None:
    """Return which installed packages are incompatible with an environment's extra, and how to install others."""
    creator: Any = getattr(spec.entry_point, "func", spec.entry_point)  # of a partial
    module = creator if isinstance(creator, str) else getattr(creator, "__module__", None) or ""
    extra = EXTRA_OF_MODULE.get(module.split(".")[0])
    unmet = [] if extra is None else unmet_requirements(extra)
    return f"{'; '.join(unmet)}; {install_hint(extra)}" if extra is not None and unmet else None


def _constructor_arguments(spec: EnvSpec, params: EnvParams) -> set[str] | None:
    """Return the argument names of the constructor; None if it takes any or they are unknown."""
    entry_point: Any = spec.entry_point
    if isinstance(entry_point, str):
        try:
            entry_point = registration.load_env_creator(entry_point)
        except Exception as error:
            explanation = explain_make_failure(spec, params, error)
            if explanation is None:
                raise ConfigError(f"env_id: the entry point of `{spec.id}` cannot be loaded: {error}") from error
            raise explanation from error
    if entry_point is None:
        raise ConfigError(f"env_id: `{spec.id}` can only be made as a vector environment, which has no adapter")
    accepted: set[str] = set()
    # Classes that pass `**kwargs` to their parent accept the parent's arguments.
    layers = inspect.getmro(entry_point) if inspect.isclass(entry_point) else (entry_point,)
    for layer in layers:
        function = layer.__dict__.get("__init__") if inspect.isclass(layer) else layer
        if function is None:
            continue
        try:
            parameters = inspect.signature(function).parameters.values()
        except (TypeError, ValueError):
            return None
        accepted |= {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            return accepted - {"self"}
    return None

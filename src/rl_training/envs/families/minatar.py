"""The games of MinAtar (Young & Tian 2019, arXiv 1903.03176), made reproducible and savable: extra `minatar`."""

from __future__ import annotations

from typing import Any

import numpy as np
from minatar.gym import BaseEnv

_GENERATOR_PARTS = ("bit_generator", "key", "position", "has_gauss", "cached_gaussian")
_CONSTANTS = ("action_map", "channels", "ramping", "random")  # not saved here; `random` is the generator
_PIXELS_PER_CELL = 16


class MinAtarEnv(BaseEnv):
    """A game of MinAtar that is fully determined by its seed and can be saved."""

    metadata = {"render_modes": ["human", "array", "rgb_array"], "render_fps": 15}  # noqa: RUF012 - Gymnasium's own way

    def __init__(
        self,
        game: str,
        render_mode: str | None = None,
        display_time: int = 50,
        use_minimal_action_set: bool = False,
        sticky_action_prob: float = 0.1,
        difficulty_ramping: bool = True,
    ) -> None:
        super().__init__(
            game,
            render_mode,
            display_time,
            use_minimal_action_set,
            sticky_action_prob=sticky_action_prob,
            difficulty_ramping=difficulty_ramping,
        )
        self.game.env.random = self.game.random  # as after a seed: a single generator to save

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start an episode; after a seed, no sticky action remains from an earlier episode."""
        if seed is not None:
            self.game.last_action = 0
        return super().reset(seed=seed, options=options)

    def render(self) -> Any:
        """Return MinAtar's rendering; `rgb_array` is in bytes and enlarged."""
        picture = super().render()
        if self.render_mode != "rgb_array":
            return picture
        cell = np.ones((_PIXELS_PER_CELL, _PIXELS_PER_CELL, 1), np.uint8)
        return np.kron(np.round(picture * 255).astype(np.uint8), cell)

    def state_dict(self) -> dict[str, Any]:
        """Return the state: the game's variables, the last action and the generator."""
        variables = {name: _to_plain(value) for name, value in vars(self.game.env).items() if name not in _CONSTANTS}
        generator = dict(zip(_GENERATOR_PARTS, self.game.random.get_state(), strict=True))
        return {"variables": variables, "last_action": int(self.game.last_action), "generator": generator}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state."""
        vars(self.game.env).update(state["variables"])
        self.game.last_action = state["last_action"]
        self.game.random.set_state(tuple(state["generator"][part] for part in _GENERATOR_PARTS))


def _to_plain(value: Any) -> Any:
    """Return a game's variable without NumPy scalars, which the games mix with Python's."""
    if isinstance(value, list):
        return [_to_plain(part) for part in value]
    return value.item() if isinstance(value, np.generic) else value

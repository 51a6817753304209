"""Environments that use SDL (pygame), in processes without display and sound."""

from __future__ import annotations

import os
import sys


def silence_sdl() -> None:
    """Suppress pygame's greeting and its messages about missing displays and sound cards.

    Only for processes of this package, since it changes environment variables; variables that the user has set are
    kept.
    """
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "hide")
    os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
    # If there is a display, an environment may be asked to render on it.
    if sys.platform == "linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")

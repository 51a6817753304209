"""Environments that draw with SDL (pygame) in a process of this package, which shows nothing and plays no sound."""

from __future__ import annotations

import os
import sys


def silence_sdl() -> None:
    """Keep pygame's greeting and the complaints about missing screens and sound cards out of the output.

    For processes of this package alone, since it changes the environment variables; what the user has set is kept.
    """
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "hide")
    os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
    # Where there is a screen, an environment may be asked to show itself on it.
    if sys.platform == "linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")

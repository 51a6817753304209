"""What SDL (pygame) would say stays out of the output, and what the user has set is kept."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from rl_training.envs.families.sdl import silence_sdl

NAMES = ("PYGAME_HIDE_SUPPORT_PROMPT", "SDL_AUDIODRIVER", "SDL_VIDEODRIVER", "DISPLAY", "WAYLAND_DISPLAY")


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.setenv(name, "")  # so that it is put back afterwards
        monkeypatch.delenv(name)


@pytest.mark.skipif(sys.platform != "linux", reason="screens are found otherwise there")
@pytest.mark.parametrize(("screen", "driver"), [(None, "dummy"), ("DISPLAY", None), ("WAYLAND_DISPLAY", None)])
def test_pictures_are_drawn_on_nothing_only_where_there_is_no_screen(
    screen: str | None, driver: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if screen is not None:
        monkeypatch.setenv(screen, ":0")
    silence_sdl()
    assert os.environ.get("SDL_VIDEODRIVER") == driver
    assert os.environ["SDL_AUDIODRIVER"] == "dummy"
    assert os.environ["PYGAME_HIDE_SUPPORT_PROMPT"] == "hide"


def test_what_the_user_has_set_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDL_AUDIODRIVER", "pulse")
    monkeypatch.setenv("SDL_VIDEODRIVER", "x11")
    silence_sdl()
    assert (os.environ["SDL_AUDIODRIVER"], os.environ["SDL_VIDEODRIVER"]) == ("pulse", "x11")


def test_a_command_is_a_process_of_the_package_and_an_import_is_not() -> None:
    code = f"""import os, rl_training, rl_training.cli
assert not any(name in os.environ for name in {NAMES})
rl_training.cli.main(["algos"])
assert os.environ["SDL_AUDIODRIVER"] == "dummy"
"""
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)

"""The gallery shows what is stored, in pictures that are small and move."""

from __future__ import annotations

import io
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import gallery
from documents.docs_pages import marked_section


def test_the_page_shows_the_stored_figures() -> None:
    stored = json.loads(gallery.STORED.read_text(encoding="utf-8"))
    random_scores = json.loads(gallery.RANDOM_SCORES.read_text(encoding="utf-8"))["scores"]
    assert [entry["name"] for entry in stored["scenes"]] == list(gallery.SCENES)
    assert marked_section(gallery.PAGE, "results") == gallery.render_page(stored, random_scores)


@pytest.mark.parametrize("name", [*gallery.SCENES, gallery.OVERVIEW])
def test_every_picture_is_small_and_moves(name: str) -> None:
    file = gallery.PICTURES / f"{name}.gif"
    assert file.stat().st_size < 300_000
    with Image.open(file) as picture:
        assert getattr(picture, "n_frames", 1) > 10


@pytest.mark.parametrize("name", gallery.SCENES)
def test_every_scene_is_a_valid_configuration_that_its_command_trains(name: str, tmp_path: Path) -> None:
    scene = gallery.SCENES[name]
    config = scene.config(tmp_path)
    assert (config.seed, config.output_dir) == (gallery.TRAINING_SEED, tmp_path)
    assert scene.command.startswith("axiomrl train ")


def test_an_episode_is_played_from_its_seed_and_random_ones_follow_each_other(tmp_path: Path) -> None:
    env = gallery.make_env(gallery.SCENES["cartpole"].config(tmp_path))
    episode = list(gallery.play(env, lambda _: 0, [0]))
    again = list(gallery.play(env, lambda _: 0, [0]))
    assert [total for _, total in episode] == list(range(len(episode)))
    assert all(np.array_equal(one, other) for (one, _), (other, _) in zip(episode, again, strict=True))
    several = list(itertools.islice(gallery.play(env, lambda _: 0, itertools.count()), 3 * len(episode)))
    assert [total for _, total in several].count(0.0) >= 3
    env.close()


def test_frames_are_left_out_until_a_picture_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (40, 20, 30, 3), np.uint8)
    frames = [gallery.panel(picture) for picture in noise]
    assert {frame.size for frame in frames} == {gallery.PANEL}
    everything = gallery.gif(frames, 50)
    monkeypatch.setattr(gallery, "LIMIT", len(everything) // 2)
    fewer = gallery.gif(frames, 50)
    assert len(fewer) <= gallery.LIMIT
    with Image.open(io.BytesIO(fewer)) as picture, Image.open(io.BytesIO(everything)) as whole:
        assert getattr(picture, "n_frames", 0) < getattr(whole, "n_frames", 0)


def test_panels_stand_beside_and_below_each_other() -> None:
    red, blue = (Image.new("RGB", (10, 5), colour) for colour in ("red", "blue"))
    joined = gallery.beside([[red, blue], [blue, red]], gap=2)
    assert joined.size == (22, 12)
    assert [joined.getpixel(place) for place in ((0, 0), (21, 0), (0, 11), (21, 11))] == [
        *((255, 0, 0), (0, 0, 255)),
        *((0, 0, 255), (255, 0, 0)),
    ]

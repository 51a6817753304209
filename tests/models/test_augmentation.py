"""Shifted images: the content stays, moved by at most four pixels, as a generator says."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from planning_parts import generator
from rl_training.models.augmentation import SHIFT, shift_images, shift_observation
from rl_training.models.encoders import make_encoder

COUNT, HEIGHT, WIDTH = 200, 36, 40


def numbered_images() -> torch.Tensor:
    """Return images [B, H, W, 2] whose pixels say their row and their column."""
    rows = torch.arange(HEIGHT, dtype=torch.uint8)[:, None].expand(HEIGHT, WIDTH)
    columns = torch.arange(WIDTH, dtype=torch.uint8)[None].expand(HEIGHT, WIDTH)
    return torch.stack((rows, columns), dim=-1).expand(COUNT, HEIGHT, WIDTH, 2).clone()


def offsets(shifted: torch.Tensor) -> torch.Tensor:
    """Return by how many rows and columns [B, 2] each numbered image was moved."""
    centre = shifted[:, HEIGHT // 2, WIDTH // 2].long()
    return centre - torch.tensor([HEIGHT // 2, WIDTH // 2])


def test_every_image_is_moved_as_a_whole_and_its_border_is_repeated() -> None:
    shifted = shift_images(numbered_images(), generator(1))
    assert shifted.dtype == torch.uint8
    moved = offsets(shifted)
    for image, (down, right) in zip(shifted.long(), moved.tolist(), strict=True):
        assert image[:, 0, 0].tolist() == [min(max(row + down, 0), HEIGHT - 1) for row in range(HEIGHT)]
        assert image[0, :, 1].tolist() == [min(max(column + right, 0), WIDTH - 1) for column in range(WIDTH)]
        assert (image[:, :, 0] == image[:, :1, 0]).all()
        assert (image[:, :, 1] == image[:1, :, 1]).all()


def test_shifts_go_up_to_four_pixels_each_way() -> None:
    moved = offsets(shift_images(numbered_images(), generator(1)))
    assert SHIFT == 4
    for axis in range(2):
        assert set(moved[:, axis].tolist()) == set(range(-4, 5))
    assert (moved[:, 0] != moved[:, 1]).any()  # the axes are drawn apart


def test_small_images_are_moved_by_one_pixel() -> None:
    images = torch.arange(100, dtype=torch.uint8).view(1, 10, 10, 1).expand(COUNT, 10, 10, 1)
    centre = shift_images(images, generator(1))[:, 5, 5, 0].long()
    assert set(centre.tolist()) == {10 * row + column for row in (4, 5, 6) for column in (4, 5, 6)}


def test_shifts_are_those_of_the_generator() -> None:
    images = numbered_images()
    assert shift_images(images, generator(1)).equal(shift_images(images, generator(1)))
    assert not shift_images(images, generator(1)).equal(shift_images(images, generator(2)))
    same = generator(1)
    assert not shift_images(images, same).equal(shift_images(images, same))


@pytest.mark.parametrize("layout", ["last", "first", "none"])
def test_images_are_shifted_in_every_layout(layout: str) -> None:
    images = numbered_images()
    views = {"last": images, "first": images.permute(0, 3, 1, 2), "none": images[..., 0]}
    shapes = {"last": (HEIGHT, WIDTH, 1), "first": (2, HEIGHT, WIDTH), "none": (HEIGHT, WIDTH)}
    view = views[layout][..., :1] if layout == "last" else views[layout]
    encoder = make_encoder(spaces.Box(0, 255, shapes[layout], np.uint8), orthogonal=True, generator=generator(0))
    shifted = shift_observation(encoder, view, generator(1))
    assert isinstance(shifted, torch.Tensor)
    assert shifted.shape == view.shape
    whole = shift_images(images, generator(1))
    expected = {"last": whole[..., :1], "first": whole.permute(0, 3, 1, 2), "none": whole[..., 0]}[layout]
    assert shifted.equal(expected)


def test_of_a_dict_only_the_images_are_shifted() -> None:
    space = spaces.Dict(
        {"picture": spaces.Box(0, 255, (HEIGHT, WIDTH, 1), np.uint8), "numbers": spaces.Box(-1, 1, (5,), np.float32)}
    )
    encoder = make_encoder(space, orthogonal=True, generator=generator(0))
    observation = {
        "picture": numbered_images()[..., :1],
        "numbers": torch.randn(COUNT, 5, generator=generator(3)),
    }
    shifted = shift_observation(encoder, observation, generator(1))
    assert isinstance(shifted, dict)
    assert shifted["numbers"].equal(observation["numbers"])
    assert not shifted["picture"].equal(observation["picture"])


def test_a_vector_stays_as_it_is() -> None:
    encoder = make_encoder(spaces.Box(-1, 1, (5,), np.float32), orthogonal=True, generator=generator(0))
    numbers = torch.randn(COUNT, 5, generator=generator(3))
    shifted = shift_observation(encoder, numbers, generator(1))
    assert isinstance(shifted, torch.Tensor)
    assert shifted.equal(numbers)

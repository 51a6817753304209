"""Decodes the JPEG images that Minari stores by default; this package writes images without loss."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from rl_training.errors import DatasetError, MissingExtraError

_SMALLEST_SIDE = 32


def is_jpeg_space(space: Space[Any]) -> bool:
    """Return whether Minari stores arrays of a space as JPEG images, if its metadata announces them."""
    return (
        isinstance(space, spaces.Box)
        and len(space.shape) in (2, 3)
        and min(space.shape[:2]) >= _SMALLEST_SIDE
        and space.dtype == np.uint8
        and bool((space.low == 0).all() and (space.high == 255).all())
    )


def decode_images(encoded: Sequence[bytes], space: Space[Any], place: str) -> np.ndarray:
    """Return images [T, ...] of a space; `place` is their origin in messages.

    The size in an image's header is compared with the space before its pixels are decoded.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError("a dataset with JPEG images", "offline") from error
    shape = tuple(space.shape or ())
    images = np.empty((len(encoded), *shape), np.uint8)
    for row, content in enumerate(encoded):
        try:
            with Image.open(io.BytesIO(content), formats=["JPEG"]) as image:
                if (image.height, image.width) != shape[:2]:
                    raise ValueError(f"it has {image.height}x{image.width} pixels")
                images[row] = np.asarray(image)
        except Exception as error:  # Pillow raises nearly every built-in exception for damaged images
            raise DatasetError(f"{place}: image {row} cannot be decoded: {' '.join(str(error).split())}") from error
    return images

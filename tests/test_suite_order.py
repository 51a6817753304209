"""The order of the tests for several processes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from suite_order import COMPILING, LONG, TESTS, shared_order


@pytest.mark.parametrize("place", [*COMPILING, *LONG])
def test_places_with_an_order_of_their_own_exist(place: str) -> None:
    assert (TESTS / place).exists()


def test_the_first_process_compiles_while_the_second_runs_what_is_long() -> None:
    names = ["algorithms/test_a.py"] * 6 + ["docs/test_b.py", "runtime/sweep/test_c.py", "search/test_d.py"]
    items: list[Any] = [SimpleNamespace(path=TESTS / name, number=number) for number, name in enumerate(names)]
    ordered: list[Any] = [*shared_order(items, 2)]
    assert [item.number for item in ordered] == [8, 0, 1, 2, 7, 6, 3, 4, 5]

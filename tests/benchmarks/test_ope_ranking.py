"""The benchmark of off-policy evaluation: ranks by hand, and the page as the stored result says."""

from __future__ import annotations

import json

import pytest

import ope_ranking
from documents.docs_pages import marked_section


def test_equal_values_share_the_mean_of_their_ranks():
    assert ope_ranking.ranks([10.0, 30.0, 20.0]).tolist() == [1, 3, 2]
    assert ope_ranking.ranks([5.0, 5.0, 1.0, 9.0]).tolist() == [2.5, 2.5, 1, 4]


def test_rank_correlation_ignores_everything_but_the_order():
    assert ope_ranking.spearman([1.0, 2.0, 3.0], [-5.0, 0.0, 1000.0]) == pytest.approx(1.0)
    assert ope_ranking.spearman([1.0, 2.0, 3.0], [3.0, 2.0, 1.0]) == pytest.approx(-1.0)
    # 1 - 6 * sum of squared differences of ranks / (n (n^2 - 1)), with differences 0, 1, 1, 0
    assert ope_ranking.spearman([1.0, 2.0, 3.0, 4.0], [1.0, 3.0, 2.0, 4.0]) == pytest.approx(1 - 6 * 2 / (4 * 15))


def test_the_page_says_what_was_stored():
    stored = json.loads(ope_ranking.RESULT.read_text(encoding="utf-8"))
    assert marked_section(ope_ranking.PAGE, "ranking") == ope_ranking.render(stored)
    assert stored["spearman_least"] >= 0.8
    assert all(len(run["checkpoints"]) == 8 for run in stored["runs"])

"""The scorecard follows its own rule: answers give scores, scores give the summary and its totals."""

from __future__ import annotations

import re

import pytest

from documents.docs_pages import ROOT, marked_section, marked_table

SCORECARD = ROOT / "docs" / "scorecard.md"
PROJECTS = (
    "AxiomRL",
    "Stable-Baselines3",
    "RL Zoo",
    "CleanRL",
    "Tianshou",
    "Sample Factory",
    "RLlib",
    "TorchRL",
    "d3rlpy",
)
DIMENSIONS = (
    "config",
    "CLI",
    "artifacts",
    "reproducibility",
    "evaluation",
    "resume",
    "observability",
    "export",
)
SCORE_BY_ANSWERS = (0, 0, 1, 1, 2)


@pytest.mark.parametrize("dimension", DIMENSIONS)
def test_scores_follow_from_the_answers(dimension: str) -> None:
    rows = marked_table(SCORECARD, dimension)
    assert [project for project, *_ in rows] == list(PROJECTS)
    for project, answers, score, evidence in rows:
        letters = [] if answers == "none" else answers.split(" ")
        assert letters == sorted(set(letters) & set("abcd")), f"{project}: {answers}"
        assert int(score) == SCORE_BY_ANSWERS[len(letters)], project
        assert evidence, project


def test_every_dimension_asks_four_questions() -> None:
    text = SCORECARD.read_text(encoding="utf-8")
    for dimension in DIMENSIONS:
        question = text.split(f"<!-- {dimension}: begin -->")[0].rsplit("\n## ", 1)[1]
        assert re.findall(r"\((\w)\)", question) == list("abcd"), dimension


def test_the_summary_holds_the_scores_and_their_sum() -> None:
    heading = [cell.strip() for cell in marked_section(SCORECARD, "summary").splitlines()[0].strip("|").split("|")]
    assert heading == ["project", *DIMENSIONS, "total"]
    tables = [marked_table(SCORECARD, dimension) for dimension in DIMENSIONS]
    for number, (project, *cells) in enumerate(marked_table(SCORECARD, "summary")):
        scores = [int(table[number][2]) for table in tables]
        assert project == PROJECTS[number]
        assert list(map(int, cells)) == [*scores, sum(scores)], project

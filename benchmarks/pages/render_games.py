"""Games against opponents on the pages of the algorithms that played them: a table, and a picture where many did."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pages.result_tables import heading, row, versions

SIDES, OUTCOMES = ("first", "second"), ("wins", "draws", "losses")


def game_blocks(played: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Return the games of final policies as a table, the pictures of those over training, and how to repeat them."""
    played = sorted(played, key=lambda entry: (entry["preset"], entry.get("variant") or ""))
    usual = ("preset", "seed", "steps", "openings", "simulations", "opponent")
    table = heading(*usual, "wins minus losses per game", *(f"{side}: {', '.join(OUTCOMES)}" for side in SIDES))
    for entry in played:
        config = entry["config"]
        last = config["total_timesteps"]
        for result in entry["games"]:
            if result.get("step", last) == last:
                table.append(
                    row(
                        name_of(entry),
                        config["seed"],
                        f"{last:,}",
                        entry.get("opening_moves", 0),
                        result.get("simulations", entry.get("simulations")),
                        result["opponent"],
                        f"{score(result):.2f}",
                        *(", ".join(str(result[side][outcome]) for outcome in OUTCOMES) for side in SIDES),
                    )
                )
    explanation = [
        "Games of final policies, which plan without noise. `depth-limited:4` looks four moves ahead and draws only",
        "among its best moves, so that its games from the empty board are much alike. Openings are the random moves at",
        "the beginning of a game, so many at the most; the agent moves first or second after them. A picture shows the",
        "policies of earlier checkpoints too. A word behind a preset stands for what the command below changes in it:",
    ]
    pictures = [
        [f"![Strength of {name_of(entry)} over training and by simulations](../{picture_path(entry)})"]
        for entry in played
        if over_training(entry)
    ]
    commands = ["```text", *(entry["command"] for entry in played), "```"]
    return [explanation, *pictures, table, versions(played), ["To repeat them:"], commands]


def score(result: dict[str, Any]) -> float:
    """Return wins minus losses per game, from both sides."""
    wins, losses = (sum(result[side][outcome] for side in SIDES) for outcome in ("wins", "losses"))
    return float(wins - losses) / (2 * result["games_per_side"])


def name_of(entry: dict[str, Any]) -> str:
    """Return the preset, and the word for how it is changed."""
    return ", ".join(filter(None, (f"`{entry['preset']}`", entry.get("variant"))))


def over_training(entry: dict[str, Any]) -> bool:
    """Whether policies of several steps of the training played."""
    return len({result.get("step") for result in entry["games"]}) > 1


def picture_path(entry: dict[str, Any]) -> str:
    """Return where the picture of a preset's games is, below `docs/`."""
    return f"plots/{'-'.join(filter(None, ('games', entry['preset'], entry.get('variant'))))}.svg"


def pictured_games(results: Path) -> list[dict[str, Any]]:
    """Return the stored games of which there is a picture."""
    stored = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(results.glob("games-*.json"))]
    return [entry for entry in stored if over_training(entry)]


def write_pictures(results: Path, docs: Path) -> None:
    """Draw them; needs the extra `plot`."""
    from pages.board_plot import write_board_plot

    for entry in pictured_games(results):
        write_board_plot(entry, docs / picture_path(entry))

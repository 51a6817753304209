"""Text from files as terminals, logs and exports may show it.

What a run, a checkpoint or a configuration holds is somebody's text: an escape sequence in it would steer the
terminal, a line break would forge a `key=value` line, a bidirectional control would reorder what is read.
"""

from __future__ import annotations


def printable(text: str) -> str:
    """Return text on one line in which control and formatting characters are spelled out."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def printable_lines(text: str) -> str:
    """Return a message of possibly several lines in the same way; further lines are indented.

    So that no line but the first begins where a line of the program would.
    """
    return "\n  ".join(map(printable, text.expandtabs().split("\n")))

"""Makes text from files safe to show on terminals, in logs and in exports.

The text in a run, a checkpoint or a configuration may come from somebody else: an escape sequence would control the
terminal, a line break would forge a `key=value` line, a bidirectional control would reorder the text.
"""

from __future__ import annotations


def printable(text: str) -> str:
    """Return text on one line, with control and formatting characters escaped."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def printable_lines(text: str) -> str:
    """Return a message of several lines with the same characters escaped and all lines but the first indented.

    Indented lines cannot be mistaken for lines of the program.
    """
    return "\n  ".join(map(printable, text.expandtabs().split("\n")))


def number(value: float) -> str:
    """Return a number in few characters."""
    return f"{value:,.1f}" if abs(value) >= 10 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """Return a time as hours, minutes and seconds."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"

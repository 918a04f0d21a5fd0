"""The cost of a statement, and the limit of a table per day."""

from __future__ import annotations


def excess(wanted: int, used: int, limit: int) -> str:
    """Why a statement of so many bytes exceeds the limit of a day; "" if it does not. 0 is no limit."""
    if not limit or used + wanted <= limit:
        return ""
    today = f"{used:,} were billed today, and " if used else ""
    text = f"its statement would be billed {wanted:,} bytes; {today}bytes_per_day={limit:,}"
    return f"{text}: it never fits" if wanted > limit else text

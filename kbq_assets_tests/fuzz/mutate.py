"""Damage to texts and JSON values."""

from __future__ import annotations

import random
from typing import Any, Final

#: Pieces that have hurt parsers: ends of blocks, depth, surrogates, NUL, long numbers and names.
_PIECES: Final = (
    *(
        "{",
        "}",
        "[",
        "]",
        '"',
        ":",
        ",",
        "\\",
        "\n",
        "\t",
        "\x00",
        "\ud800",
        "é",
        "😀",
        "&a",
        "*a",
        "<<: *a",
        "!!x",
        "|",
    ),
    *(
        "[" * 120,
        '{"a":' * 120,
        "9" * 400,
        "-",
        "1e999",
        "-0",
        "NaN",
        "null",
        "x" * 300,
        "../" * 20,
        "%00",
        "\r\n",
    ),
)
_VALUES: Final[tuple[Any, ...]] = (
    *(
        None,
        True,
        0,
        -1,
        2**31,
        2**63,
        -(2**64),
        1.5,
        1e300,
        "",
        "\x00",
        "\ud800",
        "é",
        "x" * 300,
        "null",
        "int",
        "record",
    ),
    *(
        [],
        {},
        [[]],
        {"type": "string"},
        [{"type": "string"}],
        {"$ref": "#"},
        {"a": {"b": {}}},
        ["null", "null"],
    ),
)


def mutated_text(text: str, chance: random.Random) -> str:
    """A text with one to three changes."""
    for _ in range(chance.choice((1, 1, 2, 3))):
        at, until = sorted(chance.randrange(len(text) + 1) for _ in range(2))
        until = min(until, at + 40)
        match chance.randrange(4):
            case 0:
                text = text[:at] + text[until:]
            case 1:
                text = text[:at] + text[at:until] * chance.choice((2, 3, 50)) + text[until:]
            case 2:
                text = text[:at] + chance.choice(_PIECES) + text[at:]
            case _:
                text = text[:at] + chance.choice(_PIECES) + text[until:]
    return text


def mutated_json(value: Any, chance: random.Random) -> Any:
    """A JSON value in which one part is replaced, removed, renamed or duplicated."""
    if isinstance(value, dict) and value and chance.random() < 0.85:
        key = chance.choice(list(value))
        rest = {name: each for name, each in value.items() if name != key}
        match chance.randrange(8):
            case 0:
                return rest
            case 1:
                return {**rest, chance.choice([str(each) for each in _VALUES]): value[key]}
            case _:
                return {**value, key: mutated_json(value[key], chance)}
    if isinstance(value, list) and value and chance.random() < 0.85:
        at = chance.randrange(len(value))
        match chance.randrange(5):
            case 0:
                return value[:at] + value[at + 1 :]
            case 1:
                return value + [value[at]] * chance.choice((1, 20))
            case _:
                return [*value[:at], mutated_json(value[at], chance), *value[at + 1 :]]
    return chance.choice(_VALUES)

"""Errors form the tree in the docstring, and each survives the way from a task to the driver."""

from __future__ import annotations

import inspect
import pickle
import re

import pytest

from kbq_assets.core import errors
from kbq_assets.core.config.settings import UnknownVariables
from kbq_assets.core.errors import BUG, ConfigurationError, Defect, KbqError, UnreadableBatch

CLASSES = [each for _, each in inspect.getmembers(errors, inspect.isclass) if issubclass(each, KbqError)] + [
    UnknownVariables
]


def drawn() -> dict[str, str]:
    """The parent of each class, as the tree in the docstring draws it."""
    found, above = {}, {0: "KbqError"}
    for line in str(errors.__doc__).splitlines():
        if branch := re.match(r"^([ │]*)[├└]── (\w+)", line):
            depth = (len(branch[1]) - 4) // 4 + 1
            above[depth] = branch[2]
            found[branch[2]] = above[depth - 1]
    return found


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    parents = {
        each.__name__: each.__base__.__name__ for each in CLASSES if each is not KbqError and each.__base__
    }
    assert drawn() == parents


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_error_survives_pickling(cls: type[KbqError]) -> None:
    error = cls("what happened", next_step="what to do")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is cls
    assert (copy.message, copy.next_step, str(copy)) == (error.message, error.next_step, str(error))
    assert copy.args == error.args


def test_what_an_error_knows_besides_survives_too() -> None:
    batch = UnreadableBatch("damaged", reason="oversized_batch", first=5, until=9)
    copy = pickle.loads(pickle.dumps(batch))
    assert (copy.reason, copy.first, copy.until) == ("oversized_batch", 5, 9)
    twice = pickle.loads(pickle.dumps(copy))
    assert twice.until == 9


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (KbqError("it broke"), "it broke"),
        (KbqError("it broke", next_step="fix it"), "it broke\n  next: fix it"),
    ],
)
def test_an_error_says_what_happened_and_then_what_to_do(error: KbqError, text: str) -> None:
    assert str(error) == text


@pytest.mark.parametrize("error", [KbqError("x"), ConfigurationError("x"), Defect("x")])
def test_an_error_on_purpose_is_no_defect(error: KbqError) -> None:
    assert Defect.of(error) is error


def test_any_other_error_is_a_defect_that_names_it() -> None:
    found = Defect.of(KeyError("a"))
    assert isinstance(found, Defect)
    assert (found.message, found.next_step) == ("KeyError: 'a'", BUG)

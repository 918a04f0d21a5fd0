"""The documents are true: their commands parse, and they leave nothing out."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from kbq_assets.core.config.settings import VARIABLES
from kbq_assets.core.protocol.waits import ParkReason, StopReason
from kbq_assets.definitions import command_line
from kbq_assets_tests.cli.test_commands import commands
from kbq_assets_tests.core.catalog.documents import problems_of
from kbq_assets_tests.reference import references

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    *(ROOT / "docs").rglob("*.md"),
]
SOURCES = [*(ROOT / "kbq_assets").rglob("*.py"), ROOT / "Makefile"]
TEXT = {path: path.read_text(encoding="utf-8") for path in DOCUMENTS}
ALL = "\n".join(TEXT.values())
OPERATIONS = TEXT[ROOT / "docs" / "operations.md"]
CONFIGURATION = TEXT[ROOT / "docs" / "configuration.md"]


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def code(text: str) -> Iterator[str]:
    """Lines of code blocks, and spans of code."""
    for block in re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        yield from block.splitlines()
    yield from re.findall(
        r"(?<!`)`([^`\n]+)`(?!`)", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    )


def command_lines(text: str) -> list[str]:
    """Every `kbq …` in code, one each where several are joined."""
    parts = (part for line in code(text) for part in re.split(r"&&|;", line.removeprefix("$ ")))
    return [part.strip() for part in parts if re.match(r"\s*kbq( |$)", part)]


def parse(line: str) -> None:
    """Parse a command line as Click would, without running it. Raises click.ClickException."""
    arguments = shlex.split(re.split(r" > |  #", line)[0], comments=True)[1:]
    if arguments[:1] == ["--warehouse"]:
        arguments = arguments[2:]
    context: click.Context | None = None
    command: click.Command = command_line()
    path = "kbq"
    while isinstance(command, click.Group) and arguments:
        group = click.Context(command, context, info_name=path)
        _, found, arguments = command.resolve_command(group, arguments)
        assert found is not None
        context, command, path = group, found, found.name or ""
    if arguments and not isinstance(command, click.Group):  # a bare name is a mention, not a command line
        command.make_context(path, arguments, context)


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_every_command_in_a_document_parses(path: Path) -> None:
    for line in command_lines(TEXT[path]):
        try:
            parse(line)
        except click.ClickException as error:
            pytest.fail(f"{name(path)}: {line}: {error.format_message()}")


def anchors(text: str) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_every_link_to_a_document_leads_to_a_heading(path: Path) -> None:
    for target, anchor in re.findall(r"\]\(([\w./-]+\.md)(?:#([\w-]+))?\)", TEXT[path]):
        found = (path.parent / target).resolve()
        assert found.exists(), f"{name(path)}: {target}"
        assert not anchor or anchor in anchors(TEXT[found]), f"{name(path)}: {target}#{anchor}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_a_shell_takes_every_variable_that_a_document_exports(path: Path) -> None:
    exported = re.findall(r"^ *export ([^\n]*)", TEXT[path], re.MULTILINE)
    names = [word.partition("=")[0] for line in exported for word in line.split() if "=" in word]
    assert [each for each in names if not each.isidentifier()] == []


def test_a_command_that_does_not_exist_is_noticed() -> None:
    for line in ("kbq nothing", "kbq reset --at latest", "kbq plan --nothing", "kbq errors show a b"):
        with pytest.raises(click.ClickException):
            parse(line)


def advised() -> Iterator[tuple[str, str]]:
    """Commands that messages of the source advise: in text that begins with `kbq` or has it in backquotes."""
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        for found in re.findall(r"[\"`](kbq [a-z][^\"`\n;:,]*)[\"`;:,]", text):
            yield name(path), found


def test_every_command_that_a_message_advises_exists() -> None:
    for where, advice in advised():
        # What follows the options is prose; what is filled in is of some topic or table.
        line = re.sub(r"{options}", "--topic T --partition 0", advice)
        words = re.sub(r"{[^}]*}", "0", line).split()
        known = [words[0], *_command_words(words[1:])]
        options = [word for word in words if word.startswith("--")]
        command = _resolve(known[1:])
        assert command is not None, f"{where}: {advice}"
        allowed = {option for parameter in command.params for option in parameter.opts}
        assert set(options) <= allowed, f"{where}: {advice}"


def test_every_option_that_a_message_advises_in_a_sentence_exists() -> None:
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        for words, option in re.findall(r"\bkbq ((?:[a-z]+ )+)(--[a-z-]+)", text):
            if command := _resolve(_command_words(words.split())):  # else the words are prose
                known = {each for parameter in command.params for each in parameter.opts}
                assert option in known, f"{name(path)}: kbq {words}{option}"


def _command_words(words: list[str]) -> list[str]:
    found = [words[0]]
    command = _resolve(found)
    if isinstance(command, click.Group) and len(words) > 1:
        found.append(words[1])
    return found


def _resolve(words: list[str]) -> click.Command | None:
    command: click.Command | None = command_line()
    for word in words:
        if not isinstance(command, click.Group):
            return None
        command = command.get_command(click.Context(command), word)
    return command


@pytest.mark.parametrize("path", list(commands(command_line())), ids=" ".join)
def test_every_command_is_documented(path: tuple[str, ...]) -> None:
    assert f"kbq {' '.join(path)}" in "\n".join(command_lines(ALL))


@pytest.mark.parametrize(("path", "text"), list(references()), ids=lambda value: getattr(value, "name", ""))
def test_tables_are_what_is_declared(path: Path, text: str) -> None:
    assert path.read_text(encoding="utf-8") == text, "make reference"


#: docs/upgrade.md says what to do about these.
REMOVED = {"KBQ_PARTITION_KEYS", "KBQ_REPORTERS", "KBQ_REPORT_SECONDS"}


def test_no_document_names_a_variable_that_does_not_exist() -> None:
    named = set(re.findall(r"\bKBQ_[A-Z_]+[A-Z]\b", ALL))
    unknown = named - VARIABLES.keys() - {"KBQ_SPARK_CONF"} - REMOVED
    assert {n for n in unknown if not n.startswith(("KBQ_FUZZ", "KBQ_KAFKA_", "KBQ_TEST_"))} == set()


@pytest.mark.parametrize("reason", [*StopReason, *ParkReason])
def test_every_stop_and_parking_has_its_row_in_operations(reason: str) -> None:
    assert f"\n| `{reason}` | " in OPERATIONS


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\((?!https?://)([^)#]+)", TEXT[path]):
        assert (path.parent / target).exists(), f"{name(path)}: {target}"


def test_every_make_target_in_the_documents_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    used = {word for line in code(ALL) for word in re.findall(r"^make ([a-z]+)", line)}
    assert used <= targets
    assert {"demo", "test", "ui", "stop", "clean"} <= used


#: Keys with which an entry of a catalog begins in these pages.
ENTRY = re.compile(
    r"(?:description|encoding|partition_time|destination|records|loading|pii|flush):\s|{\"typology\""
)


def entries() -> Iterator[tuple[str, str]]:
    """Blocks that are a catalog's entry; of alternatives, which repeat a key, each."""
    for path in DOCUMENTS:
        for block in re.findall(r"^```(?:yaml)?\n(.*?)^```", TEXT[path], re.MULTILINE | re.DOTALL):
            keys = re.findall(r"^\w+:", block, re.MULTILINE)
            alternatives = block.splitlines() if len(keys) > len(set(keys)) else [block]
            yield from ((name(path), text) for text in alternatives if ENTRY.match(text))


@pytest.mark.parametrize(("document", "text"), list(entries()))
def test_every_entry_in_a_document_is_one_that_the_catalog_takes(document: str, text: str) -> None:
    assert problems_of(text, **{"catalog.yaml": "throughputs: {normal: {}}"}) == [], document

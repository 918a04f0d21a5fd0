"""``kbq catalog``: validates, shows, compares and applies the topic catalog."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kbq_assets.cli.context import (
    ExitCode,
    Part,
    confirm,
    json_option,
    pass_deployment,
    pass_observer,
    yes_option,
)
from kbq_assets.cli.render import console, echo_json, table
from kbq_assets.core.catalog import CatalogEntry, CatalogProblem
from kbq_assets.core.errors import ConfigurationError, KbqError
from kbq_assets.core.plurals import counted

if TYPE_CHECKING:
    from kbq_assets.core.catalog.changes import Difference
    from kbq_assets.core.catalog.starter import DraftFile
    from kbq_assets.core.loading.tables import Column
    from kbq_assets.core.protocol.names import TableReference
    from kbq_assets.extras.catalog.apply import CatalogCommands, CatalogPlan
    from kbq_assets.extras.catalog.site import SiteTopic
    from kbq_assets.pipelines.deployment import Deployment
    from kbq_assets.pipelines.observation.observer import Observer

pass_commands: Part[CatalogCommands] = Part("catalog_commands")
env_option = click.option("--env", default="", help="Environment; by default KBQ_ENV, or the only one.")


@click.group()
def catalog() -> None:
    """Validate, show and apply the topic catalog in the folder of KBQ_SOURCE_TOPICS."""


@catalog.command()
@click.option("--registry", is_flag=True, help="Also check that the registry accepts the schemas.")
@env_option
@json_option
@pass_commands
def validate(commands: CatalogCommands, registry: bool, env: str, as_json: bool) -> None:
    """Check all entries, defaults and schemas; exit code 1 if there is a mistake or something could not be checked.

    Each mistake has a file, a line, a key and a correction. Only --registry needs a network, so a CI job can run this
    on every change.
    """
    found = commands.reader.catalog()
    compiled, not_compiled = commands.protobuf_problems()
    problems = sorted([*found.problems, *compiled])
    if not_compiled:
        click.echo(not_compiled, err=True)
    if registry and not problems:
        problems = commands.incompatible_schemas(env)
    if as_json:
        echo_json([problem_json(problem) for problem in problems])
    else:
        for problem in problems:
            click.echo(str(problem))
        envs = ", ".join(found.envs) or "none"
        verdict = _count(problems) if problems or not not_compiled else "not everything was checked"
        click.echo(f"{counted(len(found.entries), 'entry', 'entries')}, environments: {envs}; {verdict}")
    sys.exit(1 if problems or not_compiled else 0)


@catalog.command()
@click.argument("topic", metavar="[TOPIC|TABLE]", required=False)
@env_option
@json_option
@pass_deployment
@pass_commands
def show(
    commands: CatalogCommands, deployment: Deployment, topic: str | None, env: str, as_json: bool
) -> None:
    """List the entries of an environment, or show everything about one topic or table, including defaults.

    Columns are the table's own if the warehouse answers, otherwise those of the catalog's schema.
    """
    from kbq_assets.extras.catalog.site import site_topics
    from kbq_assets.pipelines.catalog.reader import time_source

    entries = commands.entries(env)
    if commands.reader.catalog().problems:
        click.echo(
            "the catalog has mistakes, so a part of it is missing here; next: kbq catalog validate", err=True
        )
    if topic is not None:
        entry, files = _named(entries, topic), commands.reader.files()
        (described,) = site_topics(
            [entry], files, deployment.settings.warehouse, stored=partial(_stored, deployment)
        )
        if as_json:
            columns = [dataclasses.asdict(column) for column in described.dataset.columns]
            echo_json(entry_json(entry) | {"columns": columns, "query": described.query})
        else:
            click.echo(_whole(entry, time_source(entry, files)), nl=False)
            click.echo(
                "".join(f"# {line}".rstrip() + "\n" for line in _columns_and_query(described)), nl=False
            )
        return
    if as_json:
        echo_json([entry_json(entry) for entry in entries])
        return
    shown = table("topic", "tables", "encoding", "typology", "team", "personal data", "archived")
    for entry in entries:
        fields = entry.document
        shown.add_row(
            entry.topic,
            target(entry),
            entry.encoding,
            str(fields.get("typology", "")),
            entry.settings.ownership.owner,
            str(fields.get("pii", {}).get("level", "")),
            "yes" if entry.archived else "no",
        )
    console().print(shown)


@catalog.command()
@env_option
@json_option
@pass_commands
def diff(commands: CatalogCommands, env: str, as_json: bool) -> None:
    """Compare the catalog with broker, registry, buckets and grants. Exit code 1 if `kbq catalog apply` would change
    them, 75 if the registry could not compare a subject."""
    planned = commands.plan(env)
    lines = planned.lines
    others = [str(difference) for difference in planned.differences]
    if as_json:
        echo_json({"changes": lines, "differences": others, "unknown": list(map(str, planned.unknown))})
    else:
        for line in lines:
            click.echo(f"to do: {line}")
        for line in others:
            click.echo(f"by hand: {line}")
        _show_unknown(planned)
        if not lines and not others and not planned.unknown:
            click.echo("the broker matches the catalog")
    sys.exit(1 if lines else _code(planned))


@catalog.command()
@click.option(
    "--ddl", is_flag=True, help="Only print the SQL that lets BigQuery read the lake; change nothing."
)
@env_option
@yes_option
@pass_commands
def apply(commands: CatalogCommands, env: str, yes: bool, ddl: bool) -> None:
    """Make broker and registry match the catalog. Shows the changes, then asks.

    Creates topics, adds partitions, alters settings and registers schemas. According to catalog.yaml, it also adds ACLs
    (`access`), sets storage classes of buckets (`lifecycle`), lets BigQuery read the newest state of a lake
    (`lake_in_bigquery`), and grants read access to tables and buckets (`access.readers`). It deletes nothing, removes
    no partition and no grant, and changes no setting that the catalog does not name.
    """
    if ddl:
        changes, left = commands.plan_lake(commands.sound_entries(env))
        for change in changes:
            click.echo(f"-- {change}\n{change.ddl}")
        for difference in left:
            click.echo(f"by hand: {difference}", err=True)
        return
    planned = commands.plan(env)
    for difference in planned.differences:
        click.echo(f"by hand: {difference}")
    _show_unknown(planned)
    proposals = commands.proposals(planned)
    if proposals:
        confirm(proposals, yes=yes)
    elif not planned.unknown:
        click.echo("the broker matches the catalog")
    sys.exit(_code(planned))


def _show_unknown(planned: CatalogPlan) -> None:
    for subject in planned.unknown:
        click.echo(f"unknown: {subject}")


def _code(planned: CatalogPlan) -> int:
    return ExitCode.TRY_AGAIN if planned.unknown else ExitCode.DONE


@catalog.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--company", required=True, help="First folder level of the new entries.")
@click.option("--domain", required=True, help="Second folder level.")
@click.option("--env", default="prod", show_default=True, help="Environment of the cluster.")
@click.option("--topic", "topics", multiple=True, help="Only these topics.")
@pass_deployment
@pass_commands
def init(
    commands: CatalogCommands,
    deployment: Deployment,
    folder: Path,
    company: str,
    domain: str,
    env: str,
    topics: tuple[str, ...],
) -> None:
    """Write catalog.yaml, defaults.yaml, and a first entry with the registry's schemas for every topic of the cluster
    that has none yet. Existing files do not change.

    A topic is left out if the broker does not have it or its schema cannot be used (exit code 1), or if the registry
    does not return its schema (75). KBQ extracts a topic only after you add `archiver` to its consumers.
    """
    from kbq_assets.core.catalog.starter import draft_root

    described: dict[str, str] = {}
    if folder.is_dir() and folder.absolute() == deployment.settings.catalog.source_topics:
        described = commands.described_elsewhere(company, domain, env)
        show_described(
            folder, {topic: described[topic] for topic in topics or described if topic in described}
        )
    only = frozenset(topics) or None
    drafts, unusable, unknown = commands.drafts(company, domain, env, only, without=described)
    write_drafts(folder, [*draft_root(env), *drafts])
    click.echo(f"{counted(sum(draft.is_entry for draft in drafts), 'topic')}; next: review them, then")
    click.echo(f"  KBQ_SOURCE_TOPICS={folder} kbq catalog validate")
    end_with_left_out(unusable, unknown)


def end_with_left_out(unusable: Sequence[Difference], unknown: Sequence[Difference]) -> None:
    """Print the topics that were left out, and exit with their code if there are any."""
    for each in (*unusable, *unknown):
        click.echo(f"left out: {each}", err=True)
    if unusable or unknown:
        sys.exit(ExitCode.FAILED if unusable else ExitCode.TRY_AGAIN)


def show_described(folder: Path, described: Mapping[str, str]) -> None:
    """Print the entries that topics already have."""
    for topic, path in sorted(described.items()):
        click.echo(f"kept {folder / path}, the entry of {topic}")


def write_drafts(folder: Path, drafts: Iterable[DraftFile]) -> None:
    """Write files that do not exist yet."""
    for draft in drafts:
        path = folder / draft.path
        if path.exists():
            click.echo(f"kept {path}")
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(draft.text, encoding="utf-8")
        click.echo(f"wrote {path}")


@catalog.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--state", is_flag=True, help="Show the tables' current rows and columns.")
@env_option
@pass_observer
@pass_deployment
@pass_commands
def site(
    commands: CatalogCommands,
    deployment: Deployment,
    observer: Observer,
    folder: Path,
    state: bool,
    env: str,
) -> None:
    """Write the catalog as searchable pages with owners, columns, personal data and first queries.

    Any web server can serve the folder, or you can open index.html in a browser.
    """
    from kbq_assets.extras.catalog.site import site_topics, write_site

    entries = commands.sound_entries(env)
    statuses = observer.tables() if state else ()
    loaded = {status.table for status in statuses if status.loaded_rows}
    topics = site_topics(
        entries,
        commands.reader.files(),
        deployment.settings.warehouse,
        statuses,
        lambda table: _stored(deployment, table) if table in loaded else None,
    )
    written = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    name = entries[0].place.env if entries else env
    count = write_site(folder, topics, name, written, with_state=state)
    click.echo(f"wrote {counted(count, 'page')}; open {folder / 'index.html'}")


@catalog.command()
def schema() -> None:
    """Print the JSON Schema of entries, for completion and checks in editors."""
    from kbq_assets.core.catalog.validation import json_schema

    echo_json(json_schema())


def target(entry: CatalogEntry) -> str:
    """The destination of an entry's rows, as text."""
    return entry.settings.destination.target(entry.topic)


def entry_json(entry: CatalogEntry) -> dict[str, Any]:
    return {
        "topic": entry.topic,
        "env": entry.place.env,
        "path": entry.place.path,
        "tables": target(entry),
        "archived": entry.archived,
        "kafka": {
            "partitions": entry.kafka.partitions,
            "replication": entry.kafka.replication,
            "config": dict(entry.kafka.config),
        },
        "entry": dict(entry.document),
    }


def problem_json(problem: CatalogProblem) -> dict[str, object]:
    """A mistake as a document."""
    return {
        "path": problem.path,
        "line": problem.line,
        "key": problem.where,
        "message": problem.message,
        "hint": problem.hint,
    }


def _whole(entry: CatalogEntry, business_time: str) -> str:
    lines = [f"# {entry.place.path}", f"# topic {entry.topic}, rows go to {target(entry)}"]
    lines += [f"# business time: {business_time}"] if business_time else []
    lines += _yaml(entry.document)
    return "\n".join(lines) + "\n"


def _columns_and_query(topic: SiteTopic) -> list[str]:
    """A topic's columns with types and levels, and a first query."""
    lines = ["", "columns"] if topic.dataset.columns else []
    for column in topic.dataset.columns:
        mode = "" if column.mode in ("NULLABLE", "REQUIRED") else column.mode
        words = (column.name, column.type, mode, column.pii, column.action, column.description)
        lines.append("  " + "  ".join(filter(None, words)))
    return lines + (["", *topic.query.splitlines()] if topic.query else [])


def _yaml(value: object, indent: str = "") -> list[str]:
    """A document as YAML: nested keys, with all other values as JSON, which is valid YAML."""
    lines = []
    assert isinstance(value, dict)
    for key, child in value.items():
        if isinstance(child, dict) and child:
            lines += [f"{indent}{key}:", *_yaml(child, indent + "  ")]
        else:
            lines.append(f"{indent}{key}: {json.dumps(child, ensure_ascii=False)}")
    return lines


def _stored(deployment: Deployment, table: TableReference) -> tuple[Column, ...] | None:
    """The columns of a table. If the warehouse does not answer, print a line and return None."""
    try:
        return deployment.warehouse.columns(table)
    except KbqError as error:
        click.echo(f"{table}: the columns are those of the catalog, because: {error.message}", err=True)
        return None


def _named(entries: Sequence[CatalogEntry], topic: str) -> CatalogEntry:
    found = [
        entry
        for entry in entries
        if topic in (entry.topic, entry.place.topic, entry.place.path, target(entry))
        or (entry.archived and target(entry).rpartition(".")[2] == topic)
    ]
    if not found:
        names = sorted({name for entry in entries for name in (entry.topic, target(entry)) if name})
        near = [name for name in names if topic.lower() in name.lower()] or get_close_matches(topic, names)
        hint = (
            f"did you mean {' or '.join(near[:3])}? `kbq catalog show` lists all"
            if near
            else "kbq catalog show"
        )
        raise ConfigurationError(f"{topic} is not in the catalog", next_step=hint)
    return found[0]


def _count(problems: Sequence[CatalogProblem]) -> str:
    return "no mistake" if not problems else counted(len(problems), "mistake")

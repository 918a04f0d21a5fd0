"""``kbq init``: writes settings and a catalog with first checks, from a few questions or options."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kbq_assets.adapters.settings_file import SETTINGS_FILE, read_settings, setting_line
from kbq_assets.cli.context import pass_deployment, reopen
from kbq_assets.core.catalog.starter import draft_root
from kbq_assets.core.errors import ConfigurationError
from kbq_assets.extras.catalog.cli import end_with_left_out, pass_commands, show_described, write_drafts

if TYPE_CHECKING:
    from kbq_assets.core.catalog.changes import Difference
    from kbq_assets.core.catalog.starter import DraftFile
    from kbq_assets.core.config.settings import Settings
    from kbq_assets.extras.catalog.apply import CatalogCommands
    from kbq_assets.pipelines.deployment import Deployment

_CATALOG = Path("catalog")


@click.command()
@click.option("--bootstrap-servers", help="Your Kafka, host:port,…; by default the broker of `kbq local up`.")
@click.option("--registry-url", help="Your schema registry; by default that of `kbq local up`.")
@click.option("--staging", help="Folder or gs://bucket/prefix; by default below KBQ_HOME.")
@click.option(
    "--warehouse", help="duckdb:PATH or bigquery://project?location=EU; by default DuckDB below KBQ_HOME."
)
@click.option("--company", help="First folder level of the catalog's entries.")
@click.option("--domain", help="Second folder level, and the dataset of the tables.")
@click.option("--env", help="Environment of this Kafka, such as prod.")
@click.option("--team", help="Owner of the tables.")
@click.option(
    "--topic", "topics", multiple=True, help="A topic to load; may be repeated. Others are not extracted yet."
)
def init(
    *,
    bootstrap_servers: str | None,
    registry_url: str | None,
    staging: str | None,
    warehouse: str | None,
    company: str | None,
    domain: str | None,
    env: str | None,
    team: str | None,
    topics: tuple[str, ...],
) -> None:
    """Write kbq.toml and a catalog with first checks to this folder. Existing files and entries do not change. If the
    broker or the registry does not answer, nothing is written.

    Without options, it asks in a terminal. With options, it uses the defaults for the others.
    """
    given = (bootstrap_servers, registry_url, staging, warehouse, company, domain, env, team, topics or None)
    asked = _asked if _is_terminal() and given == (None,) * len(given) else _default
    settings = {
        "KBQ_KAFKA_BOOTSTRAP_SERVERS": asked(bootstrap_servers, "Kafka, host:port (empty: kbq local)"),
        "KBQ_REGISTRY_URL": asked(registry_url, "schema registry, URL (empty: kbq local)"),
        "KBQ_STAGING": asked(staging, "staging, folder or gs://bucket/prefix (empty: .kbq/staging)"),
        "KBQ_WAREHOUSE": asked(
            warehouse, "warehouse, duckdb:PATH or bigquery://project (empty: DuckDB in .kbq)"
        ),
        "KBQ_SOURCE_TOPICS": str(_CATALOG),
    }
    company, domain = asked(company, "company", "company"), asked(domain, "domain", "main")
    env, team = asked(env, "environment", "prod"), asked(team, "team that owns the tables")
    topics = topics or tuple(asked(None, "topics to load, separated by blanks (empty: choose later)").split())
    is_new = _write_settings({name: value for name, value in settings.items() if value})
    reopen()  # the new file now counts
    try:
        _check()
        first = _first_files(company, domain, env, team, topics)
    except BaseException:  # also Ctrl-C
        if is_new:
            Path(
                SETTINGS_FILE
            ).unlink()  # otherwise it would outlive the correction, such as of a broker's address
        raise
    click.echo(f"{'wrote' if is_new else 'kept'} {SETTINGS_FILE}")
    _write_catalog(first, has_topics=bool(topics))


def _asked(_: str | None, question: str, default: str = "") -> str:
    return str(click.prompt(question, default=default, show_default=bool(default)))


def _default(given: str | None, _: str, default: str = "") -> str:
    return default if given is None else given


def _is_terminal() -> bool:
    return sys.stdin.isatty()


def _write_settings(settings: dict[str, str]) -> bool:
    """Write the file of settings unless it exists. Returns whether it is new. Raises ConfigurationError if the existing
    one differs."""
    path = Path(SETTINGS_FILE)
    if path.exists():
        _require_same(settings)
        return False
    head = "# Settings of KBQ in this folder. The environment takes precedence. `kbq settings` lists all.\n"
    path.write_text(head + "".join(setting_line(*each) for each in settings.items()), encoding="utf-8")
    return True


def _require_same(settings: dict[str, str]) -> None:
    """Raise ConfigurationError for a setting that the existing file does not have. `_check` compares the catalog's
    folder."""
    stored = read_settings({})
    for name, value in settings.items():
        if name != "KBQ_SOURCE_TOPICS" and stored.get(name) != value:
            raise ConfigurationError(
                f"{SETTINGS_FILE} exists, and does not set {name} to {value}",
                next_step=f"edit {SETTINGS_FILE}, or delete it and run kbq init again",
            )


@pass_deployment
def _check(deployment: Deployment) -> None:
    """Raise ConfigurationError if the settings of this folder are not in force."""
    settings: Settings = deployment.settings
    if settings.catalog.source_topics != _CATALOG.absolute():
        raise ConfigurationError(
            f"KBQ_SOURCE_TOPICS is {settings.catalog.source_topics}, not the new catalog",
            next_step=f"unset it, or set it to {_CATALOG.absolute()} in the environment or in {SETTINGS_FILE}",
        )


@dataclass(frozen=True)
class _FirstFiles:
    """The catalog's first files; the topics with entries of other domains, by path; and the topics that are left out:
    those that KBQ cannot use, and those whose schema the registry did not return."""

    drafts: Sequence[DraftFile]
    described: Mapping[str, str]
    unusable: Sequence[Difference]
    unknown: Sequence[Difference]


@pass_commands
def _first_files(
    commands: CatalogCommands, company: str, domain: str, env: str, team: str, topics: tuple[str, ...]
) -> _FirstFiles:
    """Ask broker and registry. Raises Unavailable."""
    described = commands.described_elsewhere(company, domain, env) if _CATALOG.is_dir() else {}
    # The defaults name the first team, so entries of another team must name it.
    own = team if (_CATALOG / "defaults.yaml").exists() else ""
    drafts, unusable, unknown = commands.drafts(
        company, domain, env, archived=frozenset(topics), team=own, without=described
    )
    return _FirstFiles([*draft_root(env, team), *drafts], described, unusable, unknown)


def _write_catalog(first: _FirstFiles, *, has_topics: bool) -> None:
    show_described(_CATALOG, first.described)
    write_drafts(_CATALOG, first.drafts)
    what = (
        "review the entries"
        if has_topics
        else "add archiver to the consumers of the topics to load, review the entries"
    )
    click.echo(f"next: {what} (personal data, partition_time), then")
    click.echo("  kbq doctor && kbq extract && kbq load")
    end_with_left_out(first.unusable, first.unknown)

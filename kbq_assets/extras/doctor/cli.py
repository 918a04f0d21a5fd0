"""``kbq doctor``: checks the prerequisites of KBQ and tells how to fix anything missing."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path

import click
import psutil
from packaging.requirements import Requirement

from kbq_assets.adapters.java import find_java
from kbq_assets.adapters.processes.loopback_ports import accepts_connections
from kbq_assets.cli.context import Part, chosen_warehouse
from kbq_assets.cli.render import echo_json
from kbq_assets.core.config.locations import Bucket
from kbq_assets.core.config.redaction import redacted_address
from kbq_assets.core.config.settings import Settings
from kbq_assets.core.errors import KbqError, NotFound, Unavailable
from kbq_assets.core.optional_packages import install_command
from kbq_assets.core.plurals import counted
from kbq_assets.core.topics.json.declared import undeclared
from kbq_assets.core.topics.personal import fields_of
from kbq_assets.core.topics.source_list import SourceEntry
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.extras.doctor.check import Check, Outcome
from kbq_assets.extras.doctor.places import datasets_of, disks, existing, prefix, warehouse
from kbq_assets.pipelines.deployment import Deployment
from kbq_assets.pipelines.spine import Spine
from kbq_assets.ports.kafka import OffsetReader
from kbq_assets.ports.registry import LatestSchema, SchemaRegistry, SubjectRegistry, WriterSchemas

# An id that no registry has assigned, so a working registry answers NotFound.
UNUSED_SCHEMA_ID = 2_147_483_647
# On these file systems, renames and locks are not atomic, or not visible to every client.
NETWORK_FILE_SYSTEMS = ("nfs", "nfs4", "cifs", "smbfs", "smb3", "afpfs", "9p", "fuse.sshfs", "fuse.s3fs")
CHECKED_PACKAGES = ("pyspark", "dagster", "duckdb", "confluent-kafka", "numba", "numpy", "pyarrow")
START = "kbq local up"


@dataclass(frozen=True)
class LocalServices:
    """The addresses and checks of the broker and the registry of `kbq local`."""

    bootstrap_servers: str
    registry_url: str
    checks: Callable[[], Iterable[Check]]

    def serve(self, settings: Settings) -> bool:
        """Whether the settings name the local broker or the local registry."""
        return (
            self.bootstrap_servers == settings.kafka.bootstrap_servers
            or self.registry_url == settings.registry.url
        )


@dataclass(frozen=True)
class Doctor:
    """The configuration to check. ``of_warehouse`` opens it for another of several warehouses."""

    deployment: Deployment
    open_registry: Callable[[], WriterSchemas]
    open_subjects: Callable[[], SubjectRegistry]
    local: LocalServices
    of_warehouse: Callable[[str], Spine]

    def deployments(self, chosen: str = "") -> tuple[Deployment, ...]:
        """The deployment for each warehouse, or only for the chosen one."""
        names = [each.name for each in self.deployment.settings.warehouses]
        if chosen or len(names) == 1:
            return (self.deployment,)
        return tuple(self.of_warehouse(name).deployment for name in names)


pass_doctor: Part[Doctor] = Part("doctor")


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--gcp", is_flag=True, help="Check Google Cloud instead: identities, permissions, locations.")
@pass_doctor
def doctor(patient: Doctor, as_json: bool, gcp: bool) -> None:
    """Check Java, ports, folders, versions, warehouse, broker and registry; exit code 1 if something must be fixed.

    With --gcp, check the permissions of extraction and loading on Google Cloud, and print the commands that grant
    missing ones. Changes nothing, but creates a scratch table per dataset and drops it again.

    If there are several warehouses, checks all of them, or the one in `kbq --warehouse`.
    """
    checks, chosen = [], chosen_warehouse()
    for check in _examine_google(patient, chosen) if gcp else examine(patient, chosen):
        checks.append(check)
        if not as_json:
            show(check)
    if as_json:
        echo_json([asdict(check) for check in checks])
    sys.exit(1 if any(check.outcome is Outcome.FAIL for check in checks) else 0)


def examine(patient: Doctor, chosen: str = "") -> Iterator[Check]:
    """All checks, dependencies first, for every warehouse or only the chosen one."""
    deployment, local = patient.deployment, patient.local
    settings = deployment.settings
    yield python_version(sys.version_info[:2])
    uses_spark, uses_local_services = not settings.spark.processes, local.serve(settings)
    for package in CHECKED_PACKAGES:
        if uses_spark or package != "pyspark":
            yield package_version(package)
    if uses_spark or uses_local_services:
        yield java(settings.home)
    if uses_local_services:
        yield from local.checks()
    deployments = patient.deployments(chosen)
    yield from disks([each.settings for each in deployments])
    yield from map(_warehouse, deployments)
    place = settings.staging
    if isinstance(place, Bucket):
        yield Check("staging", Outcome.OK, f"{settings.staging_url}, see kbq doctor --gcp")
    else:
        yield from folder(place.path)
    answers = broker(settings, local, lambda: deployment.offsets)
    yield answers
    knows = registry(settings, local, patient.open_registry)
    yield knows
    yield from examine_topics(
        patient, has_broker=answers.outcome is Outcome.OK, has_registry=knows.outcome is Outcome.OK
    )


def _warehouse(deployment: Deployment) -> Check:
    return warehouse(deployment.settings, lambda: deployment.warehouse)


def examine_topics(patient: Doctor, *, has_broker: bool, has_registry: bool) -> Iterator[Check]:
    """Checks of everything that the chosen topics need."""
    from kbq_assets.extras.doctor import topics

    deployment = patient.deployment
    try:
        entries = deployment.sources.read()
        on_broker = sorted(deployment.offsets.topics()) if has_broker else []
        addresses = deployment.offsets.brokers() if has_broker else ()
    except KbqError as error:
        yield Check("topics", Outcome.FAIL, error.message, error.next_step)
        return
    yield from topics.mistakes(entries)
    yield from topics.hidden(entries)
    yield from topics.brokers(addresses)
    sound = tuple(entry for entry in entries if entry.mistake is None)
    if sound or not entries:
        yield topics.chosen(deployment.settings, sound, on_broker)
    entries = sound
    yield from topics.keys(deployment.settings, entries)
    yield from topics.protoc(entries)
    if has_registry:
        yield from topics.schemas(deployment.sources.select(on_broker), patient.open_registry())
        with contextlib.suppress(KbqError):  # reported above
            yield from personal_data(entries, patient.open_subjects)


def _examine_google(patient: Doctor, chosen: str) -> Iterator[Check]:
    from kbq_assets.extras.doctor.google import examine_google, examine_project

    sources, settings = patient.deployment.sources, patient.deployment.settings
    entries, policy_tags = sources.read(), bool(sources.datasets().policy_tags)
    if not (yield from examine_google(settings)):
        return  # every other query would fail in the same way, and slowly
    for own in (each.settings for each in patient.deployments(chosen)):
        checks = examine_project(own, datasets_of(entries, own.warehouse_area), policy_tags=policy_tags)
        yield from (replace(check, name=f"{prefix(own)}{check.name}") for check in checks)


def python_version(found: tuple[int, ...]) -> Check:
    """Whether Dagster supports this version of Python: 3.11 to 3.14."""
    text = ".".join(map(str, found))
    if (3, 11) <= found < (3, 15):
        return Check("python", Outcome.OK, text)
    return Check("python", Outcome.FAIL, text, "make .venv with a Python from 3.11 to 3.14: make clean setup")


def package_version(name: str) -> Check:
    """Whether a version that this project requires is installed."""
    fix = "install the locked versions: make setup"
    try:
        found = version(name)
    except PackageNotFoundError:
        if extra := install_command(name):
            return Check(name, Outcome.WARN, "not installed; extraction and Dagster need it", extra)
        return Check(name, Outcome.FAIL, "not installed", fix)
    wanted = _requirement(name)
    if wanted is None or wanted.specifier.contains(found, prereleases=True):
        return Check(name, Outcome.OK, found)
    return Check(name, Outcome.FAIL, f"{found}, wanted {wanted.specifier}", fix)


def java(home: Path) -> Check:
    """Whether there is a Java runtime for Spark, Kafka and the registry."""
    try:
        runtime = find_java(home / "java")
    except KbqError as error:
        return Check("java", Outcome.FAIL, error.message, error.next_step)
    return Check("java", Outcome.OK, f"{runtime.version} at {runtime.home} ({runtime.source})")


def folder(path: Path) -> Iterator[Check]:
    """Whether the staging folder provides what the storage protocol requires."""
    fix = "set KBQ_STAGING to a folder of this user on a local disk"
    file_system = file_system_of(path)
    outcome = Outcome.FAIL if file_system in NETWORK_FILE_SYSTEMS else Outcome.OK
    found = f"{path} on {file_system or 'an unknown file system'}"
    yield Check("staging disk", outcome, found, fix if outcome is Outcome.FAIL else "")
    try:
        problem = _folder_problem(path)
    except OSError as error:
        problem = str(error)
    if problem:
        yield Check("staging folder", Outcome.FAIL, problem, fix)
    else:
        yield Check("staging folder", Outcome.OK, "writable; rename replaces, fsync works, case-sensitive")


def file_system_of(path: Path) -> str:
    """The type of the file system of ``path``, such as ``ext4``; "" if unknown."""
    real, best = existing(path).resolve(), ("", "")
    with contextlib.suppress(OSError, psutil.Error):
        for partition in psutil.disk_partitions(all=True):
            if real.is_relative_to(partition.mountpoint) and len(partition.mountpoint) >= len(best[0]):
                best = (partition.mountpoint, partition.fstype)
    return best[1]


def broker(settings: Settings, local: LocalServices, open_offsets: Callable[[], OffsetReader]) -> Check:
    servers = redacted_address(settings.kafka.bootstrap_servers)
    is_local = settings.kafka.bootstrap_servers == local.bootstrap_servers
    if is_local and not accepts_connections(settings.local.kafka_port):
        # Kafka's client would retry for half a minute.
        return Check("broker", Outcome.FAIL, f"{servers}: nothing listens there", START)
    try:
        offsets = open_offsets()
        found = f"{servers}: cluster {offsets.cluster_id()}, {counted(len(offsets.topics()), 'topic')}"
    except KbqError as error:
        fix = START if is_local else error.next_step or "set KBQ_KAFKA_BOOTSTRAP_SERVERS and its credentials"
        return Check("broker", Outcome.FAIL, f"{servers}: {error.message}", fix)
    return Check("broker", Outcome.OK, found)


def registry(settings: Settings, local: LocalServices, open_registry: Callable[[], SchemaRegistry]) -> Check:
    url = redacted_address(settings.registry.url)
    is_local = settings.registry.url == local.registry_url
    try:
        open_registry().schema(UNUSED_SCHEMA_ID)
    except NotFound:
        return Check("registry", Outcome.OK, url)
    except KbqError as error:
        fix = START if is_local else error.next_step or "set KBQ_REGISTRY_URL and its credentials"
        return Check("registry", Outcome.FAIL, f"{url}: {error.message}", fix)
    return Check("registry", Outcome.WARN, f"{url} has schema {UNUSED_SCHEMA_ID}", "is this a registry?")


def personal_data(
    sources: Iterable[SourceEntry], open_subjects: Callable[[], SubjectRegistry]
) -> Iterator[Check]:
    """Warnings about decisions for fields that a topic's schema does not have. They stop nothing. Raises
    Unavailable."""
    decided = {entry.pattern: entry.settings for entry in sources}
    if not any(fields_of(settings.privacy.decisions) for settings in decided.values()):
        return
    subjects = open_subjects()
    names = subjects.names()
    for topic, settings in sorted(decided.items(), key=lambda each: each[0]):
        subject = f"{topic}-value"
        try:
            missing = _missing_fields(subjects.latest(subject), settings) if subject in names else []
        except Unavailable as error:
            yield Check("personal data", Outcome.WARN, f"{topic}: {error.message}", error.next_step)
            continue
        if missing:
            found = f"{topic}: its latest schema does not have {', '.join(missing)}"
            fix = "correct the decision, unless older schemas or other record types have the field"
            yield Check("personal data", Outcome.WARN, found, fix)


def _missing_fields(latest: LatestSchema, settings: TopicSettings) -> list[str]:
    """Fields with a decision that a schema does not have; empty if the schema's fields are unknown."""
    from kbq_assets.wire.privacy.tags import undeclared as undeclared_in_avro

    decisions = settings.privacy.decisions
    if latest.has_references:
        return []
    with contextlib.suppress(KbqError, ValueError, RecursionError):
        if latest.schema_type == "AVRO":
            schema = json.loads(latest.schema)
            if settings.records.format == "debezium":
                from kbq_assets.wire.debezium.envelope import unwrapped

                schema = unwrapped(schema).schema
            return undeclared_in_avro(schema, decisions)
        if latest.schema_type == "JSON":
            return undeclared(json.loads(latest.schema), fields_of(decisions))
    return []


def _requirement(name: str) -> Requirement | None:
    with contextlib.suppress(PackageNotFoundError):
        for text in distribution("kbq-assets").requires or ():
            requirement = Requirement(text)
            if requirement.name == name:
                return requirement
    return None


def _folder_problem(path: Path) -> str:
    """The reason why swaps fail in this folder; "" if they work. Raises OSError if the folder is unusable."""
    path.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kbq-doctor-", dir=path) as name:
        probe = Path(name)
        for text in ("old", "new"):
            _write_durably(probe / "a.tmp", text)
            (probe / "a.tmp").replace(probe / "a")
        _sync_folder(probe)
        if (probe / "a").read_text(encoding="utf-8") != "new":
            return f"rename does not replace in {path}"
        if (probe / "A").exists():
            return f"{path} does not distinguish upper and lower case: two tables could share a file"
    return ""


def _write_durably(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_COLORS: dict[Outcome, str] = {Outcome.OK: "green", Outcome.WARN: "yellow", Outcome.FAIL: "red"}


def show(check: Check) -> None:
    click.secho(f"{check.outcome:<5}", fg=_COLORS[check.outcome], nl=False)
    click.echo(f"{check.name:<15} {check.found}")
    if check.fix:
        click.echo(f"{'':<5}{'':<16}next: {check.fix}")

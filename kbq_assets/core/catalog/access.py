"""Kafka ACLs for the producers and consumers of entries. KBQ only adds ACLs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from string import Formatter
from typing import TYPE_CHECKING, Any, Final

from kbq_assets.core.catalog.nodes import CatalogProblem, DocumentNode

if TYPE_CHECKING:
    from kbq_assets.core.catalog.entries import CatalogEntry

TOPIC: Final = "topic"
GROUP: Final = "group"
#: WRITE and READ imply DESCRIBE; it is explicit for people who read the ACLs.
_PRODUCER: Final = ("WRITE", "DESCRIBE")
_CONSUMER: Final = ("READ", "DESCRIBE")
_MEMBER: Final = ("READ",)
_ANYBODY: Final = "User:*"
_PRINCIPAL: Final = re.compile(r"[A-Za-z]+:\S.*")
#: KBQ's name as a consumer. KBQ reads without a group.
_ARCHIVER: Final = "archiver"


@dataclass(frozen=True)
class AccessRules:
    """Maps names of producers and consumers to principals and groups. If ``principal`` is "", only names in
    ``principals`` have one. If ``groups`` is "", no groups are granted."""

    principal: str = ""
    principals: Mapping[str, str] = field(default_factory=dict)
    groups: str = ""

    def principal_of(self, name: str) -> str:
        """The principal of a producer or consumer, "" if unknown."""
        return self.principals.get(name) or self.principal.replace("{name}", name)


@dataclass(frozen=True, order=True)
class Acl:
    """An ACL of the broker. ``name`` is a topic or group, or a prefix of names if ``prefixed``."""

    principal: str
    operation: str
    resource: str
    name: str
    prefixed: bool = False
    allowed: bool = True

    def concerns(self, wanted: Acl) -> bool:
        """Whether it applies to everything that the ``wanted`` rule allows."""
        return (
            self.principal in (wanted.principal, _ANYBODY)
            and self.operation in (wanted.operation, "ALL")
            and self.resource == wanted.resource
            and self._holds(wanted)
        )

    def _holds(self, wanted: Acl) -> bool:
        if self.prefixed:
            return wanted.name.startswith(self.name)
        return self.name == "*" or (self.name == wanted.name and not wanted.prefixed)


@dataclass(frozen=True)
class LiveAccess:
    """All rules of a broker, or the ``problem`` that prevents reading and changing them."""

    acls: frozenset[Acl] = frozenset()
    problem: str = ""


@dataclass(frozen=True)
class Allow:
    """Missing rules of one principal for one topic or group."""

    topic: str
    acls: tuple[Acl, ...]

    def __str__(self) -> str:
        first, operations = self.acls[0], ", ".join(acl.operation for acl in self.acls)
        return f"allow {first.principal} {operations} on {first.resource} {first.name}{'*' if first.prefixed else ''}"


@dataclass(frozen=True)
class Refusal:
    """A grant for ``topic`` that the catalog requests but KBQ cannot make."""

    topic: str
    message: str


def parse_access(section: Mapping[str, Any] | None) -> AccessRules | None:
    """Kafka's part of the section `access` in `catalog.yaml`, None if there is none."""
    if section is None or section.keys() == {"readers"}:
        return None
    principals = {str(name): str(value) for name, value in (section.get("principals") or {}).items()}
    return AccessRules(str(section.get("principal") or ""), principals, str(section.get("groups") or ""))


def check_access(root: DocumentNode) -> Iterator[CatalogProblem]:
    for key in ("principal", "groups"):
        node = root.find(f"access.{key}")
        if node is not None and node.value is not None and not _is_template(str(node.value)):
            hint = "{name} stands for the producer or consumer"
            yield node.problem(f"access.{key}", f"{node.value!r} is not a template", hint)
    places = [("access.principal", root.find("access.principal"))]
    places += [
        (f"access.principals.{name}", node) for name, node in root.fields_at("access.principals").items()
    ]
    for where, node in places:
        if node is not None and node.value is not None and not _PRINCIPAL.fullmatch(str(node.value)):
            yield node.problem(where, f"{node.value!r} is not a principal", "User:name")


def _is_template(text: str) -> bool:
    try:
        return {name for _, name, _, _ in Formatter().parse(text) if name is not None} == {"name"}
    except ValueError:
        return False


def plan_access(
    entries: Iterable[CatalogEntry], rules: AccessRules, live: LiveAccess
) -> tuple[list[Allow], list[Refusal]]:
    """The rules to add to the broker, and the grants that cannot be made."""
    wanted = [pair for entry in entries for pair in _wanted(entry, rules)]
    if live.problem and wanted:
        return [], [Refusal("ACLs", live.problem)]
    allows: dict[tuple[Acl, ...], Allow] = {}
    refusals = [
        Refusal(topic, f"no principal is known for {name}") for topic, name, acls in wanted if not acls
    ]
    for topic, _, acls in wanted:
        allows |= {missing: Allow(topic, missing) for missing in _missing(acls, live.acls)}
        denied = sorted({acl.principal for acl in acls if _matching(acl, live.acls, allowed=False)})
        refusals += [Refusal(topic, f"{principal} is denied by an ACL") for principal in denied]
    return list(allows.values()), list(dict.fromkeys(refusals))


def _wanted(entry: CatalogEntry, rules: AccessRules) -> Iterator[tuple[str, str, tuple[Acl, ...]]]:
    """For each topic, its producers and consumers with the rules that they need, () if the principal is unknown."""
    for key, operations in (("producers", _PRODUCER), ("consumers", _CONSUMER)):
        for name in entry.document.get(key) or ():
            principal = rules.principal_of(name)
            acls = tuple(Acl(principal, each, TOPIC, entry.topic) for each in operations)
            if key == "consumers" and rules.groups and name != _ARCHIVER:
                group = rules.groups.replace("{name}", name)
                prefixed = group.endswith("*")
                acls += tuple(Acl(principal, e, GROUP, group.rstrip("*"), prefixed) for e in _MEMBER)
            yield entry.topic, name, acls if principal else ()


def _missing(wanted: Iterable[Acl], live: frozenset[Acl]) -> Iterator[tuple[Acl, ...]]:
    """The rules still missing, by topic and group."""
    left = [acl for acl in wanted if not _matching(acl, live, allowed=True)]
    for resource in (TOPIC, GROUP):
        if found := tuple(acl for acl in left if acl.resource == resource):
            yield found


def _matching(wanted: Acl, live: frozenset[Acl], *, allowed: bool) -> bool:
    return any(acl.allowed == allowed and acl.concerns(wanted) for acl in live)

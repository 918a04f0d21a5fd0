"""The convention in `catalog.yaml`: names of topics, datasets and tables, and rules for entries."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from string import Formatter
from typing import TYPE_CHECKING, Any, Final

from kbq_assets.core.catalog.access import AccessRules, check_access, parse_access
from kbq_assets.core.catalog.fields import PII_LEVELS, ROOT
from kbq_assets.core.catalog.lake_tables import (
    LakeInBigQuery,
    check_lake_in_bigquery,
    parse_lake_in_bigquery,
)
from kbq_assets.core.catalog.lifecycle import LifecycleRules, check_lifecycle, parse_lifecycle
from kbq_assets.core.catalog.nodes import CatalogProblem, DocumentNode
from kbq_assets.core.catalog.profiles import Profiles, parse_profiles
from kbq_assets.core.catalog.readers import ReaderRules, check_readers, parse_readers
from kbq_assets.core.catalog.validation import check_fields

if TYPE_CHECKING:
    from kbq_assets.core.catalog.entries import EntryPlace

_PARTS: Final = ("company", "domain", "topic", "env", "scope", "encoding")
#: '_' joins the parts of a topic's name, so a part must not contain it.
_PART: Final = r"[a-z][a-z0-9-]*"
_POLICY_TAG: Final = r"projects/[^/]+/locations/[^/]+/taxonomies/\d+/policyTags/\d+"


@dataclass(frozen=True)
class Convention:
    """Templates of names, and rules. If ``dataset`` is "", KBQ_DATASET applies. If ``time_fields`` is "", fields are
    not checked. ``policy_tags`` are BigQuery's, by level of personal data. ``ignore`` lists topics that need no
    entry."""

    topic: str = "{company}_{env}_{domain}_{topic}_{scope}_{encoding}"
    dataset: str = ""
    table: str = "{topic}"
    part: str = _PART
    mandatory: tuple[str, ...] = ()
    time_fields: str = ""
    envs: tuple[str, ...] = ()
    policy_tags: Mapping[str, str] = field(default_factory=dict)
    ignore: tuple[str, ...] = ()
    access: AccessRules | None = None
    readers: ReaderRules = field(default_factory=dict)
    lifecycle: LifecycleRules = field(default_factory=dict)
    lake_in_bigquery: LakeInBigQuery | None = None
    profiles: Profiles = field(default_factory=Profiles)

    def ignores(self, topic: str) -> bool:
        """Whether a topic needs no entry. Names that begin with '_' are topics of tools."""
        return topic.startswith("_") or any(fnmatch.fnmatchcase(topic, pattern) for pattern in self.ignore)

    def parts_of(self, topic: str) -> Mapping[str, str]:
        """The parts of a topic's name; {} if it does not follow the convention."""
        matched = re.fullmatch(_expression(self.topic), topic)
        return matched.groupdict() if matched else {}

    def topic_name(self, place: EntryPlace, document: Mapping[str, Any]) -> str:
        return _filled(self.topic, place, document)

    def dataset_name(self, place: EntryPlace, document: Mapping[str, Any]) -> str:
        """The dataset's name. Characters that are not allowed become '_'."""
        return re.sub(r"[^A-Za-z0-9_]", "_", _filled(self.dataset, place, document))

    def table_name(self, place: EntryPlace, document: Mapping[str, Any]) -> str:
        """The table's name. Characters that are not allowed become '_' later, as for all tables."""
        return _filled(self.table, place, document)

    def check_entry(self, place: EntryPlace, document: DocumentNode) -> Iterator[CatalogProblem]:
        """The mandatory keys that an entry lacks, and the parts of its path that break the rule."""
        for name in ("company", "domain", "topic", "env"):
            part = getattr(place, name)
            if not re.fullmatch(self.part, part):
                yield CatalogProblem(
                    place.path, 1, "", f"{name} {part!r} breaks the rule for names", self.part
                )
        if self.envs and place.env not in self.envs:
            yield CatalogProblem(
                place.path, 1, "", f"unknown environment {place.env!r}", f"one of {', '.join(self.envs)}"
            )
        yield from self.profiles.check(document)
        for key in self.mandatory:
            node = document.find(key)
            if node is None or node.value in ("", ()):
                yield CatalogProblem(
                    place.path, 1, key, "is mandatory and missing", "add it here or in a defaults.yaml above"
                )


def parse_convention(root: DocumentNode) -> tuple[Convention, list[CatalogProblem]]:
    """The convention of `catalog.yaml`, and its mistakes."""
    problems = list(check_fields(root, ROOT))
    if problems:
        return Convention(), problems
    document = root.plain() or {}
    names, rules = document.get("names", {}), document.get("rules", {})
    for key, template in names.items():
        problems += _check_template(root, f"names.{key}", str(template))
    for key in ("part", "time_fields"):
        problems += _check_expression(root, f"rules.{key}", str(rules.get(key, "")))
    problems += _check_policy_tags(root)
    problems += check_access(root)
    problems += check_readers(root)
    problems += check_lifecycle(root)
    problems += check_lake_in_bigquery(root)
    profiles, found = parse_profiles(root)
    problems += found
    if problems:
        return Convention(), problems
    blank = Convention()
    return (
        Convention(
            topic=names.get("topic", blank.topic),
            dataset=names.get("dataset", blank.dataset),
            table=names.get("table", blank.table),
            part=rules.get("part", blank.part),
            mandatory=tuple(rules.get("mandatory", ())),
            time_fields=rules.get("time_fields", ""),
            envs=tuple(document.get("envs", ())),
            policy_tags=document.get("policy_tags", {}),
            ignore=tuple(document.get("ignore", ())),
            access=parse_access(document.get("access")),
            readers=parse_readers(document.get("access")),
            lifecycle=parse_lifecycle(document.get("lifecycle")),
            lake_in_bigquery=parse_lake_in_bigquery(document.get("lake_in_bigquery")),
            profiles=profiles,
        ),
        [],
    )


def _filled(template: str, place: EntryPlace, document: Mapping[str, Any]) -> str:
    values = {
        "company": place.company,
        "domain": place.domain,
        "topic": place.topic,
        "env": place.env,
        "scope": str(document.get("scope", "public")),
        "encoding": str(document.get("encoding", "avro")),
    }
    return template.format_map(values)


def _expression(template: str) -> str:
    """A regular expression with one group per part. Parts do not contain '_' or '.', which join them."""
    pieces, seen = [], set[str]()
    for text, name, _, _ in Formatter().parse(template):
        pieces.append(re.escape(text))
        if name is not None:
            pieces.append(f"(?P={name})" if name in seen else f"(?P<{name}>[A-Za-z0-9-]+)")
            seen.add(name)
    return "".join(pieces)


def _check_template(root: DocumentNode, where: str, template: str) -> Iterator[CatalogProblem]:
    node = root.find(where) or root
    try:
        found = [
            (name, form, kind) for _, name, form, kind in Formatter().parse(template) if name is not None
        ]
        is_plain = all(name in _PARTS and not form and not kind for name, form, kind in found)
    except ValueError:
        is_plain = False
    if not is_plain:
        hint = ", ".join("{" + part + "}" for part in _PARTS)
        yield node.problem(where, f"{template!r} is not a template", hint)


def _check_expression(root: DocumentNode, where: str, expression: str) -> Iterator[CatalogProblem]:
    node = root.find(where) or root
    try:
        re.compile(expression)
    except re.error as error:
        yield node.problem(where, f"{expression!r} is not a regular expression: {error}")


def _check_policy_tags(root: DocumentNode) -> Iterator[CatalogProblem]:
    known = [level for level in PII_LEVELS if level != "NONE"]
    for level, node in (root.find("policy_tags") or DocumentNode({}, "", 1)).fields.items():
        where = f"policy_tags.{level}"
        if level not in known:
            yield node.problem(where, f"{level!r} is not a level", f"one of {', '.join(known)}")
        elif not re.fullmatch(_POLICY_TAG, str(node.value)):
            hint = "projects/my-project/locations/eu/taxonomies/123/policyTags/456"
            yield node.problem(where, f"{node.value!r} is not a policy tag", hint)

"""Producers and consumers become ACLs: missing ones are added, and none is removed."""

from __future__ import annotations

import pytest

from kbq_assets.core.catalog.access import Acl, LiveAccess, Refusal, plan_access
from kbq_assets_tests.core.catalog.documents import ENTRY, catalog_of

RULES = "principal: 'User:{name}', principals: {archiver: 'User:kbq'}"
SHOP, KBQ = "User:shop-api", "User:kbq"


def planned(entry: str, *live: Acl, rules: str = RULES, problem: str = "") -> list[object]:
    catalog = catalog_of({ENTRY: "kafka: {name: t}\n" + entry, "catalog.yaml": f"access: {{{rules}}}"})
    assert catalog.problems == ()
    assert catalog.convention.access is not None
    allows, refusals = plan_access(
        catalog.entries, catalog.convention.access, LiveAccess(frozenset(live), problem)
    )
    return [*map(str, allows), *refusals]


def test_producers_write_and_consumers_read() -> None:
    assert planned("producers: [shop-api]\nconsumers: [archiver, fraud]") == [
        "allow User:shop-api WRITE, DESCRIBE on topic t",
        "allow User:kbq READ, DESCRIBE on topic t",
        "allow User:fraud READ, DESCRIBE on topic t",
    ]


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ("{name}", "allow User:fraud READ on group fraud"),
        ("app.{name}.*", "allow User:fraud READ on group app.fraud.*"),
    ],
)
def test_consumers_get_their_groups_and_the_archiver_needs_none(groups: str, expected: str) -> None:
    rules = f"{RULES}, groups: '{groups}'"
    assert planned("consumers: [archiver, fraud]", rules=rules)[-1] == expected
    assert len(planned("consumers: [archiver, fraud]", rules=rules)) == 3


def test_one_group_for_two_topics_is_granted_once() -> None:
    texts = {
        ENTRY: "kafka: {name: t}\nconsumers: [fraud]",
        ENTRY.replace("orders", "items"): "kafka: {name: u}\nconsumers: [fraud]",
        "catalog.yaml": f"access: {{{RULES}, groups: '{{name}}'}}",
    }
    catalog = catalog_of(texts)
    assert catalog.convention.access is not None
    allows, _ = plan_access(catalog.entries, catalog.convention.access, LiveAccess())
    assert [str(allow) for allow in allows if "group" in str(allow)] == [
        "allow User:fraud READ on group fraud"
    ]
    assert len(allows) == 3


@pytest.mark.parametrize(
    "live",
    [
        (Acl(SHOP, "WRITE", "topic", "t"), Acl(SHOP, "DESCRIBE", "topic", "t")),
        (Acl(SHOP, "ALL", "topic", "*"),),
        (Acl("User:*", "ALL", "topic", "", prefixed=True),),
    ],
)
def test_what_is_allowed_already_is_not_allowed_again(live: tuple[Acl, ...]) -> None:
    assert planned("producers: [shop-api]", *live) == []


@pytest.mark.parametrize(
    "live",
    [
        Acl(SHOP, "READ", "topic", "t"),
        Acl(SHOP, "WRITE", "topic", "tt"),
        Acl(SHOP, "WRITE", "group", "t"),
        Acl("User:other", "WRITE", "topic", "t"),
        Acl(SHOP, "WRITE", "topic", "tt", prefixed=True),
    ],
)
def test_a_rule_about_something_else_allows_nothing(live: Acl) -> None:
    assert planned("producers: [shop-api]", live) == ["allow User:shop-api WRITE, DESCRIBE on topic t"]


def test_only_what_is_missing_is_added() -> None:
    assert planned("producers: [shop-api]", Acl(SHOP, "DESCRIBE", "topic", "t")) == [
        "allow User:shop-api WRITE on topic t"
    ]


def test_a_denial_is_left_to_people() -> None:
    allowed = Acl(SHOP, "ALL", "topic", "t")
    denied = Acl(SHOP, "WRITE", "topic", "t", allowed=False)
    assert planned("producers: [shop-api]", allowed, denied) == [
        Refusal("t", "User:shop-api is denied by an ACL")
    ]


def test_who_has_no_principal_is_named_and_the_others_are_served() -> None:
    assert planned(
        "producers: [shop-api]\nconsumers: [archiver]", rules="principals: {archiver: 'User:kbq'}"
    ) == [
        "allow User:kbq READ, DESCRIBE on topic t",
        Refusal("t", "no principal is known for shop-api"),
    ]


def test_a_broker_without_acls_is_reported_once_and_only_where_one_is_wanted() -> None:
    assert planned("producers: [a, b]", problem="no authorizer") == [Refusal("ACLs", "no authorizer")]
    assert planned("", problem="no authorizer") == []


def test_a_catalogue_that_says_nothing_about_access_grants_nothing() -> None:
    assert catalog_of({ENTRY: "producers: [a]"}).convention.access is None


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ("principal: 'User:a'", "catalog.yaml:1: access.principal: 'User:a' is not a template"),
        ("principal: '{name}'", "catalog.yaml:1: access.principal: '{name}' is not a principal (User:name)"),
        ("principals: {a: b}", "catalog.yaml:1: access.principals.a: 'b' is not a principal (User:name)"),
        ("groups: all", "catalog.yaml:1: access.groups: 'all' is not a template"),
        ("group: '{name}'", "unknown key 'group' (did you mean 'groups'?)"),
    ],
)
def test_a_mistake_in_the_rules_is_reported(rules: str, expected: str) -> None:
    [problem] = map(str, catalog_of({"catalog.yaml": f"access: {{{rules}}}"}).problems)
    assert expected in problem

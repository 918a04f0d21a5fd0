"""Records are rewritten field by field, and everything else stays byte for byte."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbq_assets.core.avro import tree as avro
from kbq_assets.core.errors import UnstageableSchema
from kbq_assets.core.loading.tables import columns_of
from kbq_assets.core.topics.personal import Pseudonyms, parse_decisions
from kbq_assets.wire.privacy.avro import rewriter
from kbq_assets.wire.privacy.tags import check_decided, undeclared

KEYS = Pseudonyms("k", {"k": b"k" * 32})
DATE = {"type": "int", "logicalType": "date"}
ADDRESS = {
    "type": "record",
    "name": "Address",
    "fields": [{"name": "street", "type": "string"}, {"name": "zip", "type": ["null", "int"]}],
}
PERSON = {
    "type": "record",
    "name": "Person",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "email", "type": ["null", "string"]},
        {"name": "home", "type": ADDRESS},
        {"name": "others", "type": {"type": "array", "items": "Address"}},
        {"name": "born", "type": DATE},
        {"name": "seen", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}]},
        {"name": "phones", "type": {"type": "array", "items": "string"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "more", "type": {"type": "map", "values": ["null", "double", "string"]}},
        {"name": "photo", "type": "bytes"},
        {"name": "mac", "type": {"type": "fixed", "name": "Mac", "size": 6}},
        {"name": "ok", "type": "boolean"},
        {"name": "height", "type": "double"},
    ],
}
ADA = {
    "id": 1234,
    "email": "ada@example.com",
    "home": {"street": "Secret 1", "zip": 12345},
    "others": [{"street": "Secret 2", "zip": None}, {"street": "Secret 3", "zip": 7}],
    "born": -50_000,
    "seen": 1_738_326_600_123,
    "phones": ["+491234", "+495678"],
    "kind": "B",
    "more": {"a": 1.5, "b": None, "c": "x"},
    "photo": b"\x00\xff",
    "mac": b"abcdef",
    "ok": True,
    "height": 1.68,
}


def without_logical(schema: Any) -> Any:
    """Raw numbers for dates and times: they are what is rewritten."""
    if isinstance(schema, dict):
        return {key: without_logical(value) for key, value in schema.items() if key != "logicalType"}
    return [without_logical(each) for each in schema] if isinstance(schema, list) else schema


def encoded(value: Any, schema: Any) -> bytes:
    data = io.BytesIO()
    fastavro.schemaless_writer(data, fastavro.parse_schema(without_logical(schema)), value)
    return data.getvalue()


def rewritten(decisions: str, value: Any = ADA, schema: Any = PERSON) -> dict[str, Any]:
    made = rewriter(schema, parse_decisions(decisions), KEYS)
    data = io.BytesIO(made(encoded(value, schema)))
    avro.parse(made.schema)
    found = fastavro.schemaless_reader(data, fastavro.parse_schema(without_logical(made.schema)), None)
    assert not data.read()
    assert isinstance(found, dict)
    return found


def test_without_decisions_a_record_stays_byte_for_byte() -> None:
    body = encoded(ADA, PERSON)
    assert rewriter(PERSON, (), KEYS)(body) == body


@pytest.mark.parametrize(
    ("decision", "expected"),
    [
        ("email:drop", None),
        ("email:null", {"email": None}),
        ("email:pseudonym", {"email": KEYS.of("email", b"ada@example.com")}),
        ("email:pseudonym:customer", {"email": KEYS.of("customer", b"ada@example.com")}),
        ("email:truncate:3", {"email": "ada"}),
        ("id:pseudonym", {"id": KEYS.of("id", b"1234")}),
        ("id:generalise:100", {"id": 1200}),
        ("id:null", {"id": None}),
        ("home.street:truncate:1", {"home": {"street": "S", "zip": 12345}}),
        ("home.street:drop", {"home": {"zip": 12345}}),
        ("home.zip:generalise:1000", {"home": {"street": "Secret 1", "zip": 12000}}),
        ("home:null", {"home": None}),
        ("others.street:drop", {"others": [{"zip": None}, {"zip": 7}]}),
        ("others:null", {"others": []}),
        ("born:generalise:year", {"born": -50_038}),
        ("born:generalise:month", {"born": -50_007}),
        ("seen:generalise:day", {"seen": 1_738_281_600_000}),
        ("seen:generalise:hour", {"seen": 1_738_324_800_000}),
        ("seen:generalise:year", {"seen": 1_735_689_600_000}),
        ("phones:truncate:3", {"phones": ["+49", "+49"]}),
        ("phones:pseudonym", {"phones": [KEYS.of("phones", b"+491234"), KEYS.of("phones", b"+495678")]}),
        ("kind:pseudonym", {"kind": KEYS.of("kind", b"B")}),
        ("more:null", {"more": {}}),
        ("photo:truncate:1", {"photo": b"\x00"}),
        ("mac:pseudonym", {"mac": KEYS.of("mac", b"abcdef")}),
        ("ok:pseudonym", {"ok": KEYS.of("ok", b"true")}),
        ("height:generalise:1", {"height": 1.0}),
        ("height:pseudonym", {"height": KEYS.of("height", b"1.68")}),
        ("_key:pseudonym", {}),
        ("email:keep", {}),
    ],
)
def test_a_decided_field_changes_and_no_other(decision: str, expected: dict[str, Any] | None) -> None:
    without = {key: value for key, value in ADA.items() if expected is not None or key != "email"}
    assert rewritten(decision) == {**without, **(expected or {})}


def test_types_that_stand_twice_are_decided_about_one_by_one() -> None:
    found = rewritten("home.street:drop,others.zip:null,email:null,born:generalise:year")
    assert (found["home"], found["others"]) == (
        {"zip": 12345},
        [{"street": "Secret 2", "zip": None}, {"street": "Secret 3", "zip": None}],
    )


def test_null_stays_null() -> None:
    value = {**ADA, "email": None, "seen": None, "phones": []}
    found = rewritten("email:pseudonym,seen:generalise:day,phones:pseudonym", value)
    assert (found["email"], found["seen"], found["phones"]) == (None, None, [])


def test_blocks_that_state_their_size_are_read_too() -> None:
    schema = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "a", "type": {"type": "array", "items": "string"}}],
    }
    block = b"\x03\x08\x02x\x02y\x00"  # -2 items, 4 bytes
    made = rewriter(schema, parse_decisions("a:truncate:1"), KEYS)
    assert made(block) == b"\x04\x02x\x02y\x00"


@pytest.mark.parametrize(
    ("decision", "message"),
    [
        ("email.x:drop", "has no fields"),
        ("home:pseudonym", "has parts"),
        ("more:pseudonym", "has parts"),
        ("id:truncate:3", "is not a text"),
        ("email:generalise:year", "cannot be generalised to year"),
        ("born:generalise:hour", "cannot be generalised to hour"),
        ("home.street:drop,home.zip:drop", "drops every field of home"),
    ],
)
def test_what_cannot_be_done_is_refused(decision: str, message: str) -> None:
    with pytest.raises(UnstageableSchema, match=message):
        rewriter(PERSON, parse_decisions(decision), KEYS)


def test_a_decision_about_a_field_that_a_schema_lacks_is_nothing_to_do() -> None:
    without = {key: value for key, value in ADA.items() if key != "email"}
    assert rewritten("mail:drop,home.city:pseudonym,nobody.street:null,email:drop") == without


@pytest.mark.parametrize("path", ["mail", "home.city", "email.x", "more.a", "others.x", "Home"])
def test_a_misspelled_field_is_reported(path: str) -> None:
    assert undeclared(PERSON, parse_decisions(f"id:drop,{path}:drop")) == [path]


def test_decisions_about_fields_that_are_there_are_no_misspellings() -> None:
    decisions = "email:drop,home.street:null,others.zip:keep,more:null,_key:keep"
    assert undeclared(PERSON, parse_decisions(decisions)) == []


def test_a_union_of_types_takes_no_decision_but_to_leave() -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "u", "type": ["null", "string", "long"]}]}
    with pytest.raises(UnstageableSchema, match="several types"):
        rewriter(schema, parse_decisions("u:pseudonym"), KEYS)
    assert rewriter(schema, parse_decisions("u:null"), KEYS)(b"\x02\x02x") == b"\x00"


def test_addresses_are_networks() -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "ip", "type": "string"}]}
    made = rewriter(schema, parse_decisions("ip:generalise:ip"), KEYS)
    for text, network in (("192.0.2.77", "192.0.2.0/24"), ("2001:db8:1:2::3", "2001:db8:1::/48"), ("me", "")):
        assert made(encoded({"ip": text}, schema)) == encoded({"ip": network}, schema)


def test_tags_want_decisions() -> None:
    tagged = json.loads(json.dumps(PERSON))
    tagged["fields"][1]["pii"] = "high"
    tagged["fields"][2]["type"]["fields"][0]["pii"] = "HIGH"
    with pytest.raises(UnstageableSchema, match=r"personal data: email, home.street, others.street\n"):
        check_decided(tagged, ())
    check_decided(tagged, parse_decisions("email:keep,home:null,others:drop"))


def test_what_a_schema_says_of_fields_stays_with_them() -> None:
    reported = json.loads(json.dumps(PERSON))
    reported["fields"][1] |= {"doc": "where to write to", "pii": "HIGH"}
    reported["fields"][2]["type"]["fields"][1]["doc"] = "its district"
    made = rewriter(
        reported, parse_decisions("email:pseudonym,home.street:drop,others.street:null"), KEYS
    ).schema
    fields = {each["name"]: each for each in made["fields"]}
    assert (fields["email"]["doc"], fields["email"]["pii"]) == ("where to write to", "HIGH")
    assert [each.get("doc") for each in fields["home"]["type"]["fields"]] == ["its district"]
    assert [each.get("doc") for each in fields["others"]["type"]["items"]["fields"]] == [None, "its district"]


def test_a_type_may_have_the_tag() -> None:
    kind = {"type": "string", "pii": "HIGH"}
    fields = [{"name": "a", "type": kind}, {"name": "b", "type": ["null", {"type": "array", "items": kind}]}]
    with pytest.raises(UnstageableSchema, match=r"personal data: a, b\n"):
        check_decided({"type": "record", "name": "R", "fields": fields}, ())


def test_a_type_s_tag_is_its_field_s_in_rewritten_records() -> None:
    secret = {"type": "string", "pii": "HIGH"}
    home = {"type": "record", "name": "H", "fields": [{"name": "c", "type": secret}]}
    named = {"a": "string", "b": ["null", secret], "h": home}
    schema = {"type": "record", "name": "R", "fields": [{"name": n, "type": t} for n, t in named.items()]}
    made = rewriter(schema, parse_decisions("a:truncate:1,b:keep,h.c:keep"), KEYS).schema
    a, b, h = columns_of(json.dumps(made))
    assert (a.pii, b.pii, h.pii, h.fields[0].pii) == ("", "HIGH", "", "HIGH")


def test_a_record_that_is_used_again_has_its_tags_again() -> None:
    fields = [{"name": "street", "type": "string", "pii": "HIGH"}, {"name": "next", "type": ["null", "Home"]}]
    home = {"type": "record", "name": "a.Home", "fields": fields}
    others = [{"name": "b", "type": "a.Home"}, {"name": "c", "type": {"type": "array", "items": "a.Home"}}]
    person = {"type": "record", "name": "P", "fields": [{"name": "a", "type": home}, *others]}
    with pytest.raises(UnstageableSchema, match=r"personal data: b.street, c.street\n"):
        check_decided(person, parse_decisions("a:drop"))


STREET = {"name": "street", "type": "string", "doc": "and number", "pii": "HIGH"}
TWICE = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "billing", "type": {"type": "record", "name": "Address", "fields": [STREET]}},
        {"name": "shipping", "type": ["null", "Address"]},
        {"name": "others", "type": {"type": "array", "items": "Address"}},
    ],
}


@pytest.mark.parametrize(
    ("decisions", "left"),
    [
        ("billing:drop", ["shipping", "others"]),
        ("billing:null", ["billing", "shipping", "others"]),
        ("billing:drop,shipping:drop", ["others"]),
        ("shipping:drop", ["billing", "others"]),
    ],
)
def test_a_type_that_is_used_again_outlives_its_first_use(decisions: str, left: list[str]) -> None:
    made = rewriter(TWICE, parse_decisions(decisions), KEYS)
    assert [each["name"] for each in made.schema["fields"]] == ["id", *left]
    assert json.dumps(made.schema).count('"doc": "and number", "pii": "HIGH"') == len(left)
    value = {"id": 5, "billing": {"street": "a"}, "shipping": {"street": "b"}, "others": [{"street": "c"}]}
    expected = {"id": 5, **{name: value[name] for name in left}}
    found = rewritten(decisions, value, TWICE)
    assert found == (expected | {"billing": None} if "null" in decisions else expected)


def namespaced(*fields: Any) -> Any:
    """Types of one simple name in two namespaces, the first with a tag; and fields of them."""
    secret = {"type": "record", "name": "a.P", "fields": [{"name": "n", "type": "string", "pii": "HIGH"}]}
    plain = {"type": "record", "name": "P", "namespace": "b", "fields": [{"name": "n", "type": "string"}]}
    first = [{"name": "x", "type": secret}, {"name": "y", "type": plain}]
    return {"type": "record", "name": "R", "namespace": "b", "fields": [*first, *fields]}


@pytest.mark.parametrize(
    ("type_", "tagged"),
    [
        ("a.P", True),
        ({"type": "a.P"}, True),
        (["null", {"type": "array", "items": "a.P"}], True),
        ({"type": "map", "values": "a.P"}, True),
        ({"type": "record", "name": "a.Q", "fields": [{"name": "p", "type": "P"}]}, True),
        ({"type": "record", "name": "Q", "namespace": "a", "fields": [{"name": "p", "type": "P"}]}, True),
        ({"type": "record", "name": "Q", "fields": [{"name": "p", "type": "P"}]}, False),
        ("P", False),
        ("b.P", False),
    ],
)
def test_types_of_one_name_in_two_namespaces_keep_their_own_tags(type_: Any, tagged: bool) -> None:
    schema, decisions = namespaced({"name": "z", "type": type_}), parse_decisions("x:drop")
    if tagged:
        with pytest.raises(UnstageableSchema, match=r"personal data: z(\.p)?\.n\n"):
            check_decided(schema, decisions)
    else:
        check_decided(schema, decisions)
    made = json.dumps(rewriter(schema, decisions, KEYS).schema)
    assert ('"pii": "HIGH"' in made) == tagged


def test_a_named_type_that_is_used_again_has_its_own_tag_again() -> None:
    kind = {"type": "enum", "name": "a.Kind", "symbols": ["A"], "pii": "HIGH"}
    fields = [{"name": "x", "type": kind}, {"name": "y", "type": ["null", "a.Kind"]}]
    with pytest.raises(UnstageableSchema, match=r"personal data: y\n"):
        check_decided({"type": "record", "name": "R", "fields": fields}, parse_decisions("x:drop"))


@pytest.mark.parametrize(
    "schema", [{"type": "record"}, {"type": "record", "name": "R", "fields": [{"pii": "HIGH"}]}, [[]], 5]
)
def test_what_is_no_schema_is_refused_in_order(schema: Any) -> None:
    with pytest.raises(UnstageableSchema):
        check_decided(schema, ())


TEXTS = st.text(max_size=20)
VALUES = st.fixed_dictionaries(
    {
        **{key: st.just(value) for key, value in ADA.items()},
        "email": st.one_of(st.none(), TEXTS),
        "phones": st.lists(TEXTS, max_size=4),
        "id": st.integers(-(2**63), 2**63 - 1),
        "born": st.integers(-(2**31), 2**31 - 1),
        "seen": st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)),
        "others": st.lists(
            st.fixed_dictionaries({"street": TEXTS, "zip": st.one_of(st.none(), st.integers(-5, 10**6))}),
            max_size=3,
        ),
    }
)


@given(VALUES)
def test_any_record_is_rewritten(value: dict[str, Any]) -> None:
    decisions = (
        "email:pseudonym,phones:truncate:2,others.street:drop,home:null,born:generalise:year,id:generalise:10"
    )
    found = rewritten(decisions, value)
    assert found["phones"] == [text[:2] for text in value["phones"]]
    assert found["others"] == [{"zip": each["zip"]} for each in value["others"]]
    assert (found["email"] is None) == (value["email"] is None)
    assert found["id"] == max(value["id"] // 10 * 10, -(2**63))
    assert (found["more"], found["seen"], found["mac"]) == (value["more"], value["seen"], value["mac"])

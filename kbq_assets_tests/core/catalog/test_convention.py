"""Names by convention, in both directions, and topics that need no entry."""

from __future__ import annotations

import pytest

from kbq_assets.core.catalog.convention import Convention, parse_convention
from kbq_assets_tests.core.catalog.documents import documents


@pytest.mark.parametrize(
    ("template", "topic", "expected"),
    [
        (Convention().topic, "shop_prod_sales_orders_public_avro", {"company": "shop", "domain": "sales"}),
        ("{company}.{domain}.{topic}", "shop.sales.order-lines", {"topic": "order-lines"}),
        ("{company}.{topic}.{company}", "a.b.a", {"company": "a", "topic": "b"}),
    ],
)
def test_a_name_that_follows_the_convention_has_parts(
    template: str, topic: str, expected: dict[str, str]
) -> None:
    assert expected.items() <= Convention(topic=template).parts_of(topic).items()


@pytest.mark.parametrize("topic", ["orders", "shop.sales", "shop_prod_sales_orders_public_avro_x"])
def test_another_name_has_none(topic: str) -> None:
    assert Convention().parts_of(topic) == {}


@pytest.mark.parametrize(
    ("topic", "expected"), [("_schemas", True), ("tmp.1", True), ("TMP.1", False), ("orders", False)]
)
def test_topics_of_tools_and_those_that_are_named_need_no_entry(topic: str, expected: bool) -> None:
    assert Convention(ignore=("tmp.*",)).ignores(topic) is expected


@pytest.mark.parametrize("key", ["topic", "dataset", "table"])
@pytest.mark.parametrize(
    "template",
    [
        "{topik}",
        "{}",
        "{0}",
        "{topic.x}",
        "{topic[0]}",
        "{topic",
        "topic}",
        "{topic!r}",
        "{topic:d}",
        "{topic!x}",
    ],
)
def test_a_template_with_anything_but_parts_is_a_mistake_of_its_line(key: str, template: str) -> None:
    root = documents({"catalog.yaml": f"names:\n  {key}: '{template}'\n"})["catalog.yaml"]
    convention, [problem] = parse_convention(root)
    assert (problem.line, problem.where) == (2, f"names.{key}")
    assert problem.message == f"{template!r} is not a template"
    assert convention == Convention()

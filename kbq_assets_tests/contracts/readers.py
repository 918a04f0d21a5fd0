"""The contract of `ports.readers`: members are added once, and a wider grant also covers narrower places."""

from __future__ import annotations

import pytest

from kbq_assets.core.catalog.readers import DATASET, OBJECTS, TABLE, GrantReading, ReadablePlace
from kbq_assets.core.errors import NotFound
from kbq_assets.ports.readers import Readers

ANA, SALES, BI = (
    "user:ana@example.com",
    "group:sales@example.com",
    "serviceAccount:bi@p.iam.gserviceaccount.com",
)
SHOP = ReadablePlace(DATASET, "p", "shop")
ORDERS = ReadablePlace(TABLE, "p", "shop.orders")
COPIES = ReadablePlace(OBJECTS, "b", "kbq/backup/")
NOWHERE = (ReadablePlace(DATASET, "p", "gone"), ReadablePlace(TABLE, "p", "shop.gone"))


class ReadersContract:
    """Subclasses give the fixture ``readers``, in which SHOP, ORDERS and COPIES exist and NOWHERE does not."""

    @pytest.mark.parametrize("place", [SHOP, ORDERS, COPIES], ids=lambda place: place.kind)
    def test_members_are_added_once(self, readers: Readers, place: ReadablePlace) -> None:
        assert not {ANA, SALES, BI} & (readers.readers(place) or frozenset())
        readers.grant(GrantReading(place, (ANA, BI)))
        readers.grant(GrantReading(place, (ANA, SALES)))
        readers.grant(GrantReading(place, (ANA, SALES)))
        assert {ANA, SALES, BI} <= (readers.readers(place) or frozenset())

    def test_a_prefix_is_read_by_whom_reads_a_wider_one(self, readers: Readers) -> None:
        inside = ReadablePlace(OBJECTS, "b", "kbq/backup/orders/")
        readers.grant(GrantReading(COPIES, (ANA,)))
        readers.grant(GrantReading(inside, (SALES,)))
        assert (readers.readers(inside) or frozenset()) >= {ANA, SALES}
        assert SALES not in (readers.readers(COPIES) or frozenset())
        beside = ReadablePlace(OBJECTS, "b", "kbq/staging/")
        assert not {ANA, SALES} & (readers.readers(beside) or frozenset())

    @pytest.mark.parametrize("place", NOWHERE, ids=lambda place: place.kind)
    def test_what_does_not_exist_has_no_readers(self, readers: Readers, place: ReadablePlace) -> None:
        assert readers.readers(place) is None
        with pytest.raises(NotFound):
            readers.grant(GrantReading(place, (ANA,)))

"""The options of a topic's order: the sixth part beside those of options.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kbq_assets.core.topics.declaration import option
from kbq_assets.core.topics.option_types import choice

#: No order beyond that of each schema.
NONE: Final = "none"
OFFSET: Final = "offset"


@dataclass(frozen=True)
class OrderingOptions:
    """How batches of the topic's tables follow each other."""

    order: str = option(
        NONE,
        choice(NONE, OFFSET),
        "`offset`: rows of a partition become visible [in offset order](ordered.md) whatever their schemas, and a "
        "batch that fails stops its table; `none`: in offset order per schema id",
        place="loading.order",
    )

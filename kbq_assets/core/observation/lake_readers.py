"""Lake tables whose newest version BigQuery does not read yet (pipelines/observation/lake_readers.py)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from kbq_assets.core.observation.run_totals import METRICS
from kbq_assets.core.protocol.codec import Stored
from kbq_assets.core.protocol.names import TableReference

PATH: Final = f"{METRICS}lake_in_bigquery.json"


@dataclass(frozen=True)
class LakeReaders(Stored):
    """`metrics/lake_in_bigquery.json`: the reasons that BigQuery's external tables are behind, by the lake's table."""

    behind: Mapping[str, str] = field(default_factory=dict)

    def after(self, tried: Iterable[str], why: Mapping[TableReference, str]) -> LakeReaders:
        """The state after an attempt to move some tables. Keeps entries of all other tables."""
        others = self.behind.keys() - set(tried)
        found = {**{table: self.behind[table] for table in others}, **{str(t): r for t, r in why.items()}}
        return LakeReaders(dict(sorted(found.items())))

"""The results of asset checks in Dagster, for gates that ask them."""

from __future__ import annotations

from dataclasses import dataclass

import dagster as dg

from kbq_assets.core.errors import Unavailable
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.defs.translator import AssetTranslator
from kbq_assets.ports.asset_checks import CheckEvaluation


@dataclass(frozen=True)
class DagsterChecks:
    """Checks of tables' assets, by an instance's history."""

    instance: dg.DagsterInstance
    translator: AssetTranslator

    def latest(self, table: TableReference, check: str) -> CheckEvaluation | None:
        key = dg.AssetCheckKey(self.translator.dataset_key(table), check)
        try:
            record = self.instance.get_latest_asset_check_evaluation_record(key)
        except Exception as error:  # of whatever database the instance has
            raise Unavailable(
                f"Dagster does not say how the check {check} of {table} ended: {error}",
                next_step="the next load asks again",
            ) from error
        if record is None:
            return None
        found = record.evaluation
        if found is None:  # planned, or it ended without a result
            return CheckEvaluation(record.id)
        return CheckEvaluation(record.id, found.passed, found.description or f"the check {check} failed")

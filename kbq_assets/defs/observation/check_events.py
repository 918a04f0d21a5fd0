"""Results of checks as Dagster evaluations: one per check and asset, regardless of the number of topics and tables.

Pure functions. Dagster's own `blocking` is not used: because of one topic, it would block every table, and only within
one run. A load block (PROTOCOL L9) makes only that topic's files wait, in every load.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import dagster as dg

from kbq_assets.core.config.roles import Role
from kbq_assets.core.observation import check_names as names
from kbq_assets.core.observation.checks import CheckResult
from kbq_assets.core.plurals import counted
from kbq_assets.defs.metadata import SHOWN_LINES, Metadata
from kbq_assets.defs.translator import AssetTranslator

#: Numbers that are shown as a maximum, not as a sum.
_LARGEST: Final = frozenset({"oldest_waiting_seconds", "files"})
#: Numbers that have no meaning for several topics together.
_OF_ONE: Final = frozenset({"share"})


#: The checks that runs of each role write: those of their own asset that need only stored state.
OF_RUNS: Final[Mapping[Role, tuple[str, ...]]] = {
    Role.EXTRACT: (names.CONTIGUOUS, names.ERRORS_FEW, names.COMMITS_SMALL),
    Role.LOAD: (names.ROWS_MATCH, names.TABLES_LOAD),
}


def asset_of(check: str, translator: AssetTranslator) -> dg.AssetKey:
    keys = (translator.staged_files, translator.warehouse_tables)
    return next(key for key in keys if key.path[-1] == names.CHECKS[check].asset)


def evaluation(
    key: dg.AssetKey, name: str, results: Sequence[CheckResult], note: Metadata | None = None
) -> dg.AssetCheckEvaluation:
    about = names.CHECKS[name].about
    fine = counted(len(results), f"{about} passes", f"{about}s pass")
    problems = [result.line for result in results if not result.passed]
    return evaluation_of(key, name, problems, fine, metadata_of(results) | (note or {}))


def metadata_of(results: Sequence[CheckResult]) -> Metadata:
    """Counts of results, a check's numbers, and its failures with their next steps."""
    failed = [result for result in results if not result.passed]
    metadata: Metadata = {"problems": len(failed), "checked": len(results), **_totals(results)}
    if blocked := sum(result.blocks for result in failed):
        metadata["held_topics"] = blocked
    if failed:
        metadata["next"] = dg.MetadataValue.md(_steps(failed))
        metadata["failures"] = dg.MetadataValue.table([_record(result) for result in failed[:SHOWN_LINES]])
    return metadata


def digest(results: Iterable[CheckResult]) -> str:
    """A hash of a check's failing topics or tables and their next steps, without numbers, which always change."""
    failed = [(r.subject, r.blocks, r.commands) for r in results if not r.passed]
    return hashlib.sha256(repr(failed).encode()).hexdigest()[:16]


def _totals(results: Iterable[CheckResult]) -> Metadata:
    """Numbers over all topics or tables."""
    totals: dict[str, float] = {}
    for result in results:
        for name, value in result.numbers.items():
            if name not in _OF_ONE | {"problems"}:
                before = totals.get(name, 0)
                totals[name] = max(before, value) if name in _LARGEST else before + value
    return {**totals}


def _steps(failed: Iterable[CheckResult]) -> str:
    """A list of the distinct next steps."""
    steps = dict.fromkeys(command for result in failed for command in result.commands)
    more = [f"- …and {len(steps) - SHOWN_LINES} more"] if len(steps) > SHOWN_LINES else []
    return "\n".join([*(f"- `{step}`" for step in list(steps)[:SHOWN_LINES]), *more])


def _record(result: CheckResult) -> dg.TableRecord:
    return dg.TableRecord(
        {
            names.CHECKS[result.check].about: result.subject,
            "what": result.message,
            "next": " or ".join(result.commands),
            "held": "yes" if result.blocks else "",
        }
    )


def evaluation_of(
    key: dg.AssetKey, name: str, problems: Sequence[str], fine: str, metadata: Metadata
) -> dg.AssetCheckEvaluation:
    """A check's evaluation. Its description lists the problems, or is ``fine`` if there are none."""
    more = [f"…and {len(problems) - SHOWN_LINES} more"] if len(problems) > SHOWN_LINES else []
    is_warning = names.CHECKS[name].severity == names.WARN
    return dg.AssetCheckEvaluation(
        asset_key=key,
        check_name=name,
        passed=not problems,
        severity=dg.AssetCheckSeverity.WARN if is_warning else dg.AssetCheckSeverity.ERROR,
        description="\n".join([*problems[:SHOWN_LINES], *more]) or fine,
        metadata=metadata,
    )

"""The statements of `load: delete_insert` and `load: snapshot`, where the rows of the newest version replace older
ones.

`delete_insert` compares versions per key, `snapshot` in the whole table. Rows of one version belong together even if
they come in several batches, and a row of an older version has no effect. So the order and size of batches do not
matter. A row without a version is older than any row with one. A row without a key is inserted.
"""

from __future__ import annotations

from kbq_assets.core.statements.expressions import same
from kbq_assets.core.statements.table_statements import SCRATCH
from kbq_assets.core.statements.targets import Target


def versions_sql(target: Target) -> str:
    """The statement's text, with `SCRATCH` for the name of the scratch table."""
    name = target.name
    statements = [f"DELETE FROM {name} AS t WHERE {_is_outdated(target, 't', SCRATCH)}"]
    if target.converts:  # the appended rows of older versions
        statements.insert(0, f"DELETE FROM {name} AS t WHERE {_is_outdated(target, 't', name)}")
    outdated = (_is_outdated(target, "b", source) for source in (SCRATCH, name))
    conditions = " AND ".join(f"NOT {condition}" for condition in outdated)
    inserted = f"INSERT INTO {name} ({target.listed()}) SELECT {target.listed('b')} FROM {SCRATCH} AS b"
    return ";\n".join((*statements, f"{inserted} WHERE {conditions}"))


def _is_outdated(target: Target, alias: str, source: str) -> str:
    """Whether ``source`` has a newer version than a row's, for its key."""
    newest, version = f"MAX({target.version('x')})", target.version(alias)
    if not target.rule.key:
        found = f"(SELECT {newest} FROM {source} AS x)"
        return f"COALESCE({_is_older(version, found)}, FALSE)"
    names = [f"key_{number}" for number in range(len(target.rule.key))]
    parts = (f"{part} AS {name}" for part, name in zip(target.key("x"), names, strict=True))
    found = (
        f"SELECT {', '.join(parts)}, {newest} AS newest FROM {source} AS x"
        f" WHERE {target.has_key('x')} GROUP BY {', '.join(target.key('x'))}"
    )
    matches = same([f"n.{name}" for name in names], target.key(alias))
    return f"EXISTS (SELECT 1 FROM ({found}) AS n WHERE {matches} AND {_is_older(version, 'n.newest')})"


def _is_older(version: str, other: str) -> str:
    return f"(({version} IS NULL AND {other} IS NOT NULL) OR {version} < {other})"

"""Names of backup files, and of the backup's state objects: the only code that formats and parses them.

    backup/shop.orders.v1/9f2c…/1_0_00000000000000004200_00000000000000009999.avro     BackupFileName
    backup/shop.orders.v1/merge-7-9f2c…/1_0_00000000000000004200_00000000000000999999.avro    the same, merged
    backup/@/commits/shop.orders.v1.json                                               state_path
    backup/@/schemas/shop.orders.v1/17-9f2c….json                                      schema_path
    backup/@/schemas/shop.orders.v1/versions-9f2c….json                                versions_path

Topic names have no '@', so state and files never collide.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from kbq_assets.core.protocol.names import check_topic, parse_number, unparsable
from kbq_assets.core.protocol.offsets import OffsetRange, TopicPartition

BACKUP: Final = "backup/"
STATE: Final = "backup/@/"
_WANTED: Final = "backup/<topic>/<attempt>/<epoch>_<partition>_<first>_<last>.avro"
#: Prefix of the hash of a file's bytes. Former releases committed the bare SHA-256 of the rows before compression.
FILE_HASH: Final = "sha256:"
#: Most schema ids listed per window, because bytes that merely look like ids must not cause millions of lookups.
MOST_SCHEMAS: Final = 100
#: Prefix of a merged file's folder, before the merge's number.
_MERGE: Final = "merge-"
#: Padding of offsets, as in Secor, so that names sort by offset.
_DIGITS: Final = 20


def state_path(path: str) -> str:
    """The backup's path of a state object that is at ``path`` for tables."""
    return STATE + path


def schema_path(topic: str, name: int | str, fingerprint: str) -> str:
    """Path of a schema that records of a topic use, named by its id or `guid_name`."""
    return f"{schemas_prefix(topic)}{name}-{fingerprint}.json"


def guid_name(guid: str) -> str:
    """A schema's name by its GUID, distinct from all ids."""
    return f"guid-{guid}"


def versions_path(topic: str, versions: Mapping[str, Mapping[int, int]]) -> str:
    """Path of a list of subjects' versions. It depends on the content."""
    text = json.dumps({s: sorted(found.items()) for s, found in sorted(versions.items())})
    return f"{versions_prefix(topic)}{blake2b(text.encode(), digest_size=8).hexdigest()}.json"


def versions_prefix(topic: str) -> str:
    return f"{schemas_prefix(topic)}versions-"


def schemas_prefix(topic: str) -> str:
    return state_path(f"schemas/{check_topic(topic)}/")


@dataclass(frozen=True)
class BackupFileName:
    """``backup/<topic>/<attempt>/<epoch>_<partition>_<first>_<last>.avro``: the copy of one window."""

    range: OffsetRange
    epoch: int
    attempt: str

    def format(self) -> str:
        """The path below the store's root."""
        tp, first, last = self.range.topic_partition, self.range.from_offset, self.range.until_offset - 1
        base = f"{self.epoch}_{tp.partition}_{first:0{_DIGITS}d}_{last:0{_DIGITS}d}.avro"
        return f"{BACKUP}{check_topic(tp.topic)}/{self.attempt}/{base}"

    @property
    def merge(self) -> int:
        """The number of the merge that wrote it (PROTOCOL B10), 0 for none."""
        number = self.attempt.removeprefix(_MERGE).partition("-")[0]
        return int(number) if self.attempt.startswith(_MERGE) and number.isdecimal() else 0

    @classmethod
    def parse(cls, path: str) -> BackupFileName:
        """Parse a path below the store's root. Raises InvalidName."""
        parts = path.split("/")
        numbers = parts[-1].removesuffix(".avro").split("_")
        if len(parts) != 4 or not path.startswith(BACKUP) or not path.endswith(".avro") or len(numbers) != 4:
            raise unparsable(path, _WANTED)
        epoch, partition = (parse_number(text, path) for text in numbers[:2])
        first, last = (_offset(text, path) for text in numbers[2:])
        if not parts[2] or last < first:
            raise unparsable(path, _WANTED)
        return cls(
            OffsetRange(TopicPartition(check_topic(parts[1]), partition), first, last + 1), epoch, parts[2]
        )


def merge_attempt(number: int, random: str) -> str:
    """The folder of a merge's files."""
    return f"{_MERGE}{number}-{random}"


def _offset(text: str, path: str) -> int:
    if len(text) != _DIGITS:
        raise unparsable(path, _WANTED)
    return parse_number(text.lstrip("0") or "0", path)

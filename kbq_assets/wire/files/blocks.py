"""Blocks of many files in one array, so that one pass over a chunk can put its records into all of them."""

from __future__ import annotations

import numpy as np

from kbq_assets.wire.chunk import Bytes, Longs


def room_of(block_bytes: int) -> int:
    """The bytes to allocate for a block that is written when it reaches ``block_bytes``."""
    return block_bytes + max(4096, block_bytes // 8)


class SharedBlocks:
    """Blocks by slot. During a pass, ``used`` has the bytes of each block, ``rows`` the number of rows put into it."""

    def __init__(self, slots: int, block_bytes: int) -> None:
        self.block_bytes = block_bytes
        self.room = room_of(block_bytes)
        self.pool: Bytes = np.empty(slots * self.room, np.uint8)
        self.used: Longs = np.zeros(slots, np.int64)
        self.rows: Longs = np.zeros(slots, np.int64)
        self._free = list(range(slots))

    def take(self) -> int:
        """A free slot, -1 if all are taken."""
        return self._free.pop() if self._free else -1

    def give(self, slot: int) -> None:
        self._free.append(slot)

    def block(self, slot: int) -> Bytes:
        return self.pool[slot * self.room : (slot + 1) * self.room]

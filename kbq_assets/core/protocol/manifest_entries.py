"""Entries for manifests in the head of a commit (PROTOCOL, Manifests)."""

from __future__ import annotations

from dataclasses import dataclass

from kbq_assets.core.protocol.codec import Stored


@dataclass(frozen=True)
class ManifestEntry(Stored):
    """A manifest's name without folder and suffix, and the expected checksum and size of its object."""

    name: str
    #: the checksum at the beginning of its bytes (core/protocol/codec.py)
    checksum: str
    bytes: int
    #: 0 if it has accepted gaps and given-up paths instead
    windows: int = 0
    #: whether all done files of its windows exist (E5)
    done: bool = False

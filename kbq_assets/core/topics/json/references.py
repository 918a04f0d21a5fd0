"""References of a JSON Schema to its own parts: `#`, `#/$defs/Address`, `#address`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Final
from urllib.parse import unquote, urldefrag, urljoin

#: Keys of references. The last two could resolve differently if another document referred to this one, which never
#: happens.
REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
#: Keys that name a schema within its document. Up to draft 7, an id that begins with "#" does so too.
_ANCHORS: Final = ("$anchor", "$dynamicAnchor")
_IDS: Final = ("$id", "id")
#: Most digits of an index: no list in a schema is longer.
_LONGEST_INDEX: Final = 9


class References:
    """Resolves references within the document ``root``."""

    def __init__(self, root: Any) -> None:
        self._root = root

    def target(self, reference: str) -> Any:
        """The part to which a reference points; None if it does not exist or is in another document."""
        try:
            address, fragment = urldefrag(reference)
            if address and urljoin(self._own, address) != self._own:
                return None
        except ValueError:  # not a valid address
            return None
        name = unquote(fragment)
        if not name or name.startswith("/"):
            return pointed(self._root, name)
        return self._anchors.get(name)

    @cached_property
    def _own(self) -> str:
        """The address of this document."""
        root = self._root if isinstance(self._root, Mapping) else {}
        own = next((root[key] for key in _IDS if key in root), "")
        return urldefrag(own)[0] if isinstance(own, str) else ""

    @cached_property
    def _anchors(self) -> Mapping[str, Any]:
        found: dict[str, Any] = {}
        left = [self._root]
        while left:
            node = left.pop()
            if isinstance(node, Mapping):
                names = [node.get(key) for key in _ANCHORS]
                ids = (str(node.get(key)) for key in _IDS)
                names += [own[1:] for own in ids if own.startswith("#")]
                found |= {name: node for name in names if isinstance(name, str) and name not in found}
            left += node.values() if isinstance(node, Mapping) else node if isinstance(node, list) else ()
        return found


def pointed(root: Any, pointer: str) -> Any:
    """The value at a JSON pointer (RFC 6901), such as `/$defs/Address`; None if there is none."""
    found = root
    for part in pointer.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list):
            is_index = key.isdecimal() and len(key) <= _LONGEST_INDEX
            found = found[int(key)] if is_index and int(key) < len(found) else None
        else:
            found = found.get(key) if isinstance(found, Mapping) else None
    return found

"""Computes pseudonyms of many values at once, with HMAC-SHA-256 as kernels. Tests compare it with `Pseudonyms.of`."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kbq_assets.core.topics.personal import Pseudonyms
from kbq_assets.wire.chunk import PADDING, Longs, Spans, encode_long
from kbq_assets.wire.jit import copy_bytes, inlined, int64, kernel, load_byte, store_byte
from kbq_assets.wire.records.verdicts import Captures

_BLOCK: Final = 64
_DIGEST: Final = 32
#: Characters of a hash in base64url.
_TEXT: Final = 43
_ALPHABET: Final = np.frombuffer(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", np.uint8
)
_START: Final = np.array(
    [
        0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19,
    ],
    np.uint32,
)  # fmt: skip


def _roots(count: int) -> NDArray[np.uint32]:
    """SHA-256's constants: the first 32 bits of the fractional parts of the cube roots of the first primes."""
    primes: list[int] = []
    candidate = 2
    while len(primes) < count:
        if all(candidate % prime for prime in primes):
            primes.append(candidate)
        candidate += 1
    found = []
    for prime in primes:
        low, high = 0, prime << 32
        while low < high:  # the integer cube root of prime * 2**96
            middle = (low + high + 1) // 2
            low, high = (middle, high) if middle**3 <= prime << 96 else (low, middle - 1)
        found.append(low & 0xFFFFFFFF)
    return np.array(found, np.uint32)


_ROUNDS: Final = _roots(64)


class ContextHash:
    """Hashes values of one context with the current key."""

    def __init__(self, pseudonyms: Pseudonyms, context: str) -> None:
        key = pseudonyms.keys[pseudonyms.current]
        key = (hashlib.sha256(key).digest() if len(key) > _BLOCK else key).ljust(_BLOCK, b"\0")
        self._states = np.empty((2, 8), np.uint32)
        for state, pad in zip(self._states, (0x36, 0x5C), strict=True):
            state[:] = _START
            block = np.frombuffer(bytes(byte ^ pad for byte in key), np.uint8)
            _compress(state, block, 0, np.empty(64, np.uint32), _ROUNDS)
        name = context.encode()
        self._before = np.frombuffer(len(name).to_bytes(4) + name, np.uint8)
        self._head = f"{pseudonyms.current}.".encode()

    def texts(self, spans: Spans) -> Spans:
        """The pseudonyms of byte strings. Null stays null."""
        made, size = self._made(self._head, spans.buffer, spans.starts, spans.ends, skip=False)
        starts = np.arange(len(spans), dtype=np.int64) * size
        ends = starts + size
        starts[spans.starts < 0] = ends[spans.starts < 0] = -1
        return Spans(made, starts, ends)

    def values(self, buffer: Any, starts: Longs, ends: Longs) -> tuple[NDArray[np.uint8], int]:
        """The pseudonyms of Avro strings, as consecutive Avro strings, and the size of each. A negative start means no
        value."""
        size = len(self._head) + _TEXT
        return self._made(encode_long(size) + self._head, buffer, starts, ends, skip=True)

    def _made(
        self, head: bytes, buffer: Any, starts: Longs, ends: Longs, *, skip: bool
    ) -> tuple[NDArray[np.uint8], int]:
        size = len(head) + _TEXT
        target = np.empty(len(starts) * size + PADDING, np.uint8)
        scratch = (
            np.empty(2 * _BLOCK, np.uint8),
            np.empty(8, np.uint32),
            np.empty(64, np.uint32),
            np.empty(_DIGEST + 1, np.uint8),
        )
        _hash_all(
            (target, np.frombuffer(head, np.uint8), _ALPHABET),
            (buffer, starts, ends, skip),
            (self._before, self._states, _ROUNDS),
            scratch,
        )
        return target, size


def replaced(
    buffer: Any, starts: Longs, ends: Longs, captures: Captures, instead: Sequence[ContextHash | bytes]
) -> Spans:
    """Records with their captured fields replaced, slot by slot: Avro strings by pseudonyms, others by constant bytes.
    Captures must not overlap or be empty."""
    if not instead:
        return Spans(buffer, starts, ends)
    known = captures.kinds > 0
    spans = np.where(known, captures.starts, -1)
    texts, places = [], []
    base = 0
    for slot, each in enumerate(instead):
        if isinstance(each, bytes):
            made, size, step = np.frombuffer(each, np.uint8), len(each), 0
        else:
            made, size = each.values(
                buffer, np.ascontiguousarray(spans[slot]), np.ascontiguousarray(captures.ends[slot])
            )
            step = size
        texts.append(made)
        places.append((base, size, step))
        base += len(made)
    sizes_instead = np.array([size for _, size, _ in places], np.int64).reshape(-1, 1)
    lost = np.where(known, captures.ends - captures.starts - sizes_instead, 0).sum(axis=0)
    sizes = ends - starts - lost
    new_ends = np.cumsum(sizes, dtype=np.int64)
    target = np.empty(int(sizes.sum()) + PADDING, np.uint8)
    _replace(
        (target, new_ends - sizes),
        (buffer, starts, ends),
        (spans, captures.ends),
        (np.concatenate(texts), np.array(places, np.int64)),
    )
    return Spans(target, new_ends - sizes, new_ends)


@inlined
def _turned(word: Any, by: Any) -> Any:
    return np.uint32(np.uint32(word >> np.uint32(by)) | np.uint32(word << np.uint32(32 - by)))


@kernel
def _compress(state: Any, block: Any, start: Any, words: Any, rounds: Any) -> None:
    """Process one block of SHA-256 into ``state``."""
    for i in range(16):
        at = start + 4 * i
        words[i] = np.uint32(
            (load_byte(block, at) << 24)
            | (load_byte(block, at + 1) << 16)
            | (load_byte(block, at + 2) << 8)
            | load_byte(block, at + 3)
        )
    for i in range(16, 64):
        one, two = words[i - 15], words[i - 2]
        low = np.uint32(_turned(one, 7) ^ _turned(one, 18) ^ np.uint32(one >> np.uint32(3)))
        high = np.uint32(_turned(two, 17) ^ _turned(two, 19) ^ np.uint32(two >> np.uint32(10)))
        words[i] = np.uint32(words[i - 16] + low + words[i - 7] + high)
    a, b, c, d = state[0], state[1], state[2], state[3]
    e, f, g, h = state[4], state[5], state[6], state[7]
    for i in range(64):
        high = np.uint32(_turned(e, 6) ^ _turned(e, 11) ^ _turned(e, 25))
        choice = np.uint32((e & f) ^ (~e & g))
        first = np.uint32(h + high + choice + rounds[i] + words[i])
        low = np.uint32(_turned(a, 2) ^ _turned(a, 13) ^ _turned(a, 22))
        most = np.uint32((a & b) ^ (a & c) ^ (b & c))
        h, g, f, e = g, f, e, np.uint32(d + first)
        d, c, b, a = c, b, a, np.uint32(first + low + most)
    state[0] = np.uint32(state[0] + a)
    state[1] = np.uint32(state[1] + b)
    state[2] = np.uint32(state[2] + c)
    state[3] = np.uint32(state[3] + d)
    state[4] = np.uint32(state[4] + e)
    state[5] = np.uint32(state[5] + f)
    state[6] = np.uint32(state[6] + g)
    state[7] = np.uint32(state[7] + h)


@inlined
def _end(room: Any, used: Any, total: Any) -> Any:
    """Pad a message's last bytes; return the number of blocks that they fill."""
    store_byte(room, used, 0x80)
    blocks = 1 if used + 9 <= 64 else 2
    for i in range(used + 1, 64 * blocks - 8):
        store_byte(room, i, 0)
    bits = total * 8
    for i in range(8):
        store_byte(room, 64 * blocks - 1 - i, bits >> (8 * i))
    return blocks


@inlined
def _store_digest(target: Any, state: Any) -> None:
    for i in range(8):
        word = int64(state[i])
        store_byte(target, 4 * i, word >> 24)
        store_byte(target, 4 * i + 1, word >> 16)
        store_byte(target, 4 * i + 2, word >> 8)
        store_byte(target, 4 * i + 3, word)


@inlined
def _absorb(sha: Any, used: Any, buffer: Any, position: Any, end: Any) -> Any:
    """Add bytes to a message whose last block has ``used`` bytes; return the new number."""
    room, state, words, rounds = sha
    while position < end:
        count = min(64 - used, end - position)
        for i in range(count):
            store_byte(room, used + i, load_byte(buffer, position + i))
        position += count
        used += count
        if used == 64:
            _compress(state, room, 0, words, rounds)
            used = 0
    return used


@inlined
def _finish(sha: Any, used: Any, total: Any) -> None:
    room, state, words, rounds = sha
    for block in range(_end(room, used, total)):
        _compress(state, room, 64 * block, words, rounds)


@inlined
def _store_text(target: Any, to: Any, digest: Any, alphabet: Any) -> None:
    """Store a digest in base64url, without padding."""
    for i in range(11):
        high, middle = load_byte(digest, 3 * i), load_byte(digest, 3 * i + 1)
        bits = (high << 16) | (middle << 8) | load_byte(digest, 3 * i + 2)
        store_byte(target, to + 4 * i, load_byte(alphabet, bits >> 18))
        store_byte(target, to + 4 * i + 1, load_byte(alphabet, (bits >> 12) & 63))
        store_byte(target, to + 4 * i + 2, load_byte(alphabet, (bits >> 6) & 63))
        if i < 10:
            store_byte(target, to + 4 * i + 3, load_byte(alphabet, bits & 63))


@kernel
def _hash_all(out: Any, values: Any, keyed: Any, scratch: Any) -> None:
    target, head, alphabet = out
    buffer, starts, ends, skip = values
    before, states, rounds = keyed
    room, state, words, digest = scratch
    sha = (room, state, words, rounds)
    for i in range(len(starts)):
        if starts[i] < 0:
            continue
        position, end = starts[i], ends[i]
        while skip and load_byte(buffer, position) >= 128:  # the string's own length
            position += 1
        position += 1 if skip else 0
        for j in range(8):
            state[j] = states[0, j]
        used = _absorb(sha, 0, before, 0, len(before))
        used = _absorb(sha, used, buffer, position, end)
        _finish(sha, used, 64 + len(before) + end - position)
        _store_digest(room, state)
        for j in range(8):
            state[j] = states[1, j]
        _finish(sha, 32, 96)
        _store_digest(digest, state)
        store_byte(digest, 32, 0)
        to = i * (len(head) + 43)
        copy_bytes(target, to, head, 0, len(head))
        _store_text(target, to + len(head), digest, alphabet)


@kernel
def _replace(out: Any, records: Any, places: Any, blobs: Any) -> None:
    target, target_starts = out
    buffer, starts, ends = records
    place_starts, place_ends = places
    texts, sources = blobs
    for i in range(len(starts)):
        position, to = starts[i], target_starts[i]
        while True:
            chosen = -1
            for slot in range(len(place_starts)):  # the next one in the record: few fields have decisions
                at = place_starts[slot, i]
                if at >= position and (chosen < 0 or at < place_starts[chosen, i]):
                    chosen = slot
            if chosen < 0:
                break
            count = place_starts[chosen, i] - position
            copy_bytes(target, to, buffer, position, count)
            size = sources[chosen, 1]
            copy_bytes(target, to + count, texts, sources[chosen, 0] + i * sources[chosen, 2], size)
            to += count + size
            position = place_ends[chosen, i]
        copy_bytes(target, to, buffer, position, ends[i] - position)


def warm_up() -> None:
    """Compile all kernels, or load them from the disk cache."""
    spans = Spans.of([b"\x02x"])
    hashes = ContextHash(Pseudonyms("k", {"k": bytes(_DIGEST)}), "c")
    hashes.texts(spans)
    one = np.ones((1, 1), np.uint8)
    places = spans.starts.reshape(1, 1), spans.ends.reshape(1, 1)
    replaced(spans.buffer, spans.starts, spans.ends, Captures(one, *places), [hashes])

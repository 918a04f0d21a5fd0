"""The object store in a local directory.

Objects are plain files below the root, byte for byte: `jq` reads a commit, the warehouse a staged file, and
an operator may put a done file there by hand. Three choices make a directory keep the port's guarantees:

* *A generation is the file's modification time in nanoseconds*, set by the writer before the file has a
  name, always later than the one it replaces. Times do not repeat, so neither do generations, not even after
  delete and re-creation; and a file edited by hand has a new one, so a writer that read it before loses.
* *Objects get their name whole*: written and synced in ``.tmp``, then linked (create: fails if the name is
  taken) or renamed (swap, under one of the locks in ``.locks``). A file being written is locked by its
  writer, and the kernel drops the lock of a dead one: that is how `sweep_temporary` tells them apart.
* *File systems that cannot do this are refused*: network ones, those that ignore case or keep coarse times.
"""

from kbq_assets.adapters.local_store.store import LocalObjectStore

__all__ = ["LocalObjectStore"]

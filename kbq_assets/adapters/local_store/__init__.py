"""The object store in a local directory.

Objects are plain files below the root, byte for byte: `jq` reads a commit, the warehouse a staged file, and
an operator may create a done file by hand. Three choices let a directory keep the port's guarantees:

* *A generation is the file's modification time in nanoseconds*. The writer sets it before the file has a
name, always later than the one it replaces. Times do not repeat, so neither do generations, not even after
delete and re-creation. A file edited by hand has a new one, so a writer that read it before loses.
* *Objects get their name whole*: written and synced in ``.tmp``, then linked (create: fails if the name is
taken) or renamed (swap, under one of the locks in ``.locks``). A writer locks its file, and the kernel drops
the lock of a dead writer: so `sweep_temporary` can distinguish them. Empty objects, such as done files, are whole
without that.
* *Unsuitable file systems are refused*: network ones, and those that ignore case or keep coarse times.
"""

from kbq_assets.adapters.local_store.store import LocalObjectStore

__all__ = ["LocalObjectStore"]

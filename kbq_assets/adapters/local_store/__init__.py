"""The object store in a local directory.

Objects are plain files below the root. So `jq` can read a commit, the warehouse can read a staged file, and an operator
can create a done file by hand. Three choices let a directory keep the port's guarantees:

* *A generation is the file's modification time in nanoseconds*. The writer sets it before the file has a name, and
always later than the generation it replaces. Times do not repeat, so generations do not either, even if an object is
deleted and created again. A manual edit changes the generation, so a writer that read the file before it loses.
* *Objects become visible atomically*: they are written and synced in ``.tmp``, then linked (create: fails if the name
is taken) or renamed (swap: under one of the locks in ``.locks``). A writer locks its temporary file, and the kernel
drops the lock of a dead writer, so `sweep_temporary` can tell them apart. Empty objects, such as done files, need no
temporary file.
* *Unsuitable file systems are refused*: network file systems, and those that ignore case or have coarse timestamps.
"""

from kbq_assets.adapters.local_store.store import LocalObjectStore

__all__ = ["LocalObjectStore"]

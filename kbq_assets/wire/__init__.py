"""Converts Kafka values to staged Avro files, bytes to bytes, without decoding and without I/O.

This package imports nothing, because the driver needs schemas without numba. The modules, in the order in which a
record passes them:

``chunk``     :class:`Chunk`: many records as arrays over one buffer; every reader yields it.
``records/``  ``schema``: the writer's record with the metadata columns appended, and its fingerprint.
              ``compile``, ``program``: a schema as a flat program; ``validate``: a reason per record, and the spans of
              captured fields. ``select``: the tables that records choose. ``event_time``: their business times.
``files/``    ``encode``: :class:`WindowEncoder`, one window: good records to files, the others to the caller.
              ``assemble``: bodies and encoded metadata, laid into blocks. ``codec``, ``container``: blocks compressed,
              in an Avro object container file. ``error_rows``: bad records as rows of the error table.
``json/``     the scanner of JSON documents, and rows of inferred schemas.
``privacy/``  records without their personal data; error rows sealed for the holder of a private key.
``arrow/``    staged files as Arrow tables, for warehouses that KBQ writes itself.
``jit``, ``warm``   how kernels are compiled and cached: in the install step, and when a worker starts.
"""

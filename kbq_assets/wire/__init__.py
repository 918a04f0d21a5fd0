"""Bytes to bytes: from Kafka values to staged Avro files, without decoding and without I/O.

Nothing is imported here, so that the driver can ask for a schema without loading numba. The way of a record:

``chunk``       :class:`Chunk`: many records as arrays over one buffer; every reader yields it.
``reasons``     :class:`Reason`: why a record is not a row.
``avro``        writer schemas as a tree: strict parsing, canonical form with logical types.
``references``  schemas that refer to others in the registry, made whole.
``program``     the tree as a flat program for the validator.
``schema``      :func:`staged_schema`: the writer's record with the metadata columns appended, and its
fingerprint.
``validate``    :func:`validate_avro`, :func:`validate_json`: a reason per record, and the event date.
``assemble``    bodies and encoded metadata laid side by side into blocks.
``codec``, ``container``   blocks compressed, in an Avro object container file.
``encode``      :class:`WindowEncoder`: all of the above for one window; good records to files, others to the
caller.
``error_rows``  :class:`ErrorRows`: bad records as rows of the error table.
``personal``, ``personal_json``, ``personal_values``   records without their personal data.
``sealing``, ``sealed_rows``   bytes, and error rows, for the holder of a private key.
``jit``, ``scan``, ``json_text``   how kernels are compiled and cached, and the smallest of them.
``warm``        :func:`warm_up`: compile every kernel, in the install step and when a worker starts.
"""

"""Avro's own Java implementation, out of PySpark's jars, as a second decoder: compiled by the Janino among them."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.java_gateway import launch_gateway

#: Old Java, which Janino knows. A payload's answer: one byte, then its record encoded again, or the exception's name.
SOURCE = """
import java.io.*;
import org.apache.avro.*;
import org.apache.avro.file.*;
import org.apache.avro.generic.*;
import org.apache.avro.io.*;

public class Judge implements java.util.function.Function {
    public Object apply(Object given) {
        String[] paths = ((String) given).split("\\n");
        try {
            return paths.length == 1 ? (Object) rows(paths[0]) : (Object) decode(paths[0], paths[1]);
        } catch (Exception error) {
            throw new RuntimeException(error);
        }
    }

    private Object rows(String path) throws Exception {
        DataFileReader reader = new DataFileReader(new File(path), new GenericDatumReader());
        long rows = 0, offsets = 0;
        while (reader.hasNext()) {
            offsets += ((Long) ((GenericRecord) reader.next()).get("_kafka_offset")).longValue();
            rows++;
        }
        reader.close();
        return rows + " " + offsets;
    }

    private Object decode(String questions, String answers) throws Exception {
        DataInputStream in = new DataInputStream(new BufferedInputStream(new FileInputStream(questions)));
        DataOutputStream out = new DataOutputStream(new BufferedOutputStream(new FileOutputStream(answers)));
        int schemas = in.readInt();
        for (int s = 0; s < schemas; s++) {
            Schema schema = new Schema.Parser().parse(new String(read(in), "UTF-8"));
            int count = in.readInt();
            for (int i = 0; i < count; i++) {
                answer(schema, read(in), out);
            }
        }
        out.close();
        return "";
    }

    private byte[] read(DataInputStream in) throws Exception {
        byte[] data = new byte[in.readInt()];
        in.readFully(data);
        return data;
    }

    private void answer(Schema schema, byte[] data, DataOutputStream out) throws Exception {
        byte[] told;
        int accepted = 0;
        try {
            BinaryDecoder decoder = DecoderFactory.get().binaryDecoder(data, null);
            Object record = new GenericDatumReader(schema).read(null, decoder);
            ByteArrayOutputStream made = new ByteArrayOutputStream();
            BinaryEncoder encoder = EncoderFactory.get().binaryEncoder(made, null);
            new GenericDatumWriter(schema).write(record, encoder);
            encoder.flush();
            told = made.toByteArray();
            accepted = decoder.isEnd() ? 1 : 2;
        } catch (Throwable error) {
            told = error.getClass().getName().getBytes("UTF-8");
        }
        out.writeByte(accepted);
        out.writeInt(told.length);
        out.write(told);
    }
}
"""


@dataclass(frozen=True)
class Answer:
    """``accepted``: the record was read, and nothing follows it. ``told`` is the record encoded again, or the
    exception."""

    accepted: bool
    told: bytes


class AvroJava:
    """One JVM for many questions; ``close`` it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        launch: Any = launch_gateway
        self._gateway = launch()
        compiler = self._gateway.jvm.org.codehaus.janino.SimpleCompiler()
        compiler.cook(SOURCE)
        self._judge = compiler.getClassLoader().loadClass("Judge").newInstance()

    def rows(self, file: Path) -> tuple[int, int]:
        """How many rows a container file has, and the sum of their offsets."""
        rows, offsets = self._judge.apply(str(file)).split()
        return int(rows), int(offsets)

    def decode(self, questions: Sequence[tuple[str, Sequence[bytes]]]) -> Iterator[Answer]:
        """An answer for each body of each schema."""
        asked, told = self._folder / "questions", self._folder / "answers"
        with asked.open("wb") as file:
            file.write(struct.pack(">i", len(questions)))
            for schema, bodies in questions:
                file.write(_framed(schema.encode()) + struct.pack(">i", len(bodies)))
                file.writelines(map(_framed, bodies))
        self._judge.apply(f"{asked}\n{told}")
        data, position = told.read_bytes(), 0
        while position < len(data):
            accepted, size = struct.unpack_from(">bi", data, position)
            yield Answer(accepted == 1, data[position + 5 : position + 5 + size])
            position += 5 + size

    def close(self) -> None:
        """End the JVM."""
        self._gateway.shutdown()
        self._gateway.proc.stdin.close()
        self._gateway.proc.wait(120)


def _framed(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data

"""One file of the local stack, as a value that parses and formats itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True)
class Artifact:
    """A file of a Maven repository, such as ``org.apache.kafka:kafka_2.13:4.3.1:jar``; ``size`` in bytes."""

    package: str
    organisation: str
    name: str
    revision: str
    extension: str
    classifier: str
    size: int
    sha256: str

    @classmethod
    def parse(cls, line: str) -> Self:
        """Read ``<package> <organisation>:<name>:<revision>:<extension>[:<classifier>] <size> <sha256>``."""
        package, coordinates, size, sha256 = line.split()
        organisation, name, revision, extension, *classifier = coordinates.split(":")
        return cls(package, organisation, name, revision, extension, "".join(classifier), int(size), sha256)

    def format(self) -> str:
        """The line that ``parse`` reads."""
        parts = [self.organisation, self.name, self.revision, self.extension, self.classifier]
        return f"{self.package} {':'.join(part for part in parts if part)} {self.size} {self.sha256}"

    @property
    def file_name(self) -> str:
        """Example: ``apicurio-registry-app-3.0.9-all.tar.gz``."""
        classifier = f"-{self.classifier}" if self.classifier else ""
        return f"{self.name}-{self.revision}{classifier}.{self.extension}"

    @property
    def retrieved_path(self) -> str:
        """The path at which Ivy stores the file."""
        return f"{self.organisation}/{self.file_name}"

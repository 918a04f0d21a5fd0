"""Names and lists a store's objects in its bucket."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from kbq_assets.adapters.gcs.calls import Call, Calls, listed, text
from kbq_assets.adapters.gcs.errors import Intent
from kbq_assets.adapters.object_paths import MAX_PATH, check_path, is_path
from kbq_assets.core.errors import InvalidName

T = TypeVar("T")


@dataclass(frozen=True)
class BucketFolder:
    """A folder of a bucket; ``prefix`` is "" or ends with '/'."""

    bucket: str
    prefix: str

    def name(self, path: str) -> str:
        """The object's name in the bucket. Raises InvalidName."""
        name = self.prefix + check_path(path)
        if len(name.encode()) > MAX_PATH:
            raise InvalidName(
                f"{name!r} has more than {MAX_PATH} bytes", next_step="choose a shorter prefix of the bucket"
            )
        return name

    def uri(self, path: str) -> str:
        """The object's ``gs://`` address; a folder's if ``path`` ends with '/'."""
        return f"gs://{self.bucket}/{self.name(path.removesuffix('/'))}"

    def items(
        self,
        calls: Calls,
        prefix: str,
        start_after: str,
        fields: str,
        parse: Callable[[str, Mapping[str, str]], T],
        every: bool = False,
    ) -> Iterator[T]:
        """The objects with a path prefix, in path order, beginning after ``start_after``. ``parse`` makes an entry of a
        path and the object's metadata."""
        if folder := prefix.rpartition("/")[0]:
            check_path(folder)

        def read(page: Mapping[str, Any]) -> tuple[list[T], str]:
            entries, following = [], text(page.get("nextPageToken", ""))
            for item in listed(page.get("items", [])):
                path = text(item["name"]).removeprefix(self.prefix)
                # The listing includes the start itself. The console represents a folder by a name that ends with '/'.
                if path > start_after and not path.endswith("/") and (every or is_path(path)):
                    entries.append(parse(path, item))
            if following and following == token:
                raise ValueError("the page names itself as the next one")
            return entries, following

        token = ""
        while True:
            entries, following = calls.parsed(self._page(calls, prefix, start_after, token, fields), read)
            yield from entries
            token = following
            if not token:
                return

    def _page(self, calls: Calls, prefix: str, start_after: str, token: str, fields: str) -> Call:
        intent = Intent("list", f"gs://{self.bucket}/{self.prefix}{prefix}", "storage.objects.list")
        # The default page size is the service's largest, 1,000.
        parameters = {"prefix": self.prefix + prefix, "fields": fields}
        if start_after:
            parameters["startOffset"] = self.prefix + start_after
        if token:
            parameters["pageToken"] = token
        return Call(intent, "GET", f"{calls.bucket_url(self.bucket)}/o", parameters)

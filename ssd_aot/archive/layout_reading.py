"""Finding the one bundle in an OCI image layout that anybody may have written.

Every blob is read by the digest that the document before names, and checked against its size and
digest before anything is made of it; the layer's content is then read as strictly as an archive.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import stat
import zlib
from io import BufferedReader
from pathlib import Path
from typing import Any, TypeVar

from ssd_aot.archive.image import (
    INDEX_FILE,
    LAYER_TYPE,
    LAYOUT_FILE,
    MANIFEST_TYPE,
    blob_path,
)
from ssd_aot.archive.labels import DIGEST, PREFIX
from ssd_aot.archive.members import MAX_BYTES
from ssd_aot.archive.reading import Contents, read_bundle
from ssd_aot.bundle.pin import refuse_other
from ssd_aot.errors import BundleError

T = TypeVar("T")

MAX_DOCUMENT_BYTES = 4 << 20
"""Of a manifest or index: what registries take at least, by the OCI distribution specification."""

MAX_LAYER_BYTES = 2 * MAX_BYTES
"""Headers and padding come to the bytes of the files."""

_PLAIN_TYPE = "application/vnd.oci.image.layer.v1.tar"
_DOCKER_TYPE = "application/vnd.docker.image.rootfs.diff.tar.gzip"
_LAYER_TYPES = (LAYER_TYPE, _DOCKER_TYPE, _PLAIN_TYPE)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_AGAIN = "pull the image again, or pack the bundle anew"
_ALONE = "copy one image into an empty folder: skopeo copy docker://… oci:DIR"


def is_layout(path: str) -> bool:
    """Whether the folder at `path` says that it is an OCI image layout."""
    return bool(path) and os.path.isfile(os.path.join(path, LAYOUT_FILE))


def image_bundle(layout: Path, pinned: str | None = None) -> Contents:
    """The bundle in the only image of a layout.

    Raises BundleError for a layout of another version, with no image or several, whose image is no
    bundle's, or of which a blob was changed, MismatchError for another bundle than the pinned one.
    """
    return _Layout(layout).bundle(pinned)


class _Layout:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def bundle(self, pinned: str | None) -> Contents:
        self._check_version()
        name, manifest = self._manifest()
        digest = self._digest_of(name, manifest)
        # The pin before the layer: an image of another bundle is refused without reading it.
        refuse_other(digest, pinned, str(self._folder))
        layers = _field(manifest, "layers", list, name)
        if len(layers) != 1:
            raise _refuse("an image that is no bundle's", name, f"{len(layers)} layers", "one")
        kind, layer, size = _descriptor(layers[0], f"{name}: layers[0]")
        if kind not in _LAYER_TYPES:
            wanted = " or ".join(_LAYER_TYPES)
            raise _refuse("a layer of a kind that no bundle has", name, kind, wanted)
        with self._blob(layer, size, MAX_LAYER_BYTES) as file:
            where = f"{self._folder}: layer {layer}"
            if kind == _PLAIN_TYPE:
                contents = read_bundle(file.read, where, PREFIX, pinned)
            else:
                contents = _read_compressed(file, where, pinned)
        if contents.digest != digest:
            raise _refuse("the image holds another bundle than it says", name,
                          contents.digest, f"{digest}, as its {DIGEST} has it")  # fmt: skip
        return contents

    def _check_version(self) -> None:
        name, document = self._plain_document(LAYOUT_FILE)
        version = _field(document, "imageLayoutVersion", str, name)
        if not version.startswith("1."):
            raise _refuse("an image layout that is not read here", name, version, "1.0.0")

    def _manifest(self) -> tuple[str, Any]:
        place, index = self._plain_document(INDEX_FILE)
        images = _field(index, "manifests", list, place)
        if len(images) != 1:
            found = f"{len(images)} images"
            raise _refuse("not one image in the layout", place, found, "one", _ALONE)
        kind, digest, size = _descriptor(images[0], f"{place}: manifests[0]")
        if kind != MANIFEST_TYPE:
            raise _refuse("not an image in the layout", place, kind, MANIFEST_TYPE, _ALONE)
        with self._blob(digest, size, MAX_DOCUMENT_BYTES) as file:
            name = f"{self._folder}: manifest {digest}"
            return name, self._document(name, file.read())

    def _digest_of(self, name: str, manifest: Any) -> str:
        notes = manifest.get("annotations") if isinstance(manifest, dict) else None
        digest = notes.get(DIGEST) if isinstance(notes, dict) else None
        if not isinstance(digest, str):
            wanted = "what `ssd-aot pack --oci` wrote"
            raise _refuse("an image that is no bundle's", name, f"no annotation {DIGEST}", wanted)
        return digest

    def _document(self, name: str, data: bytes) -> Any:
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as error:
            # Without its cause, which is some thousand lines long where nesting has no end.
            found = str(error) if isinstance(error, ValueError) else "nesting without end"
            raise _refuse("not JSON", name, found, "JSON") from None

    def _plain_document(self, name: str) -> tuple[str, Any]:
        """A document that no digest protects, after the place of its file."""
        place = str(self._folder / name)
        with self._open(name) as file:
            data = file.read(MAX_DOCUMENT_BYTES + 1)
        if len(data) > MAX_DOCUMENT_BYTES:
            found = f"more than {MAX_DOCUMENT_BYTES} bytes"
            raise _refuse("a document too large", place, found, f"at most {MAX_DOCUMENT_BYTES}")
        return place, self._document(place, data)

    def _blob(self, digest: str, size: int, most: int) -> BufferedReader:
        """The blob, opened at its start once all of it was found to be what it should be."""
        if size > most:
            raise _refuse("a blob too large", digest, f"{size} bytes", f"at most {most}")
        file = self._open(blob_path(digest))
        try:
            found_size = os.fstat(file.fileno()).st_size
            found = f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
            if (found_size, found) != (size, digest):
                raise _refuse("a blob was changed", str(self._folder / blob_path(digest)),
                              f"{found_size} bytes, {found}",
                              f"{size} bytes, {digest}")  # fmt: skip
            file.seek(0)
        except BaseException:
            file.close()
            raise
        return file

    def _open(self, name: str) -> BufferedReader:
        # Neither a link nor a pipe is followed or waited for.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        place = self._folder / name
        try:
            handle = os.open(place, flags)
        except OSError as error:
            found = error.strerror or str(error)
            raise _refuse(
                "a file of the layout cannot be read", str(place), found, "a file"
            ) from error
        file = open(handle, "rb")  # noqa: SIM115 - the caller closes it
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            file.close()
            raise _refuse("a file of the layout is none", str(place), "something else", "a file")
        return file


def _read_compressed(file: BufferedReader, where: str, pinned: str | None) -> Contents:
    try:
        with gzip.GzipFile(fileobj=file, mode="rb") as content:
            return read_bundle(content.read, where, PREFIX, pinned)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise _refuse("the layer is not whole gzip data", where, str(error), "gzip data") from error


def _descriptor(value: Any, where: str) -> tuple[str, str, int]:
    """The media type, digest and size in bytes of a descriptor."""
    digest = _field(value, "digest", str, where)
    if not _DIGEST.fullmatch(digest):
        raise _refuse("not a digest", f"{where}.digest", repr(digest), "sha256: and 64 digits")
    return _field(value, "mediaType", str, where), digest, _field(value, "size", int, where)


def _field(value: Any, name: str, kind: type[T], where: str) -> T:
    found = value.get(name) if isinstance(value, dict) else None
    if type(found) is not kind:
        shown = "nothing" if found is None else f"a {type(found).__name__}"
        raise _refuse("a field of the wrong type", f"{where}: {name}", shown, f"a {kind.__name__}")
    return found


def _refuse(what: str, where: str, found: str, wanted: str, mend: str = _AGAIN) -> BundleError:
    return BundleError(what, where, found, wanted, mend)

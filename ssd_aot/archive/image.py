"""A bundle as an OCI image layout: one image of one layer, its bytes given by the bundle alone.

The layer is a gzip file, since Model Cache Vault takes no other and since tools compress a plain
one when they push it, each in its own way, which changes the image's digest. To be the same bytes
with every zlib the data is stored in it and not compressed.

Media types and documents are those of the OCI image specification 1.1 (`layer.md`, `config.md`,
`manifest.md`, `image-layout.md`), kept to what version 1.0 has.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ssd_aot.archive.labels import DIGEST, PREFIX, image_annotations, image_labels
from ssd_aot.archive.packing import OnProgress, stream, verified
from ssd_aot.bundle.layout import bundle_path
from ssd_aot.bundle.store import Bundle
from ssd_aot.bundle.writer import place_folder
from ssd_aot.errors import UsageError
from ssd_aot.launches import canonical_json

MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar+gzip"
LAYOUT_FILE = "oci-layout"
INDEX_FILE = "index.json"
TAG = "latest"
"""The image's name in the layout: what skopeo and umoci take when none is given."""

CREATED = "1980-01-01T00:00:00Z"
"""The time of every file in the bundle (`bundle.writer.EARLIEST_TIME`)."""

_ARCHITECTURES = {"aarch64": "arm64", "x86_64": "amd64"}
"""Of GOARCH, which the specification uses, by the name that Python's platforms end in."""

# RFC 1952: deflate, no flags, no time, no extra flags, unknown system.
_GZIP_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
_STORED_MOST = 65_535


@dataclass(frozen=True)
class PackedImage:
    """The layout that was written: its folder, the image's digest, which registries know it by and
    signatures are for, the digest of the bundle in it, and the layer's size."""

    layout: str
    image: str
    digest: str
    size_bytes: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        head = f"{self.layout}: an OCI image, its layer of {self.size_bytes} bytes"
        return f"{head}\nimage  {self.image}\ndigest {self.digest}"


def pack_image(
    path: str | os.PathLike[str], out: str, on_progress: OnProgress | None = None
) -> PackedImage:
    """Write the bundle at `path` as the OCI image layout `out`, whole or not at all.

    Raises BundleError for a bundle that does not verify, UsageError for an `out` that is there and
    not such a layout of a bundle, HostError where it cannot be written.
    """
    place = check_layout_destination(out)
    bundle = verified(path)
    layer, diff_id = layer_of(stream(bundle, PREFIX, on_progress))
    config = canonical_json(_config(bundle, diff_id)).encode()
    blobs = [config, layer]
    manifest = canonical_json(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": _descriptor(CONFIG_TYPE, config),
            "layers": [_descriptor(LAYER_TYPE, layer)],
            "annotations": image_annotations(bundle),
        }
    ).encode()
    described = _descriptor(MANIFEST_TYPE, manifest)
    named = {"org.opencontainers.image.ref.name": TAG, DIGEST: bundle.digest}
    index = {
        "schemaVersion": 2,
        "mediaType": INDEX_TYPE,
        "manifests": [{**described, "annotations": named}],
    }
    contents = {blob_path(_digest(data)): data for data in (*blobs, manifest)}
    contents[LAYOUT_FILE] = canonical_json({"imageLayoutVersion": "1.0.0"}).encode()
    contents[INDEX_FILE] = canonical_json(index).encode()
    place_folder(place, contents)
    return PackedImage(out, described["digest"], bundle.digest, len(layer))


def layer_of(pieces: Iterable[bytes]) -> tuple[bytes, str]:
    """A tar stream as a layer, and the digest of the stream itself (`diff_id`)."""
    tar = b"".join(pieces)
    return b"".join(stored(tar)), _digest(tar)


def stored(data: bytes) -> Iterator[bytes]:
    """A gzip file of blocks that hold the data as it is (RFC 1951, 3.2.4)."""
    yield _GZIP_HEADER
    for start in range(0, len(data), _STORED_MOST):
        piece = data[start : start + _STORED_MOST]
        yield _stored_header(len(piece), last=False)
        yield piece
    yield _stored_header(0, last=True)
    yield struct.pack("<II", zlib.crc32(data), len(data) & 0xFFFFFFFF)


def _stored_header(size: int, *, last: bool) -> bytes:
    return struct.pack("<BHH", last, size, size ^ 0xFFFF)


def _config(bundle: Bundle, diff_id: str) -> dict[str, Any]:
    platform = bundle.manifest.toolchain.platform
    machine = platform.rpartition("-")[2]
    return {
        "created": CREATED,
        # What built it. Builtin kernels are served on either, and engines ask no image for more.
        "architecture": _ARCHITECTURES.get(machine, machine),
        "os": "linux",
        "config": {"Labels": image_labels(bundle)},
        "rootfs": {"type": "layers", "diff_ids": [diff_id]},
        "history": [{"created": CREATED, "created_by": "ssd-aot pack --oci"}],
    }


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _descriptor(media_type: str, data: bytes) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": _digest(data), "size": len(data)}


def blob_path(digest: str) -> str:
    """Where a layout has a blob, by its digest `sha256:…`."""
    return f"blobs/{digest.replace(':', '/', 1)}"


def check_layout_destination(path: str) -> Path:
    """The absolute path to write to. Raises UsageError for one that is there and neither an empty
    folder nor a layout with nothing but a bundle's image in it."""
    place = bundle_path(path)
    if os.path.lexists(place) and not _replaceable(place):
        raise UsageError(
            "the output exists and is no OCI layout of a bundle alone, so it is not replaced",
            where=str(place),
            found="a folder" if place.is_dir() else "a file",
            wanted="a layout that `ssd-aot pack --oci` wrote, an empty folder, or nothing",
            mend="give another folder, or move it away",
        )
    return place


def _replaceable(place: Path) -> bool:
    try:
        names = {entry.name for entry in place.iterdir()}
        if not names:
            return True
        images = json.loads((place / INDEX_FILE).read_bytes())["manifests"]
        ours = len(images) == 1 and DIGEST in images[0]["annotations"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False
    return ours and names == {"blobs", INDEX_FILE, LAYOUT_FILE}

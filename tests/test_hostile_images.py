"""Hostile image layouts: every blob is held to its digest, and nothing is left behind."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from archive_builders import changed, snapshot, without_data
from bundle_builders import write_small_bundle
from image_builders import Layout

from ssd_aot.archive import layout_reading
from ssd_aot.archive.image import pack_image
from ssd_aot.archive.labels import DIGEST
from ssd_aot.archive.unpacking import unpack_bundle
from ssd_aot.errors import BundleError


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    pack_image(write_small_bundle(tmp_path / "b").path, str(tmp_path / "image"))
    return Layout(tmp_path / "image")


def other_image(layout: Layout) -> None:
    index = layout.document("index.json")
    index["manifests"].append({**index["manifests"][0], "annotations": {}})
    layout.write("index.json", index)


def blob_of(layout: Layout) -> Path:
    return layout.blob(layout.manifest["layers"][0]["digest"])


def flip(layout: Layout) -> None:
    data = bytearray(blob_of(layout).read_bytes())
    data[len(data) // 2] ^= 1
    blob_of(layout).write_bytes(data)


def cut(layout: Layout) -> None:
    blob_of(layout).write_bytes(layout.layer[:-1])


def gone(layout: Layout) -> None:
    blob_of(layout).unlink()


def linked(layout: Layout) -> None:
    blob = blob_of(layout)
    blob.rename(layout.folder / "moved")
    blob.symlink_to(layout.folder / "moved")


def piped(layout: Layout) -> None:
    blob_of(layout).unlink()
    os.mkfifo(blob_of(layout))


def in_index(**fields: object) -> Callable[[Layout], None]:
    def change(layout: Layout) -> None:
        index = layout.document("index.json")
        index["manifests"][0].update(fields)
        layout.write("index.json", index)

    return change


def in_layer(**fields: object) -> Callable[[Layout], None]:
    def change(layout: Layout) -> None:
        manifest = layout.manifest
        manifest["layers"][0].update(fields)
        layout.set_manifest(manifest)

    return change


def layers(count: int) -> Callable[[Layout], None]:
    def change(layout: Layout) -> None:
        layout.set_manifest({**layout.manifest, "layers": layout.manifest["layers"] * count})

    return change


def annotated(**notes: str) -> Callable[[Layout], None]:
    return lambda layout: layout.set_manifest({**layout.manifest, "annotations": notes})


def layer(make: Callable[[bytes], bytes]) -> Callable[[Layout], None]:
    return lambda layout: layout.set_layer(make(layout.layer))


def hostile(data: bytes) -> bytes:
    link = without_data(type=tarfile.SYMTYPE, linkname="../../outside")
    return gzip.compress(changed(gzip.decompress(data), link))


def bomb(data: bytes) -> bytes:
    """The bundle and 64 MiB of zeros behind it, in some 70 KB."""
    packer = zlib.compressobj(9, wbits=31)
    pieces = [packer.compress(gzip.decompress(data))]
    pieces += [packer.compress(bytes(1 << 20)) for _ in range(64)]
    return b"".join([*pieces, packer.flush()])


def whole(name: str, text: str) -> Callable[[Layout], object]:
    return lambda layout: (layout.folder / name).write_text(text)


INDEX = "application/vnd.oci.image.index.v1+json"
HOSTILE: dict[str, tuple[Callable[[Layout], object], str]] = {
    "a changed layer": (flip, "a blob was changed"),
    "a layer cut short": (cut, "a blob was changed"),
    "no layer": (gone, "cannot be read"),
    "a link in the layer's place": (linked, "cannot be read"),
    "a pipe in the layer's place": (piped, "a file of the layout is none"),
    "a digest that leads elsewhere": (
        in_layer(digest="sha256:../../../etc/passwd"),
        "not a digest",
    ),
    "a digest of another kind": (in_layer(digest="sha512:" + "0" * 128), "not a digest"),
    "another size": (in_layer(size=1), "a blob was changed"),
    "a size that is a bomb": (in_layer(size=1 << 50), "a blob too large"),
    "a size that is none": (in_layer(size="1"), "a field of the wrong type"),
    "a truth for a size": (in_layer(size=True), "a field of the wrong type"),
    "zstd": (in_layer(mediaType="application/vnd.oci.image.layer.v1.tar+zstd"), "of a kind that"),
    "two layers": (layers(2), "2 layers"),
    "no layers": (layers(0), "0 layers"),
    "two images": (other_image, "2 images"),
    "an index in the index": (in_index(mediaType=INDEX), "not an image"),
    "a manifest too large": (in_index(size=5 << 20), "a blob too large"),
    "another manifest's size": (in_index(size=7), "a blob was changed"),
    "another image": (annotated(), "no annotation io.ssd-aot.bundle.digest"),
    "another bundle than told": (annotated(**{DIGEST: "0" * 64}), "another bundle than it says"),
    "another version": (whole("oci-layout", '{"imageLayoutVersion": "2.0.0"}'), "not read here"),
    "no JSON": (whole("index.json", "{"), "not JSON"),
    "JSON without end": (whole("index.json", "[" * 100_000), "nesting without end"),
    "no object": (whole("index.json", "[]"), "a field of the wrong type"),
    "an index too large": (whole("index.json", " " * (5 << 20)), "a document too large"),
    "a layer that is no gzip": (layer(lambda data: b"x" * 2000), "not whole gzip data"),
    "a layer of nothing": (layer(lambda data: b""), "ends too early"),
    "gzip that ends early": (layer(lambda data: data[:-20]), "gzip data"),
    "gzip with another checksum": (layer(lambda data: data[:-8] + bytes(8)), "gzip data"),
    "gzip with more behind": (layer(lambda data: data + gzip.compress(b"x")), "something follows"),
    "gzip with junk behind": (layer(lambda data: data + b"junk"), "gzip data"),
    "a hostile archive in gzip": (layer(hostile), "a symbolic link"),
    "a bomb": (layer(bomb), "something follows the end"),
    "a bundle without its folder": (
        layer(lambda data: gzip.compress(gzip.decompress(data)[1024:])),
        "the folder io.triton.cache",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_layout_leaves_nothing(case: str, layout: Layout, tmp_path: Path) -> None:
    change, says = HOSTILE[case]
    change(layout)
    around = snapshot(tmp_path)

    with pytest.raises(BundleError) as caught:
        unpack_bundle(str(layout.folder), str(tmp_path / "u"), io.BytesIO())

    assert says in str(caught.value)
    assert caught.value.mend
    assert snapshot(tmp_path) == around


def test_a_bomb_is_not_unpacked_further_than_the_bundle(layout: Layout) -> None:
    """Of the decompressed stream no more is asked than the bundle has, and a byte."""
    layout.set_layer(bomb(layout.layer))
    asked: list[int] = []

    class Counting(gzip.GzipFile):
        def read(self, size: int | None = -1) -> bytes:
            asked.append(size or 0)
            return super().read(size)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gzip, "GzipFile", Counting)
        with pytest.raises(BundleError):
            layout_reading.image_bundle(layout.folder)

    assert sum(asked) < 20_000

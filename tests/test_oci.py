"""Bundles as OCI images: what is written, what is refused, and the way through real tools."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from archive_builders import archive, snapshot
from bundle_builders import write_small_bundle
from command_line import ssd_aot
from image_builders import MISSING, Layout, copy, digest_of, needs_tools, registry, run

from ssd_aot.archive.image import LAYER_TYPE, pack_image
from ssd_aot.archive.labels import DIGEST, PREFIX
from ssd_aot.archive.unpacking import unpack_bundle
from ssd_aot.bundle.store import Bundle
from ssd_aot.errors import HostError, MismatchError, UsageError
from ssd_aot.runtime import loading


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return write_small_bundle(tmp_path / "b")


@pytest.fixture
def layout(bundle: Bundle, tmp_path: Path) -> Layout:
    pack_image(bundle.path, str(tmp_path / "image"))
    return Layout(tmp_path / "image")


def unpack(layout: Layout, place: Path, digest: str | None = None) -> str:
    return unpack_bundle(str(layout.folder), str(place), io.BytesIO(), digest).digest


def test_the_image_has_one_layer_with_the_bundle_in_a_folder_of_its_own(
    bundle: Bundle, layout: Layout
) -> None:
    assert layout.document("oci-layout") == {"imageLayoutVersion": "1.0.0"}
    assert len(layout.manifest["layers"]) == 1
    tar = gzip.decompress(layout.layer)
    assert tar == archive(bundle, PREFIX)
    assert layout.config["rootfs"] == {"type": "layers", "diff_ids": [digest_of(tar)]}
    for entry in (layout.folder / "blobs" / "sha256").iterdir():
        assert digest_of(entry.read_bytes()) == f"sha256:{entry.name}"


def test_annotations_and_labels_tell_what_is_inside(bundle: Bundle, layout: Layout) -> None:
    told = layout.manifest["annotations"]
    labels = layout.config["config"]["Labels"]

    assert told == {name: value for name, value in labels.items() if name in told}
    assert told[DIGEST] == bundle.digest
    assert told["io.ssd-aot.targets"] == "b200,h100"
    assert told["io.ssd-aot.architectures"] == "sm_100a,sm_90a"
    assert told["io.ssd-aot.source"] == "builtin"
    assert told["io.ssd-aot.source.version"] == "0.1.0"
    assert told["io.ssd-aot.triton.version"] == "3.7.1"
    assert told["org.opencontainers.image.title"] == "ssd-aot bundle for b200, h100"
    assert all(type(value) is str for value in labels.values())


def test_model_cache_vault_finds_a_triton_cache(bundle: Bundle, layout: Layout) -> None:
    """Size, count and GPUs as that project's own labels have them (see `archive/labels.py`)."""
    labels = layout.config["config"]["Labels"]
    with tarfile.open(
        fileobj=gzip.GzipFile(layout.blob(layout.manifest["layers"][0]["digest"]))
    ) as t:
        below = [info for info in t if info.isfile() and info.name.startswith("io.triton.cache/")]

    assert labels["cache.triton.image/cache-size-bytes"] == str(sum(info.size for info in below))
    assert labels["cache.triton.image/entry-count"] == "4"
    assert json.loads(labels["cache.triton.image/summary"]) == {
        "targets": [
            {"backend": "cuda", "arch": "90", "warp_size": 32},
            {"backend": "cuda", "arch": "100", "warp_size": 32},
        ]
    }
    assert layout.manifest["layers"][0]["mediaType"] == LAYER_TYPE
    # That project puts files of its own beside the bundle, where they do no harm.
    assert not any(info.name.count("/") < 2 for info in below)


def test_a_layout_is_replaced_where_it_holds_a_bundle_alone(bundle: Bundle, tmp_path: Path) -> None:
    (tmp_path / "image").mkdir()
    first = pack_image(bundle.path, str(tmp_path / "image"))
    other = write_small_bundle(tmp_path / "other", launch_abi="2" * 64)

    second = pack_image(other.path, str(tmp_path / "image"))

    assert first.image != second.image
    assert unpack(Layout(tmp_path / "image"), tmp_path / "u") == other.digest
    assert sorted(os.listdir(tmp_path)) == ["b", "image", "other", "u"]


def other_image(layout: Layout) -> None:
    index = layout.document("index.json")
    index["manifests"].append({**index["manifests"][0], "annotations": {}})
    layout.write("index.json", index)


def nobodys(layout: Layout) -> None:
    index = layout.document("index.json")
    index["manifests"][0]["annotations"] = {}
    layout.write("index.json", index)


def note(layout: Layout) -> None:
    (layout.folder / "note.txt").write_text("kept")


def no_index(layout: Layout) -> None:
    (layout.folder / "index.json").write_text("[" * 100_000)


@pytest.mark.parametrize("change", [other_image, nobodys, note, no_index])
def test_what_may_be_somebodys_is_not_replaced(
    change: Callable[[Layout], None], bundle: Bundle, layout: Layout
) -> None:
    change(layout)
    around = snapshot(layout.folder)

    with pytest.raises(UsageError, match="not replaced"):
        pack_image(bundle.path, str(layout.folder))

    assert snapshot(layout.folder) == around


def test_the_command_tells_the_images_digest(bundle: Bundle, tmp_path: Path) -> None:
    result = ssd_aot("pack", bundle.path, "--oci", tmp_path / "image", "--json")

    told = json.loads(result.stdout)
    index = json.loads((tmp_path / "image" / "index.json").read_bytes())
    assert told["image"] == index["manifests"][0]["digest"]
    assert told["digest"] == bundle.digest
    result = ssd_aot("pack", bundle.path, "--oci", tmp_path / "image")
    assert result.stdout.splitlines()[1:] == [f"image  {told['image']}", f"digest {bundle.digest}"]


def test_the_bundle_comes_back_as_it_was(bundle: Bundle, layout: Layout, tmp_path: Path) -> None:
    result = ssd_aot("unpack", layout.folder, "--out", tmp_path / "u", "--digest", bundle.digest)

    assert result.exit_code == 0, result.output
    assert snapshot(tmp_path / "u") == snapshot(bundle.path)


@pytest.mark.parametrize("kind", ["compressed", "plain", "of Docker"])
def test_a_layer_that_a_tool_has_repacked_is_taken(
    kind: str, bundle: Bundle, layout: Layout, tmp_path: Path
) -> None:
    tar = archive(bundle, PREFIX)
    if kind == "compressed":
        layout.set_layer(gzip.compress(tar, 9))
    elif kind == "plain":
        layout.set_layer(tar, "application/vnd.oci.image.layer.v1.tar")
    else:
        layout.set_layer(gzip.compress(tar), "application/vnd.docker.image.rootfs.diff.tar.gzip")

    assert unpack(layout, tmp_path / "u") == bundle.digest


def test_another_bundle_than_the_pinned_one_is_refused(layout: Layout, tmp_path: Path) -> None:
    with pytest.raises(MismatchError):
        unpack(layout, tmp_path / "u", "0" * 64)

    assert not (tmp_path / "u").exists()


def test_the_folder_to_write_to_must_be_named(layout: Layout) -> None:
    result = ssd_aot("unpack", layout.folder)

    assert result.exit_code == 2
    assert "--out" in result.stderr


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if MISSING:
        pytest.skip(f"not here: {', '.join(MISSING)}")
    with registry(tmp_path_factory.mktemp("registry") / "r") as place:
        yield place


@needs_tools
def test_pushed_pulled_by_digest_unpacked_verified_and_loaded(
    three_targets: Path, tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Bundle.open(three_targets).digest
    told = json.loads(ssd_aot("pack", three_targets, "--oci", tmp_path / "i", "--json").stdout)
    repository = f"docker://{address}/bundles/three"

    copy(f"oci:{tmp_path / 'i'}", f"{repository}:v1")
    kept = run("skopeo", "inspect", "--tls-verify=false", "--format", "{{.Digest}}",
               f"{repository}:v1").strip()  # fmt: skip
    copy(f"{repository}@{kept}", f"oci:{tmp_path / 'pulled'}:any")
    unpacked = ssd_aot("unpack", tmp_path / "pulled", "--out", tmp_path / "u", "--digest", own)

    # The registry's digest is the one that packing told, so what is signed is what is pinned.
    assert kept == told["image"]
    assert unpacked.exit_code == 0, unpacked.output
    assert snapshot(tmp_path / "u") == snapshot(three_targets)
    assert ssd_aot("verify", tmp_path / "u", "--digest", own).exit_code == 0

    def lacking() -> int:
        raise HostError("no GPU here")

    # The GPU is the last thing that `load` asks for.
    monkeypatch.setattr(loading, "_current_device", lacking)
    with pytest.raises(HostError):
        loading.load(tmp_path / "u", digest=own)


@needs_tools
def test_umoci_unpacks_an_image_that_verifies_where_its_label_says(
    bundle: Bundle, three_targets: Path, tmp_path: Path
) -> None:
    ssd_aot("pack", three_targets, "--oci", tmp_path / "i")

    run("umoci", "unpack", "--rootless", "--image", tmp_path / "i", tmp_path / "u")

    label = json.loads(run("skopeo", "inspect", f"oci:{tmp_path / 'i'}"))["Labels"]
    place = tmp_path / "u" / "rootfs" / label["io.ssd-aot.bundle.path"]
    assert ssd_aot("verify", place, "--digest", label[DIGEST]).exit_code == 0
    assert snapshot(place) == snapshot(three_targets)


@needs_tools
def test_a_tag_that_was_moved_brings_another_bundle_and_the_pin_refuses_it(
    bundle: Bundle, tmp_path: Path, address: str
) -> None:
    other = write_small_bundle(tmp_path / "other", launch_abi="2" * 64)
    ours = pack_image(bundle.path, str(tmp_path / "ours"))
    pack_image(other.path, str(tmp_path / "theirs"))
    repository = f"docker://{address}/bundles/moved"
    for image in ("ours", "theirs"):
        copy(f"oci:{tmp_path / image}", f"{repository}:stable")

    copy(f"{repository}:stable", f"oci:{tmp_path / 'by-tag'}:x")
    copy(f"{repository}@{ours.image}", f"oci:{tmp_path / 'by-digest'}:x")

    with pytest.raises(MismatchError):
        unpack(Layout(tmp_path / "by-tag"), tmp_path / "u", bundle.digest)
    assert unpack(Layout(tmp_path / "by-digest"), tmp_path / "u", bundle.digest) == bundle.digest

"""The manifest: one canonical text for one content, read back strictly."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bundle_builders import H100, launch, manifest, signature, small_manifest, variant
from cubin_builders import fake_cubin

from ssd_aot.bundle.manifest import FORMAT, Manifest, Tuning
from ssd_aot.errors import BundleError


def small() -> Manifest:
    return small_manifest()[0]


def changed(edit: Callable[[dict[str, Any]], object]) -> str:
    data = json.loads(small().to_json_text())
    edit(data)
    return json.dumps(data)


def test_what_was_written_is_read_back_with_the_same_text() -> None:
    text = small().to_json_text()

    read = Manifest.from_json_text(text, "manifest.json")

    assert read.to_json_text() == text
    assert {v.name: v for v in read.variants} == {v.name: v for v in small().variants}
    assert dict(read.signatures) == dict(small().signatures)


def test_the_format_is_the_first_key_and_the_text_is_one_plain_line() -> None:
    text = small().to_json_text()

    assert text.startswith(f'{{"format":{FORMAT},')
    assert text.endswith("}\n")
    assert text.count("\n") == 1
    assert text.isascii()


def test_the_digest_is_the_sha256_of_the_text() -> None:
    made = small()

    assert made.digest == hashlib.sha256(made.to_json_text().encode()).hexdigest()


def test_the_order_in_which_parts_are_listed_does_not_change_the_digest() -> None:
    made = small()
    rng = random.Random(7)
    parts = ("signatures", "targets", "variants", "files")

    for _ in range(10):
        shuffled: dict[str, Any] = {
            name: tuple(rng.sample(getattr(made, name), len(getattr(made, name)))) for name in parts
        }
        assert replace(made, **shuffled).digest == made.digest


def test_a_launch_of_several_targets_stands_once() -> None:
    data = json.loads(small().to_json_text())

    assert len(data["variants"]) == 4
    assert len(data["launches"]) == 2


def test_infinite_constexprs_survive_without_leaving_json() -> None:
    call = launch(DT_MAX=float("inf"), DT_MIN=float("-inf"))
    made = manifest([variant(fake_cubin(90), launch=call)], [])

    text = made.to_json_text()

    json.loads(text, parse_constant=pytest.fail)
    assert Manifest.from_json_text(text, "m").variants[0].launch == call


def test_measured_times_are_the_same_text_as_integers_and_as_floats() -> None:
    def with_time(median_us: float) -> Manifest:
        tuning = Tuning("measured", True, median_us, 20)
        return manifest([variant(fake_cubin(90), tuning=tuning)], [])

    assert with_time(12).digest == with_time(12.0).digest
    assert with_time(12).digest != with_time(12.5).digest


WRONG = [
    (lambda d: d.pop("toolchain"), "toolchain", "a field is missing"),
    (lambda d: d["toolchain"].pop("platform"), "toolchain.platform", "a field is missing"),
    (lambda d: d.update(author="me"), "author", "an unknown field"),
    (lambda d: d["variants"][1]["object"].update(x=1), "variants[1].object.x", "unknown field"),
    (lambda d: d["variants"][0]["object"].update(registers="9"),
     "variants[0].object.registers", "wrong type"),
    (lambda d: d["variants"][0]["object"].update(registers=True),
     "variants[0].object.registers", "wrong type"),
    (lambda d: d["variants"][0]["object"].update(registers=-1),
     "variants[0].object.registers", "wrong type"),
    (lambda d: d["variants"][0]["object"].update(parameters=["x"]),
     "variants[0].object.parameters", "not in the form"),
    (lambda d: d["variants"][0]["object"].update(parameters=[["x", "i32"]]),
     "variants[0].object.parameters", "wrong type"),
    (lambda d: next(iter(d["launches"].values())).update(arguments=["x  i32"]),
     ".arguments", "not in the form"),
    (lambda d: d["variants"][0]["tuning"].update(checked=0),
     "variants[0].tuning.checked", "wrong type"),
    (lambda d: d["variants"][0]["configuration"].pop("num_warps"),
     "variants[0].configuration.num_warps", "a field is missing"),
    (lambda d: d["variants"][0].update(launch="f" * 64), "variants[0].launch", "unknown launch"),
    (lambda d: d["variants"][0].update(signatures=[99]),
     "variants[0].signatures", "unknown signature"),
    (lambda d: d["variants"][0].update(signatures=[-1]),
     "variants[0].signatures", "unknown signature"),
    (lambda d: d["targets"][0].update(capability=[9]), "targets[0].capability", "wrong type"),
    (lambda d: d["files"].update({"notes/origin.txt": ["00", 1]}),
     'files["notes/origin.txt"]', "not a sha256"),
    (lambda d: d.update(signatures={}), "signatures", "wrong type"),
    (lambda d: next(iter(d["launches"].values())).update(constexprs=[["N", [1]]]),
     "constexprs[0]", "wrong type"),
]  # fmt: skip


@pytest.mark.parametrize(("edit", "field", "what"), WRONG, ids=[case[1] for case in WRONG])
def test_what_does_not_fit_is_refused_with_its_field(
    edit: Callable[[dict[str, Any]], object], field: str, what: str
) -> None:
    with pytest.raises(BundleError) as caught:
        Manifest.from_json_text(changed(edit), "m.json")

    error = caught.value
    assert what in error.what
    assert error.where.startswith("m.json: ")
    assert error.where.endswith(field)
    assert error.found
    assert error.wanted
    assert error.mend


@pytest.mark.parametrize("number", [0, 2, 99])
def test_another_format_is_refused_before_its_fields_are_looked_at(number: int) -> None:
    with pytest.raises(BundleError) as caught:
        Manifest.from_json_text(json.dumps({"format": number, "novel": 1}), "m.json")

    assert caught.value.where == "m.json: format"
    assert (caught.value.found, caught.value.wanted) == (str(number), str(FORMAT))


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "\x00", "[" * 100_000, '{"a":NaN}', b"\xff"]
)
def test_what_is_no_manifest_at_all_is_refused_with_the_file(text: str | bytes) -> None:
    with pytest.raises(BundleError) as caught:
        Manifest.from_json_text(text, "m.json")

    assert caught.value.where.startswith("m.json")


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "../x", "a/../b", "a//b", "./a", "a/", "", "a\\b", "a\n", "manifest.json"],
)
def test_a_path_that_leads_out_of_the_bundle_is_refused(path: str) -> None:
    text = changed(lambda d: d["files"].update({path: ["0" * 64, 1]}))

    with pytest.raises(BundleError, match="path that no bundle holds"):
        Manifest.from_json_text(text, "m.json")


def test_a_variant_whose_code_object_is_not_listed_is_refused() -> None:
    text = changed(lambda d: d["files"].clear())

    with pytest.raises(BundleError, match="not listed"):
        Manifest.from_json_text(text, "m.json")


def test_parts_that_contradict_each_other_are_not_written() -> None:
    made = small()

    for wrong in (
        replace(made, targets=(H100,)),
        replace(made, signatures=made.signatures[:1]),
        replace(made, signatures=made.signatures + made.signatures[:1]),
        replace(made, files=made.files[:1]),
    ):
        with pytest.raises(BundleError):
            wrong.to_json_text()


def test_the_digest_depends_on_neither_hash_seed_nor_folder_nor_umask(tmp_path: Path) -> None:
    # Each process makes the manifest from sets, whose order follows the hash seed.
    program = (
        "import os, sys; os.umask(int(sys.argv[1], 8))\n"
        "from dataclasses import replace\n"
        "from bundle_builders import small_manifest, write_bundle\n"
        "from pathlib import Path\n"
        "made, contents = small_manifest()\n"
        "kernels = tuple({*made.source.kernels})\n"
        "made = replace(made, files=tuple({*made.files}), targets=tuple({*made.targets}),\n"
        "               source=replace(made.source, kernels=kernels))\n"
        "print(write_bundle(Path('out'), made, contents).digest)\n"
    )
    trees, digests = [], []
    for seed, mask in (("0", "000"), ("1", "077"), ("12345", "022")):
        folder = tmp_path / f"built with seed {seed}"
        folder.mkdir()
        env = {
            **os.environ,
            "PYTHONHASHSEED": seed,
            "PYTHONPATH": os.pathsep.join(str(Path(__file__).parents[i]) for i in (0, 1)),
        }
        env.pop("HOME", None)
        digests.append(
            subprocess.run(
                [sys.executable, "-c", program, mask],
                cwd=folder, env=env, check=True, capture_output=True, text=True,
            ).stdout
        )  # fmt: skip
        places = sorted((folder / "out").rglob("*"))
        trees.append([(p.relative_to(folder), p.stat().st_mode, p.stat().st_mtime) for p in places])

    assert len(set(digests)) == 1
    assert trees[0] == trees[1] == trees[2]


def test_a_signature_is_kept_in_its_json_form() -> None:
    one = signature(tp=4)

    made = Manifest.from_json_text(manifest([], [one]).to_json_text(), "m")

    assert made.signatures == ((one.id, one.to_json()),)

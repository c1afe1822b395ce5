"""What is said of a spec file that is wrong, and where."""

from __future__ import annotations

from pathlib import Path

import pytest
from spec_builders import SMALL, refused, write_spec

from ssd_aot.axes import AXES

# Body after `version: 1`; line of the error; field; found; wanted; mend.
MODEL = "models: {m: {nheads: 8, headdim: 64, dstate: 64, ngroups: 1}}\n"
WRONG_VALUES = {
    "misspelt dtype": (
        MODEL + "matrix:\n  dtype:\n    - bf16\n    - pf16\n",
        6, "matrix.dtype[1]", "pf16", "bf16, fp16, fp32", "write fp16",
    ),
    "misspelt axis": (
        MODEL + "matrix:\n  state_type: [fp32]\n",
        4, "matrix", "state_type", ", ".join(AXES), "write state_dtype",
    ),
    "misspelt field": (
        MODEL + "sorce: vllm\n",
        3, "", "sorce",
        "version, source, targets, models, matrix, exclude, pin, max_num_seqs, "
        "max_num_batched_tokens, recording",
        "write source",
    ),
    "misspelt model field": (
        "models:\n  m:\n    nhead: 8\n",
        4, "models.m", "nhead",
        "nheads, headdim, dstate, ngroups, conv_kernel, tp, chunk_size", "write nheads",
    ),
    "unknown source": (
        MODEL + "source: vlm\n",
        3, "source", "vlm",
        "builtin, vllm, sglang, mamba_ssm, tensorrt_llm, recording", "write vllm",
    ),
    "boolean in quotes": (
        MODEL + "matrix:\n  z: ['yes']\n",
        4, "matrix.z[0]", "'yes'", "true or false", "write true, unquoted",
    ),
    "boolean as yes": (
        MODEL + "matrix: {z: no}\n",
        3, "matrix.z", "no", "true or false", "write false, unquoted",
    ),
    "exponent for a number": (
        MODEL + "max_num_seqs: 1e3\n",
        3, "max_num_seqs", "1e3", "a whole number of at least 1", "write 1000",
    ),
    "octal number": (
        MODEL + "max_num_seqs: 010\n",
        3, "max_num_seqs", "010", "a whole number of at least 1", "write 10",
    ),
    "zero": (
        MODEL + "max_num_batched_tokens: 0\n",
        3, "max_num_batched_tokens", "0", "a whole number of at least 1", "",
    ),
    "null for none": (
        MODEL + "matrix: {D: ~}\n", 3, "matrix.D", "~", "none, head, headdim", "write none",
    ),
    "chunk size that is no power of two": (
        MODEL + "matrix: {chunk_size: [64, 50]}\n",
        3, "matrix.chunk_size[1]", "50", "one of 64, 128, 256", "write 64",
    ),
    "chunk size out of range": (
        MODEL + "matrix: {chunk_size: 512}\n",
        3, "matrix.chunk_size", "512", "one of 64, 128, 256", "write 256",
    ),
    "backward range": (
        MODEL + "matrix: {num_seqs: 8..2}\n",
        3, "matrix.num_seqs", "8..2", "1, many, a number or a range such as 2..64", "",
    ),
    "misspelt many": (
        MODEL + "matrix: {num_seqs: [1, mny]}\n",
        3, "matrix.num_seqs[1]", "mny", "1, many, a number or a range such as 2..64", "write many",
    ),
    "more sequences than a batch": (
        MODEL + "matrix: {num_seqs: 2..2000}\n",
        3, "matrix.num_seqs", "2..2000", "at most max_num_seqs, 1024",
        "raise max_num_seqs, or ask for fewer",
    ),
    "empty axis": (
        MODEL + "matrix:\n  dtype: []\n",
        4, "matrix.dtype", "[]", "at least one value", "remove the field to take its default",
    ),
    "list of lists": (
        MODEL + "matrix: {dtype: [[bf16]]}\n",
        3, "matrix.dtype[0]", "a list", "bf16, fp16, fp32", "",
    ),
    "unknown GPU": (
        MODEL + "targets: [h20]\n", 3, "targets[0]", "h20", None, "write h200 or gh200",
    ),
    "missing field": (
        "models:\n  m: {nheads: 8, headdim: 64, ngroups: 1}\n",
        3, "models.m", "nheads, headdim, ngroups", "nheads, headdim, dstate, ngroups",
        "add dstate",
    ),
    "head dim out of range": (
        "models:\n  m: {nheads: 8, headdim: 192, dstate: 64, ngroups: 1}\n",
        3, "models.m.headdim", "192", "a whole number from 16 to 128, a multiple of 8", "",
    ),
    "head dim that is no multiple": (
        "models:\n  m: {nheads: 8, headdim: 68, dstate: 64, ngroups: 1}\n",
        3, "models.m.headdim", "68", "a whole number from 16 to 128, a multiple of 8", "",
    ),
    "state dim out of range": (
        "models:\n  m: {nheads: 8, headdim: 64, dstate: 8, ngroups: 1}\n",
        3, "models.m.dstate", "8", "a whole number from 16 to 256, a multiple of 8", "",
    ),
    "groups that do not divide the heads": (
        "models:\n  m: {nheads: 8, headdim: 64, dstate: 64, ngroups: 3}\n",
        3, "models.m.ngroups", "nheads 8, ngroups 3", "nheads to be a multiple of ngroups", "",
    ),
    "tensor parallelism that does not divide": (
        "models:\n  m: {nheads: 15, headdim: 64, dstate: 64, ngroups: 3, tp: [1, 5]}\n",
        3, "models.m.tp[1]", "nheads 15, ngroups 3, tp 5",
        "tp divides nheads, and tp divides ngroups or ngroups divides tp", "use tp 1",
    ),
    "model name with a slash": (
        "models:\n  a/b: {nheads: 8, headdim: 64, dstate: 64, ngroups: 1}\n",
        3, "models.a/b", "a/b",
        "letters, digits, '.', '_' and '-', beginning with a letter or digit",
        "give the model such a name",
    ),
    "model name that is a number": (
        "models:\n  7: {nheads: 8}\n", 3, "models", "7", "text", 'write "7" in quotes',
    ),
    "no models": ("models: {}\n", 2, "models", "{}", "at least one model", ""),
    "models as a list": ("models: [m]\n", 2, "models", "a list", "a mapping", ""),
    "field given twice": (
        MODEL + "source: vllm\nsource: sglang\n",
        4, "source", "again in {file}:4, first in {file}:3", "one value", "remove one of the two",
    ),
    "exclusion that matches nothing": (
        MODEL + "exclude:\n  - {z: false}\n  - {dtype: fp16}\n",
        5, "exclude[1]", '{"dtype": ["fp16"]}',
        "values that the matrix, the models and their tp have", "remove it, or correct its values",
    ),
    "exclusion of a misspelt model": (
        MODEL + "exclude: [{model: n}]\n", 3, "exclude[0].model", "n", "m", "",
    ),
    "exclusion by an unknown field": (
        MODEL + "exclude: [{dtyp: bf16}]\n",
        3, "exclude[0]", "dtyp", ", ".join([*AXES, "model", "tp"]), "write dtype",
    ),
    "pin of a list": (
        MODEL + "pin: {scan: {num_warps: [4]}}\n",
        3, "pin.scan.num_warps", "a list", "one value", "",
    ),
    "pin of a tagged value": (
        MODEL + "pin: {scan: {num_warps: !warps 4}}\n",
        3, "pin.scan.num_warps", "4", "null, a boolean, a number or text", "",
    ),
    "pin of no number": (
        MODEL + "pin: {scan: {scale: .nan}}\n",
        3, "pin.scan.scale", ".nan", "null, a boolean, a number or text", "",
    ),
    "everything excluded": (
        MODEL + "exclude: [{model: m}]\n",
        3, "exclude", "4 points, all of them excluded", "at least one point", "exclude less",
    ),
    "merged fields": (
        "models:\n  m: {<<: {nheads: 8}}\n",
        3, "models.m", "<<", "text", "write the merged fields out",
    ),
    "seq_idx in a packed call": (
        MODEL + "matrix:\n  seq_idx: [false, true]\n",
        4, "matrix.seq_idx",
        '{"seq_idx": [false, true], "intermediate_states": [false], "IS_CONT_BATCHED": [true]}',
        "seq_idx with IS_CONT_BATCHED false, intermediate_states with true",
        "remove true, or widen IS_CONT_BATCHED",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG_VALUES)
def test_a_wrong_value_is_refused_with_its_place_and_mend(case: str, tmp_path: Path) -> None:
    body, line, field, found, wanted, mend = WRONG_VALUES[case]
    path = write_spec(tmp_path, "version: 1\n" + body)

    error = refused(path)

    place = f"{path}:{line}: {field}" if field else f"{path}:{line}"
    assert (error.where, error.found) == (place, found.replace("{file}", str(path)))
    assert wanted is None or error.wanted == wanted
    assert error.mend == mend


WRONG_DOCUMENTS = {
    "empty": ("", "{file}:1", "the spec is empty"),
    "only a comment": ("# nothing\n", "{file}:1", "the spec is empty"),
    "a list": ("- version: 1\n", "{file}:1", "not a mapping"),
    "indented with a tab": ("version: 1\nmodels:\n\tm: 1\n", "{file}:3", "not YAML"),
    "not closed": ("version: 1\nmodels: {m: {\n", "{file}:3", "not YAML"),
    "two documents": (SMALL + "---\nversion: 1\n", "{file}:4", "not YAML"),
    "without a version": (SMALL.replace("version: 1\n", ""), "{file}:1", "field 'version' is"),
    "of another version": (SMALL.replace(": 1", ": 2"), "{file}:1: version", "a spec version"),
}


@pytest.mark.parametrize("case", WRONG_DOCUMENTS)
def test_a_file_that_is_no_spec_is_refused_with_its_line(case: str, tmp_path: Path) -> None:
    text, where, what = WRONG_DOCUMENTS[case]
    path = write_spec(tmp_path, text)

    error = refused(path)

    assert error.where == where.replace("{file}", str(path))
    assert error.what.startswith(what)


def test_a_tab_is_named_in_the_mend(tmp_path: Path) -> None:
    assert (
        refused(write_spec(tmp_path, "version: 1\nmodels:\n\tm: 1\n")).mend
        == "indent with spaces, not tabs"
    )


def test_a_file_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    error = refused(tmp_path / "gone.yaml")

    assert (error.where, error.found) == (
        str(tmp_path / "gone.yaml"),
        "No such file or directory",
    )

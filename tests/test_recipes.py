"""The README's recipes, run as far as they go without a container engine, a cluster or a GPU."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from command_line import ROOT, TINY, ssd_aot
from spec_builders import write_spec

from ssd_aot.archive.labels import PREFIX
from ssd_aot.cli import main

README = (ROOT / "README.md").read_text()
RECIPES = README.partition("\n## Recipes\n")[2].partition("\n## ")[0]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", RECIPES, re.DOTALL | re.MULTILINE)


def steps(workflow: str) -> Iterator[str]:
    for job in yaml.safe_load(workflow)["jobs"].values():
        for step in job["steps"]:
            if "run" in step:
                yield step["run"]


def commands() -> Iterator[list[str]]:
    """Every `ssd-aot` command line in the recipes, as its arguments."""
    lines = [
        line for text in blocks("dockerfile") for line in re.findall(r"^RUN (.*)$", text, re.M)
    ]
    lines += [line for text in blocks("yaml") if "jobs:" in text for line in steps(text)]
    lines += re.findall(r"`(ssd-aot [^`]*)`", RECIPES)
    for line in lines:
        words = shlex.split(line)
        if words[0] == "ssd-aot":
            yield words[1:]


def test_every_recipe_is_there() -> None:
    assert len(blocks("dockerfile")) == 2
    assert len(blocks("yaml")) == 3
    assert len(list(commands())) >= 8


@pytest.mark.parametrize("words", list(commands()), ids=" ".join)
def test_every_command_has_these_options(words: list[str], monkeypatch: pytest.MonkeyPatch,
                                         tmp_path: Path) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    for made_before in ("dist/h200", "candidates"):
        Path(made_before).mkdir(parents=True)
    name, command, rest = main.resolve_command(click.Context(main), words)
    assert name is not None and command is not None

    # Raises UsageError for an option or an argument that the command does not take.
    command.make_context(name, rest)


def test_the_ci_job_passes_on_a_small_spec(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    write_spec(tmp_path, TINY)
    job = next(text for text in blocks("yaml") if "--fuzz" in text)
    ran = []
    for line in steps(job):
        words = shlex.split(line)
        if words[0] == "ssd-aot":
            result = ssd_aot(*words[1:])
            assert result.exit_code == 0, result.output + result.stderr
            ran.append(words[1])
    assert ran == ["build", "verify", "pack"]


def test_the_pod_finds_the_bundle_where_the_image_has_it() -> None:
    pod: Any = next(yaml.safe_load(text) for text in blocks("yaml") if "kind: Pod" in text)
    container, volume = pod["spec"]["containers"][0], pod["spec"]["volumes"][0]
    mount = container["volumeMounts"][0]
    environment = {entry["name"]: entry["value"] for entry in container["env"]}

    assert volume["name"] == mount["name"]
    assert mount["readOnly"]
    assert environment["SSD_AOT_BUNDLE"] == f"{mount['mountPath']}/{PREFIX.rstrip('/')}"
    assert re.fullmatch(r".+@sha256:[0-9a-f]{64}", volume["image"]["reference"])


def test_the_image_that_pulls_copies_from_where_the_image_has_it() -> None:
    pulling = blocks("dockerfile")[1]
    copied = re.search(r"^COPY --from=kernels (\S+) (\S+)$", pulling, re.MULTILINE)

    assert copied is not None
    assert copied[1] == f"/{PREFIX.rstrip('/')}"
    assert f"ENV SSD_AOT_BUNDLE={copied[2]}" in pulling

"""OCI image layouts for the tests, document by document, and the real tools that carry them."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ssd_aot.archive.image import CONFIG_TYPE, LAYER_TYPE, MANIFEST_TYPE

TOOLS = ("skopeo", "umoci", "docker-registry")
MISSING = [tool for tool in TOOLS if shutil.which(tool) is None]
needs_tools = pytest.mark.skipif(
    bool(MISSING), reason=f"not here: {', '.join(MISSING)}; apt-get install {' '.join(TOOLS)}"
)


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@dataclass
class Layout:
    """A layout in a folder, whose documents can be changed with all digests kept right."""

    folder: Path

    def document(self, name: str) -> Any:
        return json.loads((self.folder / name).read_bytes())

    def write(self, name: str, document: Any) -> None:
        (self.folder / name).write_text(json.dumps(document))

    def blob(self, digest: str) -> Path:
        return self.folder / "blobs" / digest.replace(":", "/")

    def add(self, data: bytes, media_type: str) -> dict[str, Any]:
        """A blob more, and the descriptor of it."""
        digest = digest_of(data)
        self.blob(digest).write_bytes(data)
        return {"mediaType": media_type, "digest": digest, "size": len(data)}

    @property
    def manifest(self) -> Any:
        return json.loads(
            self.blob(self.document("index.json")["manifests"][0]["digest"]).read_bytes()
        )

    def set_manifest(self, manifest: Any) -> None:
        index = self.document("index.json")
        index["manifests"] = [self.add(json.dumps(manifest).encode(), MANIFEST_TYPE)]
        self.write("index.json", index)

    def set_layer(self, data: bytes, media_type: str = LAYER_TYPE) -> None:
        self.set_manifest({**self.manifest, "layers": [self.add(data, media_type)]})

    @property
    def layer(self) -> bytes:
        return self.blob(self.manifest["layers"][0]["digest"]).read_bytes()

    @property
    def config(self) -> Any:
        described = self.manifest["config"]
        assert described["mediaType"] == CONFIG_TYPE
        return json.loads(self.blob(described["digest"]).read_bytes())


def run(*command: str | Path) -> str:
    ended = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, check=False, timeout=60
    )
    assert ended.returncode == 0, f"{command}: {ended.stdout}{ended.stderr}"
    return ended.stdout


def copy(source: str, destination: str) -> None:
    run(
        "skopeo", "--insecure-policy", "copy", "--quiet", "--src-tls-verify=false",
        "--dest-tls-verify=false", source, destination,
    )  # fmt: skip


@contextmanager
def registry(folder: Path) -> Iterator[str]:
    """A registry of its own on a free port of the loopback interface; yields `host:port`."""
    folder.mkdir()
    config = {
        "version": 0.1,
        "storage": {"filesystem": {"rootdirectory": str(folder / "data")}},
        "http": {"addr": "127.0.0.1:0"},
    }
    (folder / "config.yaml").write_text(json.dumps(config))
    with (
        open(folder / "log", "wb") as log,
        subprocess.Popen(
            ["docker-registry", "serve", folder / "config.yaml"], stdout=log, stderr=log
        ) as process,
    ):
        try:
            yield _address(process, folder / "log")
        finally:
            process.terminate()


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    until = time.monotonic() + 30
    while time.monotonic() < until and process.poll() is None:
        found = re.search(r"listening on (127\.0\.0\.1:\d+)", log.read_text())
        if found:
            return found[1]
        time.sleep(0.02)
    raise AssertionError(f"the registry does not listen: {log.read_text()}")

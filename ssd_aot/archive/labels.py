"""What an image says about the bundle in it, without being unpacked.

The same facts stand as annotations on the image's manifest, where registries and signing tools
look, and as labels in its configuration, where container engines look. Keys of
`org.opencontainers.image` are those of the OCI image specification, `annotations.md`.
"""

from __future__ import annotations

from ssd_aot.archive.members import total_bytes
from ssd_aot.bundle.manifest import FORMAT, Manifest
from ssd_aot.bundle.store import Bundle
from ssd_aot.launches import canonical_json

# Model Cache Vault and GPU Kernel Manager (GitHub redhat-et/GKM, commit f0e65de, before that
# redhat-et/MCU): the layer is gzip and what lies below `io.triton.cache/` is extracted, by
# mcv/pkg/constants/constants.go and mcv/pkg/cache/cache.go (extractCacheAndManifestDirectory). GKM
# puts files of its own beside what it extracts (gkm-extract/main.go), so the bundle has a folder.
PREFIX = "io.triton.cache/ssd-aot/"
"""Where the bundle lies in the image's file system."""

OWN = "io.ssd-aot."
DIGEST = f"{OWN}bundle.digest"

_WARP_SIZE = 32


def image_annotations(bundle: Bundle) -> dict[str, str]:
    """Of the image's manifest; every value is a string, lists are joined by commas."""
    manifest = bundle.manifest
    source, toolchain = manifest.source, manifest.toolchain
    targets = [target.name for target in manifest.targets]
    return {
        "org.opencontainers.image.title": f"ssd-aot bundle for {', '.join(targets)}",
        "org.opencontainers.image.description":
            f"Mamba2 SSD kernels compiled ahead of time; source {source.name} {source.version}",
        "org.opencontainers.image.version": source.version,
        DIGEST: bundle.digest,
        f"{OWN}bundle.format": str(FORMAT),
        f"{OWN}bundle.path": PREFIX.rstrip("/"),
        f"{OWN}targets": ",".join(targets),
        f"{OWN}architectures": ",".join(sorted({target.arch for target in manifest.targets})),
        f"{OWN}source": source.name,
        f"{OWN}source.version": source.version,
        f"{OWN}triton.version": toolchain.triton_version,
        f"{OWN}ptxas.version": toolchain.ptxas_version,
        # mcv/docs/spec-compat.md: optional, tells people that the layer is a plain one.
        "cache.triton.image/variant": "compat",
    }  # fmt: skip


def image_labels(bundle: Bundle) -> dict[str, str]:
    """Of the image's configuration: the annotations, and what Model Cache Vault reads."""
    return {**image_annotations(bundle), **_triton_cache(bundle)}


def _triton_cache(bundle: Bundle) -> dict[str, str]:
    """The labels of a Triton cache, as mcv/pkg/cache/triton.go (`Labels`, `Summary`) writes them
    and mcv/pkg/preflightcheck/utils.go and mcv/pkg/fetcher/imgfetcher.go read them: the second
    compares bytes below `io.triton.cache/`, the first the architecture, which is a number as in
    mcv/pkg/accelerator/devices/nvml.go (`getNVMLTritonGPUInfo`)."""
    manifest = bundle.manifest
    return {
        "cache.triton.image/entry-count": str(_entries(manifest)),
        "cache.triton.image/cache-size-bytes": str(total_bytes(manifest)),
        "cache.triton.image/summary": canonical_json({"targets": _gpus(manifest)}),
    }


def _entries(manifest: Manifest) -> int:
    """Compiled kernels, each of which would be an entry of a Triton cache."""
    return len({entry.object.sha256 for entry in manifest.variants})


def _gpus(manifest: Manifest) -> list[dict[str, object]]:
    capabilities = sorted({target.capability for target in manifest.targets})
    return [
        {"backend": "cuda", "arch": str(10 * major + minor), "warp_size": _WARP_SIZE}
        for major, minor in capabilities
    ]

"""What an image sets so that its engine finds a bundle."""

from __future__ import annotations

from ssd_aot.bundle.choosing import BUILTIN
from ssd_aot.bundle.pin import VARIABLE
from ssd_aot.bundle.store import Bundle
from ssd_aot.runtime.triton_service import MANAGER


def service_lines(bundle: Bundle, path: str) -> tuple[str, ...]:
    """Dockerfile lines for the bundle at `path` in the image, with comments that say what for."""
    source = bundle.manifest.source.name
    lines = [
        f"# ssd-aot: kernels of source {source}, for "
        + ", ".join(target.name for target in bundle.manifest.targets),
        f"ENV SSD_AOT_BUNDLE={path}",
        f"ENV {VARIABLE}={bundle.digest}",
    ]
    if source == BUILTIN:
        lines += [
            "# vLLM: the builtin operation in the place of its own, by ssd-aot's plug-in",
            "ENV SSD_AOT_KERNELS=builtin",
            "# another program calls ssd_aot.load(os.environ['SSD_AOT_BUNDLE']) and ssd_aot.ops",
        ]
        return tuple(lines)
    if source != "vllm":
        lines += [
            f"# {source} has no plug-ins: Triton itself asks the bundle",
            f"ENV TRITON_CACHE_MANAGER={MANAGER}",
            "ENV TRITON_CACHE_AUTOTUNING=1",
        ]
    lines += [
        "# optional: an error in place of any compilation or tuning while serving",
        "# ENV SSD_AOT_STRICT=1",
    ]
    return tuple(lines)

"""A library of the CUDA driver's name with the functions that a bundle's host modules call, none of
which does anything: so that the modules load where no driver is."""

from __future__ import annotations

import subprocess
from pathlib import Path


def driver_library(bundle: Path, folder: Path) -> Path:
    """Builds it; returns the folder for LD_LIBRARY_PATH."""
    place = folder / "driver"
    place.mkdir(exist_ok=True)
    modules = sorted((bundle / "objects").glob("*.so"))
    listed = subprocess.run(
        ["nm", "--dynamic", "--undefined-only", "--format=just-symbols", *modules],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    names = sorted({name for name in listed.split() if name.startswith("cu")})
    (place / "driver.c").write_text(
        "".join(f"int {name}(void) {{ return 0; }}\n" for name in names)
    )
    library = place / "libcuda.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, place / "driver.c"], check=True)
    return place

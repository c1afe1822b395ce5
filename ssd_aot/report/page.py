"""The page: everything that is known of a bundle, as one HTML file that needs nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import groupby
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from ssd_aot.bundle.choosing import BUILTIN
from ssd_aot.bundle.manifest import Manifest
from ssd_aot.bundle.store import Bundle
from ssd_aot.report import candidate_section, coverage_figure, resources_figure, vocabulary
from ssd_aot.report.bench_results import BenchResults
from ssd_aot.report.bench_section import bench_section
from ssd_aot.report.concerns import find_concerns
from ssd_aot.report.coverage import Coverage, cover
from ssd_aot.report.evidence import Records
from ssd_aot.report.gaps import find_gaps, lacking
from ssd_aot.report.launch_groups import group_launches
from ssd_aot.report.painting import Painter
from ssd_aot.report.svg import drawing
from ssd_aot.tuning.choices import RecordFile

_CSS = "/* style */"


def render_page(
    bundle: Bundle, records: Sequence[RecordFile], bench: BenchResults | None = None
) -> str:
    """The page as text: the same for the same bundle, records and benchmark, wherever they lie.

    `bench` is the last result of `ssd-aot bench`, None where there is none.
    """
    environment = Environment(
        loader=PackageLoader("ssd_aot.report", "."), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.globals |= {"words": vocabulary, "choice": candidate_section}
    environment.filters["commands"] = _with_commands
    with drawing():
        painter = Painter()
        page = environment.get_template("page.html.jinja").render(
            _values(bundle, records, bench, painter)
        )
    sheet = environment.get_template("page.css").render()
    # Only when every figure is drawn are all of their styles known.
    return page.replace(_CSS, f"{sheet}\n{painter.styles.css}", 1)


def _with_commands(text: str) -> Markup:
    """Text in which what stands in backticks is code."""
    parts = (
        Markup("<code>{}</code>").format(part) if number % 2 else escape(part)
        for number, part in enumerate(text.split("`"))
    )
    return Markup("").join(parts)


def _values(
    bundle: Bundle, records: Sequence[RecordFile], bench: BenchResults | None, painter: Painter
) -> dict[str, Any]:
    manifest = bundle.manifest
    problems = bundle.check_files()
    gaps = find_gaps(manifest)
    groups = group_launches(manifest, Records(records, manifest))
    coverages = [cover(manifest, t.name, lacking(gaps, t.name)) for t in manifest.targets]
    return {
        "style": _CSS,
        "manifest": manifest,
        "digest": bundle.digest,
        "builtin": manifest.source.name == BUILTIN,
        "models": sorted({str(values.get("model", "")) for _, values in manifest.signatures}),
        "problems": problems,
        "concerns": find_concerns(manifest, problems, gaps, groups),
        "statuses": Counter(vocabulary.status_kind(v.tuning.status) for v in manifest.variants),
        "unchecked": sum(not variant.tuning.checked for variant in manifest.variants),
        "coverages": [(c, _coverage_drawing(c, painter)) for c in coverages],
        "covered": [sum(c.kinds.values()) - c.kinds["missing"] for c in coverages],
        "legend": _legend(coverages, painter),
        "candidates": candidate_section.candidate_section(groups, painter),
        "records": [file.path.name for file in records],
        "kernels": [
            (key, list(own)) for key, own in groupby(groups, lambda g: (g.target, g.kernel))
        ],
        "resources": _resources(manifest, painter),
        "bench": bench and bench_section(bench, manifest.targets, bundle.digest, painter),
        "spec": yaml.safe_dump(
            manifest.spec, sort_keys=False, allow_unicode=True, width=76, default_flow_style=None
        ),
    }


def _coverage_drawing(coverage: Coverage, painter: Painter) -> Any:
    return painter.both(
        partial(coverage_figure.coverage_figure, coverage),
        f"Signatures on {coverage.target}",
        coverage_figure.describe(coverage),
    )


def _legend(coverages: Sequence[Coverage], painter: Painter) -> list[tuple[Any, str]]:
    """A square with its meaning for each kind that occurs."""
    found = {kind for c in coverages for kind in c.kinds}
    kinds = [kind for kind in vocabulary.STATUSES if kind in found]
    return [
        (painter.small(coverage_figure.swatch(kind), vocabulary.STATUSES[kind]),
         vocabulary.SIGNATURE_STATUSES[kind])
        for kind in kinds
    ]  # fmt: skip


def _resources(manifest: Manifest, painter: Painter) -> list[tuple[str, Any]]:
    """(target, drawing) of every target that has code."""
    found = []
    for entry in manifest.targets:
        own = [variant for variant in manifest.variants if variant.target == entry.name]
        if own:
            draw = partial(resources_figure.resources_figure, own, entry)
            title = f"What the code for {entry.name} needs"
            found.append((entry.name, painter.both(draw, title, resources_figure.describe(own))))
    return found

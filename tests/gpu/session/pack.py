"""Builds the CUTLASS kernels of the GPU tests where there is no GPU, into one file for `--pack`.

    python -m tests.gpu.session.pack --out FILE [--kernels DIR] [--match TEXT] [--limit-s 3600]

Needs nvcc and nvidia-cutlass. What is ready stays in DIR, so that a run that was ended goes on. The kernels serve any
Python, and any nvcc of the same major version (`inductor_plugin.inductor.candidates.cuda`): nothing of Python is in
their keys or libraries. Triton's cubins are not in the file: Triton looks for them under a digest of its libtriton.so,
which differs from one version of Python to the next, and building them takes the GPU's machine seconds.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from inductor_plugin.cache import open_store
from inductor_plugin.cache.transfer.archive import export_archive
from inductor_plugin.tuning.task import CppBuild
from tests.gpu.cases import fmha
from tests.gpu.cases import fused as fused_cases
from tests.gpu.cases.builds import Place, placed
from tests.gpu.cases.kernels import picked
from tests.gpu.cases.offers import all_offered
from tests.gpu.cases.registry import case_ids

_SLICE = 16
"""Kernels of a slice: what a run that is ended loses."""


def main(arguments: list[str] | None = None) -> int:
    """Build, and write the file; return 1 if a kernel could not be built."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--kernels", type=Path, help="cache directory; a temporary one by default")
    parser.add_argument(
        "--match", default="", help="only kernels and cases with this in their name"
    )
    parser.add_argument("--limit-s", type=float, default=3600.0, help="no kernel is begun after it")
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        kernels: Path = chosen.kernels or Path(folder)
        result = built(wanted(chosen.match, kernels), kernels, chosen.limit_s)
        export_archive(open_store(kernels), chosen.out)
    failed = {name: place for name, place in result.items() if isinstance(place, str)}
    for name, reason in failed.items():
        print(f"{name}: {reason}")
    size_mb = chosen.out.stat().st_size / 1e6
    print(f"summary: {len(result) - len(failed)} kernels, {len(failed)} failed; {size_mb:.0f} MB")
    return 1 if failed else 0


def wanted(match: str, kernels: Path) -> dict[str, CppBuild | str]:
    """Return the builds of all CUTLASS kernels that the GPU tests run, by name, or why there is none."""
    names = [name for name in (*fmha.FORWARD, *fmha.BACKWARD) if match in name]
    builds: dict[str, CppBuild | str] = {name: fmha.build(name, kernels) for name in names}
    cases = [*case_ids(), *fused_cases.cases()]
    cases = [name for name in cases if match in name and not name.startswith("triton")]
    workers = max(1, len(os.sched_getaffinity(0)) // 2)
    for identity, offers in all_offered(cases, kernels / "inductor", workers).items():
        some = picked(identity, offers)
        if isinstance(some, str):
            builds[identity] = some
            continue
        for offer in some:
            if isinstance(offer.build, CppBuild):
                builds[f"{identity}: {offer.name}"] = offer.build
    return builds


def built(
    builds: Mapping[str, CppBuild | str], kernels: Path, limit_s: float
) -> dict[str, Place | str]:
    """Build in slices, so that what is ready is kept; return where each kernel is, or why not."""
    ends = time.monotonic() + limit_s
    result: dict[str, Place | str] = {
        name: build for name, build in builds.items() if isinstance(build, str)
    }
    left = {name: build for name, build in builds.items() if isinstance(build, CppBuild)}
    names: Sequence[str] = list(left)
    for first in range(0, len(names), _SLICE):
        part = names[first : first + _SLICE]
        rest_s = ends - time.monotonic()
        if rest_s <= 0:
            result |= dict.fromkeys(part, "the time was over")
            continue
        workers = len(os.sched_getaffinity(0))
        places = placed([left[name] for name in part], kernels, workers, rest_s)
        result |= dict(zip(part, places, strict=True))
        print(f"{first + len(part)} of {len(names)}", flush=True)
    return result


if __name__ == "__main__":
    sys.exit(main())

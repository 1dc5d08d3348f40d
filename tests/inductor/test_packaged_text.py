"""The text of AOTInductor's programs says where their kernels are."""

# pyright: reportPrivateUsage=false, reportUnknownMemberType=false

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._inductor import config as inductor_config
from torch._inductor.virtualized import V

from inductor_plugin.inductor import packaged
from inductor_plugin.kernels.call import OpKernel

pytestmark = pytest.mark.compat


@pytest.mark.parametrize("package", [True, False])
def test_a_package_names_no_folder_of_the_machine_that_has_compiled_it(
    inductor_cache: Path, tmp_path: Path, *, package: bool
) -> None:
    """That folder may still be there, and have another kernel of the name by now."""
    library = tmp_path / "library.so"
    library.write_bytes(b"a kernel")
    texts: list[str] = []
    wrapper: Any = SimpleNamespace(
        header=SimpleNamespace(splice=texts.append), additional_files=list[str]()
    )
    kernel = OpKernel("inductor_plugin::cutlass_mm.out", (f"stub@{library}", "tt", 1, 0, 1))
    graph: Any = SimpleNamespace(is_const_graph=False)
    with (
        inductor_config.patch({"aot_inductor.package": package}),
        V.set_graph_handler(graph),
    ):
        packaged._declare(wrapper, "buf0", kernel, torch.device("cpu"))
    (taken,) = wrapper.additional_files
    (declared,) = (text for text in texts if "launch_buf0_kernel(" in text)
    assert '"stub.kernel"' in declared
    assert (str(Path(taken).parent) in declared) is not package
    assert (str(inductor_cache) in declared) is not package

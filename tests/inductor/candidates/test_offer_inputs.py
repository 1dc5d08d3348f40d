"""What identifies a choice of Inductor's, and the operands that a library kernel is measured on."""

# pyright: reportPrivateUsage=false, reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._inductor.select_algorithm import ExternKernelCaller

from inductor_plugin.inductor.candidates import offers

pytestmark = pytest.mark.compat

PACKED, PLAIN = torch.ones(6, 4).to_mkldnn(), torch.ones(6, 4)


class KnownOperands:
    """The operands of a call: some generated, some frozen."""

    def __init__(self, **facts: Any) -> None:
        self._facts = facts

    def generated(self, index: int) -> str | None:
        return "generated" if index in self._facts.get("generated", ()) else None

    def constant(self, node: Any) -> torch.Tensor | None:
        return self._facts.get("constants", {}).get(node.get_name())

    def frozen(self, node: Any) -> str | None:
        return "frozen" if node.get_name() in self._facts.get("frozen", ()) else None

    def view(self, node: Any) -> Any:
        return SimpleNamespace(name=node.get_name(), size=(7, 4))


class PackedFiles:
    """Where packed weights are written."""

    def keep_packed(self, name: str, dense: torch.Tensor, packing: str, batch: int) -> Any:
        return name, dense.layout, packing, batch


def input_of(index: int, *, kernel: str = "mm", wrapped: bool = False, **facts: Any) -> Any:
    """Return an operand of a library kernel with three inputs, whose name tells a view from others."""
    nodes = [SimpleNamespace(get_name=lambda name=name: name) for name in "xwp"]
    choice = SimpleNamespace(
        input_nodes=nodes, choice=SimpleNamespace(name=kernel), kwargs=facts.pop("kwargs", {})
    )
    call: Any = SimpleNamespace(
        nodes=nodes[:-1] if wrapped else nodes, operands=KnownOperands(**facts), files=PackedFiles()
    )
    result = offers._extern_input(choice, index, call)
    return getattr(result, "name", result)


def test_an_operand_is_generated_or_frozen_or_random() -> None:
    assert input_of(1) == "w"
    assert input_of(1, generated=[1]) == "generated"
    assert input_of(0, generated=[1]) == "x"
    assert input_of(1, generated=[1], wrapped=True) == "w"  # its inputs are others than the call's
    assert input_of(1, constants={"w": PLAIN}, frozen=["w"]) == "frozen"
    elsewhere = {"w": torch.ones(2, device="meta")}
    assert input_of(1, constants=elsewhere, frozen=["w"]) == "w"


@pytest.mark.parametrize(
    ("kernel", "kwargs", "sent"),
    [
        ("_linear_pointwise", {}, ("w", torch.strided, "mkldnn_linear", 7)),
        ("_linear_pointwise.binary", {}, ("w", torch.strided, "mkldnn_linear", 7)),
        ("_mkl_linear", {"batch_size": 9}, ("w", torch.strided, "mkl_linear", 9)),
        ("another", {}, None),
    ],
)
def test_a_packed_weight_is_packed_by_the_worker(
    kernel: str, kwargs: dict[str, Any], sent: Any
) -> None:
    constants = {"w": PACKED, "p": PLAIN}
    assert input_of(1, kernel=kernel, kwargs=kwargs, constants=constants) == sent


def test_mkls_weight_cannot_be_unpacked() -> None:
    assert input_of(1, kernel="_mkl_linear", constants={"w": PACKED}) is None
    unknown: Any = PLAIN  # in no layout of oneDNN's
    assert input_of(1, kernel="_linear_pointwise", constants={"w": unknown}) is None


def test_a_kernel_of_another_package_is_no_library() -> None:
    choice: Any = object.__new__(ExternKernelCaller)
    assert offers.is_library(choice)
    choice.stock = False
    assert not offers.is_library(choice)
    assert not offers.is_library(object())


def test_the_scalars_of_a_call_are_those_of_its_first_library_kernel() -> None:
    first, second = (object.__new__(ExternKernelCaller) for _ in range(2))
    first.kwargs, second.kwargs = {"beta": 0.5, "alpha": 2}, {"alpha": 3}
    assert offers.scalars_of([object(), first, second]) == (("alpha", "2"), ("beta", "0.5"))
    assert offers.scalars_of([object()]) == ()


def test_a_triton_kernel_is_its_source_without_device_and_options(tmp_path: Path) -> None:
    def key(device: int, options: str, body: str) -> str:
        path = tmp_path / f"{device}{options}{body}.py"
        path.write_text(
            f"    triton_meta={{'device': DeviceProperties(type='cuda', index={device}, cc=90)}},\n"
            f"    inductor_meta={{'kernel_name': 'k', {options!r}: 1}},\n{body}\n"
        )
        return offers._triton_key(SimpleNamespace(bmreq=SimpleNamespace(module_path=str(path))))

    plain = key(0, "a", "load")
    assert key(1, "a", "load") == key(0, "b", "load") == plain
    assert key(0, "a", "store") != plain
    assert "cc=90" in plain


def test_an_identity_is_a_name_for_people_and_a_digest() -> None:
    names = {offers.candidate_id(*pair) for pair in (("a::b/c", "x"), ("a::b/c", "y"))}
    assert len(names) == 2
    assert all(name.startswith("a.b_c-") and len(name) == 18 for name in names)


@pytest.mark.parametrize(
    ("offset", "layout", "bias", "hazard"),
    [(0, "strided", None, False), (2, "strided", None, True), (2, "strided", 1, False)],
)
def test_a_slice_of_a_weight_is_no_operand_of_a_cpp_template(
    monkeypatch: pytest.MonkeyPatch, offset: int, layout: str, bias: int | None, *, hazard: bool
) -> None:
    value = torch.ones(8)[offset:]
    assert str(value.layout) == f"torch.{layout}"
    monkeypatch.setattr(offers, "constant", lambda node: value if node.get_name() == "w" else None)
    nodes = [SimpleNamespace(get_name=lambda name=name: name) for name in "xw"]
    assert bool(offers.why_not_repacked(nodes, bias)) is hazard
    monkeypatch.setattr(offers, "constant", lambda _: PACKED)
    assert offers.why_not_repacked(nodes, None) is None

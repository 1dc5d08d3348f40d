"""Each of torch's own switches is among `SWITCHES`, has a field of its own, or is irrelevant for a reason that is named here."""

# pyright: reportPrivateUsage=false, reportUnknownArgumentType=false

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.nn import attention
from torch.nn.attention import SDPBackend, sdpa_kernel

from inductor_plugin.config import Config
from inductor_plugin.tuning.environment import numerics, worker_settings
from inductor_plugin.worker.jobs import WorkerSettings
from inductor_plugin.worker.switches import SWITCHES, Switch, apply, differing
from tests.support.worker.switches import SETTABLE, other

pytestmark = [
    pytest.mark.compat,
    pytest.mark.skipif(not torch.backends.cuda.is_built(), reason="switches of a CUDA build"),
    pytest.mark.filterwarnings("ignore"),  # some settings are deprecated
]

_C: Any = torch._C
_CUDNN: Any = torch.backends.cudnn
_MODULES: dict[str, Any] = {
    "cuda": torch.backends.cuda,
    "cuda.matmul": torch.backends.cuda.matmul,
    "cudnn": _CUDNN,
    "cudnn.conv": _CUDNN.conv,
    "cudnn.rnn": _CUDNN.rnn,
}
FIELDS = {
    r"_get_float32_matmul_precision": "float32_precision",
    r"_get_cublas_allow_tf32|cuda\.matmul\.(allow_tf32|fp32_precision)": "float32_precision",
    r"_get_cudnn_allow_tf32|cudnn\.(allow_tf32|conv\.fp32_precision)": "cudnn_allow_tf32",
    r"_get_cublas_allow_(fp16|bf16)_reduced_precision_reduction": "reduced_precision",
    r"cuda\.matmul\.allow_(fp16|bf16)_reduced_precision_reduction(_split_k)?": "reduced_precision",
    r"_get_deterministic_algorithms": "deterministic",
    r"_get_deterministic_algorithms_warn_only": "deterministic_warn_only",
}
"""Those that are fields of `WorkerSettings`; tests/tuning/test_environment.py tests each."""
OF_SWITCHES = {
    "_get_fa3_sdp_enabled": "flash_attention",
    "_get_fa4_sdp_enabled": "flash_attention",
    "_cuda_getCublasLtWorkspaceSize": "cublaslt_workspace",
}
"""Those that change with a switch only where there is its package, or a GPU."""
IRRELEVANT = {
    r"_get_fp32_precision_getter|cudnn\.fp32_precision": "read for each kind of kernel, by its narrower name",
    r"cudnn\.rnn\.fp32_precision": "no recurrent layer is tuned",
    r"_get_linalg_preferred_backend|cuda\.preferred_linalg_library": "no solver is tuned",
    r"_get_miopen_immediate|_get_rocm_fa_preferred_backend|cuda\.preferred_rocm_fa_library": "of ROCm",
    r"_cuda_(tunableop|record_untuned)_.*": "TunableOp replaces kernels on ROCm alone",
    r"_get_overrideable_sdp_enabled": "of devices that are not in torch",
    r"_get_(mkldnn|onednn|nnpack)_.*|_is_xnnpack_enabled|_get_qengine": "of the CPU",
    r"_get_cpu_allow_fp16_reduced_precision_reduction": "of the CPU",
    r"_get_deterministic_fill_uninitialized_memory": "candidates write to outputs that are there",
    r"_is_cudnn_attention_decode_disabled": "an environment variable, which a worker has, too",
    r"_cuda_get_conv_benchmark_empty_cache": "an environment variable, which a worker has, too",
    r"_get_native_aot_unconditional_masked": "inside reference computations of torch alone",
    r"_cuda_get_sync_debug_mode": "warns or raises; no other kernel runs",
    r"_cuda_(cudaCachingAllocator_is_enabled|getMemoryFraction|getMemoryMetadata)": "of the allocator: a call allocates nothing",
    r"_cuda_get(Device|CurrentStream|CheckpointState)": "where a call runs, which is the job's",
    r"(_is|is)_(any_)?autocast.*": "the traced graph has the casts",
    r"is_(grad|inference_mode|anomaly|anomaly_check_nan)_?(enabled)?|_is_(fwd_grad|multithreading|view_replay)_enabled": "of autograd: the traced graph has both passes",
    r"_get_autograd_fallback_mode|_is_grad_layout_enforcement_enabled": "of autograd: the traced graph has both passes",
    r"_get_(graph_exec|graph_executor|tracing|value_trace).*|_llvm_enabled|_jit_.*": "of TorchScript",
    r"_get_(dispatch_mode|dtensor_.*|tensor_metadata|torch_function_state|thread_name|only_lift.*)": "of tracing and of threads",
    r"_is_torch_function_.*|_debug_only_are_vmap_fallback_warnings_enabled": "of tracing",
    r"_get_(backcompat_.*|warnAlways|storage_.*)|vitals_enabled": "warnings",
    r"cudnn\.conv\.(backend|op)|_get_blas_default_backend": "cannot be set",
}
"""Regular expressions of what does not choose among library kernels on a GPU, with the reason."""

Getters = dict[str, Callable[[], object]]


def switches_of_torch() -> Getters:
    """Return what reads each setting of torch that can be set, or that says whether something is enabled, by name."""
    names = dir(_C)
    settable = {
        re.sub(r"^_(cuda_)?set_?", "", name).lower()
        for name in names
        if re.match(r"_(cuda_)?set", name)
    }
    getters: Getters = {}
    for name in names:
        match = re.match(r"_(?:cuda_)?get_?(.+)", name)
        twin = bool(match) and match[1].lower() in settable
        state = re.search(r"(enabled|disabled)$", name) and not re.match(
            r"_?(cuda_)?set_|_jit_", name
        )
        if twin or state or re.match(r"_get_.*(cublas|cudnn|sdp|blas)_.*", name):
            getters[name] = getattr(_C, name)
    for prefix, module in _MODULES.items():
        for name in _names(module):
            getters[f"{prefix}.{name}"] = lambda module=module, name=name: getattr(module, name)
    return {name: getter for name, getter in getters.items() if _answers(getter)}


def _names(module: Any) -> list[str]:
    """Return the settings of one of torch's modules: properties, names in its ``__getattr__``."""
    source = "".join(
        inspect.getsource(method)
        for method in (getattr(type(module), "__getattr__", None),)
        if inspect.isfunction(method)
    )
    properties = [
        name for name, value in vars(type(module)).items() if type(value).__name__ == "ContextProp"
    ]
    literal = [
        name
        for name in dir(module)
        if isinstance(_value(module, name), (bool, str, int)) and name[:1] != "_"
    ]
    return sorted({*re.findall(r'name == "(\w+)"', source), *properties, *literal})


def _value(module: Any, name: str) -> object:
    try:
        return getattr(module, name)
    except (RuntimeError, AttributeError):
        return None


def _answers(getter: Callable[[], object]) -> bool:
    """Return False for a function that takes arguments: it is no getter."""
    try:
        getter()
    except TypeError:
        return False
    except RuntimeError:  # needs a GPU
        return True
    return True


def _read(getter: Callable[[], object]) -> str:
    try:
        return repr(getter())
    except RuntimeError as error:
        return f"raises {type(error).__name__}"


@contextmanager
def changed(switch: Switch) -> Generator[None]:
    before = switch.read()
    switch.write(other(switch))
    try:
        yield
    finally:
        switch.write(before)


def reason_for(name: str) -> str:
    """Return where else a setting is, or why it does not matter; empty if nothing says so."""
    known = {**FIELDS, **IRRELEVANT}
    return next((why for pattern, why in known.items() if re.fullmatch(pattern, name)), "")


def unknown(switches: tuple[Switch, ...]) -> set[str]:
    """Return the settings of torch whose value none of the switches changes, and that are not named above."""
    getters = switches_of_torch()
    before = {name: _read(getter) for name, getter in getters.items()}
    names = {switch.name for switch in switches}
    covered: set[str] = set()
    for switch in switches:
        if switch in SETTABLE:
            with changed(switch):
                covered |= {name for name, value in before.items() if _read(getters[name]) != value}
    covered -= set(OF_SWITCHES)  # another switch may change one, too
    covered |= {name for name, switch in OF_SWITCHES.items() if switch in names}
    return {name for name in getters if name not in covered and not reason_for(name)}


def test_each_of_torch_s_switches_is_known() -> None:
    assert not unknown(SWITCHES)
    assert len(switches_of_torch()) > 80  # 84 of torch 2.11


@pytest.mark.parametrize("switch", SWITCHES, ids=lambda switch: switch.name)
def test_a_switch_that_is_removed_is_missed(switch: Switch) -> None:
    assert unknown(tuple(each for each in SWITCHES if each is not switch))


def test_what_has_a_field_has_one_and_what_is_irrelevant_a_reason() -> None:
    assert set(FIELDS.values()) <= {field.name for field in dataclasses.fields(WorkerSettings)}
    assert all(len(why) > 5 for why in IRRELEVANT.values())


@pytest.mark.skipif(
    not hasattr(_C, "_cuda_resetCublasWorkspaceSize"), reason="torch 2.14 and later"
)
def test_a_workspace_of_cublaslt_is_read_and_set() -> None:
    apply((("cublas_workspace", 9 << 20),))  # torch asks for the GPU where that is not known
    try:
        assert dict(differing()) == {"cublas_workspace": 9 << 20}
        apply((("cublaslt_workspace", 1 << 19),))
        assert dict(differing())["cublaslt_workspace"] == 1 << 19
        assert _C._cuda_getCublasLtWorkspaceSize() == 1 << 19  # reading leaves it
    finally:
        apply((("cublaslt_workspace", 0), ("cublas_workspace", 0)))
    assert differing() == ()


def test_the_order_of_attention_s_backends_is_in_key_and_worker() -> None:
    backends = [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION]
    with sdpa_kernel(backends, set_priority=True):
        values = dict(differing())
        assert values["sdpa_priority"].startswith("0 1")  # type: ignore[union-attr]
        assert numerics("cuda:0")["sdpa_priority"] == values["sdpa_priority"]
        assert dict(worker_settings(Config(), "bench", "cuda:0").switches) == values
    assert differing() == ()


def test_the_order_that_torch_sets_in_the_first_attention_is_no_change_of_the_users() -> None:
    """On an H200 products had another key before the first attention of a process than after it."""
    before = _C._get_sdp_priority_order()
    _C._set_sdp_priority_order([3, 1, 2, 0, 4])
    try:
        assert differing() == ()
    finally:
        _C._set_sdp_priority_order(before)


def test_another_implementation_of_flash_attention_is_activated_where_it_is_known() -> None:
    class Handle:
        def remove(self) -> None:
            removed.append(True)

    removed: list[bool] = []
    attention.register_flash_attention_impl("fake", register_fn=Handle)
    try:
        apply((("flash_attention", "fake"),))
        assert differing() == (("flash_attention", "fake"),)
        apply((("flash_attention", ""),))
        assert removed == [True]
        assert differing() == ()
        with pytest.raises(ValueError, match="Unknown flash attention"):
            apply((("flash_attention", "nobody's"),))
    finally:
        attention.restore_flash_attention_impl(_raise_warn=False)
        registry: Any = vars(attention._registry)["_FLASH_ATTENTION_IMPLS"]
        registry.pop("fake")

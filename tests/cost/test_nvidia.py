"""NVIDIA's heuristics as we call them, and how our own model compares with them."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType, SimpleNamespace

import pytest

from inductor_plugin.cost import nvidia
from inductor_plugin.cost.gemm import TilePrediction, predict, ranked
from inductor_plugin.cost.nvidia import Suggestion, ordered, suggestions
from inductor_plugin.cost.tile import GemmShape, TileConfig, why_not
from inductor_plugin.problem.target import from_properties, target

H100 = target("H100")
SQUARE = GemmShape(4096, 4096, 4096)

WEIGHTS = [  # (n, k) of Llama 7B and 8B, Llama 70B, and a large vocabulary
    (4096, 4096), (12288, 4096), (22016, 4096), (4096, 11008), (8192, 8192), (10240, 8192),
    (57344, 8192), (8192, 28672), (6144, 4096), (28672, 4096), (4096, 14336), (128256, 4096),
]  # fmt: skip
ROWS = [1, 16, 64, 128, 512, 2048, 4096, 8192]


@pytest.fixture
def library() -> None:
    pytest.importorskip("nvMatmulHeuristics")


@pytest.fixture(autouse=True)
def forgetful() -> Iterator[None]:
    yield
    suggestions.cache_clear()
    nvidia._interface.cache_clear()  # pyright: ignore[reportPrivateUsage]


def asked(name: str, shape: GemmShape, count: int = 16) -> tuple[Suggestion, ...]:
    on = target(name)
    with pytest.MonkeyPatch.context() as patch:
        if on.capability < (9, 0):
            patch.setattr(nvidia, "_BACKEND", "CUTLASS")
        suggested = suggestions(on, shape, count)
    assert not isinstance(suggested, str), suggested
    return suggested


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("name", ["H100", "H200", "A100", "L40S", "RTX 4090", "B200"])
def test_every_target_has_suggestions_that_fit_it(name: str):
    suggested = asked(name, SQUARE)
    assert len(suggested) >= 4
    assert len({suggestion.config for suggestion in suggested}) == len(suggested)
    first = suggested[0].config
    assert first.m * first.n >= 128 * 128
    assert why_not(target(name), SQUARE, first) is None
    assert all(1e-6 < suggestion.predicted_s < 1e-1 for suggestion in suggested)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    ("a", "b", "out"),
    [
        ("bfloat16", "bfloat16", "float32"),
        ("float16", "float16", "float16"),
        ("float32", "float32", "float32"),
        ("float8_e4m3fn", "float8_e4m3fn", "bfloat16"),
        ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fn"),
        ("int8", "int8", "int32"),
    ],
)
@pytest.mark.parametrize("row_major", [True, False])
def test_dtypes_and_layouts_are_understood(a: str, b: str, out: str, row_major: bool):
    shape = GemmShape(1024, 2048, 4096, a=a, b=b, out=out, b_row_major=row_major)
    suggested = asked("H100", shape)
    row_bytes = suggested[0].config.k * {"f": 4, "b": 2, "i": 1}[a[0]]
    assert a[:5] == "float" or row_bytes in (64, 128, 256)


@pytest.mark.usefixtures("library")
def test_one_row_gets_low_tiles():
    suggested = asked("H100", GemmShape(1, 4096, 4096))
    assert suggested[0].config.m == 64  # the lowest of wgmma


@pytest.mark.usefixtures("library")
def test_the_same_question_is_asked_once():
    first = suggestions(H100, SQUARE, 8)
    assert suggestions(H100, GemmShape(4096, 4096, 4096), 8) is first
    assert suggestions.cache_info().hits == 1


@pytest.mark.usefixtures("library")
def test_our_ranking_follows_nvidias_where_it_names_a_tile():
    tiles = [
        TileConfig(64, 64, 64),
        TileConfig(128, 128, 64, warps=8, cluster=(2, 1)),
        TileConfig(128, 256, 64, warps=8, cluster=(2, 1)),
    ]
    ours = ranked(H100, SQUARE, tiles)
    order, said = ordered(H100, SQUARE, reversed(ours))
    assert {tile.config for tile in order} == set(tiles)
    assert order[0].config == tiles[2]
    assert order[-1].config == tiles[0]
    assert said == "nvidia-matmul-heuristics names 2 of 3 candidates"


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        (GemmShape(8, 8, 8, a="float64", b="float64"), "has no float64 times float64"),
        (GemmShape(8, 8, 8, b="float8_e4m3fn"), "has no bfloat16 times float8_e4m3fn"),
        (GemmShape(8, 8, 8, a="int32", b="int32"), "has no int32 times int32"),
    ],
)
def test_what_it_has_no_word_for_is_a_reason(shape: GemmShape, reason: str):
    suggested = suggestions(H100, shape)
    assert isinstance(suggested, str)
    assert reason in suggested


@pytest.mark.usefixtures("library")
def test_zeros_are_no_answer(monkeypatch: pytest.MonkeyPatch):
    # What the library answers for precisions it does not know, such as "XYZ".
    kernel = SimpleNamespace(cta_tile_m=0, cta_tile_n=0, cta_tile_k=0)

    class Interface:
        def makeNvMatmulHeuristicsProblem(self, *arguments: object) -> None: ...  # noqa: N802

        def get(self, problem: object, count: int, precision: str) -> list[dict[str, object]]:
            return [{"kernel": kernel, "runtime": 0.0}] * count

    def interface(gpu: str) -> Interface:
        return Interface()

    with monkeypatch.context() as patch:
        patch.setattr(nvidia, "_interface", interface)
        suggested = suggestions(H100, SQUARE)
    assert suggested == "nvidia-matmul-heuristics has nothing for TST on H100"


def test_a_gpu_it_does_not_model_is_a_reason():
    facts = H100.properties() | {"name": "NVIDIA H800", "multi_processor_count": 132}
    suggested = suggestions(from_properties(facts), SQUARE)
    assert suggested == "nvidia-matmul-heuristics models no H800"


@pytest.mark.usefixtures("library")
def test_all_gpus_we_name_are_known_to_the_library():
    import nvMatmulHeuristics  # type: ignore[import-untyped]

    known: object = nvMatmulHeuristics.NvMatmulHeuristicsNvidiaGpu  # pyright: ignore
    for name in nvidia._GPUS.values():  # pyright: ignore[reportPrivateUsage]
        assert hasattr(known, name), name
    facts = {"name": "NVIDIA L4", "major": 8, "minor": 9, "multi_processor_count": 58}
    assert not isinstance(suggestions(from_properties(facts), SQUARE), str)


def test_where_it_is_not_installed_our_own_ranking_stands(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "nvMatmulHeuristics", None)
    suggested = suggestions(H100, SQUARE)
    assert isinstance(suggested, str)
    assert 'pip install "inductor-plugin[heuristics]"' in suggested
    ours = ranked(H100, SQUARE, [TileConfig(64, 64, 64), TileConfig(128, 128, 64, warps=8)])
    assert ordered(H100, SQUARE, ours) == (ours, suggested)


@pytest.mark.parametrize(
    "error", [OSError("no library"), AssertionError(), RuntimeError("status 3")]
)
def test_a_broken_library_is_a_reason(error: Exception, monkeypatch: pytest.MonkeyPatch):
    def broken(**options: object) -> None:
        raise error

    module = ModuleType("nvMatmulHeuristics")
    module.__dict__.update(
        NvMatmulHeuristicsTarget={"CUTLASS3": 4},
        NvMatmulHeuristicsNvidiaGpu={"H100_SXM": 9000},
        NvMatmulHeuristicsFlags=type("Flags", (), {"PERF_MODEL_BASED_AUTO_TUNING": 8}),
        NvMatmulHeuristicsInterfaceEx=broken,
    )
    monkeypatch.setitem(sys.modules, "nvMatmulHeuristics", module)
    suggested = suggestions(H100, SQUARE)
    assert isinstance(suggested, str)
    assert type(error).__name__ in suggested


def places(values: Sequence[float]) -> list[float]:
    """Return ranks; values within a thousandth are equal and share theirs."""
    order = sorted(range(len(values)), key=values.__getitem__)
    result = [0.0] * len(values)
    start = 0
    for end in range(1, len(order) + 1):
        if end == len(order) or values[order[end]] > 1.001 * values[order[start]]:
            for number in order[start:end]:
                result[number] = (start + end - 1) / 2
            start = end
    return result


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    ("name", "correlation", "loss"),
    [("H100", 0.78, 1.06), ("A100", 0.70, 1.03), ("L40S", 0.92, 1.05), ("B200", 0.80, 1.06)],
)
def test_our_model_orders_nvidias_suggestions_much_as_nvidia_does(
    name: str, correlation: float, loss: float, capsys: pytest.CaptureFixture[str]
):
    """Floors lie a little below what was computed with nvidia-matmul-heuristics 0.1.0.27.

    ``loss`` is NVIDIA's prediction for our first tile over the one for its own best, on average.
    Where a product is bound by memory all tiles are equal within some percent, and so is no order.
    """
    correlations: list[float] = []
    losses: list[float] = []
    for (n, k), m in ((weight, rows) for weight in WEIGHTS for rows in ROWS):
        shape = GemmShape(m, n, k)
        pairs: list[tuple[float, float]] = []
        for suggestion in asked(name, shape, 32):
            said = predict(target(name), shape, suggestion.config)
            if isinstance(said, TilePrediction):
                pairs.append((said.seconds, suggestion.predicted_s))
        ours, theirs = (list(column) for column in zip(*pairs, strict=True))
        if len({*places(ours)}) > 2 and len({*places(theirs)}) > 2:
            correlations.append(statistics.correlation(places(ours), places(theirs)))
        losses.append(min(pairs)[1] / min(theirs))
    median, mean = statistics.median(correlations), statistics.mean(losses)
    with capsys.disabled():
        print(
            f"\n{name}: {len(correlations)} shapes, median rank correlation {median:.2f}, "
            f"our first choice takes {mean:.3f} of the best by NVIDIA's model, at most {max(losses):.2f}"
        )
    assert len(correlations) > 70
    assert median > correlation
    assert mean < loss

"""What is answered about a pair of nodes, and what is recorded of it, step by step."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportPrivateUsage=false

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._inductor import ir, select_algorithm

from inductor_plugin.inductor.fusion import decide
from inductor_plugin.inductor.fusion.offers import UNFUSED
from inductor_plugin.tuning.counters import Counters

FUSE, APART, INDUCTORS = "submitted", "two kernels", None
SHORTLIST = decide._shortlist
GPU = torch.device("cuda:0")


class AnswersSession:
    """What a graph's session is asked about fusions."""

    def __init__(
        self, *, winner: str = UNFUSED, agreed: str | None = None, pin: Any = None
    ) -> None:
        self.refused: list[str] = []
        self.remembered: list[str] = []
        self.waited: list[Any] = []
        self.counters = Counters()
        self._winner, self._pin = winner, pin
        self._agreed = None if agreed is None else SimpleNamespace(winner=agreed)

    def refuse_fusion(self, _problem: Any, _device: Any, only: str, why: str) -> str:
        assert only == UNFUSED
        self.refused.append(why)
        return self._winner

    def remember(self, *fusion: Any) -> None:
        self.remembered.append(fusion[2])

    def agreed_fusion(self, _problem: Any, _device: Any) -> Any:
        return self._agreed

    def pin_of_fusion(self, _problem: Any, _device: Any) -> Any:
        return self._pin

    def wait(self, ticket: Any) -> None:
        self.waited.append(ticket)


def fusion_of(session: Any = None, **facts: Any) -> Any:
    """Return a fusion of a product with an epilogue."""
    kind = {"atomic": False, "mutates": False, "reads": (), **facts.pop("epilogue", {})}
    settled: list[Any] = []
    given: dict[str, Any] = {
        "config": SimpleNamespace(policy="tune"),
        "state": SimpleNamespace(
            session=session or AnswersSession(),
            submitted=set[str](),
            settle=lambda *fusion: settled.append(fusion[2:]),
        ),
        "pending": SimpleNamespace(choices={}, call=SimpleNamespace(nodes=[])),
        "scheduler": SimpleNamespace(_has_layout_conflict_for_template=lambda _: False),
        "product": SimpleNamespace(finalize_as_triton_caller=lambda choice: settled.append(choice)),
        "epilogue": SimpleNamespace(**kind),
        "prologue": False,
        "settled": None,
        "device": GPU,
        "problem": "the fusion",
        "limits": None,
        "first": SimpleNamespace(get_name=lambda: "op0"),
        "second": SimpleNamespace(get_name=lambda: "op1"),
        "done": settled,
    }
    return SimpleNamespace(**{**given, **facts})


@pytest.fixture(autouse=True)
def answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Name the answers."""
    monkeypatch.setattr(decide, "_not_fused", lambda *_: APART)
    monkeypatch.setattr(decide, "guard", lambda *_: None)
    monkeypatch.setattr(decide, "_shortlist", lambda _: kept("a"))
    monkeypatch.setattr(decide, "_visitors", lambda *_: {})
    monkeypatch.setattr(decide, "_answer", lambda *_: FUSE)
    monkeypatch.setattr(decide, "_pinned", lambda _, winner: (kept(winner), {}))


def kept(*names: str) -> Any:
    return SimpleNamespace(kept=dict.fromkeys(names), pruned={"b": "it spills"})


@pytest.mark.parametrize(
    ("settled", "conflict", "is_closed"),
    [(None, False, False), ("a", False, False), ("evt", False, True), (None, True, True)],
)
def test_a_product_takes_an_epilogue_until_a_kernel_of_another_kind_is_settled(
    settled: str | None, *, conflict: bool, is_closed: bool
) -> None:
    fusion = fusion_of(
        settled=settled,
        pending=SimpleNamespace(choices={"a": None}),
        scheduler=SimpleNamespace(_has_layout_conflict_for_template=lambda _: conflict),
    )
    assert (decide._closed(fusion) is not None) is is_closed


@pytest.mark.parametrize(
    "facts", [{"prologue": True}, {"epilogue": {"atomic": True}}, {"epilogue": {"mutates": True}}]
)
def test_what_a_worker_cannot_measure_is_inductors_unless_nothing_is_left_of_it(
    monkeypatch: pytest.MonkeyPatch, facts: dict[str, Any]
) -> None:
    """Neither the ranks nor a pin say anything of it."""
    session = AnswersSession(agreed="a", pin=SimpleNamespace(winner="a"))
    assert decide._decided(fusion_of(session, **facts)) is INDUCTORS
    pinned = {"config": SimpleNamespace(policy="pinned"), **facts}
    assert decide._decided(fusion_of(session, **pinned)) is INDUCTORS
    monkeypatch.setattr(decide, "_shortlist", lambda _: kept())
    assert decide._decided(fusion_of(session, **facts)) == APART
    assert (session.refused, session.remembered) == ([], [])


@pytest.mark.parametrize(
    ("agreed", "answer"), [("a", FUSE), ("", APART), ("unfused.mm", APART), (None, FUSE)]
)
def test_what_the_ranks_have_decided_is_followed(agreed: str | None, answer: str) -> None:
    assert decide._decided(fusion_of(AnswersSession(agreed=agreed))) == answer


@pytest.mark.parametrize(("winner", "answer"), [("a", FUSE), ("unfused.mm", APART), (None, APART)])
def test_a_pin_decides_alone(winner: str | None, answer: str) -> None:
    pin = None if winner is None else SimpleNamespace(winner=winner)
    pinned = SimpleNamespace(policy="pinned")
    assert decide._decided(fusion_of(AnswersSession(pin=pin), config=pinned)) == answer


def test_a_number_on_the_host_is_passed_by_inductor(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = {"here": GPU, "there": torch.device("cpu")}
    node = lambda name: SimpleNamespace(get_device=lambda: devices[name])  # noqa: E731
    monkeypatch.setattr(decide, "node_of", node)
    for name, answer in (("here", FUSE), ("there", INDUCTORS)):
        reads = (SimpleNamespace(buffer="here"), SimpleNamespace(buffer=name))
        assert decide._decided(fusion_of(epilogue={"reads": reads})) == answer


@pytest.mark.parametrize(
    ("policy", "winner", "refused", "remembered"),
    [
        ("tune", UNFUSED, 1, 1),
        ("tune", "a", 1, 0),  # another rank has decided otherwise
        ("cached", UNFUSED, 1, 0),
        ("build", UNFUSED, 0, 0),  # it rests on no times
    ],
)
def test_why_nothing_was_measured_is_kept_where_times_say_so(
    monkeypatch: pytest.MonkeyPatch, policy: str, winner: str, refused: int, remembered: int
) -> None:
    monkeypatch.setattr(decide, "_shortlist", lambda _: kept())
    session = AnswersSession(winner=winner)
    fusion = fusion_of(session, config=SimpleNamespace(policy=policy))
    assert decide._decided(fusion) == (FUSE if winner == "a" else APART)
    assert session.refused == ["it spills"] * refused
    assert session.remembered == [UNFUSED] * remembered


def test_a_guard_is_asked_before_any_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    def priced(*_: Any) -> Any:
        raise AssertionError

    monkeypatch.setattr(decide, "guard", lambda *_: "too many operands")
    monkeypatch.setattr(decide, "_shortlist", priced)
    monkeypatch.setattr(decide, "_visitors", priced)
    session = AnswersSession()
    assert decide._decided(fusion_of(session)) == APART
    assert session.refused == ["too many operands"]


def caller(name: str) -> Any:
    """Return one of Inductor's Triton choices."""
    choice: Any = object.__new__(select_algorithm.TritonTemplateCaller)
    choice.name = name
    return choice


@pytest.mark.parametrize(
    ("settled", "offered"), [(None, ["fast", "slow"]), ("slow", ["slow"]), ("evt", [])]
)
def test_kernels_of_triton_are_offered_fastest_first_and_only_the_settled_one(
    monkeypatch: pytest.MonkeyPatch, settled: str | None, offered: list[str]
) -> None:
    choices = {"slow": caller("s"), "library": object(), "fast": caller("f"), "failed": caller("x")}
    times = {choices["slow"]: 0.003, choices["library"]: 0.001, choices["fast"]: 0.002}
    asked: list[tuple[str, float]] = []

    def offer(_shortlist: Any, name: str, unfused_us: float, _estimate: Any) -> None:
        asked.append((name, round(unfused_us, 6)))

    monkeypatch.setattr(decide.Shortlist, "offer", offer)
    pending = SimpleNamespace(choices=choices)
    SHORTLIST(fusion_of(pending=pending, timings=times, settled=settled))
    assert asked == [(name, {"fast": 2.0, "slow": 3.0}[name]) for name in offered]


def ticket_of(winner: str | None, agreed: str | None = None) -> Any:
    verdict = SimpleNamespace(winner=winner)
    return SimpleNamespace(
        selection=SimpleNamespace(decide=lambda _: verdict),
        problem="mm and an epilogue",
        agreed=None if agreed is None else SimpleNamespace(winner=agreed),
        offers=[
            SimpleNamespace(candidate_id="fused.a"),
            SimpleNamespace(candidate_id="unfused.mm"),
        ],
    )


@pytest.mark.parametrize(
    ("winner", "agreed", "done"),
    [
        ("fused.a", None, ["kernel a", ("fused.a", "a")]),
        ("unfused.mm", None, []),
        (None, None, []),
        ("fused.a", "fused.a", ["kernel a", ("fused.a", "a")]),
    ],
)
def test_the_kernel_of_the_fusion_that_won_becomes_the_products(
    winner: str | None, agreed: str | None, done: list[Any]
) -> None:
    pending = SimpleNamespace(choices={"a": "kernel a", "b": "kernel b"})
    fusion, ticket = fusion_of(pending=pending), ticket_of(winner, agreed)
    assert decide._fuses(fusion, ticket, {"fused.a": ("a", None)}) is bool(done)
    assert fusion.done == done
    assert fusion.state.session.waited == [ticket]


def test_a_kernel_that_no_rank_here_can_offer_leaves_two(monkeypatch: pytest.MonkeyPatch) -> None:
    warned: list[Any] = []
    monkeypatch.setattr(decide, "_pinned", lambda *_: (kept(), {}))
    monkeypatch.setattr(decide, "warn_not_offered", lambda *what: warned.append(what))
    for agreed, warnings in (("b", 1), (decide.LIBRARY, 0)):
        fusion, ticket = fusion_of(), ticket_of("unfused.mm", agreed)
        assert decide._fuses(fusion, ticket, {}) is False
        assert fusion.done == []
        assert warned == [(ticket.problem, ticket.agreed)] * warnings
        warned.clear()


@pytest.mark.parametrize(
    ("templates", "foreach", "is_ours", "prologue"),
    [
        ((True, False), False, True, False),
        ((False, True), False, True, True),
        ((True, False), True, False, None),
        ((True, True), False, True, None),
        ((False, False), False, True, None),
        ((True, False), False, False, None),
    ],
)
def test_a_pair_with_one_undecided_product_of_ours_is_decided_here(
    monkeypatch: pytest.MonkeyPatch,
    templates: tuple[bool, bool],
    prologue: bool | None,
    *,
    foreach: bool,
    is_ours: bool,
) -> None:
    product: Any = object.__new__(ir.MultiTemplateBuffer)
    monkeypatch.setattr(ir.MultiTemplateBuffer, "get_name", lambda _: "buf0")
    pending = SimpleNamespace() if is_ours else None
    session = SimpleNamespace(claim=lambda name: pending if name == "buf0" else None)
    monkeypatch.setattr(decide, "active_config", lambda: "options")
    monkeypatch.setattr(decide, "state_of", lambda *_: SimpleNamespace(session=session))
    nodes = [
        SimpleNamespace(
            is_foreach=lambda: foreach, get_template_node=lambda has=has: product if has else None
        )
        for has in templates
    ]
    fusion = decide._fusion(None, *nodes)
    assert (None if fusion is None else fusion.prologue) is prologue
    assert fusion is None or fusion.pending is pending
    monkeypatch.setattr(decide, "active_config", lambda: None)
    assert decide._fusion(None, *nodes) is None

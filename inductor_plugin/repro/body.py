"""The part of a reproduction script that is the same for every record: plain Python, as text.

It uses torch and the public interface of this package; with ``--stock``, only torch.
"""

IMPORTS = """
import argparse
import json
import sys
import tempfile
import time

import torch
import torch.nn.functional as F
from torch.utils.benchmark import Timer
"""

RUN = '''
WIDE = torch.float64


def storage(operand):
    """Return an operand's storage: random numbers, the same in every run."""
    generator = torch.Generator().manual_seed(operand["seed"])
    dtype, count = getattr(torch, operand["dtype"]), operand["elements"]
    if dtype.is_floating_point or dtype.is_complex:
        flat = torch.randn(count, generator=generator).to(dtype)
    else:
        limit = 2 if dtype is torch.bool else 8
        flat = torch.randint(0, limit, (count,), generator=generator).to(dtype)
    if "scale" in operand:
        flat *= operand["scale"]
    return flat.to(operand["device"])


def outside(operand, flat):
    """Return what is passed to the compiled call: an operand, or what `inside` makes it from."""
    if operand["offset"]:
        return flat
    size, stride = list(operand["size"]), list(operand["stride"])
    while size and stride[0] == 0 and size[0] != 1:
        del size[0], stride[0]
    size = [1 if step == 0 else n for n, step in zip(size, stride)]
    return torch.as_strided(flat, size, stride)


def inside(operand, value):
    """Return an operand from what is passed to the compiled call."""
    if operand["offset"]:
        return torch.as_strided(value, operand["size"], operand["stride"], operand["offset"])
    if 0 in operand["stride"] and operand["name"] != "bias":
        return value.expand(operand["size"])
    return value  # a bias is broadcast by the call itself


def exactly(operand, flat):
    """Return an operand in float64, with the strides it has."""
    if flat.is_floating_point() or (EXACT_INTEGERS and flat.dtype is not torch.bool):
        flat = flat.to(WIDE)
    return torch.as_strided(flat, operand["size"], operand["stride"], operand["offset"])


class Call(torch.nn.Module):
    """The call; frozen weights are its parameters."""

    def __init__(self, values):
        super().__init__()
        for operand, value in zip(OPERANDS, values):
            if operand["constant"]:
                parameter = torch.nn.Parameter(value, requires_grad=False)
                self.register_parameter(f"constant_{operand['name']}", parameter)

    def forward(self, *inputs):
        rest = iter(inputs)
        return call(*(
            getattr(self, f"constant_{operand['name']}")
            if operand["constant"]
            else inside(operand, next(rest))
            for operand in OPERANDS
        ))


def results(function, inputs, step):
    """Return what a call gives: its outputs, or the gradients of q, k and v."""
    if not GRADIENT:
        out = function(*inputs)
        return list(out) if isinstance(out, tuple) else [out]
    leaves = [tensor.detach().requires_grad_() for tensor in inputs[:3]]
    out = function(*leaves, *inputs[3:])
    if step is None:  # the forward pass of a training step
        return [out]
    return list(torch.autograd.grad(out, leaves, step.to(out.dtype)))


def mark(inputs):
    """Let sizes be unknown again: (operand, dimension, smallest, largest size of the measured class)."""
    moving = [index for index, operand in enumerate(OPERANDS) if not operand["constant"]]
    for index, dim, _low, _high in DYNAMIC:
        if index in moving and OPERANDS[index]["stride"][dim] != 0:
            tensor = inputs[moving.index(index)]
            at = dim - (len(OPERANDS[index]["size"]) - tensor.dim())
            torch._dynamo.maybe_mark_dynamic(tensor, at)


def compiled(arguments, values, inputs, step, cache_dir, pins=None):
    """Run the compiled call; return its results, what was decided meanwhile, and how to run it again.

    ``pins`` is a file of decisions that replace the recorded ones.
    """
    tickets, module = [], Call(values).eval()

    def again():
        with torch.set_grad_enabled(GRADIENT):
            return results(run, inputs, step)

    with torch._inductor.config.patch(freezing=FREEZING, fx_graph_cache=False):
        if arguments.stock:
            run = torch.compile(module, mode="max-autotune-no-cudagraphs")
            return again(), tickets, again
        import inductor_plugin

        options = {**OPTIONS, "policy": arguments.policy, "cache_dir": cache_dir, "remote_url": ""}
        if pins:
            options = {**options, "policy": "pinned", "pin_file": pins}
        run = torch.compile(module, backend="inductor_plugin", options=options)
        with inductor_plugin.observe(tickets.extend):
            return again(), tickets, again


def register(spec):
    """Register a template of another package: ``module:Class``."""
    import importlib

    import inductor_plugin

    module, _, name = spec.partition(":")
    inductor_plugin.register(getattr(importlib.import_module(module), name)())


def chosen(tickets):
    """Say which kernel runs, and return the name; None where the record was not met."""
    for ticket in tickets:
        if ticket.digest == DIGEST and ticket.verdict is not None:
            winner = ticket.verdict.winner
            same = "as recorded" if winner == WINNER else f"the record says {WINNER!r}"
            how = "two kernels, not fused" if "unfused" in winner else "one kernel, fused"
            how = "two kernels, fused in part" if "+rest-" in winner else how
            how = f"; {how}" if EPILOGUE else ""
            print(f"chosen: {winner} ({same}; {ticket.verdict.reason}{how})")
            return winner
    met = ", ".join(f"{t.problem.describe()} {t.digest[:12]}" for t in tickets) or "none"
    print(f"chosen: the call was not this record; what was decided: {met}")
    return None


def error(values, wanted):
    """Return the largest error, or its root mean square where JUMPS, relative to that of what is right."""
    worst = 0.0
    for value, right in zip(values, wanted):
        value, right = value.detach().to(right), right.detach()
        known = right.isfinite()  # the logarithm of a negative number has no error
        value, right = value[known], right[known]
        if not value.isfinite().all():
            return float("nan")
        if right.numel():
            scale = right.abs().square().mean().sqrt().clamp_min(1e-30)
            off = (value - right).abs()
            off = off.square().mean().sqrt() if JUMPS else off.max()
            worst = max(worst, (off / scale).item())
    return worst


def interval(values):
    """Return the median, and the bounds that hold it with a probability of 95 %."""
    values, half = sorted(values), 0.98 * len(values) ** 0.5
    low, high = int(len(values) / 2 - half), int(len(values) / 2 + half + 1)
    middle = (values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2
    return middle, values[max(low, 0)], values[min(high, len(values) - 1)]


def timed(call, count):
    """Return the milliseconds of a call, of so many."""
    timer = Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
    return timer.timeit(count).mean * 1e3


def bench(calls, seconds):
    """Time calls in turns, so that all meet the same disturbances; return each one's samples, and calls a sample."""
    # A millisecond is long for the clock and short for the scheduler; the least of some calls, since
    # one may meet a disturbance.
    once = max(min(timed(call, 1) for _ in range(10)) for call in calls.values())
    count = max(1, int(1.0 / max(once, 1e-3)))
    times, turns, end = {name: [] for name in calls}, 0, time.perf_counter() + seconds
    while turns < 10 or (time.perf_counter() < end and turns < 1000):
        for name in list(calls) if turns % 2 else reversed(calls):
            times[name].append(timed(calls[name], count))
        turns += 1
    return times, count


def compared(winner, library):
    """Return how much faster the winner is than the library kernel, by their samples."""
    report = {"winner_ms": interval(winner)[0], "library_ms": interval(library)[0]}
    ratios = [b / a for a, b in zip(winner, library)]
    report["speedup"], report["low"], report["high"] = interval(ratios)
    return {**report, "rounds": len(ratios)}


def rivals(arguments, values, inputs, step, cache_dir):
    """Return the calls with the kernels that files of decisions name, by the names of what really runs."""
    found = {}
    for pins in arguments.rival:
        _, tickets, again = compiled(arguments, values, inputs, step, cache_dir, pins)
        name = chosen(tickets)
        if name is not None:
            found.setdefault(name, again)
    return found


def parsed():
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add, folder = parser.add_argument, CACHE_DIR.replace("%", "%%")
    add("--cache-dir", help=f"the plugin's cache; {folder} by default")
    tune = "measured again, in an empty cache that is removed afterwards, unless --cache-dir names one"
    policies = {"choices": ("cached", "tune"), "default": "cached"}
    add("--policy", help=f"cached: as recorded; tune: {tune}", **policies)
    library = "time the call against the one with the library kernel, in turns"
    add("--bench", type=float, metavar="SECONDS", help=library)
    add("--json", metavar="FILE", help="write the times there, as JSON")
    rival = "a file of decisions (`inductor-plugin pin`): time the kernel that it names, too"
    add("--rival", metavar="FILE", action="append", default=[], help=rival)
    add("--register", action="append", default=[], metavar="MODULE:CLASS")
    add("--stock", action="store_true", help="compile with Inductor alone")
    return parser.parse_args()


def main(arguments, empty):
    """Run the call; ``empty`` is a folder for a cache. Return the exit status."""
    for spec in arguments.register:
        register(spec)
    if THREADS:
        torch.set_num_threads(THREADS)
    torch.set_float32_matmul_precision(PRECISION)
    flats = [storage(operand) for operand in OPERANDS]
    values = [outside(operand, flat) for operand, flat in zip(OPERANDS, flats)]
    step = torch.as_strided(storage(STEP), STEP["size"], STEP["stride"]) if STEP else None
    inputs = [value for operand, value in zip(OPERANDS, values) if not operand["constant"]]
    mark(inputs)
    folder = arguments.cache_dir or (empty if arguments.policy == "tune" else CACHE_DIR)
    ours, tickets, again = compiled(arguments, values, inputs, step, folder)
    winner = None if arguments.stock else chosen(tickets)
    if arguments.bench is not None and winner is None:
        print("nothing to compare with the library kernel")
        return 2
    if arguments.bench is not None:
        arguments.policy = "cached"  # without a record, the library kernel runs
        _, tickets, library = compiled(arguments, values, inputs, step, f"{empty}/library")
        for ticket in tickets:
            print(f"compared with: {ticket.verdict.winner if ticket.verdict else 'stock'}")
        others = rivals(arguments, values, inputs, step, folder) if arguments.rival else {}
        others.pop(winner, None)
        calls = {"winner": again, "library kernel": library, **others}
        samples, count = bench(calls, arguments.bench)
        times = {**compared(samples["winner"], samples["library kernel"]), "calls": count}
        print(
            "winner {winner_ms:.4g} ms, library kernel {library_ms:.4g} ms a call: {speedup:.3f}x, with "
            "95 % between {low:.3f}x and {high:.3f}x ({rounds} rounds)".format(**times)
        )
        if arguments.rival:
            times["samples_ms"] = {winner: samples["winner"], **{name: samples[name] for name in others}}
        if arguments.json:
            with open(arguments.json, "w") as file:
                json.dump(times, file)
        return 0
    with torch.set_grad_enabled(GRADIENT):
        eager = results(Call(values), inputs, step)
        wide = [exactly(operand, flat) for operand, flat in zip(OPERANDS, flats)]
        wanted = results(exact, wide, None if step is None else step.to(WIDE))
    off, eagerly = error(ours, wanted), error(eager, wanted)
    accepted = max(TOLERANCE, TIMES_EAGER * eagerly)
    right = off <= accepted  # NaN is never right
    print(f"error: {off:.3g}, eager's {eagerly:.3g}, accepted {accepted:.3g} (of {WIDE}'s rms)")
    print("right" if right else "WRONG")
    return 0 if right else 1


if __name__ == "__main__":
    temporary = tempfile.TemporaryDirectory(prefix="inductor-plugin-repro-", ignore_cleanup_errors=True)
    with temporary as empty:
        status = main(parsed(), empty)
    sys.exit(status)
'''

READ = '''
@torch.library.custom_op("repro::read", mutates_args=())
def read(product: torch.Tensor, number: int) -> torch.Tensor:
    """Act as another reader of the product, which is then written also where it is fused."""
    return product.new_zeros(1)


@read.register_fake
def _(product, number):
    return product.new_zeros(1)
'''
"""Added if several readers besides the epilogue use the product, which is part of its signature."""

BARE = """
if __name__ == "__main__":
    print(f"{DESCRIBE}: the call cannot be rebuilt: {REASON}")
    for operand in OPERANDS:
        print(operand)
    sys.exit(3)
"""
"""The end of a script with metadata only: its exit status differs from those of right and wrong."""

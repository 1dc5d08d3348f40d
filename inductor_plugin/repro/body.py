"""The part of a reproduction script that is the same for every record: plain Python, as text.

It stands on torch and on what this package promises to its users, and on one list of its own:
`lowering_session.OBSERVERS`, which tells what was decided.
"""

RUN = '''
def storage(one):
    """Return an operand's storage: random numbers, the same in every run."""
    generator = torch.Generator().manual_seed(one["seed"])
    dtype = getattr(torch, one["dtype"])
    if dtype.is_floating_point or dtype.is_complex:
        flat = torch.randn(one["elements"], generator=generator).to(dtype)
    elif dtype is torch.bool:
        flat = torch.rand(one["elements"], generator=generator) < 0.5
    else:
        flat = torch.randint(0, 8, (one["elements"],), generator=generator).to(dtype)
    if "scale" in one:
        flat *= one["scale"]
    return flat.to(one["device"])


def outside(one, flat):
    """Return what the compiled call is given: an operand, or what `inside` makes it from."""
    if one["offset"]:
        return flat
    size, stride = list(one["size"]), list(one["stride"])
    while size and stride[0] == 0 and size[0] != 1:
        del size[0], stride[0]
    size = [1 if step == 0 else n for n, step in zip(size, stride)]
    return torch.as_strided(flat, size, stride)


def inside(one, given):
    """Return an operand from what the compiled call is given."""
    if one["offset"]:
        return torch.as_strided(given, one["size"], one["stride"], one["offset"])
    if 0 in one["stride"] and one["name"] != "bias":
        return given.expand(one["size"])
    return given  # a bias is broadcast by the call itself


class Call(torch.nn.Module):
    """The call; frozen weights are its parameters."""

    def __init__(self, given):
        super().__init__()
        for one, value in zip(OPERANDS, given):
            if one["constant"]:
                parameter = torch.nn.Parameter(value, requires_grad=False)
                self.register_parameter(f"constant_{one['name']}", parameter)

    def forward(self, *given):
        rest = iter(given)
        values = [
            getattr(self, f"constant_{one['name']}")
            if one["constant"]
            else inside(one, next(rest))
            for one in OPERANDS
        ]
        return call(*values)


def results(function, given, step):
    """Return what a call gives: its outputs, or the gradients of q, k and v."""
    if not GRADIENT:
        out = function(*given)
        return list(out) if isinstance(out, tuple) else [out]
    leaves = [one.detach().requires_grad_() for one in given[:3]]
    out = function(*leaves, *given[3:])
    if step is None:  # the forward pass of a training step
        return [out]
    return list(torch.autograd.grad(out, leaves, step.to(out.dtype)))


def mark(given):
    """Let the sizes that were unknown be unknown again."""
    moving = [one for one in range(len(OPERANDS)) if not OPERANDS[one]["constant"]]
    for operand, dim, _low, _high in DYNAMIC:
        if operand not in moving or OPERANDS[operand]["stride"][dim] == 0:
            continue
        tensor = given[moving.index(operand)]
        at = dim - (len(OPERANDS[operand]["size"]) - tensor.dim())
        torch._dynamo.maybe_mark_dynamic(tensor, at)


def compiled(arguments, module, given, step):
    """Run the compiled call; return its results and what was decided meanwhile."""
    from inductor_plugin.inductor.graph.session import OBSERVERS

    tickets = []
    OBSERVERS.append(tickets.extend)
    options = {**OPTIONS, "policy": arguments.policy}
    options["cache_dir"] = arguments.cache_dir or CACHE_DIR
    with torch._inductor.config.patch(freezing=FREEZING, fx_graph_cache=False):
        with torch.set_grad_enabled(GRADIENT):
            run = torch.compile(module, backend="inductor_plugin", options=options)
            return results(run, given, step), tickets


def register(spec):
    """Register a template that is no part of the plugin: ``module:Class``."""
    import importlib

    import inductor_plugin

    module, _, name = spec.partition(":")
    inductor_plugin.register(getattr(importlib.import_module(module), name)())


def chosen(tickets):
    """Say which kernel runs, and return the name; None where the record was not met."""
    for one in tickets:
        if one.digest == DIGEST and one.verdict is not None:
            same = "as recorded" if one.verdict.winner == WINNER else f"the record says {WINNER}"
            how = "two kernels, not fused" if "unfused" in one.verdict.winner else "one kernel, fused"
            how = "two kernels, fused in part" if "+rest-" in one.verdict.winner else how
            how = f"; {how}" if EPILOGUE else ""
            print(f"chosen: {one.verdict.winner} ({same}; {one.verdict.reason}{how})")
            return one.verdict.winner
    met = ", ".join(f"{one.problem.describe()} {one.digest[:12]}" for one in tickets) or "none"
    print(f"chosen: the call was not this record; what was decided: {met}")
    return None


def error(values, wanted):
    """Return the largest error, or its root mean square where JUMPS, relative to that of what is right."""
    worst = 0.0
    for value, right in zip(values, wanted):
        value, right = value.detach().to(right), right.detach()
        known = right.isfinite()  # the logarithm of a negative number has no error
        value, right = value[known], right[known]
        if right.numel() == 0:
            continue
        scale = right.abs().square().mean().sqrt().clamp_min(1e-30)
        off = (value - right).abs()
        off = off.square().mean().sqrt() if JUMPS else off.max()
        worst = max(worst, (off / scale).item())
        if not value.isfinite().all():
            return float("nan")
    return worst


def main():
    import argparse

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cache-dir", help=f"the plugin's cache; {CACHE_DIR} by default")
    parser.add_argument("--policy", default="cached", help="cached: as recorded; tune: anew")
    parser.add_argument("--register", action="append", default=[], metavar="MODULE:CLASS")
    arguments = parser.parse_args()
    for spec in arguments.register:
        register(spec)
    if THREADS:
        torch.set_num_threads(THREADS)
    torch.set_float32_matmul_precision(PRECISION)

    flats = [storage(one) for one in OPERANDS]
    values = [outside(one, flat) for one, flat in zip(OPERANDS, flats)]
    step = torch.as_strided(storage(STEP), STEP["size"], STEP["stride"]) if STEP else None
    module = Call(values).eval()
    given = [value for one, value in zip(OPERANDS, values) if not one["constant"]]
    mark(given)
    ours, tickets = compiled(arguments, module, given, step)
    chosen(tickets)
    with torch.set_grad_enabled(GRADIENT):
        eager = results(Call(values), given, step)
        whole = [inside(one, value) for one, value in zip(OPERANDS, values)]
        wide = [
            one.to(WIDE)
            if one.is_floating_point() or (EXACT_INTEGERS and one.dtype is not torch.bool)
            else one
            for one in whole
        ]
        wanted = results(exact, wide, None if step is None else step.to(WIDE))
    off, eagerly = error(ours, wanted), error(eager, wanted)
    accepted = max(TOLERANCE, TIMES_EAGER * eagerly)
    right = off <= accepted  # NaN is never right
    print(f"error: {off:.3g}, eager's {eagerly:.3g}, accepted {accepted:.3g} (of {WIDE}'s rms)")
    print("right" if right else "WRONG")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
'''

READ = '''
@torch.library.custom_op("repro_DIGEST::read", mutates_args=())
def read(product: torch.Tensor, number: int) -> torch.Tensor:
    """Stand for another reader of the product, which is then written also where it is fused."""
    return product.new_zeros(1)


@read.register_fake
def _(product, number):
    return product.new_zeros(1)
'''
"""Where more than the graph's output reads a product besides its epilogue: a part of its signature."""

BARE = """
if __name__ == "__main__":
    print(f"{DESCRIBE}: the call cannot be rebuilt: {REASON}")
    for one in OPERANDS:
        print(one)
    sys.exit(3)
"""
"""What a script with metadata only does: it says so, and ends with another status than right and wrong."""

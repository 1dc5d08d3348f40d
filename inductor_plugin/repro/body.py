"""The part of a reproduction script that is the same for every record: plain Python, as text, that needs only torch.

What needs this package too (the record's decision, measuring) is `inductor_plugin.cli.again.child`.
"""

IMPORTS = """
import copy
import sys

import torch
import torch.nn.functional as F
"""

RUN = '''
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


def outside(operand):
    """Return what is passed to the compiled call: an operand, or what `inside` makes it from."""
    if operand["offset"]:
        return storage(operand)
    size, stride = list(operand["size"]), list(operand["stride"])
    while size and stride[0] == 0 and size[0] != 1:
        del size[0], stride[0]
    size = [1 if step == 0 else n for n, step in zip(size, stride)]
    return torch.as_strided(storage(operand), size, stride)


def inside(operand, value):
    """Return an operand from what is passed to the compiled call."""
    if operand["offset"]:
        return torch.as_strided(value, operand["size"], operand["stride"], operand["offset"])
    if 0 in operand["stride"] and operand["name"] != "bias":
        return value.expand(operand["size"])
    return value  # a bias is broadcast by the call itself


def exactly(operand):
    """Return an operand in float64, with the strides it has."""
    flat = storage(operand)
    if flat.is_floating_point() or (EXACT_INTEGERS and flat.dtype is not torch.bool):
        flat = flat.to(torch.float64)
    return torch.as_strided(flat, operand["size"], operand["stride"], operand.get("offset", 0))


class Call(torch.nn.Module):
    """The call; frozen weights are its parameters, the other operands its ``inputs``."""

    def __init__(self):
        super().__init__()
        self.inputs = []
        for index, operand in enumerate(OPERANDS):
            value = outside(operand)
            if operand["constant"]:
                parameter = torch.nn.Parameter(value, requires_grad=False)
                self.register_parameter(f"constant_{operand['name']}", parameter)
                continue
            for at, dim, _low, _high in DYNAMIC:  # sizes that are unknown are so again
                if at == index and operand["stride"][dim] != 0:
                    shift = len(operand["size"]) - value.dim()
                    torch._dynamo.maybe_mark_dynamic(value, dim - shift)
            self.inputs.append(value)
        self.step = torch.as_strided(storage(STEP), STEP["size"], STEP["stride"]) if STEP else None

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
    with torch.set_grad_enabled(GRADIENT):
        if not GRADIENT:
            out = function(*inputs)
            return list(out) if isinstance(out, tuple) else [out]
        leaves = [tensor.detach().requires_grad_() for tensor in inputs[:3]]
        out = function(*leaves, *inputs[3:])
        if step is None:  # the forward pass of a training step
            return [out]
        return list(torch.autograd.grad(out, leaves, step.to(out.dtype)))


def compiled(module, **how):
    """Compile the call and run it; return a function that runs it again."""
    run = torch.compile(copy.copy(module).eval(), **how)  # of one module, Dynamo compiles eight at most

    def again():
        return results(run, module.inputs, module.step)

    with torch._inductor.config.patch(freezing=FREEZING, fx_graph_cache=False):
        again()
    return again


def error(values, wanted):
    """Return the largest error, or its root mean square where JUMPS, relative to that of what is right."""
    errors = [0.0]
    for value, right in zip(values, wanted):
        known = right.isfinite()  # the logarithm of a negative number has no error
        off, right = (value.detach().to(right) - right)[known].abs(), right.detach()[known]
        if len(right):
            scale = right.square().mean().sqrt().clamp_min(1e-30)
            off = off.square().mean().sqrt() if JUMPS else off.max()
            errors.append((off / scale).item())
    return torch.tensor(errors).max().item()  # NaN where a result is NaN


def check(module, run):
    """Compare the compiled call with float64; return the exit status."""
    wide = [exactly(operand) for operand in OPERANDS]
    wanted = results(exact, wide, exactly(STEP) if STEP else None)
    eager = error(results(module, module.inputs, module.step), wanted)
    off, accepted = error(run(), wanted), max(TOLERANCE, TIMES_EAGER * eager)
    right = off <= accepted  # NaN is never right
    print(f"error: {off:.3g}, eager's {eager:.3g}, accepted {accepted:.3g} (of float64's rms)")
    print("right" if right else "WRONG")
    return 0 if right else 1


if __name__ == "__main__":
    if THREADS:
        torch.set_num_threads(THREADS)
    torch.set_float32_matmul_precision(PRECISION)
    torch.use_deterministic_algorithms(DETERMINISTIC, warn_only=True)
    if sys.argv[1:] == ["--stock"]:
        module = Call()
        sys.exit(check(module, compiled(module, mode="max-autotune-no-cudagraphs")))
    from inductor_plugin.cli.again import child

    sys.exit(child.main(sys.modules[__name__]))
'''

BARE = """
if __name__ == "__main__":
    print(f"{DESCRIBE}: the call cannot be rebuilt: {REASON}")
    for operand in OPERANDS:
        print(operand)
    sys.exit(3)
"""
"""The end of a script with metadata only: its exit status differs from those of right and wrong."""

"""Triton programs that are not the project's, of the kinds that Triton's tutorials teach: what the emulator was not written for.

Written anew after https://triton-lang.org/main/getting-started/tutorials (vector addition, fused softmax, matrix products in
groups of rows, layer norm and its gradient with locks, attention, a persistent product through tensor descriptors, products of
numbers that share scales), with sizes that leave edges.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportMissingTypeStubs=false
# pyright: reportPrivateImportUsage=false, reportUntypedFunctionDecorator=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportArgumentType=false
# ruff: noqa: N803

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def add(x, y, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    total = tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside)
    tl.store(out + at, total, mask=inside)


@triton.jit
def softmax(out, x, rows, columns, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    """Each program walks over rows."""
    at = tl.arange(0, BLOCK)
    inside = at < columns
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=STAGES):
        values = tl.load(x + row * columns + at, mask=inside, other=-float("inf"))
        weights = tl.exp(values - tl.max(values, axis=0))
        tl.store(out + row * columns + at, weights / tl.sum(weights, axis=0), mask=inside)


@triton.jit
def leaky(x):
    return tl.where(x >= 0, x, 0.01 * x)


@triton.jit
def matmul(
    a, b, c, m, n, k,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Programs in groups of rows, which share tiles of B in L2."""
    tiles_m, tiles_n = tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N)
    tile = tl.program_id(0)
    first = tile // (GROUP * tiles_n) * GROUP
    rows = min(tiles_m - first, GROUP)
    tile_m = first + tile % (GROUP * tiles_n) % rows
    tile_n = tile % (GROUP * tiles_n) // rows
    at_m = (tile_m * BLOCK_M + tl.arange(0, BLOCK_M)) % m
    at_n = (tile_n * BLOCK_N + tl.arange(0, BLOCK_N)) % n
    at_k = tl.arange(0, BLOCK_K)
    place_a = a + at_m[:, None] * k + at_k[None, :]
    place_b = b + at_k[:, None] * n + at_n[None, :]
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for step in range(tl.cdiv(k, BLOCK_K)):
        left = k - step * BLOCK_K
        tile_a = tl.load(place_a, mask=at_k[None, :] < left, other=0.0)
        tile_b = tl.load(place_b, mask=at_k[:, None] < left, other=0.0)
        total = tl.dot(tile_a, tile_b, total)
        place_a += BLOCK_K
        place_b += BLOCK_K * n
    row = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    column = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    tl.store(c + row * n + column, leaky(total).to(tl.float16), mask=(row < m) & (column < n))


@triton.jit
def layer_norm(x, y, weight, bias, means, rstds, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    x += row * columns
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += tl.load(x + at, mask=at < columns, other=0.0).to(tl.float32)
    mean = tl.sum(total, axis=0) / columns
    squares = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = tl.load(x + at, mask=at < columns, other=0.0).to(tl.float32)
        centered = tl.where(at < columns, value - mean, 0.0)
        squares += centered * centered
    rstd = 1 / tl.sqrt(tl.sum(squares, axis=0) / columns + eps)
    tl.store(means + row, mean)
    tl.store(rstds + row, rstd)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = at < columns
        value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        scaled = (value - mean) * rstd * tl.load(weight + at, mask=inside)
        tl.store(y + row * columns + at, scaled + tl.load(bias + at, mask=inside), mask=inside)


@triton.jit
def layer_norm_gradient(
    dx, dy, dweight, dbias, x, weight, means, rstds, locks, columns,
    GROUP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Rows of a group add to one partial sum, each behind a lock; ``locks`` has a count for each group behind the locks."""
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    value = tl.load(x + row * columns + at, mask=inside, other=0).to(tl.float32)
    up = tl.load(dy + row * columns + at, mask=inside, other=0).to(tl.float32)
    factor = tl.load(weight + at, mask=inside).to(tl.float32)
    mean, rstd = tl.load(means + row), tl.load(rstds + row)
    normal = tl.where(inside, (value - mean) * rstd, 0.0)
    scaled = tl.where(inside, factor * up, 0.0)
    along = tl.sum(normal * scaled, axis=0) / columns
    level = tl.sum(scaled, axis=0) / columns
    tl.store(dx + row * columns + at, (scaled - (normal * along + level)) * rstd, mask=inside)
    group = row % GROUP
    part_weight, part_bias = up * normal, up
    sum_weight, sum_bias = dweight + group * columns + at, dbias + group * columns + at
    lock, count = locks + group, locks + GROUP + group
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    seen = tl.load(count)
    # Not in the tutorial, where a warp that comes late may read the 1 of the exchange (README.md, "Found so far").
    tl.debug_barrier()
    if seen == 0:
        tl.atomic_xchg(count, 1)
    else:
        part_weight += tl.load(sum_weight, mask=inside)
        part_bias += tl.load(sum_bias, mask=inside)
    tl.store(sum_weight, part_weight, mask=inside)
    tl.store(sum_bias, part_bias, mask=inside)
    tl.debug_barrier()  # all threads of the block have stored
    tl.atomic_xchg(lock, 0)


@triton.jit
def attention(
    q, k, v, out, lse, scale, length,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HEAD: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """q, k, v, out are [heads, length, HEAD]; lse is in units of log2."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    base = tl.program_id(1) * length * HEAD
    dims = tl.arange(0, HEAD)
    inside = rows[:, None] < length
    place = rows[:, None] * HEAD + dims[None, :]
    query = tl.load(q + base + place, mask=inside, other=0.0)
    most = tl.full([BLOCK_M], -1.0e6, dtype=tl.float32)
    total = tl.zeros([BLOCK_M], dtype=tl.float32)
    result = tl.zeros([BLOCK_M, HEAD], dtype=tl.float32)
    last = length
    if CAUSAL:
        last = min(length, (tl.program_id(0) + 1) * BLOCK_M)
    for start in tl.range(0, last, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        seen = keys[:, None] < length
        key = tl.load(k + base + keys[:, None] * HEAD + dims[None, :], mask=seen, other=0.0)
        scores = tl.dot(query, tl.trans(key)) * (scale * 1.44269504)
        allowed = keys[None, :] < length
        if CAUSAL:
            allowed = allowed & (rows[:, None] >= keys[None, :])
        scores = tl.where(allowed, scores, -1.0e6)
        higher = tl.maximum(most, tl.max(scores, 1))
        weights = tl.math.exp2(scores - higher[:, None])
        shrunk = tl.math.exp2(most - higher)
        total = total * shrunk + tl.sum(weights, 1)
        value = tl.load(v + base + keys[:, None] * HEAD + dims[None, :], mask=seen, other=0.0)
        result = tl.dot(weights.to(tl.float16), value, result * shrunk[:, None])
        most = higher
    tl.store(lse + tl.program_id(1) * length + rows, most + tl.math.log2(total), mask=rows < length)
    tl.store(out + base + place, (result / total[:, None]).to(tl.float16), mask=inside)


@triton.jit
def persistent(
    a, b, c, m, n, k,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    SPECIALIZE: tl.constexpr,
):  # fmt: skip
    """C = A @ B.T through tensor descriptors; each program walks over tiles."""
    from_a = tl.make_tensor_descriptor(a, [m, k], [k, 1], [BLOCK_M, BLOCK_K])
    from_b = tl.make_tensor_descriptor(b, [n, k], [k, 1], [BLOCK_N, BLOCK_K])
    to_c = tl.make_tensor_descriptor(c, [m, n], [n, 1], [BLOCK_M, BLOCK_N])
    tiles_n = tl.cdiv(n, BLOCK_N)
    tiles = tl.cdiv(m, BLOCK_M) * tiles_n
    for tile in tl.range(
        tl.program_id(0), tiles, tl.num_programs(0), flatten=True, warp_specialize=SPECIALIZE
    ):
        row, column = tile // tiles_n * BLOCK_M, tile % tiles_n * BLOCK_N
        total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for step in range(tl.cdiv(k, BLOCK_K)):
            part = from_a.load([row, step * BLOCK_K])
            other = from_b.load([column, step * BLOCK_K])
            total = tl.dot(part, other.T, total)
        to_c.store([row, column], total.to(tl.float16))


@triton.jit
def scaled(
    a, scales_a, b, scales_b, c, m, n, k,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """C = A @ B.T of float8_e4m3fn, of which 32 along K share a power of two (the MX formats of the Open Compute Project)."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    depth, groups = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_K // 32)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, k, BLOCK_K):
        part = tl.load(a + rows[:, None] * k + start + depth[None, :])
        other = tl.load(b + columns[None, :] * k + start + depth[:, None])
        scale_a = tl.load(scales_a + rows[:, None] * (k // 32) + start // 32 + groups[None, :])
        scale_b = tl.load(scales_b + columns[:, None] * (k // 32) + start // 32 + groups[None, :])
        total = tl.dot_scaled(part, scale_a, "e4m3", other, scale_b, "e4m3", total)
    tl.store(c + rows[:, None] * n + columns[None, :], total)

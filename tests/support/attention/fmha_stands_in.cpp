// Kernels on the host, float32, that a call's own sizes, strides and mask drive; for tests/attention/test_cutlass.py.
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <vector>
#include "mask.h"
#include "interface.h"
#include "call.h"
struct Rows {
  FmhaCall const& c;
  float const* at(void const* p, int64_t const (&s)[3], int64_t b, int64_t h, int64_t i) const {
    return static_cast<float const*>(p) + b * s[0] + h * s[1] + i * s[2];
  }
  float* to(void* p, int64_t const (&s)[3], int64_t b, int64_t h, int64_t i) const {
    return static_cast<float*>(p) + b * s[0] + h * s[1] + i * s[2];
  }
  float score(Mask const& m, int64_t b, int64_t h, int64_t i, int64_t j) const {
    if (!m.keeps(int(i), int(j))) return -INFINITY;
    float const *q = at(c.q, c.stride_q, b, h, i), *k = at(c.k, c.stride_k, b, h / (c.heads / c.heads_kv), j);
    float sum = 0;
    for (int64_t d = 0; d < c.dim; ++d) sum += q[d] * k[d];
    return sum * c.scale;
  }
};
static int32_t forward(FmhaCall const& c) {
  Rows r{c};
  Mask const m = mask_of(c);
  for (int64_t b = 0; b < c.batch; ++b) for (int64_t h = 0; h < c.heads; ++h) for (int64_t i = 0; i < c.seq_q; ++i) {
    float total = 0;
    std::vector<float> sums(c.dim);
    for (int64_t j = 0; j < c.seq_k; ++j) {
      float const p = std::exp(r.score(m, b, h, i, j));
      total += p;
      float const* v = r.at(c.v, c.stride_v, b, h / (c.heads / c.heads_kv), j);
      for (int64_t d = 0; d < c.dim; ++d) sums[d] += p * v[d];
    }
    for (int64_t d = 0; d < c.dim; ++d) r.to(c.out, c.stride_out, b, h, i)[d] = total ? sums[d] / total : 0;
    if (c.lse) c.lse[(b * c.heads + h) * c.seq_q + i] = total ? std::log(total) : INFINITY;
  }
  return kOk;
}
static int32_t backward(FmhaCall const& c) {
  Rows r{c};
  Mask const m = mask_of(c);
  int64_t const group = c.heads / c.heads_kv;
  for (int64_t b = 0; b < c.batch; ++b) {
    for (int64_t h = 0; h < c.heads_kv; ++h) for (int64_t j = 0; j < c.seq_k; ++j) for (int64_t d = 0; d < c.dim; ++d)
      r.to(c.dk, c.stride_dk, b, h, j)[d] = r.to(c.dv, c.stride_dv, b, h, j)[d] = 0;
    for (int64_t h = 0; h < c.heads; ++h) for (int64_t i = 0; i < c.seq_q; ++i) {
      int64_t const row = (b * c.heads + h) * c.seq_q + i;
      float* dq = r.to(c.dq, c.stride_dq, b, h, i);
      for (int64_t d = 0; d < c.dim; ++d) dq[d] = 0;
      for (int64_t j = 0; j < c.seq_k; ++j) {
        float const p = std::exp(r.score(m, b, h, i, j) - c.lse[row]);
        float const *g = r.at(c.d_out, c.stride_d_out, b, h, i), *v = r.at(c.v, c.stride_v, b, h / group, j);
        float dp = 0;
        for (int64_t d = 0; d < c.dim; ++d) dp += g[d] * v[d];
        float const ds = p * (dp - c.delta[row]) * c.scale;
        for (int64_t d = 0; d < c.dim; ++d) {
          dq[d] += ds * r.at(c.k, c.stride_k, b, h / group, j)[d];
          r.to(c.dk, c.stride_dk, b, h / group, j)[d] += ds * r.at(c.q, c.stride_q, b, h, i)[d];
          r.to(c.dv, c.stride_dv, b, h / group, j)[d] += p * g[d];
        }
      }
    }
  }
  return kOk;
}
static int32_t entry(int32_t mode, FmhaCall* c, uint64_t* bytes, bool back) {
  if (mode == kWorkspaceBytes) *bytes = back ? 256 : 0;
  if (mode != kRun) return kOk;
  if (back && (!c->workspace || c->workspace_bytes < 256)) return kWorkspace;
  return back ? backward(*c) : forward(*c);
}
extern "C" int32_t forward_kernel(int32_t mode, FmhaCall* c, uint64_t* bytes, void*) {
  return entry(mode, c, bytes, false);
}
extern "C" int32_t backward_kernel(int32_t mode, FmhaCall* c, uint64_t* bytes, void*) {
  return entry(mode, c, bytes, true);
}
static void* seen;
extern "C" int32_t stream_kernel(int32_t mode, FmhaCall*, uint64_t* bytes, void* stream) {
  if (mode == kWorkspaceBytes) *bytes = 0;
  if (mode == kRun) seen = stream;
  return kOk;
}
extern "C" int64_t seen_stream() { return reinterpret_cast<int64_t>(seen); }

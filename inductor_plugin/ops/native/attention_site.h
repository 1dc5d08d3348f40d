// The call of an attention's kernel from tensors: the fields that `inductor_plugin.attention.cutlass_call` writes, by the
// rules of `inductor_plugin.attention.cutlass_rules`.

struct AttentionSite {
  // As in `inductor_plugin.ops.sites`, by the operator's name.
  enum Kind : int32_t { kForward, kOutput, kBackward };

  int32_t kind;
  int32_t bottom_right;
  int64_t left, right;
  float scale;

  int32_t arguments() const { return kind == kForward ? 4 : kind == kOutput ? 3 : 9; }

  // Returns false where the tensors do not fit each other, or a last dimension is not contiguous.
  bool fill(FmhaCall& call, View const* views, View const& out, int32_t sm_count) const {
    View const* const qkv = views + (kind == kBackward ? 1 : 0);
    View const &q = qkv[0], &k = qkv[1], &v = qkv[2];
    if (q.dim != 4 || k.dim != 4 || k.dtype != q.dtype || v.dtype != q.dtype) return false;
    call.batch = q.size[0], call.heads = q.size[1], call.seq_q = q.size[2], call.dim = q.size[3];
    call.heads_kv = k.size[1], call.seq_k = k.size[2];
    call.scale = scale, call.window_left = left, call.window_right = right, call.bottom_right = bottom_right;
    call.sm_count = sm_count, call.device = out.device > 0 ? out.device : 0;  // -1: a CPU, where tests run
    if (!same(k, q.size[0], call.heads_kv, call.seq_k, call.dim) || !same(v, k)) return false;
    if (!take(q, call.q, call.stride_q) || !take(k, call.k, call.stride_k) || !take(v, call.v, call.stride_v)) return false;
    return kind == kBackward ? fill_backward(call, views, out) : fill_forward(call, views, out);
  }

 private:
  static bool same(View const& view, int64_t batch, int64_t heads, int64_t rows, int64_t dim) {
    return view.dim == 4 && view.size[0] == batch && view.size[1] == heads && view.size[2] == rows && view.size[3] == dim;
  }

  static bool same(View const& view, View const& other) {
    return same(view, other.size[0], other.size[1], other.size[2], other.size[3]);
  }

  template <class Pointer>
  static bool take(View const& view, Pointer& pointer, int64_t (&stride)[3]) {
    if (view.size[3] > 1 && view.stride[3] != 1) return false;
    pointer = view.pointer;
    for (int at = 0; at < 3; ++at) stride[at] = view.stride[at];
    return true;
  }

  // float32 [batch, heads, seq_q], dense.
  static bool take_rows(View const& view, FmhaCall const& call, float const*& pointer) {
    if (view.dtype != torch_.float32 || !view.dense()) return false;
    if (view.numel() != call.batch * call.heads * call.seq_q) return false;
    pointer = static_cast<float const*>(view.pointer);
    return true;
  }

  bool fill_forward(FmhaCall& call, View const* views, View const& out) const {
    int32_t const q = views[0].dtype;
    if (out.dtype != (q == torch_.float8_e4m3fn ? torch_.bfloat16 : q)) return false;
    if (!same(out, views[0]) || !take(out, call.out, call.stride_out)) return false;
    if (kind == kOutput || !views[3].given) return true;
    float const* lse;
    if (!take_rows(views[3], call, lse)) return false;
    call.lse = const_cast<float*>(lse);
    return true;
  }

  bool fill_backward(FmhaCall& call, View const* views, View const& out) const {
    View const &d_out = views[0], &q = views[1], &k = views[2], &dq = views[7], &dv = views[8];
    float const* lse;
    View const* const like_q[] = {&d_out, &dq, &dv, &out};
    for (View const* view : like_q) {
      if (view->dtype != q.dtype) return false;
    }
    if (!same(d_out, q) || !same(dq, q) || !same(dv, k) || !same(out, k)) return false;
    if (!take_rows(views[5], call, lse) || !take_rows(views[6], call, call.delta)) return false;
    call.lse = const_cast<float*>(lse);
    return take(d_out, call.d_out, call.stride_d_out) && take(dq, call.dq, call.stride_dq) &&
           take(out, call.dk, call.stride_dk) && take(dv, call.dv, call.stride_dv);
  }
};

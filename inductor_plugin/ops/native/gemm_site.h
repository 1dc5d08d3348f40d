// The call of a product's kernel from tensors: the fields that `inductor_plugin.ops.gemm_call` writes, by the rules of
// `inductor_plugin.ops.gemm_rules`.

struct GemmSite {
  // As in `inductor_plugin.ops.sites`, by the operator's name.
  enum Kind : int32_t { kProduct, kAdded, kScaled, kScaledAdded, kGrouped, kFused };
  enum Bias : int32_t { kNone, kRow, kColumn, kFull };
  enum Scale : int32_t { kAnyScale, kPerTensor, kPerRow };

  int32_t kind;
  int32_t rows_a, rows_b;  // whether the last dimension of A and B is contiguous: the letter "t"
  int32_t swizzle, raster, split_k;
  int32_t bias;
  int32_t operands, aux;  // of an epilogue
  float alpha, beta;
  int32_t scale = kAnyScale;

  int32_t arguments() const {
    int32_t const counts[] = {2, 3, 4, 5, 3, 2 + operands + aux};
    return counts[kind];
  }

  // Returns false where the tensors do not fit each other: then torch's own check words the error.
  bool fill(GemmCall& call, View const* views, View const& out, int32_t sm_count) const {
    View const& a = views[kind == kAdded ? 1 : 0];
    View const& b = views[kind == kAdded ? 2 : 1];
    if (a.dim < 2 || b.dim < 2 || a.dim > 3 || b.dim > 3) return false;
    call.a = a.pointer, call.b = b.pointer;
    call.k = a.extent(1);
    call.lead_a = a.step(rows_a ? 2 : 1), call.lead_b = b.step(rows_b ? 2 : 1);
    if (!adjacent(a, rows_a ? 1 : 2) || !adjacent(b, rows_b ? 1 : 2)) return false;
    // Only fp8 has two types, in products that are scaled, by their kernel or an epilogue.
    if (a.dtype != b.dtype && kind != kScaled && kind != kScaledAdded && kind != kFused) return false;
    call.alpha = 1.0f, call.batch = 1;
    call.sm_count = sm_count, call.swizzle = swizzle, call.raster = raster, call.split_k = split_k;
    if (b.extent(2) != call.k) return false;
    if (kind == kGrouped) return fill_grouped(call, a, b, views[2], out);
    if (a.dim != b.dim) return false;
    call.m = a.extent(2), call.n = b.extent(1);
    if (a.dim > 2) {
      call.batch = a.size[0];
      if (b.size[0] != call.batch) return false;
      call.batch_a = a.stride[0], call.batch_b = b.stride[0];
    }
    Target d;
    if ((kind != kFused && out.dim != a.dim) || !d.of(out, call, kind == kFused)) return false;
    call.d = out.pointer, call.lead_d = d.lead, call.batch_d = d.batch;
    if (kind == kAdded) return fill_added(call, views[0], a.dim);
    if (kind == kScaled || kind == kScaledAdded) return fill_scaled(call, views);
    return kind != kFused || fill_operands(call, views + 2);
  }

 private:
  // Counted from the last dimension.
  static bool adjacent(View const& view, int64_t from) { return view.extent(from) <= 1 || view.step(from) == 1; }

  bool fill_scaled(GemmCall& call, View const* views) const {
    View const &scale_a = views[2], &scale_b = views[3];
    View const* const scales[] = {&scale_a, &scale_b};
    for (View const* view : scales) {
      if (view->dtype != torch_.float32 || !view->dense()) return false;
    }
    bool const one = scale_a.numel() == 1 && scale_b.numel() == 1;
    bool const each = scale_a.numel() == call.m && scale_b.numel() == call.n;
    if (scale == kPerTensor ? !one : scale == kPerRow ? !each : !one && !each) return false;
    call.scale_a = scale_a.pointer, call.scale_b = scale_b.pointer;
    if (kind != kScaledAdded) return true;
    if (views[4].dim != 1 || views[4].size[0] != call.n || !views[4].dense()) return false;
    call.c = views[4].pointer, call.beta = 1.0f;
    return true;
  }

  // The strides of an output under D[batch, m, n]; that of an epilogue may be a view of D, (batch * m, n) for one.
  struct Target {
    int64_t lead, column, batch;

    bool of(View const& out, GemmCall const& call, bool maybe_view) {
      bool const batched = call.batch > 1 || out.dim > 2;
      if (out.dim == (batched ? 3 : 2) && out.extent(2) == call.m && out.extent(1) == call.n &&
          (!batched || out.size[0] == call.batch)) {
        lead = out.step(2), column = out.step(1), batch = batched ? out.stride[0] : 0;
        return call.n == 1 || column == 1;
      }
      lead = call.n, column = 1, batch = call.batch > 1 ? call.m * call.n : 0;
      return maybe_view && out.dense() && out.numel() == call.batch * call.m * call.n;
    }
  };

  bool fill_grouped(GemmCall& call, View const& a, View const& b, View const& offsets, View const& out) const {
    if (a.dim != 2 || b.dim != 3 || out.dim != 2 || offsets.dim != 1 || offsets.size[0] != b.size[0]) return false;
    if (offsets.dtype != torch_.int32 || !offsets.dense()) return false;
    call.m = a.size[0], call.n = b.extent(1), call.batch = b.size[0];
    if (out.size[0] != call.m || out.size[1] != call.n || (call.n > 1 && out.stride[1] != 1)) return false;
    call.batch_b = b.stride[0], call.lead_d = out.stride[0], call.d = out.pointer;
    call.offsets = static_cast<int32_t const*>(offsets.pointer);
    return true;
  }

  bool fill_added(GemmCall& call, View const& c, int64_t dim) const {
    call.alpha = alpha;
    if (bias == kNone) return true;
    if (c.dim < 1 || c.dim > dim) return false;
    if (c.dim > 2 && c.size[0] != 1 && c.size[0] != call.batch) return false;
    if (!is_along(c, 1, call.n, bias != kColumn) || !is_along(c, 2, call.m, bias != kRow)) return false;
    if ((bias == kColumn ? call.m : call.n) > 1 && c.step(bias == kColumn ? 2 : 1) != 1) return false;
    call.beta = beta, call.c = c.pointer;
    call.batch_c = c.dim > 2 && c.size[0] > 1 ? c.stride[0] : 0;
    if (bias == kFull) call.lead_c = c.step(2);
    return true;
  }

  // As long as D along a dimension that is read, the same everywhere along another.
  static bool is_along(View const& c, int64_t from, int64_t extent, bool read) {
    if (c.dim < from) return !read;
    if (c.extent(from) != extent && (read || c.extent(from) != 1)) return false;
    return read || c.extent(from) == 1 || c.step(from) == 0;
  }

  // What the epilogue reads, then what it writes besides D: each as long as D or 1 along each dimension.
  bool fill_operands(GemmCall& call, View const* views) const {
    int64_t const extent[3] = {call.batch, call.m, call.n};
    for (int32_t at = 0; at < operands + aux; ++at) {
      View const& view = views[at];
      GemmOperand& operand = call.operands[at];
      operand.pointer = view.pointer;
      if (at >= operands) {
        Target written;
        if (!written.of(view, call, true)) return false;
        operand.along_m = call.m == 1 ? 0 : written.lead, operand.along_n = call.n == 1 ? 0 : written.column;
        operand.batch = call.batch == 1 ? 0 : written.batch;
        continue;
      }
      if (view.dim < 2 || view.dim > 3) return false;
      for (int64_t from = 1; from <= view.dim; ++from) {
        int64_t const own = view.extent(from);
        if (own != 1 && own != extent[3 - from]) return false;
      }
      operand.along_m = view.extent(2) == 1 ? 0 : view.step(2);
      operand.along_n = view.extent(1) == 1 ? 0 : view.step(1);
      operand.batch = view.dim > 2 && view.size[0] != 1 ? view.stride[0] : 0;
    }
    return true;
  }
};

// Attention on a CPU, a block of queries at a time: what `inductor_plugin.attention.blockwise` computes, without Python.
// Scores and sums are in float, or double for operands of double. Blocks are shared out among torch's threads.

// Inductor compiles programs without automatic vectors and without the vector functions of libm: loops say that they want
// them, and this is exp(x) of a float for x <= 0, within 2 units in the last place (Cephes, expf.c); smaller than e^-87 is 0.
inline float exponential(float x) {
  float const least = -87.0f;
  float const clipped = x < least ? least : x;
  float const power = __builtin_rintf(clipped * 1.44269504088896341f);
  float const rest = (clipped - power * 0.693359375f) + power * 2.12194440e-4f;
  float value = 1.9875691500e-4f;
  value = value * rest + 1.3981999507e-3f;
  value = value * rest + 8.3334519073e-3f;
  value = value * rest + 4.1665795894e-2f;
  value = value * rest + 1.6666665459e-1f;
  value = value * rest + 5.0000001201e-1f;
  value = value * rest * rest + rest + 1.0f;
  int32_t const bits = (static_cast<int32_t>(power) + 127) << 23;
  float factor;
  std::memcpy(&factor, &bits, sizeof factor);
  return x < least ? 0.0f : value * factor;
}
inline double exponential(double x) { return std::exp(x); }

template <class Number>
inline Number tangent(Number x) {
  Number const shrunk = exponential(Number{-2} * std::abs(x));
  return std::copysign((1 - shrunk) / (1 + shrunk), x);
}

struct AttentionOperands {
  AtenTensorHandle q, k, v, bias, cu_q, cu_k;  // the last three may be null
  AtenTensorHandle lse, out;                   // written; lse may be null
  int64_t max_q, max_k;                        // of the sequences; 0: not said
};

struct AttentionScores {
  double scale, softcap;
  int64_t left, right;
  bool bottom_right;
};

template <class Number>
class AttentionBlocks {
 public:
  AttentionBlocks(AttentionOperands const& operands, AttentionScores const& scores) : x_(operands), scores_(scores) {
    packed_ = x_.cu_q != nullptr;
    q_ = rows_of(x_.q), k_ = rows_of(x_.k), v_ = rows_of(x_.v), out_ = rows_of(x_.out);
    if (x_.bias) read(bias_, x_.bias);
    if (x_.lse) read(lse_, x_.lse);
    group_ = q_.heads / k_.heads;
  }

  void run() {
    sequences();
    for (auto const& sequence : sequences_) split(sequence);
    // A number of another type would lose bits in a pointer's cast: torch takes a function and an address.
    auto const each = [](int64_t begin, int64_t end, void* self) {
      for (int64_t at = begin; at < end; ++at) static_cast<AttentionBlocks*>(self)->guarded(at);
    };
    check(torch_parallel_for(0, static_cast<int64_t>(blocks_.size()), 1, each, this), "threads");
    if (!error_.empty()) throw std::runtime_error(error_);
  }

 private:
  // As in blockwise.py, where all threads share a block; here each has its own: 4 MiB of scores from 8192 keys on, less
  // below. Smaller blocks would fit a core's L2 cache there, and read keys and values more often.
  static constexpr int64_t kBlockRows = 128, kBlockBytes = 4 << 20;

  // A tensor [batch, heads, rows, columns], or [rows, heads, columns] of sequences behind one another.
  struct Rows {
    AtenTensorHandle handle;
    int64_t batch, heads, rows, columns;
    int64_t along_batch, along_head, along_row, along_column;
    int32_t dtype;
  };

  struct Sequence {
    int64_t batch, first_q, rows, first_k, keys;
  };

  struct Block {
    Sequence sequence;
    int64_t kv_head, row, rows, key, keys;  // row and key count from the beginning of the sequence
  };

  using Owned = torch::aot_inductor::RAIIAtenTensorHandle;

  static void check(AOTITorchError error, char const* what) {
    if (error) throw std::runtime_error(std::string("inductor-plugin: fmha: torch refuses ") + what);
  }

  static void read(View& view, AtenTensorHandle tensor) {
    if (!view.read(tensor)) throw std::runtime_error("inductor-plugin: fmha: an operand cannot be read");
  }

  Rows rows_of(AtenTensorHandle tensor) const {
    View view;
    read(view, tensor);
    int64_t const *n = view.size, *s = view.stride;
    if (packed_) return {tensor, 1, n[1], n[0], n[2], 0, s[1], s[0], s[2], view.dtype};
    return {tensor, n[0], n[1], n[2], n[3], s[0], s[1], s[2], s[3], view.dtype};
  }

  void sequences() {
    if (!packed_) {
      for (int64_t at = 0; at < q_.batch; ++at) sequences_.push_back({at, 0, q_.rows, 0, k_.rows});
      return;
    }
    View ends_q, ends_k;
    read(ends_q, x_.cu_q), read(ends_k, x_.cu_k);
    if (ends_q.size[0] != ends_k.size[0]) {
      throw std::runtime_error("inductor-plugin: fmha: cu_seqlens_q and cu_seqlens_k differ in length");
    }
    for (int64_t at = 0; at + 1 < ends_q.size[0]; ++at) {
      auto const [first_q, rows] = range("cu_seqlens_q", ends_q, at, q_.rows, x_.max_q);
      auto const [first_k, keys] = range("cu_seqlens_k", ends_k, at, k_.rows, x_.max_k);
      if (x_.bias) check_bias(2, rows), check_bias(1, keys);
      sequences_.push_back({at, first_q, rows, first_k, keys});
    }
  }

  // The lengths of sequences are values: the shape of the bias was checked without them.
  void check_bias(int64_t from_last, int64_t length) const {
    if (from_last > bias_.dim || bias_.extent(from_last) == 1 || bias_.extent(from_last) >= length) return;
    throw std::runtime_error("inductor-plugin: fmha: the bias has " + std::to_string(bias_.extent(from_last)) +
                             " numbers where a sequence has " + std::to_string(length));
  }

  static std::pair<int64_t, int64_t> range(char const* name, View const& ends, int64_t at, int64_t tokens, int64_t longest) {
    auto const end = [&](int64_t index) {
      return int64_t{static_cast<int32_t const*>(ends.pointer)[index * ends.stride[0]]};
    };
    int64_t const first = end(at), next = end(at + 1), last = end(ends.size[0] - 1);
    std::string const words = std::string("inductor-plugin: fmha: ") + name + " ";
    if (end(0) != 0) throw std::runtime_error(words + "begins with " + std::to_string(end(0)) + "; the first sequence begins at 0");
    if (last != tokens) {
      throw std::runtime_error(words + "ends at " + std::to_string(last) + ", and there are " + std::to_string(tokens) + " tokens");
    }
    if (next < first) {
      throw std::runtime_error(words + "decreases from " + std::to_string(first) + " to " + std::to_string(next));
    }
    if (longest && next - first > longest) {
      throw std::runtime_error(words + "has a sequence of " + std::to_string(next - first) + " tokens, and the longest has " +
                               std::to_string(longest));
    }
    return {first, next - first};
  }

  void split(Sequence const& s) {
    int64_t const shift = scores_.bottom_right ? s.keys - s.rows : 0;
    int64_t rows = std::min(s.rows, kBlockRows);
    int64_t span = s.keys;
    if (scores_.left >= 0 && scores_.right >= 0) span = std::min(span, saturated(scores_.left, saturated(scores_.right, rows)));
    int64_t const row_bytes = group_ * std::max<int64_t>(span, 1) * static_cast<int64_t>(sizeof(Number));
    rows = std::max<int64_t>(1, std::min(rows, kBlockBytes / row_bytes));
    for (int64_t head = 0; head < k_.heads; ++head) {
      for (int64_t row = 0; row < s.rows; row += rows) {
        int64_t const count = std::min(rows, s.rows - row);
        int64_t low = 0, high = s.keys;
        if (scores_.left >= 0) low = std::min(std::max(saturated(row + shift, -scores_.left), int64_t{0}), s.keys);
        if (scores_.right >= 0) high = std::min(saturated(row + count + shift, scores_.right), s.keys);
        blocks_.push_back({s, head, row, count, low, std::max<int64_t>(high - low, 0)});
      }
    }
  }

  // The sides of a window may have 63 bits.
  static int64_t saturated(int64_t a, int64_t b) {
    int64_t sum;
    if (!__builtin_add_overflow(a, b, &sum)) return sum;
    return a < 0 ? std::numeric_limits<int64_t>::min() : std::numeric_limits<int64_t>::max();
  }

  void guarded(int64_t at) noexcept {
    try {
      compute(blocks_[at]);
    } catch (std::exception const& error) {
      std::lock_guard<std::mutex> lock(mutex_);  // taken by blocks that fail alone
      error_ = error.what();
    }
  }

  void compute(Block const& b) {
    int64_t const rows = group_ * b.rows;
    Owned const sums = memory({rows, v_.columns});
    std::vector<Number> total(rows, Number{0});
    if (b.keys) {
      Owned const queries = memory({group_, b.rows, q_.columns});
      copy(queries, view(q_, b, {group_, b.rows, q_.columns}));
      Number* const query = numbers(queries);
#pragma omp simd
      for (int64_t at = 0; at < rows * q_.columns; ++at) query[at] *= static_cast<Number>(scores_.scale);
      Owned const flat = reshaped<2>(queries, {rows, q_.columns}, {q_.columns, 1}, 0);
      Owned const keys = keys_of(k_, b, /*turned=*/true), values = keys_of(v_, b, /*turned=*/false);
      Owned const weights = memory({rows, b.keys});
      check(aoti_torch_cpu_mm_out(weights, flat, keys), "the scores");
      if (scores_.softcap != 0) cap(weights, rows * b.keys);
      if (x_.bias) add_bias(b, weights);
      for (int64_t row = 0; row < rows; ++row) total[row] = exponentials(b, row, numbers(weights) + row * b.keys);
      check(aoti_torch_cpu_mm_out(sums, weights, values), "the sums");
    } else {
      for (int64_t row = 0; row < rows; ++row) write_lse(b, row, std::numeric_limits<Number>::infinity());
    }
    Number* const sum = numbers(sums);
    for (int64_t row = 0; row < rows; ++row) {
      Number const divisor = total[row];
#pragma omp simd
      for (int64_t at = row * v_.columns; at < (row + 1) * v_.columns; ++at) sum[at] = divisor == 0 ? 0 : sum[at] / divisor;
    }
    Owned const result = reshaped<3>(sums, {group_, b.rows, v_.columns}, {b.rows * v_.columns, v_.columns, 1}, 0);
    copy(view(out_, b, {group_, b.rows, v_.columns}), result);
  }

  void cap(AtenTensorHandle weights, int64_t count) const {
    Number* const score = numbers(weights);
    Number const limit = static_cast<Number>(scores_.softcap);
#pragma omp simd
    for (int64_t at = 0; at < count; ++at) score[at] = limit * tangent(score[at] / limit);
  }

  // The bias broadcasts to [batch, heads, queries, keys]; dimensions of 1 and those it lacks have the stride 0.
  void add_bias(Block const& b, AtenTensorHandle weights) const {
    auto const stride = [&](int64_t from_last) {
      return from_last > bias_.dim || bias_.extent(from_last) == 1 ? 0 : bias_.step(from_last);
    };
    int64_t const offset = b.sequence.batch * stride(4) + b.kv_head * group_ * stride(3) + b.row * stride(2) + b.key * stride(1);
    Owned const part = reshaped<3>(x_.bias, {group_, b.rows, b.keys}, {stride(3), stride(2), stride(1)}, offset);
    Owned const added = memory({group_, b.rows, b.keys});
    copy(added, part);
    Number *const score = numbers(weights), *const term = numbers(added);
#pragma omp simd
    for (int64_t at = 0; at < group_ * b.rows * b.keys; ++at) score[at] += term[at];
  }

  // Replaces a row of scores by exp(score - highest), 0 where the mask hides a key, and returns their sum.
  Number exponentials(Block const& b, int64_t row, Number* score) {
    Number const infinity = std::numeric_limits<Number>::infinity();
    int64_t const shift = scores_.bottom_right ? b.sequence.keys - b.sequence.rows : 0;
    int64_t const diagonal = b.row + row % b.rows + shift - b.key;
    int64_t const low = scores_.left >= 0 ? std::min(std::max<int64_t>(saturated(diagonal, -scores_.left), 0), b.keys) : 0;
    int64_t const high =
        scores_.right >= 0 ? std::max(std::min(saturated(diagonal, scores_.right), b.keys - 1) + 1, low) : b.keys;
    Number highest = -infinity;
#pragma omp simd reduction(max : highest)
    for (int64_t at = low; at < high; ++at) highest = highest < score[at] ? score[at] : highest;
    int64_t unordered = 0;  // a NaN among the scores makes the row NaN, as in torch.softmax
#pragma omp simd reduction(+ : unordered)
    for (int64_t at = low; at < high; ++at) unordered += score[at] != score[at];
    if (highest == -infinity && !unordered) {
      std::fill(score, score + b.keys, Number{0});
      write_lse(b, row, infinity);
      return 0;
    }
    std::fill(score, score + low, Number{0});
    std::fill(score + high, score + b.keys, Number{0});
    Number total = 0;
#pragma omp simd reduction(+ : total)
    for (int64_t at = low; at < high; ++at) {
      score[at] = exponential(score[at] - highest);
      total += score[at];
    }
    write_lse(b, row, highest == infinity && !unordered ? infinity : highest + std::log(total));
    return total;
  }

  void write_lse(Block const& b, int64_t row, Number value) {
    if (!x_.lse) return;
    int64_t const head = b.kv_head * group_ + row / b.rows, query = b.row + row % b.rows;
    int64_t const* const s = lse_.stride;
    int64_t const offset = packed_ ? head * s[0] + (b.sequence.first_q + query) * s[1]
                                   : b.sequence.batch * s[0] + head * s[1] + query * s[2];
    static_cast<Number*>(lse_.pointer)[offset] = value;
  }

  // Keys [columns, keys] or values [keys, columns] of a block, in the type of the sums.
  Owned keys_of(Rows const& x, Block const& b, bool turned) const {
    int64_t const offset = (packed_ ? 0 : b.sequence.batch * x.along_batch) + b.kv_head * x.along_head +
                           (b.sequence.first_k + b.key) * x.along_row;
    Owned part = reshaped<2>(x.handle, {b.keys, x.columns}, {x.along_row, x.along_column}, offset);
    if (x.dtype != type()) {
      Owned converted = memory({b.keys, x.columns});
      copy(converted, part);
      part = std::move(converted);
      return turned ? reshaped<2>(part, {x.columns, b.keys}, {1, x.columns}, 0) : std::move(part);
    }
    return turned ? reshaped<2>(part, {x.columns, b.keys}, {x.along_column, x.along_row}, 0) : std::move(part);
  }

  // The queries of a block, or their results: [group, rows, columns].
  Owned view(Rows const& x, Block const& b, std::array<int64_t, 3> const& size) const {
    int64_t const offset = (packed_ ? 0 : b.sequence.batch * x.along_batch) + b.kv_head * group_ * x.along_head +
                           (b.sequence.first_q + b.row) * x.along_row;
    return reshaped<3>(x.handle, size, {x.along_head, x.along_row, x.along_column}, offset);
  }

  template <size_t dims>
  static Owned reshaped(AtenTensorHandle tensor, std::array<int64_t, dims> const& size,
                        std::array<int64_t, dims> const& stride, int64_t offset) {
    AtenTensorHandle result;
    check(aoti_torch__reinterpret_tensor(tensor, dims, size.data(), stride.data(), offset, &result), "a view");
    return Owned(result);
  }

  static Owned memory(std::initializer_list<int64_t> size) {
    std::vector<int64_t> stride(size.size(), 1);
    for (size_t at = size.size() - 1; at > 0; --at) stride[at - 1] = stride[at] * size.begin()[at];
    AtenTensorHandle result;
    check(aoti_torch_empty_strided(static_cast<int64_t>(size.size()), size.begin(), stride.data(), type(),
                                   aoti_torch_device_type_cpu(), 0, &result),
          "memory");
    return Owned(result);
  }

  static void copy(AtenTensorHandle to, AtenTensorHandle from) { check(aoti_torch_copy_(to, from, 0), "a copy"); }

  static Number* numbers(AtenTensorHandle tensor) {
    void* pointer;
    check(aoti_torch_get_data_ptr(tensor, &pointer), "an address");
    return static_cast<Number*>(pointer);
  }

  static int32_t type() { return sizeof(Number) == 8 ? aoti_torch_dtype_float64() : aoti_torch_dtype_float32(); }

  AttentionOperands x_;
  AttentionScores scores_;
  bool packed_;
  Rows q_, k_, v_, out_;
  View bias_, lse_;
  int64_t group_;
  std::vector<Sequence> sequences_;
  std::vector<Block> blocks_;
  std::mutex mutex_;
  std::string error_;
};

inline void attention_blocks(AttentionOperands const& operands, AttentionScores const& scores) {
  View q;
  if (q.read(operands.q) && q.dtype == aoti_torch_dtype_float64()) {
    AttentionBlocks<double>(operands, scores).run();
  } else {
    AttentionBlocks<float>(operands, scores).run();
  }
}

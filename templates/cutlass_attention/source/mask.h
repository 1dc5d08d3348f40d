// Which keys a query sees, and which tiles that makes; plain C++, so that a host test can count all of them.
#if defined(__CUDACC__)
#define FMHA_ANYWHERE __host__ __device__
#else
#define FMHA_ANYWHERE
#endif

// Tiles from begin on, up to end, which is not one of them.
struct Tiles {
  int begin, end;
};

// Query i sees key j where i + lower <= j <= i + upper and j < seq_k.
struct Mask {
  int lower, upper, seq_q, seq_k;

  static constexpr int64_t kFar = int64_t(1) << 30;  // beyond every sequence

  static FMHA_ANYWHERE int near(int64_t offset) {
    return int(offset < -kFar ? -kFar : offset > kFar ? kFar : offset);
  }

  // A negative window is unlimited; bottom_right counts it from the last key, else from the first.
  static FMHA_ANYWHERE Mask of(int64_t seq_q, int64_t seq_k, int64_t left, int64_t right, bool bottom_right) {
    int64_t const offset = bottom_right ? seq_k - seq_q : 0;
    return {left < 0 ? near(-kFar) : near(offset - (left < kFar ? left : 2 * kFar)),
            right < 0 ? near(kFar) : near(offset + (right < kFar ? right : 2 * kFar)), int(seq_q), int(seq_k)};
  }

  FMHA_ANYWHERE bool keeps(int query, int key) const {
    int const ahead = key - query;  // one register for all pairs of a thread, which differ by constants
    return ahead >= lower && ahead <= upper && key < seq_k;
  }

  FMHA_ANYWHERE int last_of(int query, int rows) const {
    return (query + rows < seq_q ? query + rows : seq_q) - 1;
  }

  // Key tiles that queries [query, query + rows) see. Where they see nothing it is one tile all the same:
  // the pipelines of the kernel run over at least one, and masking all of it writes the right zeros.
  FMHA_ANYWHERE Tiles key_tiles(int query, int rows, int columns) const {
    int const low = query + lower > 0 ? query + lower : 0;
    int const seen = last_of(query, rows) + upper + 1;
    int const high = seen < seq_k ? seen : seq_k;
    if (high > low) return {low / columns, (high + columns - 1) / columns};
    int const last = (seq_k - 1) / columns, begin = low / columns < last ? low / columns : last;
    return {begin, begin + 1};
  }

  // Whether all queries of a tile see all its keys, so that nothing is to be hidden.
  FMHA_ANYWHERE bool whole(int query, int rows, int key, int columns) const {
    return key >= last_of(query, rows) + lower && key + columns - 1 <= query + upper && key + columns <= seq_k;
  }

  // Query tiles that see any of keys [key, key + columns); one tile where there are none, as above.
  FMHA_ANYWHERE Tiles query_tiles(int key, int columns, int rows) const {
    int const last_key = (key + columns < seq_k ? key + columns : seq_k) - 1;
    int const low = key - upper > 0 ? key - upper : 0;
    int const seen = last_key - lower + 1;
    int const high = seen < seq_q ? seen : seq_q;
    if (high > low) return {low / rows, (high + rows - 1) / rows};
    return {0, 1};
  }
};

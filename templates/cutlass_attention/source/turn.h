// How V of one byte an element is turned, a block at a time; plain C++, so that a host test can turn all of it.
constexpr int kTurnSide = 64, kTurnThreads = 256;

// Keys of a line of the turned V: TMA begins lines at multiples of 16 bytes.
FMHA_ANYWHERE inline int64_t turned_line(FmhaCall const& call) { return (call.seq_k + 15) / 16 * 16; }

FMHA_ANYWHERE inline int64_t turn_tiles(int64_t extent) { return (extent + kTurnSide - 1) / kTurnSide; }

// 64 keys of 64 columns of one head, turned by one block; what is outside of V becomes zeros.
struct Turn {
  FmhaCall const& call;
  int64_t pair, key, column;

  FMHA_ANYWHERE Turn(FmhaCall const& call, int64_t block, int64_t side)
      : call(call), pair(block / turn_tiles(call.seq_k)), key(block % turn_tiles(call.seq_k) * kTurnSide),
        column(side * kTurnSide) {}

  // A thread reads four columns of four keys, and keeps the keys of each column together.
  FMHA_ANYWHERE void take(int thread, uint32_t (&words)[kTurnSide][kTurnSide / 4 + 1]) const {
    int const quad = thread % 16, group = thread / 16;
    int64_t const batch = pair / call.heads_kv, head = pair % call.heads_kv, from = column + quad * 4;
    auto const* const v = static_cast<uint8_t const*>(call.v) + batch * call.stride_v[0] + head * call.stride_v[1];
    uint32_t rows[4], columns[4] = {0, 0, 0, 0};
    for (int at = 0; at < 4; ++at) {
      int64_t const row = key + group * 4 + at;
      bool const inside = row < call.seq_k && from < call.dim;
      rows[at] = inside ? *reinterpret_cast<uint32_t const*>(v + row * call.stride_v[2] + from) : 0;
    }
    for (int to = 0; to < 4; ++to) {
      for (int at = 0; at < 4; ++at) columns[to] |= (rows[at] >> 8 * to & 0xff) << 8 * at;
      words[quad * 4 + to][group] = columns[to];
    }
  }

  // A thread writes 16 keys of one column.
  FMHA_ANYWHERE void give(int thread, uint32_t const (&words)[kTurnSide][kTurnSide / 4 + 1]) const {
    int const line = thread / 4, quarter = thread % 4;
    int64_t const keys = turned_line(call), to = key + quarter * 16;
    if (column + line >= call.dim || to >= keys) return;
    auto* const lines = static_cast<uint8_t*>(call.workspace) + pair * call.dim * keys;
    auto* const place = reinterpret_cast<uint32_t*>(lines + (column + line) * keys + to);
    for (int at = 0; at < 4; ++at) place[at] = words[line][quarter * 4 + at];
  }
};

"""Headers of the kernels that compute indices alone: compiled for the host, and compared with every case."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support.repository import REPOSITORY

SOURCE = REPOSITORY / "templates" / "cutlass_attention" / "source"


MASK_CASES = r"""
#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include "mask.h"
int main() {
  long cases = 0, wrong = 0;
  for (int sq : {1, 7, 64, 65, 130, 200}) for (int sk : {1, 8, 64, 129, 200}) for (int corner : {0, 1})
  for (int64_t left : {-1LL, 0LL, 1LL, 17LL, 64LL, 500LL, 2147483647LL, 9223372036854775807LL})
  for (int64_t right : {-1LL, 0LL, 3LL, 40LL, 129LL, 9223372036854775807LL}) {
    Mask const mask = Mask::of(sq, sk, left, right, corner);
    int64_t const far = int64_t(1) << 40, shift = corner ? sk - sq : 0;
    int64_t const before = left < 0 || left > far ? far : left, behind = right < 0 || right > far ? far : right;
    auto const keep = [&](int i, int j) {
      return j < sk && j >= i + shift - before && j <= i + shift + behind;
    };
    for (int i = 0; i < sq; ++i) for (int j = 0; j < sk + 70; ++j) wrong += mask.keeps(i, j) != keep(i, j);
    for (int rows : {64, 128}) for (int columns : {64, 128, 256}) for (int i0 = 0; i0 < sq; i0 += rows) {
      ++cases;
      Tiles const tiles = mask.key_tiles(i0, rows, columns);
      int const count = (sk + columns - 1) / columns;
      wrong += tiles.begin < 0 || tiles.end > count || tiles.begin >= tiles.end;
      int first = count, last = -1;
      for (int t = 0; t < count; ++t) {
        bool any = false, all = true;
        for (int j = t * columns; j < (t + 1) * columns; ++j) {
          for (int i = i0; i < i0 + rows && i < sq; ++i) any |= keep(i, j), all &= keep(i, j);
        }
        if (any) first = t < first ? t : first, last = t;
        wrong += mask.whole(i0, rows, t * columns, columns) != all;
      }
      if (last >= 0) wrong += tiles.begin != first || tiles.end != last + 1;
      else wrong += tiles.end != tiles.begin + 1;
    }
    for (int rows : {64, 128}) for (int columns : {64, 128}) for (int j0 = 0; j0 < sk; j0 += columns) {
      ++cases;
      Tiles const tiles = mask.query_tiles(j0, columns, rows);
      int const count = (sq + rows - 1) / rows;
      wrong += tiles.begin < 0 || tiles.end > count || tiles.begin >= tiles.end;
      int first = count, last = -1;
      for (int i = 0; i < sq; ++i) {
        bool any = false;
        for (int j = j0; j < j0 + columns && j < sk; ++j) any |= keep(i, j);
        if (any) first = i / rows < first ? i / rows : first, last = i / rows;
      }
      if (last >= 0) wrong += tiles.begin != first || tiles.end != last + 1;
      else wrong += tiles.begin != 0 || tiles.end != 1;
    }
  }
  std::printf("%ld %ld\n", cases, wrong);
}
"""


def test_masks_and_tiles_against_every_pair(tmp_path: Path) -> None:
    """Counted on the host, by the very file the kernels are compiled from."""
    (tmp_path / "mask.cpp").write_text(MASK_CASES)
    program = tmp_path / "mask"
    command = ["g++", "-O2", f"-I{SOURCE}", "-o", str(program), str(tmp_path / "mask.cpp")]
    subprocess.run(command, check=True)
    done = subprocess.run([program], capture_output=True, text=True, check=True)
    cases, wrong = map(int, done.stdout.split())
    assert cases == 48_384
    assert wrong == 0


TURNS = r"""
#include <cfloat>
#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <vector>
#include "mask.h"
#include "interface.h"
#include "call.h"
#include "turn.h"
int main() {
  long lines = 0, wrong = 0;
  for (int64_t keys : {1, 15, 16, 63, 64, 65, 200}) for (int64_t dim : {16, 64, 80, 256})
  for (int64_t heads : {1, 3}) for (int by_tokens : {0, 1}) {
    FmhaCall call{};
    call.batch = 2, call.heads_kv = heads, call.seq_k = keys, call.dim = dim;
    int64_t const row = dim + 16;
    int64_t const strides[2][3] = {{heads * keys * row, keys * row, row}, {heads * keys * row, row, heads * row}};
    for (int at = 0; at < 3; ++at) call.stride_v[at] = strides[by_tokens][at];
    std::vector<uint8_t> v(2 * heads * keys * row);
    for (size_t at = 0; at < v.size(); ++at) v[at] = uint8_t(at * 2654435761u >> 13);
    int64_t const line = turned_line(call);
    std::vector<uint8_t> turned(2 * heads * dim * line + 64, 0xaa);
    call.v = v.data(), call.workspace = turned.data();
    for (int64_t block = 0; block < 2 * heads * turn_tiles(keys); ++block)
    for (int64_t side = 0; side < turn_tiles(dim); ++side) {
      uint32_t words[kTurnSide][kTurnSide / 4 + 1];
      Turn const turn{call, block, side};
      for (int thread = 0; thread < kTurnThreads; ++thread) turn.take(thread, words);
      for (int thread = 0; thread < kTurnThreads; ++thread) turn.give(thread, words);
    }
    for (int64_t b = 0; b < 2; ++b) for (int64_t h = 0; h < heads; ++h) for (int64_t d = 0; d < dim; ++d) {
      ++lines;
      for (int64_t key = 0; key < line; ++key) {
        int64_t const from = b * call.stride_v[0] + h * call.stride_v[1] + key * call.stride_v[2] + d;
        wrong += turned[((b * heads + h) * dim + d) * line + key] != (key < keys ? v[from] : 0);
      }
    }
    for (int at = 0; at < 64; ++at) wrong += turned[2 * heads * dim * line + at] != 0xaa;
  }
  std::printf("%ld %ld\n", lines, wrong);
}
"""


def test_v_is_turned_whole_and_nothing_else_is_written(tmp_path: Path) -> None:
    """By the very file the kernel is compiled from, thread by thread."""
    (tmp_path / "turn.cpp").write_text(TURNS)
    call = (SOURCE / "call.h").read_text().replace("@align@", "16")
    (tmp_path / "call.h").write_text(call)
    program = tmp_path / "turn"
    command = ["g++", "-O2", "-std=c++17", f"-I{SOURCE}", f"-I{tmp_path}", "-o", str(program)]
    subprocess.run([*command, str(tmp_path / "turn.cpp")], check=True)
    done = subprocess.run([program], capture_output=True, text=True, check=True)
    lines, wrong = map(int, done.stdout.split())
    assert lines == 7 * (16 + 64 + 80 + 256) * 2 * (1 + 3) * 2
    assert wrong == 0

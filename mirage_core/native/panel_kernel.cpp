#include "panel_kernel.h"

#include <algorithm>
#include <bit>

// Only the code between push and pop may use AVX2; the rest must run on any CPU, so that the
// library loads everywhere and can say by name what is missing.
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#include <immintrin.h>

namespace mirage {
namespace {

constexpr int64_t kLineBytes = 64;
// Rows that are kept in the second-level cache while all panels pass by them.
constexpr int64_t kRowBlockBytes = 384 << 10;
// How far ahead of its use a lone tile fetches its panel.
constexpr int64_t kPrefetchAheadBytes = 1024;

// Panels that a tile of few rows takes together: enough sums in flight to hide the latency of
// fma, and several streams from memory, which one core reads faster than one stream.
constexpr int panels_together(int rows) { return rows == 1 ? 4 : rows == 2 ? 3 : rows == 3 ? 2 : 1; }

struct Step {
  __m256 low;   // outputs 0..7 of the panel
  __m256 high;  // outputs 8..15
};

inline Step load_step(const float* panel) {
  return {_mm256_loadu_ps(panel), _mm256_loadu_ps(panel + 8)};
}

inline Step load_step(const uint16_t* panel) {
  const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(panel));
  return {
      _mm256_castsi256_ps(_mm256_slli_epi32(both, 16)),
      _mm256_castsi256_ps(_mm256_and_si256(both, _mm256_set1_epi32(int(0xffff0000u))))};
}

inline float to_float(float value) { return value; }
inline float to_float(uint16_t bits) { return std::bit_cast<float>(uint32_t(bits) << 16); }

inline __m128 load_4(const float* x) { return _mm_loadu_ps(x); }
inline __m128 load_4(const uint16_t* x) {
  const __m128i bits = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(x));
  return _mm_castsi128_ps(_mm_unpacklo_epi16(_mm_setzero_si128(), bits));
}

inline void store(float value, float* out) { *out = value; }
// Rounds to nearest even; a NaN stays a NaN.
inline void store(float value, uint16_t* out) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const bool is_nan = value != value;
  *out = uint16_t((is_nan ? bits | 0x400000 : bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// Packs `Rows` rows as [depth][Rows], 4 steps of the first 4 rows at a time.
template <int Rows, typename W>
void pack_tile(const W* x, int64_t x_stride, int64_t depth, float* tile) {
  constexpr int kTransposed = std::min(Rows, 4);
  // Fewer than 4 rows are stored 4 wide too: the next step overwrites the excess, so the last few
  // steps are left to the plain loop.
  constexpr int64_t kStepsAtOnce = Rows < 4 ? 5 : 4;
  int64_t k = 0;
  if constexpr (Rows > 1) {
    for (; k + kStepsAtOnce <= depth; k += 4) {
      __m128 row[4] = {};
      for (int r = 0; r < kTransposed; ++r) row[r] = load_4(x + r * x_stride + k);
      _MM_TRANSPOSE4_PS(row[0], row[1], row[2], row[3]);
      for (int i = 0; i < 4; ++i) {
        float* step = tile + (k + i) * Rows;
        _mm_storeu_ps(step, row[i]);
        for (int r = 4; r < Rows; ++r) step[r] = to_float(x[r * x_stride + k + i]);
      }
    }
  }
  for (; k < depth; ++k) {
    for (int r = 0; r < Rows; ++r) tile[k * Rows + r] = to_float(x[r * x_stride + k]);
  }
}

// What a tile brings into the cache while it computes: some lines at every 4 steps of k.
struct Prefetch {
  const char* next;
  int lines;
};

// The sums of Rows x Panels stay in registers throughout: sums[row][16 * panel + column].
template <int Rows, int Panels, typename W>
void tile_sums(
    const float* tile, const W* packed, int64_t depth, Prefetch prefetch,
    float (&sums)[Rows][Panels * kPanelColumns]) {
  __m256 low[Rows][Panels];
  __m256 high[Rows][Panels];
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) {
      low[r][p] = high[r][p] = _mm256_setzero_ps();
    }
  }
  const int64_t panel_stride = depth * kPanelColumns;
  const auto step = [&](int64_t k) __attribute__((always_inline)) {
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) {
      const Step w = load_step(packed + p * panel_stride + k * kPanelColumns);
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r) {
        const __m256 x = _mm256_broadcast_ss(tile + k * Rows + r);
        low[r][p] = _mm256_fmadd_ps(x, w.low, low[r][p]);
        high[r][p] = _mm256_fmadd_ps(x, w.high, high[r][p]);
      }
    }
  };
  int64_t k = 0;
  for (; k + 4 <= depth; k += 4) {
    for (int line = 0; line < prefetch.lines; ++line) {
      _mm_prefetch(prefetch.next, _MM_HINT_T1);
      prefetch.next += kLineBytes;
    }
    step(k);
    step(k + 1);
    step(k + 2);
    step(k + 3);
  }
  for (; k < depth; ++k) {
    step(k);
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) {
      _mm256_storeu_ps(sums[r] + p * kPanelColumns, low[r][p]);
      _mm256_storeu_ps(sums[r] + p * kPanelColumns + 8, high[r][p]);
    }
  }
}

template <typename W>
struct Operands {
  const LinearShape& shape;
  const float* tiles;
  const W* packed;
  const W* bias;
  W* y;
};

template <int Rows, int Panels, typename W>
void compute_tile(const Operands<W>& on, int64_t row, int64_t panel, Prefetch prefetch) {
  const auto [shape, tiles, packed, bias, y] = on;
  alignas(kLineBytes) float sums[Rows][Panels * kPanelColumns];
  tile_sums<Rows, Panels>(
      tiles + row * shape.depth, packed + panel * kPanelColumns * shape.depth, shape.depth,
      prefetch, sums);
  const int64_t column = panel * kPanelColumns;
  const int64_t columns = std::min<int64_t>(Panels * kPanelColumns, shape.out_features - column);
  for (int r = 0; r < Rows; ++r) {
    W* out = y + (row + r) * shape.out_features + column;
    if (bias == nullptr) {
      for (int64_t c = 0; c < columns; ++c) store(sums[r][c], out + c);
    } else {
      for (int64_t c = 0; c < columns; ++c) store(sums[r][c] + to_float(bias[column + c]), out + c);
    }
  }
}

// Few rows: one tile, several panels together.
template <int Rows, typename W>
void compute_few_rows(const Operands<W>& on, int64_t panel, int64_t panel_last) {
  constexpr int kTogether = panels_together(Rows);
  const Prefetch none{nullptr, 0};
  for (; panel + kTogether <= panel_last; panel += kTogether) {
    compute_tile<Rows, kTogether>(on, 0, panel, none);
  }
  for (; panel < panel_last; ++panel) {
    compute_tile<Rows, 1>(on, 0, panel, none);
  }
}

template <typename W>
void compute_tile_of(
    int rows, const Operands<W>& on, int64_t row, int64_t panel, Prefetch prefetch) {
  switch (rows) {
    case 3: return compute_tile<3, 1>(on, row, panel, prefetch);
    case 4: return compute_tile<4, 1>(on, row, panel, prefetch);
    case 5: return compute_tile<5, 1>(on, row, panel, prefetch);
    case 6: return compute_tile<6, 1>(on, row, panel, prefetch);
    default: __builtin_unreachable();  // tile_count splits 4 rows and more into these
  }
}

// Rows are split evenly, so that no tile is left with one or two rows and idle registers.
int64_t tile_begin(int64_t rows, int64_t tile) { return rows * tile / tile_count(rows); }

// Many rows: a panel stays in the cache for all tiles of a block of rows, and meanwhile the tiles
// fetch the next panel, each its part.
template <typename W>
void compute_many_rows(const Operands<W>& on, int64_t panel_first, int64_t panel_last) {
  const LinearShape& shape = on.shape;
  const int64_t tiles = tile_count(shape.rows);
  const int64_t row_bytes = shape.depth * int64_t(sizeof(float));
  const int64_t tiles_together =
      std::max<int64_t>(2, kRowBlockBytes / (row_bytes * kMaxTileRows));
  const int64_t panel_bytes = shape.depth * kPanelColumns * int64_t(sizeof(W));
  const int64_t lines_of_4_steps = 4 * kPanelColumns * int64_t(sizeof(W)) / kLineBytes;
  for (int64_t first = 0; first < tiles; first += tiles_together) {
    const int64_t last = std::min(first + tiles_together, tiles);
    const int64_t lines = (lines_of_4_steps + last - first - 1) / (last - first);
    for (int64_t panel = panel_first; panel < panel_last; ++panel) {
      const char* own = reinterpret_cast<const char*>(on.packed) + panel * panel_bytes;
      const char* next = own + panel_bytes;
      const char* end = panel + 1 < panel_last ? next + panel_bytes : next;
      for (int64_t tile = first; tile < last; ++tile) {
        const int64_t row = tile_begin(shape.rows, tile);
        const int rows = int(tile_begin(shape.rows, tile + 1) - row);
        Prefetch prefetch{next, next < end ? int(lines) : 0};
        if (last - first == 1) prefetch = {own + kPrefetchAheadBytes, int(lines)};
        compute_tile_of(rows, on, row, panel, prefetch);
        next += shape.depth / 4 * lines * kLineBytes;
      }
    }
  }
}

}  // namespace

template <typename W>
void linear_panels(
    const LinearShape& shape, const float* tiles, const W* packed, const W* bias, W* y,
    int64_t panel_first, int64_t panel_last) {
  const Operands<W> on{shape, tiles, packed, bias, y};
  switch (shape.rows) {
    case 0: return;
    case 1: return compute_few_rows<1>(on, panel_first, panel_last);
    case 2: return compute_few_rows<2>(on, panel_first, panel_last);
    case 3: return compute_few_rows<3>(on, panel_first, panel_last);
    default: return compute_many_rows(on, panel_first, panel_last);
  }
}

template <typename W>
void pack_rows(
    const LinearShape& shape, const W* x, int64_t x_stride, float* tiles, int64_t tile_first,
    int64_t tile_last) {
  for (int64_t tile = tile_first; tile < tile_last; ++tile) {
    const int64_t first = tile_begin(shape.rows, tile);
    const W* from = x + first * x_stride;
    float* to = tiles + first * shape.depth;
    switch (tile_begin(shape.rows, tile + 1) - first) {
      case 1: pack_tile<1>(from, x_stride, shape.depth, to); break;
      case 2: pack_tile<2>(from, x_stride, shape.depth, to); break;
      case 3: pack_tile<3>(from, x_stride, shape.depth, to); break;
      case 4: pack_tile<4>(from, x_stride, shape.depth, to); break;
      case 5: pack_tile<5>(from, x_stride, shape.depth, to); break;
      case 6: pack_tile<6>(from, x_stride, shape.depth, to); break;
    }
  }
}

template void pack_rows(const LinearShape&, const float*, int64_t, float*, int64_t, int64_t);
template void pack_rows(const LinearShape&, const uint16_t*, int64_t, float*, int64_t, int64_t);
template void linear_panels(
    const LinearShape&, const float*, const float*, const float*, float*, int64_t, int64_t);
template void linear_panels(
    const LinearShape&, const float*, const uint16_t*, const uint16_t*, uint16_t*, int64_t,
    int64_t);

}  // namespace mirage
#pragma GCC pop_options

namespace mirage {

bool cpu_has_avx2_fma() {
  return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
}

template <typename W>
void pack_panel(const W* weight, int64_t out_features, int64_t depth, int64_t panel, W* out) {
  for (int column = 0; column < kPanelColumns; ++column) {
    const int64_t n = panel * kPanelColumns + column;
    const bool interleaved = sizeof(W) == sizeof(uint16_t);
    const int place = !interleaved ? column : column < 8 ? 2 * column : 2 * (column - 8) + 1;
    for (int64_t k = 0; k < depth; ++k) {
      out[k * kPanelColumns + place] = n < out_features ? weight[n * depth + k] : W(0);
    }
  }
}

template void pack_panel(const float*, int64_t, int64_t, int64_t, float*);
template void pack_panel(const uint16_t*, int64_t, int64_t, int64_t, uint16_t*);

}  // namespace mirage

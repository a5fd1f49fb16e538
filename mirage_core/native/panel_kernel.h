// y = x W^T on AVX2+FMA, one panel of 16 outputs at a time; knows nothing of torch.
//
// A weight W[N][K] is packed into panels, padded with zero rows to a whole number of them:
//
//   panel p holds outputs 16p .. 16p+15 as     k = 0: w w w w w w w w w w w w w w w w
//   [K][16], so that one step over k reads     k = 1: w w w w w w w w w w w w w w w w
//   one cache line (float32)                   ...
//
// bfloat16 panels interleave the two halves of a step, w0 w8 w1 w9 ... w7 w15: one load then
// widens to both halves by a shift and a mask.  The rows of x are packed into tiles of up to 6
// rows, [K][rows] in float32: the kernel then reads both operands as streams.
//
// Bit identity: the value of an output element is fma(x[k], w[k], sum) for k = 0 .. K-1 in this
// order, in float32, whatever the number of rows, threads or panels that are computed with it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mirage {

constexpr int kPanelColumns = 16;
constexpr int kMaxTileRows = 6;  // 6 rows x 16 columns are 12 of the 16 registers

// True when this CPU can run the kernels below.
bool cpu_has_avx2_fma();

inline int64_t panel_count(int64_t out_features) {
  return (out_features + kPanelColumns - 1) / kPanelColumns;
}

inline int64_t tile_count(int64_t rows) { return (rows + kMaxTileRows - 1) / kMaxTileRows; }

struct LinearShape {
  int64_t rows;
  int64_t depth;
  int64_t out_features;
};

// In what follows W is float, or uint16_t for the bits of a bfloat16.

// Packs panel `panel` of a row-major weight [out_features][depth].
template <typename W>
void pack_panel(const W* weight, int64_t out_features, int64_t depth, int64_t panel, W* out);

// Packs the rows of tiles [tile_first, tile_last); row r is at x + r * x_stride.  All tiles together
// take rows * depth floats.  A single row is its own tile.
template <typename W>
void pack_rows(
    const LinearShape& shape, const W* x, int64_t x_stride, float* tiles, int64_t tile_first,
    int64_t tile_last);

// Computes the outputs of panels [panel_first, panel_last) for all rows, from pack_rows's tiles.
// y is [rows][out_features]; `bias` may be null.
template <typename W>
void linear_panels(
    const LinearShape& shape, const float* tiles, const W* packed, const W* bias, W* y,
    int64_t panel_first, int64_t panel_last);

}  // namespace mirage

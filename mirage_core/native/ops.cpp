// The torch operators of namespace `mirage`: called without Python, so without its lock.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "panel_kernel.h"
#include "transfer_engine.h"

namespace mirage {
namespace {

// Work below this many multiply-adds, or elements moved, is not worth another thread.
constexpr int64_t kMultiplyAddsPerTask = 1 << 17;
constexpr int64_t kElementsPerTask = 1 << 15;

int64_t per_task(int64_t worthwhile, int64_t each) {
  return std::max<int64_t>(1, worthwhile / each);
}

void wait_for(int64_t unit) {
  TransferEngine* engine = unit < 0 ? nullptr : TransferEngine::current();
  if (engine != nullptr) engine->wait(unit);
}

void release(int64_t unit) {
  TransferEngine* engine = unit < 0 ? nullptr : TransferEngine::current();
  if (engine != nullptr) engine->done(unit);
}

void require_cpu() {
  TORCH_CHECK(
      cpu_has_avx2_fma(), "mirage::linear needs a CPU with AVX2 and FMA, which this one lacks");
}

// A tensor's elements as the kernels take them: float, or the bits of a bfloat16.
template <typename W>
const W* elements(const at::Tensor& tensor) {
  return static_cast<const W*>(tensor.const_data_ptr());
}

template <typename W>
W* elements(at::Tensor& tensor) {
  return static_cast<W*>(tensor.mutable_data_ptr());
}

template <typename W>
void pack(const at::Tensor& weight, at::Tensor& packed) {
  const int64_t out_features = weight.size(0), depth = weight.size(1);
  const W* from = elements<W>(weight);
  W* to = elements<W>(packed);
  const int64_t panel_elements = depth * kPanelColumns;
  at::parallel_for(
      0, packed.size(0), per_task(kElementsPerTask, panel_elements),
      [&](int64_t first, int64_t last) {
        for (int64_t panel = first; panel < last; ++panel) {
          pack_panel(from, out_features, depth, panel, to + panel * panel_elements);
        }
      });
}

template <typename W>
void multiply(
    const LinearShape& shape, const at::Tensor& rows, const at::Tensor& packed,
    const std::optional<at::Tensor>& bias, at::Tensor& y) {
  const W* x = elements<W>(rows);
  const float* tiles = nullptr;
  at::Tensor scratch;
  if constexpr (std::is_same_v<W, float>) {
    if (shape.rows == 1) tiles = x;
  }
  if (tiles == nullptr) {
    scratch = at::empty({shape.rows, shape.depth}, rows.options().dtype(at::kFloat));
    float* out = elements<float>(scratch);
    at::parallel_for(
        0, tile_count(shape.rows), per_task(kElementsPerTask, shape.depth * kMaxTileRows),
        [&](int64_t first, int64_t last) {
          pack_rows(shape, x, rows.stride(0), out, first, last);
        });
    tiles = out;
  }
  const W* weight = elements<W>(packed);
  const W* b = bias ? elements<W>(*bias) : nullptr;
  W* out = elements<W>(y);
  at::parallel_for(
      0, packed.size(0), per_task(kMultiplyAddsPerTask, shape.rows * shape.depth * kPanelColumns),
      [&](int64_t first, int64_t last) {
        linear_panels(shape, tiles, weight, b, out, first, last);
      });
}

at::Tensor pack_linear(const at::Tensor& weight) {
  TORCH_CHECK(
      weight.dim() == 2 && weight.numel() > 0,
      "mirage::pack_linear: the weight must be [out_features, in_features], got ", weight.sizes());
  TORCH_CHECK(
      weight.scalar_type() == at::kFloat || weight.scalar_type() == at::kBFloat16,
      "mirage::pack_linear: the weight must be float32 or bfloat16, got ", weight.scalar_type());
  const at::Tensor from = weight.contiguous();
  at::Tensor packed =
      at::empty({panel_count(from.size(0)), from.size(1), kPanelColumns}, from.options());
  if (from.scalar_type() == at::kFloat) {
    pack<float>(from, packed);
  } else {
    pack<uint16_t>(from, packed);
  }
  return packed;
}

// x as rows that each are contiguous: a view where strides allow, so that slices cost no copy.
at::Tensor as_rows(const at::Tensor& x, int64_t depth) {
  if (x.dim() == 2 && x.stride(1) == 1 && (x.size(0) <= 1 || x.stride(0) >= depth)) return x;
  return x.contiguous().view({-1, depth});
}

at::Tensor linear(
    const at::Tensor& x, const at::Tensor& packed, const std::optional<at::Tensor>& bias,
    int64_t out_features, int64_t unit_first, int64_t unit_last) {
  require_cpu();
  TORCH_CHECK(
      packed.dim() == 3 && packed.size(2) == kPanelColumns && packed.is_contiguous(),
      "mirage::linear: the weight must come from mirage::pack_linear, got ", packed.sizes());
  const int64_t depth = packed.size(1);
  TORCH_CHECK(
      panel_count(out_features) == packed.size(0),
      "mirage::linear: ", out_features, " outputs do not fit a weight of ", packed.sizes());
  TORCH_CHECK(
      x.dim() >= 1 && x.size(-1) == depth,
      "mirage::linear: x must be [..., ", depth, "], got ", x.sizes());
  const at::ScalarType dtype = packed.scalar_type();
  TORCH_CHECK(
      (dtype == at::kFloat || dtype == at::kBFloat16) && x.scalar_type() == dtype &&
          (!bias || bias->scalar_type() == dtype),
      "mirage::linear: x, weight and bias must all be float32 or all bfloat16, got x ",
      x.scalar_type(), ", weight ", dtype);
  TORCH_CHECK(
      !bias || (bias->dim() == 1 && bias->size(0) == out_features && bias->is_contiguous()),
      "mirage::linear: the bias must be [", out_features, "] and contiguous");

  wait_for(unit_first);
  at::DimVector sizes(x.sizes());
  sizes.back() = out_features;
  at::Tensor y = at::empty(sizes, x.options());
  const at::Tensor rows = as_rows(x, depth);
  const LinearShape shape{rows.size(0), depth, out_features};
  if (shape.rows > 0) {
    if (dtype == at::kFloat) {
      multiply<float>(shape, rows, packed, bias, y);
    } else {
      multiply<uint16_t>(shape, rows, packed, bias, y);
    }
  }
  release(unit_last);
  return y;
}

void unit_wait(at::Tensor& /*x*/, int64_t unit) { wait_for(unit); }

void unit_done(at::Tensor& /*y*/, int64_t unit) { release(unit); }

}  // namespace
}  // namespace mirage

TORCH_LIBRARY(mirage, m) {
  const std::vector<at::Tag> traced = {at::Tag::pt2_compliant_tag};
  m.def("pack_linear(Tensor weight) -> Tensor", traced);
  m.def(
      "linear(Tensor x, Tensor packed_weight, Tensor? bias, int out_features, int unit_first, "
      "int unit_last) -> Tensor",
      traced);
  // The mutation is not real: it keeps a compiler from moving the call across the uses of x or y.
  m.def("unit_wait(Tensor(a!) x, int unit) -> ()", traced);
  m.def("unit_done(Tensor(a!) y, int unit) -> ()", traced);
}

TORCH_LIBRARY_IMPL(mirage, CPU, m) {
  m.impl("pack_linear", &mirage::pack_linear);
  m.impl("linear", &mirage::linear);
  m.impl("unit_wait", &mirage::unit_wait);
  m.impl("unit_done", &mirage::unit_done);
}

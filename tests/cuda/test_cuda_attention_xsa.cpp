#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "kernels/attention/attention_xsa.hpp"
#include "tests/cuda/sum_stream.hpp"
#include "tests/cuda/tensor.hpp"
#include "tests/kernels/check.hpp"

namespace nanorun::kernels::cuda {
namespace {

using test::InPlace;
using test::Tensor;

struct Shape {
  int rows, heads, head_dim, pad = 0;  ///< rows of y and v lie `pad` elements further apart than they must
};

/// What a layer has. With `learned`, the rows of alpha coincide.
struct Mode {
  bool xsa = false, learned = false, gated = false;
};
constexpr Mode modes[] = {{.xsa = true},
                          {.xsa = true, .learned = true},
                          {.gated = true},
                          {.xsa = true, .gated = true},
                          {.xsa = true, .learned = true, .gated = true}};

/// One call's arguments, on both sides.
struct Case {
  Case(const Shape& shape, const Mode& mode, Tensor<bf16>::Range values = {-1, 1})
      : mode(mode),
        rows(shape.rows),
        heads(shape.heads),
        y(rows, cols(shape), 1, {-1, 1}, cols(shape) + shape.pad),
        v(rows, cols(shape), 2, values, cols(shape) + shape.pad),
        d_out(rows, cols(shape), 3),
        d_y(Tensor<bf16>::poisoned(rows, cols(shape))),
        d_v(Tensor<bf16>::poisoned(rows, cols(shape))),
        out(Tensor<bf16>::poisoned(rows, cols(shape))),
        alpha(mode.learned ? 1 : rows, heads, 5),
        d_alpha(mode.learned ? 1 : rows, heads, 6),
        gate(rows, heads, 7),
        d_gate(Tensor<float>::poisoned(rows, heads)) {}

  static int cols(const Shape& shape) { return shape.heads * shape.head_dim; }

  template <class T>
  Mat<T> rows_of(Mat<T> x) const {
    return {x.data, rows, heads, mode.learned ? 0 : heads};
  }
  AttentionXsa<float> host() {
    AttentionXsa<float> in{heads, y.host(), {}, {}, {}};
    if (mode.xsa) {
      in.v = v.host();
      in.alpha = rows_of(alpha.host());
    }
    if (mode.gated) in.gate = gate.host();
    return in;
  }
  AttentionXsa<bf16> device() const {
    AttentionXsa<bf16> in{heads, y.device(), {}, {}, {}};
    if (mode.xsa) {
      in.v = v.device();
      in.alpha = rows_of(alpha.device());
    }
    if (mode.gated) in.gate = gate.device();
    return in;
  }

  void backward(InPlace in_place) {
    Tensor<bf16>& to = in_place == InPlace::yes ? d_out : d_y;
    AttentionXsaGradients<float> on_host{to.host(), {}, {}, {}};
    if (mode.xsa) {
      on_host.d_v = d_v.host();
      on_host.d_alpha = rows_of(d_alpha.host());
    }
    if (mode.gated) on_host.d_gate = d_gate.host();
    portable::attention_xsa_backward<float>({}, on_host, out.host(), d_out.host(), host());
    device_backward(test::SumStream(), to);
  }
  void device_backward(Stream stream, Tensor<bf16>& to) {
    AttentionXsaGradients<bf16> d{to.device(), {}, {}, {}};
    if (mode.xsa) {
      d.d_v = d_v.device();
      d.d_alpha = rows_of(d_alpha.device());
    }
    if (mode.gated) d.d_gate = d_gate.device();
    cuda::attention_xsa_backward<bf16>(stream, d, out.device(), d_out.device(), device());
  }
  void forward(Tensor<bf16>& to) {
    portable::attention_xsa_forward<float>({}, to.host(), host());
    cuda::attention_xsa_forward<bf16>({}, to.device(), device());
  }

  Mode mode;
  int rows, heads;
  Tensor<bf16> y, v, d_out, d_y, d_v, out;
  Tensor<float> alpha, d_alpha, gate, d_gate;
};

void compare(const Shape& shape, const Mode& mode, InPlace in_place) {
  SCOPED_TRACE(std::to_string(shape.rows) + " rows, D " + std::to_string(shape.head_dim) + ", xsa " +
               std::to_string(mode.xsa) + ", learned " + std::to_string(mode.learned) + ", gated " +
               std::to_string(mode.gated));
  Case c(shape, mode);
  c.backward(in_place);
  (in_place == InPlace::yes ? c.d_out : c.d_y).expect_match("d_y");
  if (mode.xsa) c.d_v.expect_match("d_v");
  c.d_alpha.expect_match("d_alpha", mode.learned ? 2e-6 * std::sqrt(static_cast<double>(c.rows)) : 1e-5, 1e-5);
  if (mode.gated) c.d_gate.expect_match("d_gate", 2e-5, 1e-5);
  c.out.expect_match("out of the backward pass");
  auto out = Tensor<bf16>::poisoned(c.rows, Case::cols(shape));
  Tensor<bf16>& result = in_place == InPlace::yes ? c.y : out;
  c.forward(result);
  result.expect_match("out");
}

TEST(CudaHeadOutput, SmallShapesMatchPortable) {
  SKIP_WITHOUT_DEVICE();
  for (const Shape& shape : {Shape{1, 1, 8}, Shape{9, 3, 16, 8}, Shape{40, 6, 128, 768}, Shape{7, 5, 256}}) {
    for (const Mode& mode : modes) {
      compare(shape, mode, InPlace::no);
      compare(shape, mode, InPlace::yes);
    }
  }
}

TEST(CudaHeadOutput, RecipeShapeMatchesPortable) {
  SKIP_WITHOUT_DEVICE();
  for (const Mode& mode : modes) {
    compare({49152, 6, 128}, mode, InPlace::no);
    compare({9001, 40, 64}, mode, InPlace::no);  // more heads than a block has at once
  }
}

TEST(CudaHeadOutput, GradientsAreReproducible) {
  SKIP_WITHOUT_DEVICE();
  for (const Shape& shape : {Shape{40, 6, 128}, Shape{20011, 6, 64}, Shape{20011, 5, 128}}) {
    test::expect_same_bits([&](Stream stream) {
      Case c(shape, {.xsa = true, .learned = true, .gated = true});
      c.device_backward(stream, c.d_y);
      test::Vector<float> all = c.d_alpha.device_values();
      test::append(all, c.d_gate.device_values());
      test::append(all, c.d_v.device_values());
      test::append(all, c.d_y.device_values());
      return all;
    });
  }
}

TEST(CudaHeadOutput, ValuesWithoutNormStayFinite) {
  SKIP_WITHOUT_DEVICE();
  Case c({9, 1, 128}, {.xsa = true, .gated = true}, {-1e-6f, 1e-6f});
  c.backward(InPlace::yes);
  c.d_out.expect_match("d_y");
  c.d_v.expect_match("d_v", 1e-3);  // y is multiplied by <d_out, v> / 1e-8, up to 1e3
  c.d_alpha.expect_match("d_alpha", 1e-5, 1e-5);
  c.d_gate.expect_match("d_gate", 2e-5, 1e-5);
  c.out.expect_match("out of the backward pass");
  auto out = Tensor<bf16>::poisoned(9, 128);
  c.forward(out);
  out.expect_match("out");
}

TEST(CudaHeadOutput, RefusesOtherHeadWidths) {
  SKIP_WITHOUT_DEVICE();
  EXPECT_THROW(compare({4, 2, 24}, {.xsa = true}, InPlace::no), std::invalid_argument);
  EXPECT_THROW(compare({4, 1, 512}, {.xsa = true}, InPlace::no), std::invalid_argument);
}

}  // namespace
}  // namespace nanorun::kernels::cuda

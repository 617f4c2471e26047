#pragma once
// By which rules the operands of a product in 8 bits are scaled: those of [fp8.<product>], and those of
// train.mlp_precision = "fp8", which are record 89's.

#include "kernels/ops.hpp"
#include "src/config/config.hpp"

namespace nanorun {

enum class Fp8Product { mlp, qkv };

/// The scale of an operand that is not a weight.
struct Fp8Rule {
  Fp8Scales follows = Fp8Scales::exact;
  double scale = 1;         ///< fixed: the scale; delayed: that of the first step
  double margin = 1;        ///< delayed: factor on the largest magnitude
  bool keeps_last = false;  ///< delayed: where all elements were zero, the largest magnitude before them stays
};

struct Fp8Rules {
  bool forward = false;   ///< the forward products have operands in e4m3
  bool backward = false;  ///< and the backward products have operands in 8 bits
  bool counts = false;    ///< what saturates is counted
  kernels::Fp8Format gradient = kernels::Fp8Format::e4m3;
  Fp8Rule input, hidden, d_out, d_hidden;
  bool delays_w_in = false, delays_w_out = false;
  long last_exact_step = 0;  ///< from the next step on these weights are scaled by those of the step before
};

/// The rules of the deck. What concerns gradients belongs to the sum of the tokens' losses.
Fp8Rules fp8_rules(const Config& config, Fp8Product product);

/// Whether training has operands in 8 bits: in the LM head, or in products that have Fp8Rules.
bool trains_in_fp8(const Config& config);

/// Whether the deck trains in 8 bits and the device in use has no such products, so that computed_config() has none.
bool lacks_fp8(const Config& deck);

/// A sentence that says so; empty where it is not so.
std::string fp8_remark(const Config& deck);

/// What multiplies operands in 8 bits where the deck trains in them: ops::device_kernels() of the device, "bf16" where
/// lacks_fp8(), else nothing. Losses differ between these, since tensor cores add up such products unlike each other.
std::string fp8_kernels(const Config& deck, int device);

/// Factor from gradients of the sum of a sequence's losses to those that training has at a step: 1, or with train.loss
/// = "mean" 1 / tokens.
double gradient_unit(const Config& config, long step);

}  // namespace nanorun

#include "src/model/fp8_rules.hpp"

#include <algorithm>
#include <cmath>

#include "src/config/schedule.hpp"

namespace nanorun {

namespace {

// Scales of the first step, before any operand has been seen.
constexpr double first_input = 8.0 / 448, first_hidden = 16.0 / 448, first_d_hidden = 1.0 / 64;
constexpr double margin_d_hidden = 1.25;
constexpr long exact_steps = 16;

/// The least power of two with which no element of a norm saturates: rows of d elements with mean square 1 have none
/// above sqrt(d).
double scale_of_norms(int width) { return std::exp2(std::ceil(std::log2(std::sqrt(width) / 448))); }

Fp8Rules rules_of(const Fp8Config& deck, Fp8Product product, int width) {
  Fp8Rules rules;
  rules.forward = deck.forward != Fp8Forward::working;
  rules.backward = deck.gradient != Fp8Gradient::working;
  rules.counts = true;
  rules.gradient = deck.gradient == Fp8Gradient::e5m2 ? kernels::Fp8Format::e5m2 : kernels::Fp8Format::e4m3;
  rules.input = {deck.scales, first_input, deck.margin, true};
  if (deck.scales == Fp8Scales::fixed) rules.input.scale = deck.scale_x > 0 ? deck.scale_x : scale_of_norms(width);
  if (product == Fp8Product::mlp) rules.hidden = {Fp8Scales::delayed, first_hidden, deck.margin, true};
  if (deck.scale_g > 0) rules.d_out = {Fp8Scales::fixed, deck.scale_g};
  if (product == Fp8Product::mlp && rules.backward) {
    rules.d_hidden = {Fp8Scales::delayed, first_d_hidden, margin_d_hidden, true};
  }
  rules.delays_w_in = deck.weight_scales == Fp8WeightScales::delayed;
  rules.delays_w_out = rules.delays_w_in && product == Fp8Product::mlp;
  rules.last_exact_step = exact_steps - 1;
  return rules;
}

/// Forward products alone, with a scale of 1 for the hidden units of the first step.
Fp8Rules rules_of_record89() {
  Fp8Rules rules;
  rules.forward = true;
  rules.hidden = {Fp8Scales::delayed, 1, 1.8};
  rules.delays_w_out = true;
  rules.last_exact_step = exact_steps;
  return rules;
}

}  // namespace

Fp8Rules fp8_rules(const Config& config, Fp8Product product) {
  if (product == Fp8Product::qkv) return rules_of(config.fp8.qkv, product, config.model.width);
  if (config.train.mlp_precision == MlpPrecision::fp8) return rules_of_record89();
  return rules_of(config.fp8.mlp, product, config.model.width);
}

bool trains_in_fp8(const Config& config) {
  return lm_head_precision(config) == kernels::LmHeadPrecision::fp8 || fp8_rules(config, Fp8Product::mlp).forward ||
         fp8_rules(config, Fp8Product::qkv).forward;
}

bool lacks_fp8(const Config& deck) { return trains_in_fp8(deck) && !ops::has_fp8(); }

std::string fp8_remark(const Config& deck) {
  return lacks_fp8(deck) ? "no products in fp8 here: those of the deck are computed in bf16" : "";
}

std::string fp8_kernels(const Config& deck, int device) {
  if (!trains_in_fp8(deck)) return {};
  return lacks_fp8(deck) ? "bf16" : ops::device_kernels(device);
}

double gradient_unit(const Config& config, long step) {
  return config.train.loss == LossSum::sum ? 1 : 1.0 / length_at(config, step);
}

}  // namespace nanorun

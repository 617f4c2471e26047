// Rules of [fp8.<product>].

#include "src/config/config_check.hpp"

namespace nanorun {

namespace {

void check_product(Rules& rules, const std::string& section, const Fp8Config& product) {
  const ModelConfig& model = rules.config.model;
  const auto key = [&](const char* name) { return section + "." + name; };
  const bool quantises = product.forward != Fp8Forward::working, backward = product.gradient != Fp8Gradient::working;
  rules.require(quantises || !backward, {key("gradient"), key("forward")}, "{} needs {} = \"e4m3\"", key("gradient"),
                key("forward"));
  rules.require(product.scale_x == 0 || product.scales == Fp8Scales::fixed, {key("scale_x"), key("scales")},
                "{} needs {} = \"fixed\"", key("scale_x"), key("scales"));
  rules.require(product.scale_g == 0 || backward, {key("scale_g"), key("gradient")},
                "{} needs {} = \"e4m3\" or \"e5m2\"", key("scale_g"), key("gradient"));
  rules.require(!quantises || (!model.biases && !model.norm_gains),
                {key("forward"), "model.biases", "model.norm_gains"},
                "{} = \"e4m3\" computes neither model.biases nor model.norm_gains", key("forward"));
}

}  // namespace

void check_fp8(Rules& rules) {
  const Config& config = rules.config;
  check_product(rules, "fp8.mlp", config.fp8.mlp);
  check_product(rules, "fp8.qkv", config.fp8.qkv);
  rules.require(
      config.fp8.mlp.forward == Fp8Forward::working || config.train.mlp_precision == MlpPrecision::working,
      {"fp8.mlp.forward", "train.mlp_precision"},
      "fp8.mlp.forward = \"e4m3\" and train.mlp_precision = \"fp8\" are two rules for the same products: set one");
}

}  // namespace nanorun

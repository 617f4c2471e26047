// Rules of the CUDA build: what its ops can compute.

#include <fmt/ranges.h>

#include <algorithm>

#include "kernels/device/cuda_limits.hpp"
#include "src/config/config_check.hpp"

namespace nanorun {

namespace limits = kernels::cuda;

void check_cuda(Rules& rules, Passes passes) {
  const Config& config = rules.config;
  const ModelConfig& model = config.model;
  rules.require(std::ranges::count(limits::attention_head_dims, model.head_dim) > 0, {"model.head_dim"},
                "model.head_dim = {}: attention on CUDA devices supports {} only", model.head_dim,
                fmt::join(limits::attention_head_dims, " and "));
  const auto require_wide = [&](const std::vector<int>& layers, const std::string& key, const char* fact) {
    rules.require(layers.empty() || model.head_dim == limits::wide_head_dim, {"model.head_dim", key},
                  "model.head_dim = {} must be {} on CUDA devices, as {} {}", model.head_dim, limits::wide_head_dim,
                  key, fact);
  };
  require_wide(model.key_offset_layers, "model.key_offset_layers", "names layers");
  require_wide(model.composed_layers, "model.composed_layers", "names layers");
  require_wide(model.qk_dims, "model.qk_dims", "is given");
  for (const int dim : model.qk_dims) {
    if (!rules.require(dim % limits::qk_unit == 0, {"model.qk_dims"},
                       "model.qk_dims has {}, which must be a multiple of {} on CUDA devices", dim, limits::qk_unit)) {
      break;
    }
  }
  rules.require(model.key_offset_layers.empty() || 2 * turning_pairs(model) % limits::qk_unit == 0,
                {"model.qk_dims", "model.key_offset_layers"},
                "the widest of model.qk_dims = {} must be a multiple of {} on CUDA devices, as model.key_offset_layers "
                "names layers",
                widest_qk_dim(model), 2 * limits::qk_unit);
  rules.require(model.width <= limits::max_row, {"model.width"}, "model.width = {} must be at most {} on CUDA devices",
                model.width, limits::max_row);
  rules.require(padded_vocabulary(model) <= limits::max_vocabulary, {"model.vocabulary"},
                "model.vocabulary = {}: the LM head on CUDA devices takes at most {} columns, the padded ones included",
                model.vocabulary, limits::max_vocabulary);
  rules.require(model.composed_layers.empty() || model.composition_window <= limits::max_composition_window,
                {"model.composition_window", "model.composed_layers"},
                "model.composition_window = {}: composed heads on CUDA devices take at most {} keys",
                model.composition_window, limits::max_composition_window);
  rules.require(model.bigram_rows == 0 || model.bigram_columns % limits::row_vector == 0,
                {"model.bigram_columns", "model.bigram_rows"},
                "model.bigram_columns = {} must be a multiple of {} on CUDA devices", model.bigram_columns,
                limits::row_vector);
  rules.require(config.head.precision != LmHeadChoice::fp32, {"head.precision"},
                "head.precision = \"fp32\" is for CPUs; CUDA devices take \"fp8\" or \"bf16\"");
  if (passes == Passes::forward) return;
  const bool in_fp8 = config.fp8.mlp.forward != Fp8Forward::working || config.fp8.qkv.forward != Fp8Forward::working ||
                      config.train.mlp_precision == MlpPrecision::fp8;
  rules.require(!in_fp8 || model.width % limits::fp8_width == 0,
                {"model.width", "fp8.mlp.forward", "fp8.qkv.forward", "train.mlp_precision"},
                "model.width = {} must be a multiple of {} on CUDA devices, as [fp8.mlp] or [fp8.qkv] has forward = "
                "\"e4m3\" or train.mlp_precision is \"fp8\"",
                model.width, limits::fp8_width);
  const auto require_length = [&](const std::string& key, int length) {
    rules.require(std::int64_t{model.heads} * length <= limits::max_attention_rows, {key, "model.heads"},
                  "{} * model.heads = {} * {} must be at most {} on CUDA devices", key, length, model.heads,
                  limits::max_attention_rows);
  };
  if (config.stage.empty()) require_length("train.length", config.train.length);
  for (std::size_t i = 0; i < config.stage.size(); ++i) {
    require_length(fmt::format("stage.{}.length", i), config.stage[i].length);
  }
}

}  // namespace nanorun

#include "src/model/block_plan.hpp"

#include <algorithm>
#include <functional>

#include "src/config/layer_list.hpp"
#include "src/model/net_plan.hpp"
#include "src/model/topology.hpp"

namespace nanorun {

namespace {

/// The layer whose input attention reads.
int attention_input_of(const ModelConfig& config, int layer) {
  const int source = config.attention_source;
  return source >= 0 && layer > source ? source + 1 : layer;
}

/// The layer whose input a layer adds as a skip, or -1. A U-net's first decoder layer adds its own.
int skip_input_of(const ModelConfig& config, int layer) {
  if (config.residual == Residual::unet) return layer >= config.layers / 2 ? config.layers - layer : -1;
  const int skip = skip_into(config, layer);
  return skip >= 0 ? config.skip_from[skip] + 1 : -1;
}

/// Whether the last mix subtracts a layer's input.
bool is_backed_out(const ModelConfig& config, int layer) {
  return config.backout_from >= 0 && layer == config.backout_from + 1;
}

/// Whether layers above, or their mixes, read a layer's input too.
bool is_tapped(const ModelConfig& config, int layer) {
  if (config.residual == Residual::unet) return layer >= 1 && layer <= config.layers / 2;
  const bool attended = config.attention_source >= 0 && layer == config.attention_source + 1;
  const bool mixed = is_backed_out(config, layer) || (config.mudd && (layer == 0 || layer + 1 == config.layers));
  if (attended || mixed) return true;
  for (int above = layer + 1; above < config.layers; ++above) {
    if (skip_input_of(config, above) == layer) return true;
  }
  return false;
}

/// Whether the mix that ends the block below can make the norm that a layer's attention reads: where attention reads
/// what that mix makes.
bool is_normed_by_mix_below(const ModelConfig& config, int layer) {
  const bool in_between = layer > 0 && layer < config.layers && config.residual == Residual::scaled;
  return in_between && has_attention(config, layer) && attention_input_of(config, layer) == layer &&
         skip_into(config, layer) < 0 && !is_mudd_layer(config, layer);
}

bool feeds_a_net(const ModelConfig& config, int layer) {
  return std::ranges::any_of(coefficient_nets(config), [=](const NetPlan& net) { return net.layer_input == layer; });
}

/// Whether training keeps a layer's input itself.
bool is_input_kept(const ModelConfig& config, int layer) {
  return feeds_a_net(config, layer) || is_tapped(config, layer) || !is_normed_by_mix_below(config, layer);
}

/// Whether the mix behind a layer's attention can leave its factor of the layer's input to the block below, which gets
/// the gradient of that input: where nothing is added to this gradient in between.
bool leaves_factor_to_block_below(const ModelConfig& config, int layer) {
  const bool normed_by_itself = attention_input_of(config, layer) == layer && !is_normed_by_mix_below(config, layer);
  return has_injections(config, layer) && layer > 0 && skip_into(config, layer) < 0 && !feeds_a_net(config, layer) &&
         !is_tapped(config, layer) && !normed_by_itself;
}

void plan_attention(BlockPlan& plan, const ModelConfig& config, Mode mode) {
  const int layer = plan.layer;
  plan.attends = has_attention(config, layer);
  if (!plan.attends) return;
  plan.attention_input = attention_input_of(config, layer);
  plan.norm_owner = layer;
  if (mode == Mode::training) {
    for (int below = layer - 1; below >= 0; --below) {
      const bool same = has_attention(config, below) && attention_input_of(config, below) == plan.attention_input;
      if (same) plan.norm_owner = below;
    }
    if (plan.norm_owner != layer) plan.attention_norm = NormMaker::layer_below;
    if (is_normed_by_mix_below(config, layer)) plan.attention_norm = NormMaker::mix_below;
  }
  plan.qk_dim = qk_dim(config, layer);
  plan.pairs_heads = names(config.paired_layers, layer);
  plan.offsets_keys = names(config.key_offset_layers, layer);
  plan.composes_heads = names(config.composed_layers, layer);
  plan.has_xsa = names(config.xsa_layers, layer);
  plan.gates_heads = names(config.gated_layers, layer);
  plan.heads_have_net = config.gate_nets;
}

void plan_values(BlockPlan& plan, const ModelConfig& config) {
  if (!plan.attends) return;
  plan.value_table = value_table_of(config, plan.layer);
  const bool has_table = plan.value_table >= 0;
  plan.mixes_values = config.residual == Residual::unet;
  plan.scales_values = config.residual == Residual::scaled || config.residual == Residual::before;
  plan.takes_up_first_values = config.value_path == ValuePath::first;
  plan.lends_values = plan.takes_up_first_values && plan.layer == 0;
  plan.takes_up_values = has_table || plan.takes_up_first_values;
  plan.gates_value_rows = has_table && config.value_path == ValuePath::gated_embeddings;
  plan.gates_read_rows = plan.gates_value_rows && !names(config.value_layers_gated_by_input, plan.layer);
  const auto same_table = [&](int layer) {
    return has_table && has_attention(config, layer) && value_table_of(config, layer) == plan.value_table;
  };
  plan.completes_value_table = has_table;
  for (int below = 0; below < plan.layer; ++below) {
    if (same_table(below)) plan.completes_value_table = false;
  }
  const bool enters_last_mix = config.mudd && plan.value_table == 0;
  plan.keeps_value_rows = enters_last_mix && plan.completes_value_table;
  plan.adds_row_gradient = enters_last_mix;
  for (int above = plan.layer + 1; above < config.layers; ++above) {
    if (same_table(above)) plan.adds_row_gradient = true;
  }
  plan.clears_row_gradient = plan.completes_value_table && config.value_path == ValuePath::embeddings;
}

/// Needs the plan of attention.
void plan_streams(BlockPlan& plan, const ModelConfig& config, Mode mode) {
  const int layer = plan.layer;
  const bool training = mode == Mode::training;
  const bool scaled = config.residual == Residual::scaled, before = config.residual == Residual::before;
  plan.mudd = is_mudd_layer(config, layer);
  plan.mixes_input = config.residual == Residual::unet || before || skip_into(config, layer) >= 0 || plan.mudd;
  plan.input_is_tapped = is_tapped(config, layer);
  plan.input_is_norm = training && !is_input_kept(config, layer);
  plan.adds_injections = has_injections(config, layer);
  // The first mix of a scaled stream adds the second stream already.
  plan.injects_second = plan.adds_injections && has_second_stream(config) && (before || layer > 0);
  plan.attention_is_implied = before ? plan.attends : plan.adds_injections;
  plan.mlp_is_implied = !plan.mudd && is_normed_by_mix_below(config, layer + 1);
  plan.norms_next = training && is_normed_by_mix_below(config, layer + 1);
  if (config.residual == Residual::plain) {
    plan.output = OutputBuffer::of_input;
  } else if (training) {
    plan.output = is_input_kept(config, layer + 1) ? OutputBuffer::own : OutputBuffer::none;
  } else {
    plan.output = is_tapped(config, layer + 1) ? OutputBuffer::own : OutputBuffer::of_all_blocks;
  }
  plan.enters_last_mix = plan.mudd || (config.backout_from >= 0 && layer + 1 == config.layers);
  plan.leaves_factors = scaled && plan.adds_injections;
  plan.hands_on_factor = training && leaves_factor_to_block_below(config, layer);
  plan.clears_input_gradient = plan.input_is_tapped && scaled && !config.mudd;
  plan.sends_to_second = plan.mudd && has_second_stream(config);
  if (plan.attends) plan.joins_in = BlockMix::after_attention;
  if (plan.mixes_input) plan.joins_in = BlockMix::before;
}

/// Whether a layer is the first to send its skip's source a gradient. A scaled stream clears these gradients instead.
bool starts_skip_gradient(const ModelConfig& config, int layer) {
  const int source = skip_input_of(config, layer);
  if (config.residual == Residual::scaled || is_backed_out(config, source)) return false;
  for (int above = layer + 1; above < config.layers; ++above) {
    if (skip_input_of(config, above) == source) return false;
  }
  return true;
}

/// Needs the plan of streams.
void plan_skips(BlockPlan& plan, const ModelConfig& config, Mode mode) {
  const int layer = plan.layer;
  const bool unet = config.residual == Residual::unet;
  plan.skip_input = skip_input_of(config, layer);
  plan.sends_skip_gradient = mode == Mode::training && plan.skip_input >= 0 && plan.skip_input != layer;
  if (plan.skip_input >= 0) plan.skip = unet ? layer - config.layers / 2 : skip_into(config, layer);
  plan.starts_skip_gradient = plan.sends_skip_gradient && starts_skip_gradient(config, layer);
  plan.starts_x0_gradient = unet && layer + 1 == config.layers;
  if (!plan.input_is_tapped) return;
  if (unet) plan.skip_reader = config.layers - layer;
  if (!unet) plan.sent_gradient = SentGradient::own;
  if (unet && plan.skip_reader != layer) plan.sent_gradient = SentGradient::output_of_skip_reader;
}

InjectionSum injection_sum(const std::vector<BlockPlan>& plans, int begin, int end) {
  const auto above = plans.begin() + end;
  InjectionSum sum{.begin = begin, .end = end};
  sum.adds_to_x0 = std::any_of(above, plans.end(), std::mem_fn(&BlockPlan::adds_injections));
  sum.adds_to_second = sum.adds_to_x0 || std::ranges::any_of(plans, &BlockPlan::sends_to_second);
  return sum;
}

/// Layer from which on the plans have sums of injections.
int first_summed(const std::vector<BlockPlan>& plans) {
  const auto found = std::ranges::find_if(plans, [](const BlockPlan& plan) { return !plan.injections.empty(); });
  return static_cast<int>(found - plans.begin());
}

/// Injections are summed before the backward pass of a net, which takes the gradients of their coefficients.
void plan_injections(std::vector<BlockPlan>& plans, const ModelConfig& config) {
  for (int layer = config.layers - 1; layer >= 0; --layer) {
    const int end = first_summed(plans);
    const bool any = std::any_of(plans.begin() + layer, plans.begin() + end, std::mem_fn(&BlockPlan::adds_injections));
    if (any && feeds_a_net(config, layer)) plans[layer].injections = injection_sum(plans, layer, end);
  }
}

}  // namespace

InjectionSum last_injections(const std::vector<BlockPlan>& plans) {
  return injection_sum(plans, -1, first_summed(plans));
}

std::vector<BlockPlan> block_plans(const ModelConfig& config, Mode mode) {
  std::vector<BlockPlan> plans(config.layers);
  for (int layer = 0; layer < config.layers; ++layer) {
    BlockPlan& plan = plans[layer];
    plan.layer = layer;
    plan_attention(plan, config, mode);
    plan_values(plan, config);
    plan_streams(plan, config, mode);
    plan_skips(plan, config, mode);
    if (plan.attention_norm != NormMaker::layer_below) continue;
    plan.shares_norm = true;
    for (int below = plan.norm_owner; below < layer; ++below) {
      BlockPlan& other = plans[below];
      if (other.attends && other.norm_owner == plan.norm_owner) other.shares_norm = other.adds_norm_gradient = true;
    }
  }
  plan_injections(plans, config);
  return plans;
}

}  // namespace nanorun

#pragma once
// checkpoint.weights, the checkpoint with whose weights a new run begins; and what a dry run says about how a run
// begins.

#include <optional>
#include <span>
#include <string>

#include "src/comm/comm.hpp"
#include "src/config/config.hpp"
#include "src/data/token_origin.hpp"
#include "src/model/params.hpp"
#include "src/run/checkpoint_file.hpp"

namespace nanorun {

struct FirstWeights {
  CheckpointHeader header;
  std::string difference;  ///< keys of [model] that differ, though all shapes are the same; empty: none
};

/// Collective. Reads the header of config.checkpoint.weights. Throws Error(checkpoint) on all ranks alike where it is
/// no checkpoint, or one of a model with other tensors.
FirstWeights find_first_weights(Comm& comm, const Config& config, const ParameterTable& table);

/// Throws Error(checkpoint, all_ranks) where head and embedding are one parameter of the run (model.tied_head) but
/// differ in the weights: the first update would make the embedding a copy of the head. Each rank passes the same rows
/// of both. Collective with a tied head.
void require_tied(Comm& comm, const Config& config, std::span<const float> head, std::span<const float> embedding);

/// How a run would begin.
struct Beginning {
  std::vector<std::string> lines;    ///< about the checkpoint; empty where there is none
  std::optional<TokenOrigin> model;  ///< the tokens that the checkpoint's weights were trained on
};

/// For one rank, without a run: examines the checkpoint from which checkpoint.restart or checkpoint.weights would let
/// the run begin. A line with "warning: " tells why the run could not begin with it, such as damage, or how its model
/// differs.
Beginning plan_beginning(const Config& config, const ParameterTable& table);

}  // namespace nanorun

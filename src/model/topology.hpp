#pragma once
// Which layers have which parts, and the sizes that follow, as pure functions of [model]. From these,
// src/model/block_plan.hpp plans each block and src/model/net_plan.hpp each coefficient net.

#include "src/config/config.hpp"

namespace nanorun {

bool has_attention(const ModelConfig& config, int layer);
/// Whether the layer is the last one of a model with model.mudd: it mixes streams by columns of a coefficient net.
bool is_mudd_layer(const ModelConfig& config, int layer);
/// Whether a mix of the layer also adds x0 and the second stream, each times a factor of its own.
bool has_injections(const ModelConfig& config, int layer);
/// Whether layers add a second stream beside x0: the rows of the bigram table, or the norm of the second embedding.
bool has_second_stream(const ModelConfig& config);
/// Index in model.skip_to of the skip that enters before a layer; -1: none.
int skip_into(const ModelConfig& config, int layer);

/// Number of tables of value embeddings.
int value_tables(const ModelConfig& config);
/// Index of the table of value embeddings that the layer's values take up; -1: none.
int value_table_of(const ModelConfig& config, int layer);

/// Columns of the bigram table. Its rows are added to the first columns of the stream.
int bigram_columns(const ModelConfig& config);

/// Whether a token reads the token before it even where that one ends another document: by smear, bigrams or offset
/// keys.
bool reaches_over_documents(const ModelConfig& config);

}  // namespace nanorun

#pragma once
// The parameter table: one row per parameter tensor. Initialisation, optimizer, communication and checkpoints iterate
// it.
//
// The table holds, in this order: trained tensors, which GEMMs and lookups read; fixed tensors; learned scalars.
// Offsets count elements over all of them. Weights lie in two arenas: all tensors as T, learned scalars as acc_t<T>.
// Gradients lie in one arena of acc_t<T>, or those of matrices in one of T (gradients.hpp), without the fixed tensors,
// which have neither gradients nor optimizer state and travel between ranks only when weights are initialised or
// restored.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "kernels/ops.hpp"
#include "src/base/arena.hpp"
#include "src/comm/comm.hpp"
#include "src/comm/node_layout.hpp"
#include "src/config/config.hpp"
#include "src/model/rounded_gradients.hpp"

namespace nanorun {

enum class Init { zero, constant, normal, uniform, sign };
/// The role of a tensor in the model. It decides the update rule and the default learning rate
/// (src/optimizer/hyperparameters.hpp). Tensors of Group::fixed are not trained; those of Group::scalar_matrix are
/// learned scalars whose rows and columns Muon updates as a matrix.
enum class Group { matrix, embedding, lm_head, net, scalar, skip, scalar_matrix, fixed };
constexpr bool is_scalars(Group group) {
  return group == Group::scalar || group == Group::skip || group == Group::scalar_matrix;
}
/// Whether each position of a sequence reads one row of a table, and by what: its token or its bigram.
enum class Lookup { none, token, bigram };

/// "block.<layer>.<tensor>".
std::string block_name(int layer, const char* tensor);

struct Parameter {
  std::string name;
  int matrices = 1;  ///< matrices stacked along the rows, such as those of Q, K and V
  int rows = 1;      ///< rows of one matrix
  int cols = 1;
  Group group = Group::scalar;
  Init init = Init::zero;
  double bound = 0;           ///< Init::uniform: values in [-bound, bound); Init::normal: the standard deviation
  std::vector<double> start;  ///< Init::constant: values, one per element
  std::size_t offset = 0;     ///< index of the first element, counted over all parameters
  std::string like{};         ///< name of the parameter whose initial values it shares; empty: none
  int head_dim = 0;           ///< of W_q, W_k and W_v whose Q and K are narrower than the heads; else 0
  int qk_dim = 0;             ///< their width then

  std::size_t size() const { return static_cast<std::size_t>(matrices) * rows * cols; }
  /// Whether a row of the stacked matrices is dead: of a dim of Q or K that takes no part
  /// (kernels/attention/attention_input.hpp). Dead rows start at zero and get no gradient, so that they stay there.
  bool is_dead(std::uint64_t row) const {
    return qk_dim > 0 && row < 2 * static_cast<std::uint64_t>(rows) &&
           row % (head_dim / 2) >= static_cast<std::uint64_t>(qk_dim / 2);
  }
  /// Elements of the rows that are not.
  std::size_t live_size() const {
    if (qk_dim == 0) return size();
    return size() - static_cast<std::size_t>(2 * rows / head_dim) * (head_dim - qk_dim) * cols;
  }
  /// Columns of the tensor as ranks share it and checkpoints store it: 1 for learned scalars, which are shared one by
  /// one.
  int shared_cols() const { return is_scalars(group) ? 1 : cols; }
};

/// Consecutive tensors of one group that are reduced, updated and gathered together. Each rank owns whole units. A unit
/// is a matrix in Group::matrix and Group::scalar_matrix, a row in a table, an element among other learned scalars.
struct Bucket {
  Group group = Group::scalar;
  /// No lower layer uses the tensors: config.layers for the LM head, the first layer of its group for a bucket of
  /// matrices, the layer that reads a table of value embeddings first, -1 for other tables, nets, learned scalars and
  /// fixed tensors. The forward pass needs the weights from there on; the gradients are complete once the backward pass
  /// has left it.
  int layer = -1;
  std::size_t offset = 0;
  std::size_t units = 0;
  std::size_t unit_size = 0;
  int rows = 0;  ///< shape of one matrix (Group::matrix, Group::scalar_matrix)
  int cols = 0;
  Lookup lookup = Lookup::none;     ///< Group::embedding: which rows are read; a unit is a row then
  std::size_t matrices_before = 0;  ///< matrices of this shape or its transpose in earlier buckets

  std::size_t size() const { return units * unit_size; }
  bool fixed() const { return group == Group::fixed; }
  bool scalars() const { return is_scalars(group); }
  /// Whether backward passes add to the gradients, which may then be sums over several steps. The first sequence of
  /// each step overwrites those of matrices.
  bool accumulates() const { return group != Group::matrix && group != Group::fixed; }

  /// Boundaries of the parts, in elements relative to `offset`. The ranks' numbers of units differ by at most one; so
  /// do their numbers of matrices of one shape or its transpose, summed over all buckets. Few units lie on different
  /// places of one node, so that each travels between nodes on a rail of its own.
  Bounds bounds(const NodeLayout& layout) const;
};

/// Number of groups of consecutive layers: the matrices of one shape in a group are a bucket. 4 up to 16 nodes; fewer
/// among more nodes, between which each bucket takes more rounds. Never fewer than 2, so that the backward pass hides
/// the transfers of one.
int layer_groups(int nodes);

/// Whether two buckets hold matrices of one shape or its transpose.
bool same_matrix_shape(const Bucket& a, const Bucket& b);
/// Whether any sequence reads the same rows of two tables: by the same lookup, from as many rows.
bool same_lookup(const Bucket& a, const Bucket& b);

/// The part of a tensor that one rank owns: rows [first_row, first_row + row_count) of the tensor as a matrix
/// [total_rows, cols], with cols = Parameter::shared_cols().
struct OwnedRows {
  const Parameter* parameter = nullptr;
  std::uint64_t total_rows = 0;
  std::uint64_t cols = 0;
  std::uint64_t first_row = 0;
  std::uint64_t row_count = 0;
  std::size_t offset = 0;  ///< index of the first owned element, counted over all parameters

  std::size_t size() const { return row_count * cols; }
};

class ParameterTable {
 public:
  /// `nodes`: among which tensors travel; it decides the sizes of buckets, and so the order of the tensors in memory.
  /// `by_muon`: the names of learned scalars that are of Group::scalar_matrix; null: none.
  explicit ParameterTable(const ModelConfig& config, int nodes = 1,
                          std::function<bool(const std::string&)> by_muon = nullptr);

  const std::vector<Parameter>& parameters() const { return parameters_; }
  const std::vector<Bucket>& buckets() const { return buckets_; }
  /// A line with name and shape for each parameter, sorted: two models are alike if their layouts are equal.
  std::string layout() const;
  std::size_t size() const { return size_; }  ///< elements of all parameters
  /// Elements of all parameters but the learned scalars, which come last: the offset of the first of these.
  std::size_t tensor_size() const { return tensor_size_; }
  /// Elements of Group::matrix, which come first.
  std::size_t matrix_size() const { return matrix_size_; }
  /// Elements that have gradients: all but those of fixed tensors.
  std::size_t gradient_size() const { return size_ - fixed_size_; }
  /// Position of an element's gradient in the arena of gradients; `offset`: of the element, which is not fixed.
  std::size_t gradient_at(std::size_t offset) const { return offset < tensor_size_ ? offset : offset - fixed_size_; }
  /// Throws Error(internal) where no parameter has the name.
  const Parameter& find(const std::string& name) const;
  /// Number of consecutive layers, from `first` on, whose matrices travel in the buckets of layer `first`. 0 if those
  /// of layer `first` travel with a layer before it.
  int layers_from(int first) const;

  /// The rows that a rank owns of each tensor of a bucket, in the order of the tensors; row_count is 0 where it owns
  /// none.
  std::vector<OwnedRows> owned(const Bucket& bucket, const NodeLayout& layout, int rank) const;
  /// Those of a part: elements [begin, end) of the bucket, which are whole units.
  std::vector<OwnedRows> owned(const Bucket& bucket, std::size_t begin, std::size_t end) const;

 private:
  void add(const std::string& name, int matrices, int rows, int cols, Group group, Init init, double bound = 0,
           std::vector<double> start = {});
  void add_scalar(const std::string& name, int rows, int cols, std::vector<double> start);
  void add_matrices(const ModelConfig& config);
  void add_lm_head(const ModelConfig& config);
  void add_value_embeddings(const ModelConfig& config);
  void add_embeddings(const ModelConfig& config);
  void add_net_inputs(const ModelConfig& config);
  void add_fixed(const ModelConfig& config);
  void add_unet_scalars(const ModelConfig& config);
  void add_scaled_scalars(const ModelConfig& config);
  void add_before_scalars(const ModelConfig& config);
  void add_mixing_scalars(const ModelConfig& config);
  void add_plain_scalars(const ModelConfig& config);
  void add_gate_scalars(const ModelConfig& config);
  void add_net_scalars(const ModelConfig& config);
  void add_scalar_matrices();
  void close_bucket(std::size_t unit_size, int layer, Lookup lookup = Lookup::none);

  /// First layer of a group, or config.layers behind the last.
  int first_layer(int group) const { return group * layers_ / layer_groups_; }

  int layers_, layer_groups_;
  std::function<bool(const std::string&)> by_muon_;
  std::vector<Parameter> scalar_matrices_;  ///< those that are still to be added
  std::vector<Parameter> parameters_;
  std::vector<Bucket> buckets_;
  std::size_t size_ = 0;
  std::size_t tensor_size_ = 0;
  std::size_t matrix_size_ = 0;
  std::size_t fixed_size_ = 0;
  std::size_t bucket_begin_ = 0;
};

/// Writes the initial values of a rank's rows, 0 in dead ones, to `values` [row_count * cols]. Element i of a tensor is
/// number i of the random sequence (kernels/device/random.hpp) whose key is splitmix64(seed xor fnv1a64(name)), with
/// the 64-bit FNV-1a hash, so values do not depend on the number of ranks.
template <class A>
void initialise(kernels::Stream stream, std::span<A> values, const OwnedRows& rows, std::int64_t seed);

/// The memory of the weights as ops read them: tensors as T, learned scalars as acc_t<T>.
template <class T>
class Weights {
 public:
  using Scalar = kernels::acc_t<T>;
  explicit Weights(const ParameterTable& table)
      : tensors_(table.tensor_size(), "the weights"), scalars_(table.size() - table.tensor_size(), "the weights") {
    for (const Bucket& bucket : table.buckets()) written_.push_back({bucket.offset, 0});
  }

  /// Whoever writes through these notes it. The optimizer does so where it sends new weights to the other ranks
  /// (src/optimizer/bucket_transfers.hpp).
  std::span<T> tensors() const { return tensors_.span(); }
  std::span<Scalar> scalars() const { return scalars_.span(); }

  /// Called once writes of a bucket, by its place among ParameterTable::buckets(), have been enqueued.
  void note_written(std::size_t bucket) const { ++written_[bucket].times; }
  /// How often the bucket has been written in which an element lies: what was made of older weights is stale.
  /// `offset`: as Parameter::offset.
  long written(std::size_t offset) const {
    return std::prev(std::ranges::upper_bound(written_, offset, {}, &Written::offset))->times;
  }
  /// Called once weights have been written by anything but a step of the optimizer.
  void note_replaced() const {
    ++replaced_;
    for (Written& bucket : written_) ++bucket.times;
  }
  /// Number of these calls.
  long replaced() const { return replaced_; }

 private:
  struct Written {
    std::size_t offset;  ///< of the bucket
    long times;
  };
  mutable std::vector<Written> written_;  ///< by bucket, in ascending order
  mutable long replaced_ = 0;
  TensorArena<T> tensors_;
  TensorArena<Scalar> scalars_;
};

/// Views of the weights, or of their gradients, by the names of parameters.
template <class T>
class TensorViews {
 public:
  TensorViews() = default;
  /// Views into tensors [table.tensor_size()] and scalars [table.size() - table.tensor_size()]. The memory of the
  /// tensors lacks the first `missing` elements, of which there are no views.
  TensorViews(const ParameterTable& table, T* tensors, kernels::acc_t<T>* scalars, std::size_t missing = 0)
      : table_(&table), tensors_(tensors), scalars_(scalars), missing_(missing) {}

  const ParameterTable& table() const { return *table_; }
  /// Whether there is memory behind the views.
  explicit operator bool() const { return tensors_ != nullptr; }
  /// [matrices * rows, cols]: the matrices of a tensor, one below the other. Null without memory.
  kernels::Mat<T> tensor(const std::string& name) const;
  /// [rows, cols] of learned scalars. Null without memory.
  kernels::Mat<kernels::acc_t<T>> scalars(const std::string& name) const;

 private:
  const ParameterTable* table_ = nullptr;
  T* tensors_ = nullptr;
  kernels::acc_t<T>* scalars_ = nullptr;
  std::size_t missing_ = 0;
};

/// What the classes of the model bind to: the weights, and in training their gradients.
template <class T>
struct Parameters {
  TensorViews<T> weights;
  TensorViews<kernels::acc_t<T>> gradients;
  RoundedGradients<T> rounded{};  ///< where those of matrices are kept so

  kernels::Mat<const T> weight(const std::string& name) const { return weights.tensor(name); }
  kernels::Mat<kernels::acc_t<T>> gradient(const std::string& name) const {
    if (!rounded) return gradients.tensor(name);
    const Parameter& parameter = table().find(name);
    return parameter.group == Group::matrix ? rounded.of_layer(parameter) : gradients.tensor(name);
  }
  kernels::Mat<const kernels::acc_t<T>> scalars(const std::string& name) const { return weights.scalars(name); }
  kernels::Mat<kernels::acc_t<T>> d_scalars(const std::string& name) const { return gradients.scalars(name); }
  /// The elements of a tensor of learned scalars as one vector, such as a bias or a gain; and their gradients.
  kernels::Vec<const kernels::acc_t<T>> vector(const std::string& name) const { return elements(scalars(name)); }
  kernels::Vec<kernels::acc_t<T>> d_vector(const std::string& name) const { return elements(d_scalars(name)); }
  /// Element i of a tensor of learned scalars as a factor in a mix.
  ops::LearnedScalar<T> factor(const std::string& name, int i = 0) const;
  /// The sigmoid of element i of a tensor of learned scalars as a factor in a mix.
  ops::LearnedScalar<T> sigmoid_factor(const std::string& name, int i = 0) const;

 private:
  const ParameterTable& table() const { return weights.table(); }
};

}  // namespace nanorun

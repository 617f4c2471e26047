#pragma once
// The parameter table: one row per tensor. Everything that treats parameters alike (initialisation, optimizer,
// communication, checkpoint) iterates this table. Gradients lie in its order in one arena; of the weights, the tensors
// lie in one and the learned scalars, which close the table, in another of the accumulators' type. Fixed tensors have
// no gradients and no state, and travel only when weights are initialised or restored.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/ops.hpp"
#include "src/base/arena.hpp"
#include "src/comm/comm.hpp"
#include "src/config/config.hpp"
#include "src/model/topology.hpp"

namespace nanorun {

enum class Init { zero, constant, normal, uniform, sign };
/// What a tensor is to the model. The optimizer takes its update rule and its default learning rate from that
/// (src/optimizer/hyperparameters.hpp). Tensors of Group::fixed are not trained.
enum class Group { matrix, embedding, head, net, scalar, skip, fixed };
/// What each position of a sequence looks up a row of a table by.
enum class Lookup { none, token, bigram };

/// Name of a tensor of a block.
std::string block_name(int layer, const char* tensor);

struct Parameter {
  std::string name;
  int matrices = 1;  ///< matrices stacked along the rows, such as those of Q, K and V
  int rows = 1;      ///< of one matrix
  int cols = 1;
  Group group = Group::scalar;
  Init init = Init::zero;
  double bound = 0;           ///< of Init::uniform; of Init::normal the standard deviation
  std::vector<double> start;  ///< of Init::constant, one per element
  std::size_t offset = 0;     ///< of the first element, counted over all parameters
  std::string like{};         ///< the parameter whose initial values these are; empty: none

  std::size_t size() const { return static_cast<std::size_t>(matrices) * rows * cols; }
  /// Columns of the tensor as ranks share and checkpoints store it: learned scalars are shared one by one.
  int shared_cols() const { return group == Group::scalar || group == Group::skip ? 1 : cols; }
};

/// Consecutive tensors of one group that are reduced, updated and gathered together. Each rank owns whole units: of
/// Group::matrix matrices, of tables rows, of learned scalars elements.
struct Bucket {
  Group group = Group::scalar;
  /// The lowest layer that uses the tensors: config.layers for the head, 0 for the first block, -1 for the embedding.
  /// The forward pass needs the weights from there on; the gradients are complete once the backward pass has left it.
  int layer = -1;
  std::size_t offset = 0;
  std::size_t units = 0;
  std::size_t unit_size = 0;
  int rows = 0;  ///< shape of one matrix (Group::matrix)
  int cols = 0;
  Lookup lookup = Lookup::none;     ///< of Group::embedding; a unit is a row then
  std::size_t matrices_before = 0;  ///< of this shape or its transpose, in earlier buckets

  std::size_t size() const { return units * unit_size; }
  bool fixed() const { return group == Group::fixed; }
  bool scalars() const { return group == Group::scalar || group == Group::skip; }
  /// Whether gradients can be sums over several steps. The first sequence of each step overwrites those of matrices.
  bool sums_steps() const { return group != Group::matrix && group != Group::fixed; }
  /// Parts of the ranks, relative to `offset`. Unit counts differ by at most one, also those of matrices of one shape
  /// or its transpose over all buckets.
  Bounds bounds(int ranks) const;
};

/// Layers whose matrices travel in the buckets of layer `first`: itself and those that follow it. None where its own
/// are in the buckets of a layer before it.
int layers_from(const ModelConfig& config, int first);

/// Whether two buckets hold matrices of one shape or its transpose.
bool same_matrix_shape(const Bucket& a, const Bucket& b);
/// Whether any sequence reads the same rows of two tables: by the same lookup, from as many rows.
bool same_lookup(const Bucket& a, const Bucket& b);

/// Rows [first_row, first_row + row_count) of a tensor seen as [total_rows, cols], cols = shared_cols(), which this
/// rank owns.
struct OwnedRows {
  const Parameter* parameter = nullptr;
  std::uint64_t total_rows = 0;
  std::uint64_t cols = 0;
  std::uint64_t first_row = 0;
  std::uint64_t row_count = 0;
  std::size_t offset = 0;  ///< of the first owned element, counted over all parameters

  std::size_t size() const { return row_count * cols; }
};

class ParameterTable {
 public:
  explicit ParameterTable(const ModelConfig& config);

  const std::vector<Parameter>& parameters() const { return parameters_; }
  const std::vector<Bucket>& buckets() const { return buckets_; }
  /// Names and shapes, a sorted line each, which tell models apart.
  std::string layout() const;
  std::size_t size() const { return size_; }  ///< elements of all parameters
  /// Elements of the tensors that GEMMs and lookups read; the learned scalars come after them.
  std::size_t tensor_size() const { return tensor_size_; }
  /// Elements that have gradients: all but the fixed tensors', which are the last of the tensors.
  std::size_t gradient_size() const { return size_ - fixed_size_; }
  /// Place of a gradient among these, by the offset of its element.
  std::size_t gradient_at(std::size_t offset) const { return offset < tensor_size_ ? offset : offset - fixed_size_; }
  const Parameter& find(const std::string& name) const;
  /// One entry per tensor of the bucket, in order; empty where this rank owns none of it.
  std::vector<OwnedRows> owned(const Bucket& bucket, int rank, int ranks) const;

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
  void add_gate_scalars(const ModelConfig& config);
  void add_net_scalars(const ModelConfig& config);
  void close_bucket(std::size_t unit_size, int layer, Lookup lookup = Lookup::none);

  std::vector<Parameter> parameters_;
  std::vector<Bucket> buckets_;
  std::size_t size_ = 0;
  std::size_t tensor_size_ = 0;
  std::size_t fixed_size_ = 0;
  std::size_t bucket_begin_ = 0;
};

/// Initial values of the rows that a rank owns of a tensor, in `values` [row_count * cols]. Element i of a tensor is
/// number i of the sequence (kernels/device/random.hpp) with the key splitmix64(seed xor fnv1a64(name)), so the values
/// do not depend on the rank count. fnv1a64 is the 64-bit FNV-1a hash.
template <class A>
void initialise(kernels::Stream stream, std::span<A> values, const OwnedRows& rows, std::int64_t seed);

/// The weights as the ops read them: tensors in T, learned scalars in its accumulators' type.
template <class T>
class Weights {
 public:
  using Scalar = kernels::acc_t<T>;
  explicit Weights(const ParameterTable& table)
      : tensors_(table.tensor_size(), "the weights"), scalars_(table.size() - table.tensor_size(), "the weights") {}

  std::span<T> tensors() const { return tensors_.span(); }
  std::span<Scalar> scalars() const { return scalars_.span(); }

  /// Whoever writes them otherwise than by a step of the optimizer notes it.
  void note_replaced() const { ++replaced_; }
  long replaced() const { return replaced_; }

 private:
  mutable long replaced_ = 0;  ///< how often
  TensorArena<T> tensors_;
  TensorArena<Scalar> scalars_;
};

/// The weights, or their gradients, by name.
template <class T>
class TensorViews {
 public:
  TensorViews() = default;
  /// Views into tensors [table.tensor_size()] and scalars [table.size() - table.tensor_size()].
  TensorViews(const ParameterTable& table, T* tensors, kernels::acc_t<T>* scalars)
      : table_(&table), tensors_(tensors), scalars_(scalars) {}

  /// Whether there is memory behind the views.
  explicit operator bool() const { return tensors_ != nullptr; }
  /// The matrices of a tensor, one below the other; null without memory.
  kernels::Mat<T> tensor(const std::string& name) const;
  /// The same of learned scalars.
  kernels::Mat<kernels::acc_t<T>> scalars(const std::string& name) const;

 private:
  const ParameterTable* table_ = nullptr;
  T* tensors_ = nullptr;
  kernels::acc_t<T>* scalars_ = nullptr;
};

/// What the rooms of the model bind to: weights, and in training their gradients.
template <class T>
struct Parameters {
  TensorViews<T> weights;
  TensorViews<kernels::acc_t<T>> gradients;

  kernels::Mat<const T> weight(const std::string& name) const { return weights.tensor(name); }
  kernels::Mat<kernels::acc_t<T>> gradient(const std::string& name) const { return gradients.tensor(name); }
  kernels::Mat<const kernels::acc_t<T>> scalars(const std::string& name) const { return weights.scalars(name); }
  kernels::Mat<kernels::acc_t<T>> d_scalars(const std::string& name) const { return gradients.scalars(name); }
  /// Element i of a tensor of learned scalars as a factor of a mix.
  ops::LearnedScalar<T> factor(const std::string& name, int i = 0, bool sigmoid = false) const;
};

}  // namespace nanorun

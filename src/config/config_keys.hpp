#pragma once
// The key table behind config.hpp: one row for each key of the deck.

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "src/config/config.hpp"

namespace nanorun {

inline constexpr int max_length = 4194304;                         ///< longest sequence, in tokens
inline constexpr std::int64_t max_tokens = std::int64_t{1} << 50;  ///< largest validation, in tokens

/// Name of an enumeration's value in the deck.
template <class E>
struct Named {
  const char* name;
  E value;
};

template <class E>
inline constexpr std::array<Named<E>, 0> names_of{};
template <>
inline constexpr auto names_of<ValuePath> = std::to_array<Named<ValuePath>>({{"none", ValuePath::none},
                                                                             {"first", ValuePath::first},
                                                                             {"embeddings", ValuePath::embeddings},
                                                                             {"gated_embeddings",
                                                                              ValuePath::gated_embeddings}});
template <>
inline constexpr auto names_of<RotaryKind> =
    std::to_array<Named<RotaryKind>>({{"full", RotaryKind::full}, {"half_truncated", RotaryKind::half_truncated}});
template <>
inline constexpr auto names_of<WindowKind> = std::to_array<Named<WindowKind>>(
    {{"token", WindowKind::token}, {"tokens_before", WindowKind::tokens_before}, {"block", WindowKind::block}});
template <>
inline constexpr auto names_of<kernels::SoftcapKind> =
    std::to_array<Named<kernels::SoftcapKind>>({{"tanh", kernels::SoftcapKind::tanh},
                                                {"sigmoid", kernels::SoftcapKind::sigmoid},
                                                {"isru", kernels::SoftcapKind::isru},
                                                {"none", kernels::SoftcapKind::none}});
template <>
inline constexpr auto names_of<Residual> = std::to_array<Named<Residual>>(
    {{"unet", Residual::unet}, {"scaled", Residual::scaled}, {"plain", Residual::plain}, {"before", Residual::before}});
template <>
inline constexpr auto names_of<Packing> = std::to_array<Named<Packing>>({{"stream", Packing::stream},
                                                                         {"documents", Packing::documents},
                                                                         {"rows", Packing::rows}});
template <>
inline constexpr auto names_of<LossSum> = std::to_array<Named<LossSum>>({{"mean", LossSum::mean},
                                                                         {"sum", LossSum::sum}});
template <>
inline constexpr auto names_of<Orthogonalisation> =
    std::to_array<Named<Orthogonalisation>>({{"newton_schulz", Orthogonalisation::newton_schulz},
                                             {"polar_express", Orthogonalisation::polar_express},
                                             {"six_maps", Orthogonalisation::six_maps}});
template <>
inline constexpr auto names_of<MatrixRule> = std::to_array<Named<MatrixRule>>({{"muon", MatrixRule::muon},
                                                                               {"adam", MatrixRule::adam}});
template <>
inline constexpr auto names_of<DecayKind> = std::to_array<Named<DecayKind>>({{"cautious", DecayKind::cautious},
                                                                             {"plain", DecayKind::plain}});
template <>
inline constexpr auto names_of<CooldownShape> =
    std::to_array<Named<CooldownShape>>({{"linear", CooldownShape::linear}, {"cosine", CooldownShape::cosine}});
template <>
inline constexpr auto names_of<Rounding> = std::to_array<Named<Rounding>>({{"floor", Rounding::floor},
                                                                           {"ceil", Rounding::ceil}});
template <>
inline constexpr auto names_of<LmHeadChoice> = std::to_array<Named<LmHeadChoice>>({{"auto", LmHeadChoice::automatic},
                                                                                   {"fp32", LmHeadChoice::fp32},
                                                                                   {"bf16", LmHeadChoice::bf16},
                                                                                   {"fp8", LmHeadChoice::fp8}});
template <>
inline constexpr auto names_of<EndOfData> = std::to_array<Named<EndOfData>>({{"error", EndOfData::error},
                                                                             {"wrap", EndOfData::wrap}});
template <>
inline constexpr auto names_of<ChangedData> = std::to_array<Named<ChangedData>>({{"refuse", ChangedData::refuse},
                                                                                 {"accept", ChangedData::accept}});
template <>
inline constexpr auto names_of<Recompute> =
    std::to_array<Named<Recompute>>({{"none", Recompute::none}, {"mlp", Recompute::mlp}, {"block", Recompute::block}});
template <>
inline constexpr auto names_of<MlpPrecision> = std::to_array<Named<MlpPrecision>>({{"working", MlpPrecision::working},
                                                                                   {"fp8", MlpPrecision::fp8}});
template <>
inline constexpr auto names_of<Fp8Forward> = std::to_array<Named<Fp8Forward>>({{"working", Fp8Forward::working},
                                                                               {"e4m3", Fp8Forward::e4m3}});
template <>
inline constexpr auto names_of<Fp8Gradient> = std::to_array<Named<Fp8Gradient>>({{"working", Fp8Gradient::working},
                                                                                 {"e4m3", Fp8Gradient::e4m3},
                                                                                 {"e5m2", Fp8Gradient::e5m2}});
template <>
inline constexpr auto names_of<Fp8Scales> = std::to_array<Named<Fp8Scales>>({{"exact", Fp8Scales::exact},
                                                                             {"delayed", Fp8Scales::delayed},
                                                                             {"fixed", Fp8Scales::fixed}});
template <>
inline constexpr auto names_of<Fp8WeightScales> =
    std::to_array<Named<Fp8WeightScales>>({{"exact", Fp8WeightScales::exact}, {"delayed", Fp8WeightScales::delayed}});
template <>
inline constexpr auto names_of<OnFailure> = std::to_array<Named<OnFailure>>({{"stop", OnFailure::stop},
                                                                             {"continue", OnFailure::go_on}});
template <>
inline constexpr auto names_of<TransportChoice> = std::to_array<Named<TransportChoice>>(
    {{"auto", TransportChoice::automatic}, {"peers", TransportChoice::peers}, {"nccl", TransportChoice::nccl}});
template <>
inline constexpr auto names_of<TraceRanks> = std::to_array<Named<TraceRanks>>({{"auto", TraceRanks::automatic},
                                                                               {"all", TraceRanks::all},
                                                                               {"quantiles", TraceRanks::quantiles}});
template <>
inline constexpr auto names_of<StateFormat> = std::to_array<Named<StateFormat>>({{"fp32", StateFormat::fp32},
                                                                                 {"bf16", StateFormat::bf16}});
template <>
inline constexpr auto names_of<GroupFormat> = std::to_array<Named<GroupFormat>>({{"auto", GroupFormat::automatic},
                                                                                 {"fp32", GroupFormat::fp32},
                                                                                 {"bf16", GroupFormat::bf16}});
template <>
inline constexpr auto names_of<GroupRule> = std::to_array<Named<GroupRule>>({{"auto", GroupRule::automatic},
                                                                             {"muon", GroupRule::muon}});
template <>
inline constexpr auto names_of<kernels::WireFormat> = std::to_array<Named<kernels::WireFormat>>(
    {{"fp32", kernels::WireFormat::fp32}, {"bf16", kernels::WireFormat::bf16}, {"e5m2", kernels::WireFormat::e5m2}});

/// The member of a Config that a key sets.
using Field = std::variant<bool*, int*, std::int64_t*, double*, std::string*, std::vector<std::string>*,
                           std::vector<int>*, std::vector<double>*, ValuePath*, RotaryKind*, WindowKind*, Rounding*,
                           LmHeadChoice*, EndOfData*, ChangedData*, Recompute*, OnFailure*, TransportChoice*,
                           TraceRanks*, kernels::WireFormat*, kernels::SoftcapKind*, Residual*, Packing*, LossSum*,
                           Orthogonalisation*, MlpPrecision*, StateFormat*, MatrixRule*, DecayKind*, CooldownShape*,
                           GroupFormat*, GroupRule*, Fp8Forward*, Fp8Gradient*, Fp8Scales*, Fp8WeightScales*>;

/// What a key accepts beyond its type. Lists are checked element by element.
struct Check {
  std::string allowed;  ///< follows the type's name, for example ">= 1"
  std::function<bool(double)> number = [](double) { return true; };
  std::function<bool(const std::string&)> text = [](const std::string&) { return true; };
};

struct Key {
  const char* section;
  const char* name;
  Field (*member)(Config&, std::size_t row);
  Role role;
  Check check;
  const char* help;

  /// The member of the config that the key sets; `row` chooses among several sections of the name, see has_rows().
  Field field(Config& config, std::size_t row = 0) const { return member(config, row); }
  /// The key as overrides spell it: train.steps, stage.2.length; stage.N.length without a row.
  std::string path(std::optional<std::size_t> row = {}) const;
};

/// All keys, section by section, in the order of the members of Config.
const std::vector<Key>& key_table();

/// Whether a deck may have any number of sections of this name: [[stage]], [[group]], [[average]].
bool has_rows(std::string_view section);
/// The sections [fp8.mlp] and [fp8.qkv] are tables in the table "fp8". Whether sections are tables in one of this name.
bool has_subsections(std::string_view name);
/// Number of sections of this name in a config; 1 for sections that a deck has only once.
std::size_t row_count(const Config& config, std::string_view section);
/// Sets the number of sections of this name, which has_rows(). New sections have the defaults.
void set_row_count(Config& config, std::string_view section, std::size_t count);
/// A section's header: "[train]", "[[stage]]".
std::string header_of(std::string_view section);

/// The keys that have all of the words, in any case, in their name, default, allowed values or meaning: three lines
/// each, for a terminal. Throws Error(usage, all_ranks) where there is none.
std::string found_keys(const std::vector<std::string>& words);

/// Largest number of sections of one name. The time to look up the stage of a step grows with it.
inline constexpr std::size_t max_rows = 64;

}  // namespace nanorun

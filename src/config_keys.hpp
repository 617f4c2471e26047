#pragma once
// The key table behind config.hpp: one row per key of the deck.

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "src/config.hpp"

namespace nanorun {

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
                                                                             {"embeddings", ValuePath::embeddings}});
template <>
inline constexpr auto names_of<RotaryKind> =
    std::to_array<Named<RotaryKind>>({{"full", RotaryKind::full}, {"half_truncated", RotaryKind::half_truncated}});
template <>
inline constexpr auto names_of<WindowKind> = std::to_array<Named<WindowKind>>({{"token", WindowKind::token},
                                                                               {"block", WindowKind::block}});
template <>
inline constexpr auto names_of<Rounding> = std::to_array<Named<Rounding>>({{"floor", Rounding::floor},
                                                                           {"ceil", Rounding::ceil}});
template <>
inline constexpr auto names_of<HeadChoice> = std::to_array<Named<HeadChoice>>({{"auto", HeadChoice::automatic},
                                                                               {"fp32", HeadChoice::fp32},
                                                                               {"bf16", HeadChoice::bf16},
                                                                               {"fp8", HeadChoice::fp8}});
template <>
inline constexpr auto names_of<EndOfData> = std::to_array<Named<EndOfData>>({{"error", EndOfData::error},
                                                                             {"wrap", EndOfData::wrap}});
template <>
inline constexpr auto names_of<ChangedData> = std::to_array<Named<ChangedData>>({{"refuse", ChangedData::refuse},
                                                                                 {"accept", ChangedData::accept}});
template <>
inline constexpr auto names_of<Recompute> = std::to_array<Named<Recompute>>({{"none", Recompute::none},
                                                                             {"mlp", Recompute::mlp}});
template <>
inline constexpr auto names_of<OnFailure> = std::to_array<Named<OnFailure>>({{"stop", OnFailure::stop},
                                                                             {"continue", OnFailure::go_on}});
template <>
inline constexpr auto names_of<TransportChoice> = std::to_array<Named<TransportChoice>>(
    {{"auto", TransportChoice::automatic}, {"peers", TransportChoice::peers}, {"nccl", TransportChoice::nccl}});
template <>
inline constexpr auto names_of<kernels::WireFormat> = std::to_array<Named<kernels::WireFormat>>(
    {{"fp32", kernels::WireFormat::fp32}, {"bf16", kernels::WireFormat::bf16}, {"e5m2", kernels::WireFormat::e5m2}});

/// The member of a Config that a key sets.
using Field = std::variant<bool*, int*, std::int64_t*, double*, std::string*, std::vector<std::string>*,
                           std::vector<int>*, ValuePath*, RotaryKind*, WindowKind*, Rounding*, HeadChoice*, EndOfData*,
                           ChangedData*, Recompute*, OnFailure*, TransportChoice*, kernels::WireFormat*>;

/// What a key accepts beyond its type. Lists are checked element by element.
struct Check {
  std::string allowed;  ///< follows the type's name, for example ">= 1"
  std::function<bool(double)> number = [](double) { return true; };
  std::function<bool(const std::string&)> text = [](const std::string&) { return true; };
};

struct Key {
  const char* section;
  const char* name;
  Field (*field)(Config&);
  Role role;
  Check check;
  const char* help;

  std::string path() const { return std::string(section) + "." + name; }
};

/// All keys, those of a section together, in the order of the members of Config.
const std::vector<Key>& key_table();

}  // namespace nanorun

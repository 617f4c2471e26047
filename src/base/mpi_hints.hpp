#pragma once
// Hints for MPI-IO, as users write them: "romio_cb_write=enable;cb_nodes=4".

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nanorun {

/// Names and values.
using MpiHints = std::vector<std::pair<std::string, std::string>>;

/// What the names and values of hints may be, for messages.
inline constexpr const char* mpi_hint_rules =
    "NAME=VALUE;NAME=VALUE, each name once, of at most 32 letters, digits and _; values of at most 255 printable "
    "characters";

/// The hints of a text; none of an empty one. Nothing where the text breaks a rule.
std::optional<MpiHints> parse_mpi_hints(std::string_view text);

}  // namespace nanorun

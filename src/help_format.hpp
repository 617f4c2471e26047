#pragma once
// How --help shows arguments and options: in words.

#include <memory>

namespace CLI {
class FormatterBase;
}

namespace nanorun {

/// Names the values of an option (N, X, FILE, ...), and says which values it takes, its default and which options it
/// goes with behind its description. Arguments have only their descriptions: the usage shows which may be left out.
std::shared_ptr<CLI::FormatterBase> help_format();

}  // namespace nanorun

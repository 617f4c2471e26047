#pragma once
// Work of one call that several threads share.

#include <cstddef>
#include <functional>

namespace nanorun {

/// Calls body(begin, end) for parts of [0, count), each at least `least` long but for a single one: at once, by as many
/// threads as this process may use processors, at most 16. Where no thread can be started, this one does all. Rethrows
/// what a part throws.
void in_parts(std::size_t count, std::size_t least, const std::function<void(std::size_t, std::size_t)>& body);

}  // namespace nanorun

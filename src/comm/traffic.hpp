#pragma once
// What a rank has sent to others.

#include <cstdint>

namespace nanorun {

struct Traffic {
  std::uint64_t messages = 0, bytes = 0;

  Traffic& operator+=(const Traffic& other) {
    messages += other.messages;
    bytes += other.bytes;
    return *this;
  }
  Traffic operator-(const Traffic& other) const { return {messages - other.messages, bytes - other.bytes}; }
  bool operator==(const Traffic&) const = default;
};

/// Where tensors travel: inside a node, or between nodes.
enum class Level { inside, between };

/// What a rank has sent inside its node and to other nodes.
struct LevelTraffic {
  Traffic inside, between;

  LevelTraffic& operator+=(const LevelTraffic& other) {
    inside += other.inside;
    between += other.between;
    return *this;
  }
  LevelTraffic operator-(const LevelTraffic& other) const { return {inside - other.inside, between - other.between}; }
  bool operator==(const LevelTraffic&) const = default;
};

}  // namespace nanorun

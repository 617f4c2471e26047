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

}  // namespace nanorun

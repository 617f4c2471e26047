#pragma once
// Whom the heartbeats of all ranks blame for a collective that takes too long.

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace nanorun {

/// What a rank does.
enum class Activity : std::uint32_t {
  outside,  ///< of collectives
  inside,   ///< of a collective
  late,     ///< waits in a collective for more than half the timeout
  due,      ///< waits in a collective, whose timeout is nearly over
};

/// What a rank says of itself.
struct Heartbeat {
  std::uint64_t beats = 0;        ///< grows while the rank lives
  std::uint64_t collectives = 0;  ///< collectives of all ranks begun
  Activity activity = Activity::outside;
  long step = 0;
};

/// Has no pointers, so that other processes can read it.
struct Culprit {
  enum class Kind : std::uint32_t {
    unknown,
    silent,         ///< ranks that are stopped or dead
    outside,        ///< ranks that live and have not come to the collective
    behind,         ///< ranks that wait in an earlier collective
    no_heartbeats,  ///< no rank that could be seen; the directory of heartbeats takes none
    communication,  ///< all ranks wait in the collective
    writes,         ///< likewise, and it writes files
  };
  static constexpr int max_named = 8;

  Kind kind = Kind::unknown;
  std::uint32_t count = 0;                      ///< ranks to blame
  std::array<std::int32_t, max_named> ranks{};  ///< the first of them
  std::int64_t step = 0;                        ///< of the first of them
};

/// `then`, `now`: all ranks' heartbeats half a timeout ago and now. `suspects`: the ranks that may be to blame.
/// `waiting`: a rank that waits in the collective; `writes_files`: as the collective does.
Culprit find_culprit(const std::vector<Heartbeat>& then, const std::vector<Heartbeat>& now,
                     std::span<const int> suspects, int waiting, bool writes_files);

/// What a message says. `directory`: of the heartbeats. `host_of`: the host of a rank; none where all ranks share one.
std::string text_of(const Culprit& culprit, const std::string& directory,
                    const std::function<std::string(int)>& host_of = {});

}  // namespace nanorun

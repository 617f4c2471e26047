#pragma once
// Standard output, and the log of a run: log.txt and a live line on a terminal. Rank 0 alone writes.

#include <optional>
#include <string>

#include "src/base/growing_file.hpp"

namespace nanorun {

/// Writes to standard output at once. Returns false where nobody reads it any more, as behind `| head`: this is no
/// error, and further texts can be left out. Throws Error(output) where writing fails for another reason.
bool write_output(const std::string& text);

/// Whether nanorun has written the log.txt at this path, which then begins with the program's name. Throws
/// Error(output).
bool is_log(const std::string& path);

/// Lines to standard output and to log.txt, and on a terminal a live line for the current step.
class Log {
 public:
  /// A log that is not `active` writes nothing; ranks other than 0 have one.
  explicit Log(bool active);

  /// Appends the lines so far, and those to come, to `file`. What nanorun has not written there gets another name, with
  /// a warning. Throws Error(output).
  void open(const std::string& file);

  void line(const std::string& text);
  /// A line for log.txt alone.
  void note(const std::string& text);
  /// Overwrites the live line, where standard output is a terminal.
  void live(const std::string& text);

 private:
  bool active_;
  bool terminal_;
  bool live_shown_ = false;
  bool warned_ = false;
  bool unread_ = false;  ///< a warning has said that standard output cannot be written any more
  std::string waiting_;  ///< lines from before open()
  std::optional<GrowingFile> file_;
};

}  // namespace nanorun

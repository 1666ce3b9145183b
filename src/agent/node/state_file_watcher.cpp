#include "agent/node/state_file_watcher.h"

#include <utility>

namespace gpulet::agent {

StateFileWatcher::StateFileWatcher(Loop& loop, Reporter& reporter, const std::string& path,
                                   const Texts& texts, std::function<Status()> read)
    : reporter_(reporter), texts_(texts), read_(std::move(read)) {
  // Watch before reading: a change in between is an event.
  auto watch = FileWatcher::watch_path(loop, path, [this] { read_file(); });
  if (watch) {
    watch_ = std::move(*watch);
  } else {
    reporter_.report_event(Reporter::Severity::kWarning, texts_.not_watched,
                           watch.error().full_message() + "; " + texts_.not_watched_effect);
  }
  read_file();
}

void StateFileWatcher::read_file() {
  const auto read = read_();
  const std::string wrong = read ? "" : read.error().full_message();
  if (wrong == std::exchange(reported_error_, wrong) || read) return;
  reporter_.report_event(Reporter::Severity::kWarning, texts_.unreadable,
                         wrong + "; " + texts_.unreadable_effect);
}

}  // namespace gpulet::agent

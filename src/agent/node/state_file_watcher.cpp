#include "agent/node/state_file_watcher.h"

#include <utility>

namespace gpulet::agent {
namespace {

constexpr std::uint64_t kStateFileSeed = 83;

}  // namespace

StateFileWatcher::StateFileWatcher(Loop& loop, Reporter& reporter, const std::string& path,
                                   const Texts& texts, std::function<Status()> read)
    : loop_(loop),
      reporter_(reporter),
      path_(path),
      texts_(texts),
      read_(std::move(read)),
      backoff_(kStateFileBackoff, kStateFileSeed) {
  read_file();
}

void StateFileWatcher::watch_file() {
  auto watch = FileWatcher::watch_path(loop_, path_, [this] { read_file(); });
  if (watch) {
    watch_ = std::move(*watch);
  } else if (!std::exchange(watch_failure_reported_, true)) {
    reporter_.report_event(Reporter::Severity::kWarning, texts_.not_watched,
                           watch.error().full_message() + "; " + texts_.not_watched_effect);
  }
}

void StateFileWatcher::read_file() {
  retry_.reset();
  // Watch before reading: a change in between is an event.
  if (!watch_) watch_file();
  const auto read = read_();
  if (!watch_ || (!read && read.error().code() == Code::kIo)) {
    retry_ = loop_.after(backoff_.next_delay(), [this] { read_file(); });
  } else {
    backoff_.reset();
  }
  const std::string wrong = read ? "" : read.error().full_message();
  if (wrong == std::exchange(reported_error_, wrong) || read) return;
  reporter_.report_event(Reporter::Severity::kWarning, texts_.unreadable,
                         wrong + "; " + texts_.unreadable_effect);
}

}  // namespace gpulet::agent

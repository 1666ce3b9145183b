#include "agent/driver/driver_release.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "base/file.h"
#include "base/text.h"
#include "health/state/cordons.h"

namespace gpulet::agent {
namespace {

using std::chrono::milliseconds;

constexpr std::string_view kReleaseHead = "gpulet-driver-release 1";
constexpr std::string_view kPausedPrefix = "paused-for-";
static_assert(kMaxReleaseReason == health::kMaxCordonReason);

}  // namespace

std::string format_release(const ReleaseRequest& request) {
  const auto at = std::chrono::floor<milliseconds>(std::clamp(request.at, kFirstWallTime, kLastWallTime));
  std::string text = std::string(kReleaseHead) + "\n" + std::to_string(at.time_since_epoch().count());
  const auto reason = health::sanitize_cordon_reason(request.reason);
  return text + (reason.empty() ? "" : " " + reason) + "\n";
}

Result<ReleaseRequest> parse_release(std::string_view text) {
  const auto lines = text::split(text, '\n');
  const auto wrong = [](std::size_t line, const std::string& what) {
    return fail(Code::kInvalidArgument, "line " + std::to_string(line) + " " + what);
  };
  if (lines.empty() || lines[0] != kReleaseHead)
    return wrong(1, "is not '" + std::string(kReleaseHead) + "'");
  if (lines.size() != 3 || !lines[2].empty()) return wrong(2, "is not the only other line");
  const std::string_view line = lines[1];
  const auto space = line.find(' ');
  const auto at = text::parse_unsigned(line.substr(0, space));
  constexpr auto kLatest =
      static_cast<std::uint64_t>(std::chrono::floor<milliseconds>(kLastWallTime).time_since_epoch().count());
  if (!at || *at > kLatest) return wrong(2, "does not begin with a time");
  ReleaseRequest request{WallTime(milliseconds(*at)), {}};
  if (space != std::string_view::npos) request.reason = line.substr(space + 1);
  if (request.reason != health::sanitize_cordon_reason(request.reason))
    return wrong(2, "has an invalid reason");
  return request;
}

Result<std::optional<ReleaseRequest>> read_release(const std::string& path) {
  const auto content = read_file(path, kMaxReleaseBytes);
  if (!content && content.error().code() == Code::kNotFound) return std::optional<ReleaseRequest>();
  if (!content) return fail(content.error());
  auto request = parse_release(*content);
  if (!request) return fail(Error(request.error().code(), request.error().message(), path));
  return std::optional(std::move(*request));
}

Status write_release(const std::string& path, const ReleaseRequest& request) {
  return write_file_atomic(path, format_release(request));
}

Result<bool> remove_release(const std::string& path) {
  if (::unlink(path.c_str()) == 0) return true;
  if (errno == ENOENT) return false;
  return fail(errno_error("cannot remove", errno, path));
}

Result<ProcessLock> lock_release(const std::string& path) {
  GPULET_TRY_ASSIGN(auto lock, ProcessLock::acquire_lock(path));
  // A lock alone is no event of a file that exists already.
  if (::utimensat(AT_FDCWD, path.c_str(), nullptr, AT_SYMLINK_NOFOLLOW) != 0)
    return fail(errno_error("cannot touch", errno, path));
  return lock;
}

std::optional<std::string> release_reason(const std::optional<ReleaseRequest>& request, bool mig_apply_works,
                                          const std::map<std::string, std::string>& labels) {
  std::vector<std::string> reasons;
  if (request) reasons.push_back(request->reason.empty() ? "gpulet driver release" : request->reason);
  if (mig_apply_works) reasons.emplace_back(kMigApplyReason);
  const auto paused = std::ranges::find_if(labels, [](const auto& label) {
    return label.first.starts_with(kOperandLabelPrefix) && label.second.starts_with(kPausedPrefix);
  });
  if (paused != labels.end()) {
    std::string purpose = paused->second.substr(kPausedPrefix.size());
    std::ranges::replace(purpose, '-', ' ');
    reasons.push_back(purpose + " (node label " + paused->first + "=" + paused->second + ")");
  }
  if (reasons.empty()) return std::nullopt;
  return text::join(reasons, "; ");
}

ReleaseWatcher::ReleaseWatcher(Loop& loop, Reporter& reporter, const std::string& path, Changed changed)
    : file_(loop, reporter, path,
            {"DriverReleaseNotWatched", "`gpulet driver release` takes effect up to a minute late",
             "DriverReleaseUnreadable", "the driver stays as it is"},
            [path, changed = std::move(changed)]() -> Status {
              GPULET_TRY_ASSIGN(const auto request, read_release(path));
              changed(request);
              return {};
            }) {}

ReleaseLockWatcher::ReleaseLockWatcher(Loop& loop, Reporter& reporter, std::string path, Changed changed)
    : loop_(loop),
      path_(std::move(path)),
      changed_(std::move(changed)),
      file_(loop, reporter, path_,
            {"DriverReleaseNotWatched", "`gpulet mig apply` waits up to a minute", "DriverReleaseUnreadable",
             "the driver stays as it is"},
            [this] { return read_lock(); }) {}

Status ReleaseLockWatcher::read_lock() {
  check_.reset();
  const auto locked = ProcessLock::is_locked(path_);
  if (locked ? *locked : locked_.value_or(false))
    check_ = loop_.after(kReleaseLockCheck, [this] { static_cast<void>(read_lock()); });
  if (!locked) return fail(locked.error());
  if (locked_ != *locked) changed_(*(locked_ = *locked));
  return {};
}

}  // namespace gpulet::agent

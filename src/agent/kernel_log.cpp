#include "agent/kernel_log.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string_view>

#include "base/log.h"

namespace gpulet::agent {
namespace {

// A record with its keys and values: the kernel's CONSOLE_EXT_LOG_MAX.
constexpr std::size_t kMaxRecord = 8192;

}  // namespace

KernelLog::KernelLog(Loop& loop, FileDescriptor fd, std::string path, Handlers handlers)
    : loop_(loop), fd_(std::move(fd)), path_(std::move(path)), handlers_(std::move(handlers)) {}

KernelLog::~KernelLog() = default;

Result<std::unique_ptr<KernelLog>> KernelLog::start(Loop& loop, const std::string& path, Handlers handlers) {
  FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!fd.valid()) return fail(errno_error("opening the kernel's log", errno, path));
  // A stream that cannot be wound has nothing from before.
  if (::lseek(fd.get(), 0, SEEK_END) < 0 && errno != ESPIPE) {
    return fail(errno_error("winding the kernel's log to its end", errno, path));
  }
  auto log = std::unique_ptr<KernelLog>(new KernelLog(loop, std::move(fd), path, std::move(handlers)));
  if (!log->listen()) return fail(Code::kUnsupported, "it is no stream of records", path);
  return log;
}

bool KernelLog::listen() {
  watch_ = loop_.watch(fd_.get(), EPOLLIN, [this](std::uint32_t) { on_ready(); });
  return static_cast<bool>(watch_);
}

void KernelLog::on_ready() {
  // What comes in the next moment is read together.
  watch_.reset();
  pause_ = loop_.after(kLogPause, [this] { listen(); });
  read_lines();
}

void KernelLog::read_lines() {
  std::array<char, kMaxRecord> record;
  for (unsigned i = 0; i < kLinesPerTurn; ++i) {
    const auto size = ::read(fd_.get(), record.data(), record.size());
    if (size > 0) {
      take(std::string_view(record.data(), static_cast<std::size_t>(size)));
      continue;
    }
    if (size == 0) return end(Error(Code::kUnavailable, "the kernel's log has ended", path_));
    if (errno == EAGAIN) return;
    if (errno == EINTR || errno == EINVAL) continue;  // EINVAL: a record longer than any that is of use
    if (errno != EPIPE) return end(errno_error("reading the kernel's log", errno, path_));
    // Written over before they were read. The polls see what stays wrong.
    if (overruns_++ == 0) log::warning("lines of the kernel's log were lost: it is written faster than read");
  }
}

// /dev/kmsg gives one whole record a read; of another stream a read may end anywhere.
void KernelLog::take(std::string_view text) {
  text_ += text;
  std::size_t from = 0;
  for (auto end = text_.find('\n'); end != std::string::npos; end = text_.find('\n', from)) {
    const auto record = health::parse_record(std::string_view(text_).substr(from, end - from));
    from = end + 1;
    if (!record) continue;
    if (const auto line = health::parse_line(record->text)) handlers_.line(*line);
  }
  text_.erase(0, from);
  if (text_.size() > kMaxRecord) text_.clear();
}

void KernelLog::end(Error error) {
  pause_.reset();
  fd_.reset();
  if (handlers_.ended) handlers_.ended(std::move(error));
}

}  // namespace gpulet::agent

#include "agent/driver/kernel_log.h"

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

Result<std::unique_ptr<KernelLog>> KernelLog::start_kernel_log(Loop& loop, const std::string& path,
                                                               Handlers handlers) {
  FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!fd.is_open()) return fail(errno_error("opening the kernel's log", errno, path));
  // A stream that cannot seek has no earlier lines.
  if (::lseek(fd.get(), 0, SEEK_END) < 0 && errno != ESPIPE) {
    return fail(errno_error("seeking to the end of the kernel's log", errno, path));
  }
  auto log = std::unique_ptr<KernelLog>(new KernelLog(loop, std::move(fd), path, std::move(handlers)));
  if (!log->watch_file()) return fail(Code::kUnsupported, "not a stream of records", path);
  return log;
}

bool KernelLog::watch_file() {
  watch_ = loop_.watch_descriptor(fd_.get(), EPOLLIN, [this](std::uint32_t) { on_ready(); });
  return static_cast<bool>(watch_);
}

void KernelLog::on_ready() {
  // Lines that follow immediately are read together.
  watch_.reset();
  batch_timer_ = loop_.after(kLogBatchDelay, [this] { watch_file(); });
  read_lines();
}

void KernelLog::read_lines() {
  std::array<char, kMaxRecord> record;
  for (unsigned i = 0; i < kLinesPerTurn; ++i) {
    const auto size = ::read(fd_.get(), record.data(), record.size());
    if (size > 0) {
      parse_records(std::string_view(record.data(), static_cast<std::size_t>(size)));
      continue;
    }
    if (size == 0) return close_log(Error(Code::kUnavailable, "the kernel's log has ended", path_));
    if (errno == EAGAIN) return;
    if (errno == EINTR || errno == EINVAL) continue;  // EINVAL: a record longer than any that matters
    if (errno != EPIPE) return close_log(errno_error("reading the kernel's log", errno, path_));
    // Lines were overwritten before they were read. Polls find faults that persist.
    if (overruns_++ == 0) log::warning("kernel log lines were overwritten before they could be read");
  }
}

// A read of /dev/kmsg returns one record; of another stream it may end anywhere.
void KernelLog::parse_records(std::string_view text) {
  text_ += text;
  std::size_t from = 0;
  for (auto end = text_.find('\n'); end != std::string::npos; end = text_.find('\n', from)) {
    const auto record = health::parse_kmsg_record(std::string_view(text_).substr(from, end - from));
    from = end + 1;
    if (!record) continue;
    if (const auto line = lines_.parse_line(record->text)) handlers_.line(*line);
  }
  text_.erase(0, from);
  if (text_.size() > kMaxRecord) text_.clear();
}

void KernelLog::close_log(Error error) {
  batch_timer_.reset();
  fd_.reset();
  if (handlers_.ended) handlers_.ended(std::move(error));
}

}  // namespace gpulet::agent

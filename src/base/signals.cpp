#include "base/signals.h"

#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>

namespace gpulet {

Result<std::unique_ptr<SignalWatch>> SignalWatch::start(Loop& loop, std::initializer_list<int> signals,
                                                        std::function<void(int)> received) {
  sigset_t wanted;
  ::sigemptyset(&wanted);
  for (const int signal : signals) ::sigaddset(&wanted, signal);
  FileDescriptor fd(::signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd.valid()) return fail(errno_error("cannot open a signalfd", errno));
  sigset_t before;
  if (const int error = ::pthread_sigmask(SIG_BLOCK, &wanted, &before); error != 0) {
    return fail(errno_error("cannot block signals", error));
  }
  std::unique_ptr<SignalWatch> watch(new SignalWatch(std::move(fd), before));
  watch->reading_ = loop.watch(watch->fd_.get(), EPOLLIN,
                               [raw = watch->fd_.get(), received = std::move(received)](std::uint32_t) {
                                 signalfd_siginfo info;
                                 // One a turn: `received` may destroy the watch, and the descriptor stays
                                 // readable while there are more.
                                 if (::read(raw, &info, sizeof info) == sizeof info)
                                   received(static_cast<int>(info.ssi_signo));
                               });
  return watch;
}

SignalWatch::~SignalWatch() {
  reading_.reset();
  ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

}  // namespace gpulet

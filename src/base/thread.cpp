#include "base/thread.h"

#include <pthread.h>

#include <csignal>
#include <cstring>
#include <memory>
#include <string>

namespace gpulet {
namespace {

void* run(void* argument) {
  const std::unique_ptr<std::function<void()>> body(static_cast<std::function<void()>*>(argument));
  (*body)();
  return nullptr;
}

}  // namespace

// pthread_create and not std::thread, which throws when the kernel refuses.
Status start_detached(std::string_view purpose, std::function<void()> body) {
  auto owned = std::make_unique<std::function<void()>>(std::move(body));
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);  // the new thread inherits it
  pthread_attr_t attributes;
  ::pthread_attr_init(&attributes);
  ::pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_t thread;
  const int result = ::pthread_create(&thread, &attributes, run, owned.get());
  ::pthread_attr_destroy(&attributes);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (result != 0)
    return fail(Code::kUnavailable, "no thread for " + std::string(purpose) + ": " + std::strerror(result));
  [[maybe_unused]] auto* handed_over = owned.release();
  return {};
}

}  // namespace gpulet

#include "cluster/resolve.h"

#include <netdb.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cstring>

#include "base/file.h"

namespace gpulet::cluster {
namespace {

Result<Addresses> look_up(const std::string& host, std::uint16_t port, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
      error != 0) {
    return fail(Code::kUnavailable, std::string("cannot look the name up: ") + ::gai_strerror(error), host);
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owned(found, ::freeaddrinfo);
  Addresses addresses;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    if (one->ai_addrlen > sizeof(sockaddr_storage)) continue;
    Address& address = addresses.emplace_back();
    std::memcpy(&address.storage, one->ai_addr, one->ai_addrlen);
    address.size = one->ai_addrlen;
  }
  if (addresses.empty()) return fail(Code::kUnavailable, "the name has no address", host);
  return addresses;
}

}  // namespace

// What a thread and its Resolver share; whoever is last lets go of it.
struct Resolver::Lookup {
  std::string host;
  std::uint16_t port = 0;
  FileDescriptor event;  // readable once `done`
  Result<Addresses> addresses = Addresses();
  std::atomic<bool> done = false;

  static void* run(void* argument) {
    const std::unique_ptr<std::shared_ptr<Lookup>> owned(static_cast<std::shared_ptr<Lookup>*>(argument));
    Lookup& lookup = **owned;
    lookup.addresses = look_up(lookup.host, lookup.port, AI_ADDRCONFIG);
    lookup.done.store(true, std::memory_order_release);
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto put = ::write(lookup.event.get(), &one, sizeof one);
    return nullptr;
  }

  // Detached: a look-up can be neither interrupted nor waited for. pthread_create and not std::thread, which
  // throws.
  static Status start(const std::shared_ptr<Lookup>& lookup) {
    auto owned = std::make_unique<std::shared_ptr<Lookup>>(lookup);
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
    if (result != 0) return fail(Code::kUnavailable, "no thread to look a name up", lookup->host);
    [[maybe_unused]] auto* handed_over = owned.release();
    return {};
  }
};

Resolver::Resolver(Loop& loop, std::string host, std::uint16_t port)
    : loop_(loop), host_(std::move(host)), port_(port) {}
Resolver::~Resolver() = default;

void Resolver::resolve(Done done) {
  if (host_ == "localhost") {
    auto addresses = look_up("127.0.0.1", port_, AI_NUMERICHOST);
    if (const auto six = look_up("::1", port_, AI_NUMERICHOST); six && addresses) {
      addresses->insert(addresses->end(), six->begin(), six->end());
    }
    return done(std::move(addresses));
  }
  if (auto numeric = look_up(host_, port_, AI_NUMERICHOST)) return done(std::move(numeric));
  done_ = std::move(done);
  if (lookup_) return;
  auto lookup = std::make_shared<Lookup>();
  lookup->host = host_;
  lookup->port = port_;
  lookup->event = FileDescriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  const Status started = lookup->event.valid() ? Lookup::start(lookup)
                                               : fail(errno_error("cannot make an eventfd", errno, host_));
  if (!started) return std::exchange(done_, nullptr)(fail(started.error()));
  lookup_ = std::move(lookup);
  waiting_ = loop_.watch(lookup_->event.get(), EPOLLIN, [this](std::uint32_t) { answered(); });
}

void Resolver::answered() {
  if (!lookup_->done.load(std::memory_order_acquire)) return;
  waiting_.reset();
  const auto lookup = std::exchange(lookup_, nullptr);
  if (const Done done = std::exchange(done_, nullptr)) done(std::move(lookup->addresses));
}

}  // namespace gpulet::cluster

// A process without a free descriptor cannot accept the kubelet's connection, which stays ready.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/file.h"
#include "device_plugin/plugin_host.h"
#include "device_plugin/rpc_core.h"
#include "device_plugin/test_node.h"

namespace gpulet::device_plugin {
namespace {

using namespace std::chrono_literals;

// Counts how often a descriptor was ready.
class CountingLoop final : public Loop {
 public:
  Time now() const override { return loop.now(); }
  WallTime wall_now() const override { return loop.wall_now(); }
  void post(std::function<void()> task) override { loop.post(std::move(task)); }
  Subscription after(Duration delay, std::function<void()> task) override {
    return loop.after(delay, std::move(task));
  }
  Subscription watch_descriptor(int fd, std::uint32_t events,
                                std::function<void(std::uint32_t)> task) override {
    return loop.watch_descriptor(fd, events, [this, task = std::move(task)](std::uint32_t ready) {
      ++ready_count;
      task(ready);
    });
  }
  void run_for(Duration time) {
    const auto end = loop.after(time, [this] { loop.stop_loop(); });
    loop.run_loop();
  }
  EpollLoop loop;
  int ready_count = 0;
};

// UndefinedBehaviorSanitizer, in the same build as AddressSanitizer, needs a pipe to check an object's type.
#ifndef __SANITIZE_ADDRESS__

TEST(PluginHostDescriptors, AcceptsOnceOneIsFreeWithoutSpinningUntilThen) {
  const TemporaryDirectory directory;
  CountingLoop loop;
  const auto host = make_plugin_host(loop, start_grpc_thread(),
                                     {.directory = directory.directory_path(), .kubelet_socket = ""});
  ASSERT_TRUE(host->serve_offer(offers::share_offer(offers::make_offer())));
  const FileDescriptor client(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  (directory.directory_path() + "/nvidia-gpu.sock").copy(address.sun_path, sizeof address.sun_path - 1);

  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit before = limit;
  const int lowest_free = ::fcntl(client.get(), F_DUPFD_CLOEXEC, 0);
  ASSERT_GE(lowest_free, 0);
  ::close(lowest_free);
  limit.rlim_cur = static_cast<rlim_t>(lowest_free);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(::connect(client.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  loop.run_for(500ms);
  const int tries = loop.ready_count;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_GE(tries, 1);
  EXPECT_LE(tries, 20);

  // The server speaks first: its HTTP/2 settings.
  pollfd greeting{client.get(), POLLIN, 0};
  const auto deadline = loop.now() + kPatience;
  while (::poll(&greeting, 1, 0) == 0 && loop.now() < deadline) loop.run_for(10ms);
  EXPECT_EQ(greeting.revents, POLLIN);
}

#endif

}  // namespace
}  // namespace gpulet::device_plugin

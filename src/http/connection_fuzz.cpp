// A server's connection under any bytes in any fragments, which the client ends at any point: it responds in
// whole responses, and is over soon after its client.
#include <sys/socket.h>
#include <sys/un.h>

#include <cstdint>
#include <cstdlib>
#include <string>

#include "http/server.h"
#include "http/socket.h"

namespace gpulet::http {
namespace {

class Echo final : public RequestHandler {
 public:
  void handle_request(const Request& request, Time, const ResponseCallback& reply) override {
    Response response;
    response.body = std::make_shared<const std::string>(request.body.empty() ? request.target : request.body);
    response.is_event_stream = request.target == "/events";
    reply(std::move(response));
  }
  Subscribers* event_subscribers() override { return &subscribers_; }
  Subscribers& subscribers() { return subscribers_; }
  void publish_event(const char* text) {
    const auto event = std::make_shared<const std::string>(text);
    subscribers_.publish_event(event, event);
  }

 private:
  Subscribers subscribers_;
};

struct World {
  World() {
    address.sun_family = AF_UNIX;
    // An abstract name of the kernel's choice: nothing in the file system.
    socklen_t size = sizeof(sa_family_t);
    auto* any = reinterpret_cast<sockaddr*>(&address);
    if (::bind(listening.get(), any, size) != 0 || ::listen(listening.get(), 8) != 0) std::abort();
    address_size = sizeof address;
    if (::getsockname(listening.get(), any, &address_size) != 0) std::abort();
    server.emplace(loop, listening.get(), echo, gate,
                   ServerLimits{.head_bytes = 512, .body_bytes = 2048, .body_budget = 8192});
  }
  void run_turn() {
    // By a timer: those of delayed connections are due before.
    const auto stop = loop.after(gpulet::Duration::zero(), [this] { loop.stop_loop(); });
    loop.run_loop();
  }

  EpollLoop loop;
  Echo echo;
  AccessGate gate;
  sockaddr_un address{};
  socklen_t address_size = 0;
  FileDescriptor listening{::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)};
  std::optional<Server> server;
};

std::string received_bytes(int client) {
  std::string all;
  char buffer[65'536];
  for (ssize_t got; (got = ::recv(client, buffer, sizeof buffer, MSG_DONTWAIT)) > 0;)
    all.append(buffer, static_cast<std::size_t>(got));
  return all;
}

}  // namespace
}  // namespace gpulet::http

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gpulet::http;
  if (size < 2) return 0;
  static World world;
  std::string said;
  {
    gpulet::FileDescriptor client(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::connect(client.get(), reinterpret_cast<const sockaddr*>(&world.address), world.address_size) != 0)
      std::abort();
    // The first byte: how long the fragments are, and whether events come and the client only half closes.
    const std::size_t fragment = 1 + (data[0] & 63u) * 8;
    for (std::size_t at = 1; at < size; at += fragment) {
      ::send(client.get(), data + at, std::min(fragment, size - at), MSG_NOSIGNAL | MSG_DONTWAIT);
      world.run_turn();
      if ((data[0] & 64) != 0) world.echo.publish_event("data: 1\n\n");
      said += received_bytes(client.get());
    }
    if ((data[0] & 128) != 0) ::shutdown(client.get(), SHUT_WR);
    for (int turns = 0; turns < 4; ++turns) world.run_turn();
    said += received_bytes(client.get());
  }
  if (!said.empty() && !said.starts_with("HTTP/1.1 ")) std::abort();
  for (int turns = 0; world.server->connection_count() > 0; ++turns) {
    if (turns > 1000) std::abort();
    world.run_turn();
  }
  if (world.echo.subscribers().subscriber_count() != 0) std::abort();
  return 0;
}

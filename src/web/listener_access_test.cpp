// What the sandboxed child serves to clients that have a password, and to those that have none.
#include <poll.h>

#include "web/test_listener.h"

namespace gpulet::web {
namespace {

bool is_readable(const http::TestClient& client) {
  pollfd ready{.fd = client.fd(), .events = POLLIN, .revents = 0};
  return ::poll(&ready, 1, 0) == 1;
}

// A check of the greatest cost takes a second. Who asked later and needs none is answered before it.
TEST_F(LocalListenerTest, GuessedPasswordsDelayNobodyElse) {
  begin("127.0.0.1:0", {.access_rules = {.users = {{"alice", http::secret_hash("14")}}}, .local = local_});
  publish_on_loop(good_pages());
  ASSERT_TRUE(wait_until([&] { return http::status_code(http::get(socket_path(), "/healthz")) == 200; }));
  http::TestClient guesser(port_on_loop());
  ASSERT_TRUE(guesser.send_bytes("GET /healthz HTTP/1.1\r\nAuthorization: Basic YWxpY2U6eA==\r\n\r\n"));
  EXPECT_EQ(http::status_code(http::get(socket_path(), "/healthz")), 200);
  EXPECT_EQ(http::status_code(http::get(port_on_loop(), "/healthz")), 401);
  EXPECT_FALSE(is_readable(guesser)) << "the others have waited for the check";
  EXPECT_EQ(http::status_code(guesser.read_response()), 401);
  EXPECT_EQ(listener_->restarts(), 0u);
}

}  // namespace
}  // namespace gpulet::web

// What the sandboxed child serves to clients that have a password, and to those that have none.
#include <poll.h>

#include "web/test_listener.h"

namespace gpulet::web {
namespace {

constexpr const char* kAlice = "Authorization: Basic YWxpY2U6c2VjcmV0\r\n";

Pages named_pages() {
  Pages pages = good_pages();
  pages.node = R"json({"events":["process 7 (python3)"]})json";
  pages.use = R"json({"processes":[{"pid":7,"name":"python3"}]})json";
  pages.public_node = R"json({"events":["process 7"]})json";
  pages.public_use = R"json({"processes":[{"pid":7}]})json";
  return pages;
}

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

TEST_F(LocalListenerTest, NamesProcessesOnlyToAuthenticatedClients) {
  begin("127.0.0.1:0", {.local = local_});
  publish_on_loop(named_pages());
  ASSERT_TRUE(wait_until([&] { return http::status_code(http::get(socket_path(), "/healthz")) == 200; }));
  const auto body = [](auto where, const std::string& path, const std::string& fields = "") {
    return http::response_body(http::get(where, path, fields));
  };
  const auto first_events = [](auto where, const std::string& fields = "") {
    http::TestClient client(where);
    EXPECT_TRUE(client.send_bytes("GET /api/events HTTP/1.1\r\n" + fields + "\r\n"));
    return client.read_until("event: use");
  };
  const Pages pages = named_pages();
  EXPECT_EQ(body(socket_path(), "/api/node"), pages.node);
  EXPECT_EQ(body(socket_path(), "/api/use"), pages.use);
  EXPECT_NE(first_events(socket_path()).find("python3"), std::string::npos);
  EXPECT_EQ(body(port_on_loop(), "/api/node"), pages.public_node);
  EXPECT_EQ(body(port_on_loop(), "/api/use"), pages.public_use);
  EXPECT_EQ(first_events(port_on_loop()).find("python3"), std::string::npos);

  call_on_loop(
      [&] { ASSERT_TRUE(listener_->set_access_rules({.users = {{"alice", http::secret_hash()}}})); });
  ASSERT_TRUE(wait_until([&] { return http::status_code(http::get(port_on_loop(), "/api/use")) == 401; }));
  EXPECT_EQ(body(port_on_loop(), "/api/node", kAlice), pages.node);
  EXPECT_EQ(body(port_on_loop(), "/api/use", kAlice), pages.use);
  EXPECT_NE(first_events(port_on_loop(), kAlice).find("python3"), std::string::npos);
}

// Only a certificate that an authority has signed authenticates, also where none is required.
TEST_F(LocalListenerTest, NamesProcessesToClientsWithAVerifiedCertificate) {
  const auto authority = Certificate::make_certificate("authority", nullptr, "");
  const auto server = Certificate::make_certificate("server", nullptr, "127.0.0.1");
  const auto scraper = Certificate::make_certificate("scraper", &authority, "");
  const auto stranger = Certificate::make_certificate("stranger", nullptr, "");
  const auto served = [&](const Certificate* shown) {
    http::TestClient client(port_on_loop());
    if (!client.encrypt(shown)) return std::string("no handshake");
    client.send_bytes("GET /api/use HTTP/1.1\r\nConnection: close\r\n\r\n");
    return http::response_body(client.read_response());
  };
  http::AccessRules access;
  access.tls.emplace();
  access.tls->certificate = server.pem();
  access.tls->key = server.key_pem();
  begin("127.0.0.1:0", {.access_rules = access, .local = local_});
  const Pages pages = named_pages();
  publish_on_loop(pages);
  ASSERT_TRUE(wait_until([&] { return http::status_code(http::get(socket_path(), "/healthz")) == 200; }));
  EXPECT_EQ(served(nullptr), pages.public_use);
  // Each change reaches connections that are made after the child has read it.
  const auto serves = [&](http::ClientAuthType type, const Certificate* shown, const std::string& expected) {
    access.tls->clients = type;
    access.tls->client_authorities = type == http::ClientAuthType::kVerifyIfGiven ? authority.pem() : "";
    call_on_loop([&] { ASSERT_TRUE(listener_->set_access_rules(access)); });
    return wait_until([&] { return served(shown) == expected; });
  };
  EXPECT_TRUE(serves(http::ClientAuthType::kVerifyIfGiven, &scraper, pages.use));
  EXPECT_EQ(served(nullptr), pages.public_use);
  EXPECT_TRUE(serves(http::ClientAuthType::kRequireAny, &stranger, pages.public_use));
}

}  // namespace
}  // namespace gpulet::web

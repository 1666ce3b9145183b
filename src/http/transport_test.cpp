#include "http/transport.h"

#include <gtest/gtest.h>

#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <thread>

#include "base/file.h"
#include "base/test_certificate.h"

namespace gpulet::http {
namespace {

// The rules change while a client is in the middle of its handshake.
TEST(TlsContext, ConnectionKeepsTheRulesOfItsStart) {
  const auto ours = Certificate::make_certificate("server", nullptr, "127.0.0.1");
  const auto authority = Certificate::make_certificate("authority", nullptr, "");
  const auto shown = Certificate::make_certificate("client", &authority, "");
  auto context = TlsServerContext::create_context({.certificate = ours.pem(),
                                                   .key = ours.key_pem(),
                                                   .client_authorities = authority.pem(),
                                                   .clients = ClientAuthType::kRequireAndVerify});
  ASSERT_TRUE(context) << context.error().full_message();
  std::array<int, 2> pair;
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()), 0);
  const FileDescriptor server(pair[0]), client(pair[1]);
  const auto transport = (*context)->accept_socket(server.get());
  ASSERT_NE(transport, nullptr);
  context->reset();

  std::thread other([&] {
    const std::shared_ptr<SSL_CTX> ctx(::SSL_CTX_new(::TLS_client_method()), ::SSL_CTX_free);
    ::SSL_CTX_use_certificate(ctx.get(), shown.certificate.get());
    ::SSL_CTX_use_PrivateKey(ctx.get(), shown.key.get());
    const std::shared_ptr<SSL> ssl(::SSL_new(ctx.get()), ::SSL_free);
    ::SSL_set_fd(ssl.get(), client.get());
    EXPECT_EQ(::SSL_connect(ssl.get()), 1);
    EXPECT_EQ(::SSL_write(ssl.get(), "hello", 5), 5);
  });
  std::array<char, 16> text{};
  const auto moved = transport->read_some(text.data(), text.size());  // the socket blocks
  other.join();
  EXPECT_EQ(moved.outcome, Transport::Outcome::kTransferred);
  EXPECT_EQ(std::string(text.data(), moved.bytes), "hello");
  EXPECT_EQ(transport->client_name(), "client");
}

}  // namespace
}  // namespace gpulet::http

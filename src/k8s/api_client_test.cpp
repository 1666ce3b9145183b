#include "k8s/api_client.h"

#include <netdb.h>

#include <atomic>
#include <future>

#include "k8s/test_api.h"

namespace gpulet::k8s {
namespace {

using namespace std::chrono_literals;

class ApiClientTest : public ApiTest {
 protected:
  void release_source() override { client_.reset(); }

  void make_client(ClientConfig access, Duration limit = 10s) {
    call_on_loop([&] { client_ = std::make_unique<ApiClient>(loop_, std::move(access), limit); });
  }
  Result<http::ClientResponse> get(const std::string& path = "/x") {
    std::promise<Result<http::ClientResponse>> answer;
    loop_.post([&] {
      client_->send_request({.method = "GET", .path = path},
                            [&](Result<http::ClientResponse> got) { answer.set_value(std::move(got)); });
    });
    return answer.get_future().get();
  }
  // Received pieces are in `heard_`.
  Result<http::ClientResponse> stream(Duration whole = 30s,
                                      std::function<Status(std::string_view)> piece = {}) {
    std::promise<Result<http::ClientResponse>> answer;
    if (!piece) {
      piece = [this](std::string_view bytes) {
        heard_ += bytes;
        ++pieces_;
        return Status();
      };
    }
    loop_.post([&] {
      heard_.clear();
      client_->stream_response({.method = "GET", .path = "/watch"}, whole, piece,
                               [&](Result<http::ClientResponse> got) { answer.set_value(std::move(got)); });
    });
    return answer.get_future().get();
  }

  std::unique_ptr<ApiClient> client_;
  std::string heard_;
  std::atomic<int> pieces_ = 0;
};

TEST_F(ApiClientTest, StreamIsDeliveredAcrossChunkBoundaries) {
  const std::string text = "{\"a\":1}\n{\"b\":\"\xC3\xA9\"}\nlast\n";
  start_server([&](const Received&) {
    return Reply{.status = 200, .script = [&](Stream& out) {
                   for (const char c : text) out.chunk(std::string(1, c));
                   // Also in the middle of a chunk header.
                   for (const char c : std::string("5\r\nhello\r\n")) out.raw(std::string(1, c));
                   return out.chunk(text);
                 }};
  });
  make_client(client_config());
  for (int i = 0; i < 2; ++i) {
    const auto answer = stream();
    ASSERT_TRUE(answer) << answer.error().full_message();
    EXPECT_EQ(answer->status, 200);
    EXPECT_EQ(answer->body, "");
    EXPECT_EQ(heard_, text + "hello" + text);
  }
  EXPECT_EQ(server_->connections(), 1);  // a stream that ends properly keeps it open
}

TEST_F(ApiClientTest, PiecesAreDeliveredBeforeTheStreamEnds) {
  start_server([&](const Received&) {
    return Reply{.status = 200, .script = [&](Stream& out) {
                   out.chunk("one");
                   while (pieces_ == 0) {
                     if (!out.wait_open(2)) return false;
                   }
                   return out.chunk("two");
                 }};
  });
  make_client(client_config());
  ASSERT_TRUE(stream());
  EXPECT_EQ(heard_, "onetwo");
  EXPECT_EQ(pieces_, 2);
}

TEST_F(ApiClientTest, LargeStreamIsNotBuffered) {
  const std::string megabyte(1u << 20, 'x');
  start_server([&](const Received&) {
    return Reply{.status = 200, .script = [&](Stream& out) {
                   for (int i = 0; i < 20; ++i) out.chunk(megabyte);
                   return true;
                 }};
  });
  make_client(client_config());
  std::size_t total = 0;
  const auto answer = stream(30s, [&](std::string_view bytes) {
    total += bytes.size();
    return Status();
  });
  ASSERT_TRUE(answer) << answer.error().full_message();
  EXPECT_EQ(total, 20u << 20);
}

TEST_F(ApiClientTest, RefusedStreamIsACompleteResponse) {
  std::atomic<int> requests = 0;
  start_server([&](const Received&) {
    if (requests++ == 0) return Reply{410, "{\"kind\":\"Status\"}"};
    return Reply{.status = 500, .script = [](Stream& out) {
                   for (int i = 0; i < 3; ++i) out.chunk(std::string(http::kMaxResponseBytes / 2, 'x'));
                   return true;
                 }};
  });
  make_client(client_config());
  const auto gone = stream();
  ASSERT_TRUE(gone) << gone.error().full_message();
  EXPECT_EQ(gone->status, 410);
  EXPECT_EQ(gone->body, "{\"kind\":\"Status\"}");
  EXPECT_EQ(heard_, "");
  const auto huge = stream();
  ASSERT_FALSE(huge);
  EXPECT_EQ(huge.error().code(), Code::kIo);
}

TEST_F(ApiClientTest, BrokenStreamIsAnErrorAfterTheDeliveredPieces) {
  start_server([](const Received&) {
    return Reply{.status = 200, .script = [](Stream& out) {
                   out.chunk("half a li");
                   return false;
                 }};
  });
  make_client(client_config());
  const auto answer = stream();
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code(), Code::kUnavailable) << answer.error().full_message();
  EXPECT_EQ(heard_, "half a li");
}

TEST_F(ApiClientTest, StreamMayBeIdleLongerThanTheRequestLimit) {
  start_server([](const Received&) {
    return Reply{.status = 200, .script = [](Stream& out) {
                   while (out.wait_open(100)) {
                   }
                   return false;
                 }};
  });
  make_client(client_config(), 5s);
  const auto before = std::chrono::steady_clock::now();
  const auto answer = stream(50ms);
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code(), Code::kDeadlineExceeded);
  EXPECT_LT(std::chrono::steady_clock::now() - before, 4s);
}

TEST_F(ApiClientTest, CallbackMayEndTheStream) {
  start_server([](const Received&) {
    return Reply{.status = 200, .script = [](Stream& out) {
                   while (out.chunk("no JSON\n")) {
                   }
                   return false;
                 }};
  });
  make_client(client_config());
  const auto answer = stream(30s, [](std::string_view) { return Status(fail(Code::kIo, "enough")); });
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().message(), "enough");
}

TEST_F(ApiClientTest, NoCallbackAfterCloseDuringAStream) {
  start_server([](const Received& request) {
    if (request.line() != "GET /watch") return Reply{200, "fine"};
    return Reply{.status = 200, .script = [](Stream& out) {
                   out.chunk("x");
                   while (out.wait_open(100)) {
                   }
                   return false;
                 }};
  });
  make_client(client_config());
  std::atomic<bool> told = false;
  call_on_loop([&] {
    client_->stream_response(
        {.method = "GET", .path = "/watch"}, 30s,
        [&](std::string_view) {
          ++pieces_;
          return Status();
        },
        [&](const Result<http::ClientResponse>&) { told = true; });
  });
  ASSERT_TRUE(eventually([&] { return pieces_ == 1; }));
  call_on_loop([&] { client_->close_connection(); });
  const auto answer = get();
  ASSERT_TRUE(answer) << answer.error().full_message();
  EXPECT_EQ(answer->body, "fine");
  EXPECT_FALSE(told);
}

TEST_F(ApiClientTest, ClientCertificateAuthenticates) {
  const Certificate people = Certificate::make_certificate("people", nullptr, "");
  const Certificate admin = Certificate::make_certificate("admin", &people, "");
  server_ = std::make_unique<TestApiServer>(
      certificate_, [](const Received& request) { return Reply{200, request.client}; }, &people);
  ClientConfig by_text = client_config();
  by_text.token_file.clear();
  by_text.ca_file.clear();
  by_text.ca_data = authority_.pem();
  by_text.certificate_data = admin.pem();
  by_text.key_data = admin.key_pem();
  by_text.base_path = "/k8s/clusters/c-1";
  make_client(by_text);
  auto answer = get();
  ASSERT_TRUE(answer) << answer.error().full_message();
  EXPECT_EQ(answer->body, "admin");
  EXPECT_EQ(server_->received_requests().at(0).line(), "GET /k8s/clusters/c-1/x");
  EXPECT_EQ(server_->received_requests().at(0).head.find("Authorization"), std::string::npos);

  ClientConfig by_file = client_config();
  by_file.certificate_file = directory_ + "/admin.crt";
  by_file.key_file = directory_ + "/admin.key";
  ASSERT_TRUE(write_file_atomic(by_file.certificate_file, admin.pem()));
  ASSERT_TRUE(write_file_atomic(by_file.key_file, admin.key_pem()));
  make_client(by_file);
  answer = get();
  ASSERT_TRUE(answer) << answer.error().full_message();
  EXPECT_EQ(answer->body, "admin");

  ASSERT_TRUE(write_file_atomic(by_file.key_file, people.key_pem()));  // the key of another certificate
  make_client(by_file);
  answer = get();
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code(), Code::kInvalidArgument);
  EXPECT_EQ(answer.error().subject(), by_file.key_file);
}

TEST_F(ApiClientTest, EmptyCaFileDoesNotTrustSystemCas) {
  start_server([](const Received&) { return Reply{200}; });
  ASSERT_TRUE(write_file_atomic(directory_ + "/ca.crt", ""));
  make_client(client_config());
  const auto answer = get();
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code(), Code::kInvalidArgument);
  EXPECT_EQ(answer.error().subject(), directory_ + "/ca.crt");
}

TEST_F(ApiClientTest, ServerNameIsVerifiedAgainstTheCertificate) {
  server_ =
      std::make_unique<TestApiServer>(Certificate::make_certificate("apiserver", &authority_, "localhost"),
                                      [](const Received&) { return Reply{200}; });
  ClientConfig named = client_config();
  named.host = "localhost";
  make_client(named);
  auto answer = get();
  ASSERT_TRUE(answer) << answer.error().full_message();
  EXPECT_NE(server_->received_requests().at(0).head.find("\r\nHost: localhost:"), std::string::npos);

  make_client(client_config());  // the certificate is not for 127.0.0.1
  answer = get();
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code(), Code::kPermissionDenied);

  ClientConfig by_address = client_config();
  by_address.tls_server_name = "localhost";
  make_client(by_address);
  EXPECT_TRUE(get());
}

TEST_F(ApiClientTest, NamesAreResolvedOnAThreadAndEveryAddressIsTried) {
  char host[256] = "";
  ASSERT_EQ(::gethostname(host, sizeof host - 1), 0);
  addrinfo* found = nullptr;
  if (::getaddrinfo(host, "1", nullptr, &found) != 0)
    GTEST_SKIP() << "this machine does not know its own name";
  ::freeaddrinfo(found);
  std::promise<Result<http::SocketAddresses>> answer;
  std::unique_ptr<http::Resolver> resolver;
  std::atomic<int> dropped = 0;
  call_on_loop([&] {
    resolver = std::make_unique<http::Resolver>(loop_, host, 1);
    resolver->resolve([&](const Result<http::SocketAddresses>&) { ++dropped; });
    resolver->resolve(
        [&](Result<http::SocketAddresses> addresses) { answer.set_value(std::move(addresses)); });
  });
  const auto addresses = answer.get_future().get();
  ASSERT_TRUE(addresses) << addresses.error().full_message();
  EXPECT_FALSE(addresses->empty());
  EXPECT_EQ(dropped, 0);
  // Destroyed before the result: the thread ends by itself.
  call_on_loop([&] {
    resolver = std::make_unique<http::Resolver>(loop_, host, 1);
    resolver->resolve([&](const Result<http::SocketAddresses>&) { ++dropped; });
    resolver.reset();
  });
  EXPECT_EQ(dropped, 0);
}

}  // namespace
}  // namespace gpulet::k8s

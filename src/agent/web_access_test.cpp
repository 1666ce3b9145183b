#include "agent/web_access.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/file.h"
#include "base/test_certificate.h"

namespace gpulet::agent {
namespace {

using namespace std::chrono_literals;

class WebAccessTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        testing::TempDir() + "web_access_" + testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(folder_);
    ASSERT_TRUE(make_directories(folder_));
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void write(const std::string& name, const std::string& text) {
    ASSERT_TRUE(write_file_atomic(folder_ + "/" + name, text));
  }
  void write_certificate(const std::string& name) {
    const auto certificate = Certificate::make(name, nullptr, "127.0.0.1");
    write("tls.crt", certificate.pem());
    write("tls.key", certificate.key_pem());
  }
  Result<std::unique_ptr<WebAccess>> start() {
    return WebAccess::start(loop_, folder_ + "/web.yml", [this](const web::Access& access) -> Status {
      applied_.push_back(access);
      return {};
    });
  }
  // Turns the loop until the condition holds.
  template <class Condition>
  bool eventually(Condition condition) {
    bool late = false;
    const auto limit = loop_.after(20s, [&] {
      late = true;
      loop_.stop();
    });
    while (!condition() && !late) {
      const auto turn = loop_.after(2ms, [this] { loop_.stop(); });
      loop_.run();
    }
    return !late;
  }

  std::string folder_;
  EpollLoop loop_;
  std::vector<web::Access> applied_;
};

const std::string kTls = "tls_server_config:\n  cert_file: tls.crt\n  key_file: tls.key\n";

TEST_F(WebAccessTest, FollowsTheFileAndWhatItNames) {
  write_certificate("one");
  write("web.yml", kTls);
  const auto started = start();
  ASSERT_TRUE(started) << started.error().text();
  WebAccess& care = **started;
  ASSERT_TRUE(care.access().tls);
  EXPECT_TRUE(applied_.empty());
  const std::string before = care.access().tls->certificate;

  write_certificate("two");
  ASSERT_TRUE(eventually([&] { return !applied_.empty() && applied_.back().tls->certificate != before; }));
  EXPECT_EQ(applied_.back(), care.access());

  write("web.yml",
        kTls + "basic_auth_users:\n  alice: $2y$10$QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi\n");
  ASSERT_TRUE(eventually([&] { return care.access().users.size() == 1; }));
  EXPECT_FALSE(care.error());
}

TEST_F(WebAccessTest, ABadFileLeavesTheOneBeforeInForce) {
  write_certificate("one");
  write("web.yml", kTls);
  const auto started = start();
  ASSERT_TRUE(started) << started.error().text();
  WebAccess& care = **started;
  const web::Access good = care.access();
  const std::vector<std::pair<std::string, std::string>> cases = {
      {kTls + "  min_version: TLS9\n",
       "/web.yml:4:16: tls_server_config.min_version: expected one of TLS10, TLS11, TLS12, TLS13, found "
       "'TLS9'"},
      {kTls + "basic_auth_users: {alice: secret}\n",
       "/web.yml: basic_auth_users.alice: not a bcrypt hash; `htpasswd -nBC 10 alice` makes one, which "
       "begins with "
       "$2y$10$"},
      {"tls_server_config:\n  cert_file: tls.crt\n  key_file: tls.crt\n",
       "/tls.crt: holds no private key in PEM form without a password"},
  };
  for (const auto& [text, error] : cases) {
    write("web.yml", text);
    ASSERT_TRUE(eventually([&] { return care.error() && care.error()->text().ends_with(error); }))
        << (care.error() ? care.error()->text() : "no error");
    EXPECT_TRUE(care.error()->text().starts_with(folder_)) << care.error()->text();
    EXPECT_EQ(care.access(), good);
  }
  EXPECT_TRUE(applied_.empty());
  write("web.yml", kTls);
  EXPECT_TRUE(eventually([&] { return !care.error(); }));
}

TEST_F(WebAccessTest, AFileThatComesLaterIsSeen) {
  write_certificate("one");
  write("web.yml", kTls);
  const auto started = start();
  ASSERT_TRUE(started);
  WebAccess& care = **started;
  write("web.yml", "tls_server_config:\n  cert_file: new.crt\n  key_file: new.key\n");
  ASSERT_TRUE(eventually([&] { return care.error().has_value(); }));
  const auto certificate = Certificate::make("new", nullptr, "127.0.0.1");
  write("new.crt", certificate.pem());
  write("new.key", certificate.key_pem());
  EXPECT_TRUE(
      eventually([&] { return !care.error() && care.access().tls->certificate == certificate.pem(); }));
}

TEST_F(WebAccessTest, NothingIsServedByABadFirstFile) {
  EXPECT_EQ(start().error().code(), Code::kNotFound);
  write("web.yml", "basic_auth_user: {}\n");
  const auto refused = start();
  ASSERT_FALSE(refused);
  EXPECT_TRUE(refused.error().text().ends_with("did you mean basic_auth_users?")) << refused.error().text();
}

}  // namespace
}  // namespace gpulet::agent

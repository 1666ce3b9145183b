#include "agent/observe/node_pages.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/file.h"
#include "base/test_certificate.h"

namespace gpulet::agent {
namespace {

using namespace std::chrono_literals;

class WebConfigWatcherTest : public testing::Test {
 protected:
  void SetUp() override {
    directory_ =
        testing::TempDir() + "web_access_" + testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(directory_);
    ASSERT_TRUE(make_directories(directory_));
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  void write_web_file(const std::string& name, const std::string& text) {
    ASSERT_TRUE(write_file_atomic(directory_ + "/" + name, text));
  }
  void write_certificate(const std::string& name) {
    const auto certificate = Certificate::make_certificate(name, nullptr, "127.0.0.1");
    write_web_file("tls.crt", certificate.pem());
    write_web_file("tls.key", certificate.key_pem());
  }
  Result<std::unique_ptr<WebConfigWatcher>> start_watcher() {
    return WebConfigWatcher::start_watching(loop_, directory_ + "/web.yml",
                                            [this](const http::AccessRules& access) -> Status {
                                              applied_.push_back(access);
                                              return {};
                                            });
  }
  // Turns the loop until the condition holds.
  template <class Condition>
  bool becomes_true(Condition condition) {
    bool late = false;
    const auto limit = loop_.after(20s, [&] {
      late = true;
      loop_.stop_loop();
    });
    while (!condition() && !late) {
      const auto turn = loop_.after(2ms, [this] { loop_.stop_loop(); });
      loop_.run_loop();
    }
    return !late;
  }

  std::string directory_;
  EpollLoop loop_;
  std::vector<http::AccessRules> applied_;
};

const std::string kTls = "tls_server_config:\n  cert_file: tls.crt\n  key_file: tls.key\n";

TEST_F(WebConfigWatcherTest, ReloadsTheFileAndTheFilesItNames) {
  write_certificate("one");
  write_web_file("web.yml", kTls);
  const auto started = start_watcher();
  ASSERT_TRUE(started) << started.error().full_message();
  WebConfigWatcher& watcher = **started;
  ASSERT_TRUE(watcher.access().tls);
  EXPECT_TRUE(applied_.empty());
  const std::string before = watcher.access().tls->certificate;

  write_certificate("two");
  ASSERT_TRUE(becomes_true([&] { return !applied_.empty() && applied_.back().tls->certificate != before; }));
  EXPECT_EQ(applied_.back(), watcher.access());

  write_web_file(
      "web.yml",
      kTls + "basic_auth_users:\n  alice: $2y$10$QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi\n");
  ASSERT_TRUE(becomes_true([&] { return watcher.access().users.size() == 1; }));
  EXPECT_FALSE(watcher.last_error());
}

TEST_F(WebConfigWatcherTest, KeepsThePreviousConfigWhenTheFileIsInvalid) {
  write_certificate("one");
  write_web_file("web.yml", kTls);
  const auto started = start_watcher();
  ASSERT_TRUE(started) << started.error().full_message();
  WebConfigWatcher& watcher = **started;
  const http::AccessRules good = watcher.access();
  const std::vector<std::pair<std::string, std::string>> cases = {
      {kTls + "  min_version: TLS9\n",
       "/web.yml:4:16: tls_server_config.min_version: expected one of TLS10, TLS11, TLS12, TLS13, found "
       "'TLS9'"},
      {kTls + "basic_auth_users: {alice: secret}\n",
       "/web.yml: basic_auth_users.alice: not a bcrypt hash; `htpasswd -nBC 10 alice` prints one that "
       "begins with $2y$10$"},
      {"tls_server_config:\n  cert_file: tls.crt\n  key_file: tls.crt\n",
       "/tls.crt: holds no private key in PEM form without a password"},
  };
  for (const auto& [text, error] : cases) {
    write_web_file("web.yml", text);
    ASSERT_TRUE(becomes_true([&] {
      return watcher.last_error() && watcher.last_error()->full_message().ends_with(error);
    })) << (watcher.last_error() ? watcher.last_error()->full_message() : "no error");
    EXPECT_TRUE(watcher.last_error()->full_message().starts_with(directory_))
        << watcher.last_error()->full_message();
    EXPECT_EQ(watcher.access(), good);
  }
  EXPECT_TRUE(applied_.empty());
  write_web_file("web.yml", kTls);
  EXPECT_TRUE(becomes_true([&] { return !watcher.last_error(); }));
}

TEST_F(WebConfigWatcherTest, DetectsAFileThatIsCreatedLater) {
  write_certificate("one");
  write_web_file("web.yml", kTls);
  const auto started = start_watcher();
  ASSERT_TRUE(started);
  WebConfigWatcher& watcher = **started;
  write_web_file("web.yml", "tls_server_config:\n  cert_file: new.crt\n  key_file: new.key\n");
  ASSERT_TRUE(becomes_true([&] { return watcher.last_error().has_value(); }));
  const auto certificate = Certificate::make_certificate("new", nullptr, "127.0.0.1");
  write_web_file("new.crt", certificate.pem());
  write_web_file("new.key", certificate.key_pem());
  EXPECT_TRUE(becomes_true(
      [&] { return !watcher.last_error() && watcher.access().tls->certificate == certificate.pem(); }));
}

TEST_F(WebConfigWatcherTest, FailsToStartWithAnInvalidFile) {
  EXPECT_EQ(start_watcher().error().code(), Code::kNotFound);
  write_web_file("web.yml", "basic_auth_user: {}\n");
  const auto refused = start_watcher();
  ASSERT_FALSE(refused);
  EXPECT_TRUE(refused.error().full_message().ends_with("did you mean basic_auth_users?"))
      << refused.error().full_message();
}

}  // namespace
}  // namespace gpulet::agent

// For tests against a TestApiServer: a folder with certificates and a token, a loop in a thread of its own,
// and waiting.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include "base/file.h"
#include "base/loop.h"
#include "cluster/access.h"
#include "cluster/test_api_server.h"

namespace gpulet::cluster {

template <class Condition>
bool eventually(Condition condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (std::chrono::steady_clock::now() < deadline) {
    if (condition()) return true;
    ::poll(nullptr, 0, 2);
  }
  return false;
}

class ApiTest : public testing::Test {
 protected:
  using Act = TestApiServer::Act;
  using Reply = TestApiServer::Reply;
  using Stream = TestApiServer::Stream;

  void SetUp() override {
    std::string path = testing::TempDir() + "api.XXXXXX";
    ASSERT_NE(::mkdtemp(path.data()), nullptr);
    folder_ = path;
    authority_ = Certificate::make("kubernetes", nullptr, "");
    certificate_ = Certificate::make("apiserver", &authority_, "127.0.0.1");
    ASSERT_TRUE(write_file_atomic(folder_ + "/ca.crt", authority_.pem()));
    ASSERT_TRUE(write_file_atomic(folder_ + "/token", "first\n"));
    thread_ = std::thread([this] { loop_.run(); });
  }
  // What lives on the loop goes first, on the loop.
  virtual void let_go() {}
  void TearDown() override {
    call([this] { let_go(); });
    loop_.stop();
    thread_.join();
    server_.reset();
    std::filesystem::remove_all(folder_);
  }
  // Runs `task` on the loop, and waits for its end.
  void call(const std::function<void()>& task) {
    std::promise<void> done;
    loop_.post([&] {
      task();
      done.set_value();
    });
    done.get_future().wait();
  }
  Access access() const {
    return {.host = "127.0.0.1",
            .port = server_->port(),
            .ca_file = folder_ + "/ca.crt",
            .token_file = folder_ + "/token",
            .node_name = "node-1"};
  }
  void serve(TestApiServer::Handler handler) {
    server_ = std::make_unique<TestApiServer>(certificate_, std::move(handler));
  }
  // How many requests had this first line: "GET /api/v1/nodes/node-1".
  std::ptrdiff_t asked(const char* line) {
    const auto all = server_->received();
    return std::ranges::count_if(all, [&](const auto& one) { return one.line() == line; });
  }

  EpollLoop loop_;
  std::string folder_;
  Certificate authority_, certificate_;
  std::unique_ptr<TestApiServer> server_;
  std::thread thread_;
};

}  // namespace gpulet::cluster

// For tests against a TestApiServer: a directory with certificates and a token, a loop in a thread of its
// own, and waiting.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "base/file.h"
#include "base/loop.h"
#include "base/test_loop.h"
#include "k8s/client_config.h"
#include "k8s/test_api_server.h"

namespace gpulet::k8s {

template <class Condition>
bool eventually(Condition condition) {
  return test::becomes_true(std::move(condition));
}

class ApiTest : public testing::Test {
 protected:
  using Act = TestApiServer::Act;
  using Reply = TestApiServer::Reply;
  using Stream = TestApiServer::Stream;

  void SetUp() override {
    std::string path = testing::TempDir() + "api.XXXXXX";
    ASSERT_NE(::mkdtemp(path.data()), nullptr);
    directory_ = path;
    authority_ = Certificate::make_certificate("kubernetes", nullptr, "");
    certificate_ = Certificate::make_certificate("apiserver", &authority_, "127.0.0.1");
    ASSERT_TRUE(write_file_atomic(directory_ + "/ca.crt", authority_.pem()));
    ASSERT_TRUE(write_file_atomic(directory_ + "/token", "first\n"));
    thread_ = std::thread([this] { loop_.run_loop(); });
  }
  // What lives on the loop goes first, on the loop.
  virtual void release_source() {}
  void TearDown() override {
    call_on_loop([this] { release_source(); });
    loop_.stop_loop();
    thread_.join();
    server_.reset();
    std::filesystem::remove_all(directory_);
  }
  // Runs `task` on the loop, and waits for its end.
  void call_on_loop(const std::function<void()>& task) { test::call_on_loop(loop_, task); }
  ClientConfig client_config() const {
    return {.host = "127.0.0.1",
            .port = server_->port(),
            .ca_file = directory_ + "/ca.crt",
            .token_file = directory_ + "/token",
            .node_name = "node-1"};
  }
  void start_server(TestApiServer::Handler handler) {
    server_ = std::make_unique<TestApiServer>(certificate_, std::move(handler));
  }
  // How many requests had this first line: "GET /api/v1/nodes/node-1".
  std::ptrdiff_t request_count(const char* line) {
    const auto all = server_->received_requests();
    return std::ranges::count_if(all, [&](const auto& one) { return one.line() == line; });
  }

  EpollLoop loop_;
  std::string directory_;
  Certificate authority_, certificate_;
  std::unique_ptr<TestApiServer> server_;
  std::thread thread_;
};

}  // namespace gpulet::k8s

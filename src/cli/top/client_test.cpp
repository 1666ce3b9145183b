#include "cli/top/client.h"

#include <gtest/gtest.h>

namespace gpulet::cli {
namespace {

TEST(TopClient, Urls) {
  const auto is = [](const char* url, const char* host, unsigned port) {
    const auto target = parse_top_url(url);
    ASSERT_TRUE(target) << url << ": " << target.error().full_message();
    EXPECT_EQ(target->host, host) << url;
    EXPECT_EQ(target->port, port) << url;
    EXPECT_EQ(target->socket, "");
  };
  is("http://127.0.0.1:9400", "127.0.0.1", 9400);
  is("http://node-7.example/", "node-7.example", 9400);
  is("http://localhost:1", "localhost", 1);
  is("http://[::1]:65535", "::1", 65535);
  is("http://[fe80::1]", "fe80::1", 9400);
  for (const char* bad : {"", "127.0.0.1:9400", "ftp://x", "http://", "http://:9400",
                          "http://x:", "http://x:0", "http://x:65536", "http://x:y", "http://x/api",
                          "http://u@x", "http://::1", "http://[]:1", "http://x y"}) {
    const auto refused = parse_top_url(bad);
    ASSERT_FALSE(refused) << bad;
    EXPECT_EQ(refused.error().code(), Code::kInvalidArgument) << bad;
  }
  EXPECT_NE(parse_top_url("https://x").error().full_message().find("https is not supported"),
            std::string::npos);
}

// Without an agent, it reports that and retries with backoff; a destroyed client never retries.
TEST(TopClient, Reconnects) {
  EpollLoop loop;
  std::vector<Time> tries;
  std::string why;
  {
    TopClient client(loop, {.socket = "/nonexistent/agent.sock", .host = {}, .port = 0},
                     {.connected = [] { ADD_FAILURE(); },
                      .received = [](const http::ServerSentEvent&) { return Status(); },
                      .disconnected =
                          [&](const Error& error) {
                            why = error.full_message();
                            tries.push_back(loop.now());
                            if (tries.size() == 3) loop.stop_loop();
                          }});
    loop.run_loop();
  }
  EXPECT_TRUE(why.starts_with("/nonexistent/agent.sock: no such socket; no agent is running on this node"))
      << why;
  EXPECT_GE(tries[1] - tries[0], std::chrono::milliseconds(125));
  EXPECT_GE(tries[2] - tries[1], std::chrono::milliseconds(250));
}

}  // namespace
}  // namespace gpulet::cli

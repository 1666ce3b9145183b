// `gpulet top`: the node's GPUs, Pods and processes in a terminal, as the agent of this node tells them over
// its socket, or another's over HTTP; or tables for standard output. Needs no driver and no right but to use
// the socket.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace gpulet::cli {

struct TopOptions {
  std::string socket = "/run/gpulet/agent.sock";  // the agent's gpulet.socket
  std::string url;                                // http://HOST:PORT instead
  bool batch = false;                             // tables below each other, until `count` of them
  std::optional<std::uint64_t> count;
  std::optional<double> seconds;  // between two tables (2), or at least between two looks of the screen
  std::string output = "table";   // or "json": a line each; both are --batch
  std::string tab = "gpus";       // shown first: "gpus", "pods", "processes"
  std::string sort;               // the tab's column of that name
  std::string filter;
  std::optional<unsigned> width;  // of tables; else the terminal's, or 120
};
inline constexpr double kMostTopSeconds = 3600;

// 0: done: all tables printed, or left by key or signal. 1: not done, said in one line: there is no agent at
// the socket or URL, or it may not be used, or the agent was away when a table was due, or it has said
// nothing of its GPUs in ten seconds. 2: an option is wrong. Where standard input or output is no terminal,
// or one that cannot place its cursor, it is as with --batch.
int top(const TopOptions& options);

}  // namespace gpulet::cli

// For tests: Prometheus' own checker of a page.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <set>
#include <string>

#include "base/process.h"
#include "base/text.h"

namespace gpulet::metrics {

// What Prometheus' own checker says of a page; empty when it has nothing to say.
inline std::string promtool(const std::string& page) {
  std::array<int, 2> in, out;
  EXPECT_EQ(::pipe(in.data()), 0);
  EXPECT_EQ(::pipe(out.data()), 0);
  FileDescriptor in_read(in[0]), in_write(in[1]), out_read(out[0]), out_write(out[1]);
  ProcessOptions options{.program = GPULET_PROMTOOL, .arguments = {"promtool", "check", "metrics"}};
  options.descriptors = {{in_read.get(), 0}, {out_write.get(), 1}, {out_write.get(), 2}};
  auto process = Process::spawn(options);
  if (!process) return process.error().full_message() + " (scripts/bootstrap fetches it)";
  in_read.reset();
  out_write.reset();
  EXPECT_EQ(::write(in_write.get(), page.data(), page.size()), static_cast<ssize_t>(page.size()));
  in_write.reset();
  const auto problems = read_all(out_read.get(), "promtool");
  const auto exit = (*process)->wait_for_exit(std::chrono::seconds(30));
  if (!exit) return exit.error().full_message();
  return exit->succeeded() ? *problems : exit->exit_text() + ": " + *problems;
}

// What it says of names and style, each once, without the metric's name; what it says else is in it whole.
inline std::set<std::string> complaints(const std::string& page) {
  std::set<std::string> problems;
  for (auto line : text::split(promtool(page), '\n')) {
    constexpr std::string_view kExit = "exit code 3: ";  // of what it calls bad style
    if (line.starts_with(kExit)) line = line.substr(kExit.size());
    if (line.empty()) continue;
    const bool named = line.starts_with("DCGM_") || line.starts_with("gpulet_");
    problems.insert(named ? line.substr(line.find(' ') + 1) : line);
  }
  return problems;
}

// DCGM's labels have capitals.
inline constexpr const char* kCapitals = "label names should be written in 'snake_case' not 'camelCase'";

}  // namespace gpulet::metrics

// For tests: Prometheus' own checker of a page.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <string>

#include "base/process.h"

namespace gpulet::metrics {

// What Prometheus' own checker says of a page; empty when it has nothing to say.
inline std::string promtool(const std::string& page) {
  std::array<int, 2> in, out;
  EXPECT_EQ(::pipe(in.data()), 0);
  EXPECT_EQ(::pipe(out.data()), 0);
  FileDescriptor in_read(in[0]), in_write(in[1]), out_read(out[0]), out_write(out[1]);
  ProcessOptions options{.program = GPULET_PROMTOOL, .arguments = {"promtool", "check", "metrics"}};
  options.descriptors = {{in_read.get(), 0}, {out_write.get(), 1}, {out_write.get(), 2}};
  auto process = Process::start(options);
  if (!process) return process.error().text() + " (scripts/bootstrap fetches it)";
  in_read.reset();
  out_write.reset();
  EXPECT_EQ(::write(in_write.get(), page.data(), page.size()), static_cast<ssize_t>(page.size()));
  in_write.reset();
  const auto said = read_all(out_read.get(), "promtool");
  const auto exit = (*process)->wait(std::chrono::seconds(30));
  if (!exit) return exit.error().text();
  return exit->ok() ? *said : exit->text() + ": " + *said;
}

}  // namespace gpulet::metrics

// A gpulet command as a process, with its output and exit code.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/process.h"
#include "tests/sim/node_fixture.h"

namespace gpulet::tests {

// A running gpulet command and what it prints; only its standard error if the output goes to the file
// `output`.
class RunningCommand {
 public:
  RunningCommand(std::vector<std::string> arguments, std::vector<std::string> environment,
                 const char* output = nullptr) {
    int out[2];
    if (::pipe2(out, O_CLOEXEC) != 0) return;
    out_ = FileDescriptor(out[0]);
    const FileDescriptor write_end(out[1]);
    ProcessOptions options{.program = std::string(GPULET_PROGRAMS) + "/gpulet",
                           .arguments = {"gpulet"},
                           .environment = std::move(environment)};
    options.arguments.insert(options.arguments.end(), arguments.begin(), arguments.end());
    for (auto& option : sanitizer_options()) options.environment.push_back(std::move(option));
    const FileDescriptor file(output == nullptr ? -1 : ::open(output, O_WRONLY | O_CLOEXEC));
    EXPECT_TRUE(output == nullptr || file.is_open()) << output;
    options.descriptors = {{(output == nullptr ? write_end : file).get(), STDOUT_FILENO},
                           {write_end.get(), STDERR_FILENO}};
    auto process = Process::spawn(options);
    EXPECT_TRUE(process) << process.error().full_message();
    if (process) process_ = std::move(*process);
  }

  // Reads until the condition holds. Returns false if the command ends or prints nothing within kTestTimeout.
  bool wait_for_output(const std::function<bool(const std::string&)>& holds) {
    char buffer[4096];
    while (!holds(text_)) {
      pollfd ready{out_.get(), POLLIN, 0};
      if (::poll(&ready, 1, static_cast<int>(kTestTimeout.count())) <= 0) return false;
      const ssize_t got = ::read(out_.get(), buffer, sizeof buffer);
      if (got <= 0) return holds(text_);
      text_.append(buffer, static_cast<std::size_t>(got));
    }
    return true;
  }
  // To its end.
  int exit_code() {
    wait_for_output([](const std::string&) { return false; });
    const auto exit = process_->wait_for_exit(kTestTimeout);
    EXPECT_TRUE(exit) << exit.error().full_message();
    return exit ? exit->code : -1;
  }
  const std::string& output_text() const { return text_; }
  void clear_output() { text_.clear(); }

 private:
  FileDescriptor out_;
  std::unique_ptr<Process> process_;
  std::string text_;
};

}  // namespace gpulet::tests

#include "agent/kernel_log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "nvml/test_loop_thread.h"

namespace gpulet::agent {
namespace {

using namespace std::chrono_literals;

// A FIFO in place of /dev/kmsg, which only root can write to.
class KernelLogTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(::mkdtemp(folder_.data()), nullptr);
    path_ = folder_ + "/kmsg";
    ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  }
  void TearDown() override {
    thread_.run([&] { log_.reset(); });
    std::filesystem::remove_all(folder_);
  }
  Status start(const std::string& path) {
    Status status;
    thread_.run([&] {
      auto log = KernelLog::start(thread_.loop(), path,
                                  {.line = [this](const auto& line) { lines_.add(line); },
                                   .ended = [this](const Error& error) { ended_.add(error); }});
      if (log) {
        log_ = std::move(*log);
      } else {
        status = fail(log.error());
      }
    });
    return status;
  }
  void open_writer() {
    writer_ = FileDescriptor(::open(path_.c_str(), O_WRONLY | O_CLOEXEC));
    ASSERT_TRUE(writer_.valid());
  }
  void say(const std::string& text) { write("4,1,2,-;" + text + "\n SUBSYSTEM=pci\n"); }
  void write(const std::string& record) {
    ASSERT_EQ(::write(writer_.get(), record.data(), record.size()), static_cast<ssize_t>(record.size()));
  }
  static std::uint64_t code_of(const health::FaultLine& line) { return std::get<health::XidLine>(line).code; }

  std::string folder_ = std::filesystem::temp_directory_path().string() + "/gpulet-kmsg-XXXXXX";
  std::string path_;
  nvml::Gathered<health::FaultLine> lines_;
  nvml::Gathered<Error> ended_;
  nvml::LoopThread thread_;
  FileDescriptor writer_;
  std::unique_ptr<KernelLog> log_;
};

TEST_F(KernelLogTest, TellsFaultsInOrderAndNothingElse) {
  ASSERT_TRUE(start(path_));
  open_writer();
  say("usb 1-1: new device");
  say("NVRM: Xid (PCI:0000:3b:00): 31, pid=12, name=python3, Ch 1");
  say("no record at all");
  say("nvidia-nvswitch3: SXid (PCI:0000:c5:00.0): 12028, Non-fatal, Link 32 x");
  for (int i = 0; i < 600; ++i) say("NVRM: Xid (PCI:0000:3b:00): " + std::to_string(1000 + i) + ", x");
  const auto lines = lines_.wait(602);
  ASSERT_EQ(lines.size(), 602u);
  EXPECT_EQ(code_of(lines[0]), 31u);
  EXPECT_TRUE(std::holds_alternative<health::SxidLine>(lines[1]));
  for (std::size_t i = 0; i < 600; ++i) EXPECT_EQ(code_of(lines[i + 2]), 1000 + i);
  write("4,1,2,-;NVRM: Xid (PCI:00");
  write("00:3b:00): 48, x\n");
  EXPECT_EQ(code_of(lines_.wait(603).at(602)), 48u);
  EXPECT_EQ(ended_.size(), 0u);
}

TEST_F(KernelLogTest, ItsEndIsToldOnce) {
  ASSERT_TRUE(start(path_));
  open_writer();
  say("NVRM: Xid (PCI:0000:3b:00): 79, x");
  ASSERT_EQ(lines_.wait(1).size(), 1u);
  writer_.reset();
  ASSERT_EQ(ended_.wait(1).size(), 1u);
  EXPECT_EQ(ended_.wait(1)[0].code(), Code::kUnavailable);
}

TEST_F(KernelLogTest, WhatIsNoLogIsRefused) {
  EXPECT_EQ(start(folder_ + "/none").error().code(), Code::kNotFound);
  EXPECT_FALSE(start(folder_));
  const FileDescriptor file(::open((folder_ + "/file").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  EXPECT_EQ(start(folder_ + "/file").error().code(), Code::kUnsupported);
}

}  // namespace
}  // namespace gpulet::agent

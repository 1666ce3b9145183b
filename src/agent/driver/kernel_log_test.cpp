#include "agent/driver/kernel_log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "nvml/test_loop_thread.h"

namespace gpulet::agent {
namespace {

using namespace std::chrono_literals;

// A FIFO instead of /dev/kmsg, which only root can write to.
class KernelLogTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(::mkdtemp(directory_.data()), nullptr);
    path_ = directory_ + "/kmsg";
    ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  }
  void TearDown() override {
    thread_.run_on_loop([&] { log_.reset(); });
    std::filesystem::remove_all(directory_);
  }
  Status start_log(const std::string& path) {
    Status status;
    thread_.run_on_loop([&] {
      auto log =
          KernelLog::start_kernel_log(thread_.loop(), path,
                                      {.line = [this](const auto& line) { lines_.push_value(line); },
                                       .ended = [this](const Error& error) { ended_.push_value(error); }});
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
    ASSERT_TRUE(writer_.is_open());
  }
  void write_record(const std::string& text) { write_text("4,1,2,-;" + text + "\n SUBSYSTEM=pci\n"); }
  void write_text(const std::string& record) {
    ASSERT_EQ(::write(writer_.get(), record.data(), record.size()), static_cast<ssize_t>(record.size()));
  }
  static std::uint64_t code_of(const health::FaultLine& line) { return std::get<health::XidLine>(line).code; }

  std::string directory_ = std::filesystem::temp_directory_path().string() + "/gpulet-kmsg-XXXXXX";
  std::string path_;
  nvml::Collected<health::FaultLine> lines_;
  nvml::Collected<Error> ended_;
  nvml::LoopThread thread_;
  FileDescriptor writer_;
  std::unique_ptr<KernelLog> log_;
};

TEST_F(KernelLogTest, ReportsOnlyFaultLinesInOrder) {
  ASSERT_TRUE(start_log(path_));
  open_writer();
  write_record("usb 1-1: new device");
  write_record("NVRM: Xid (PCI:0000:3b:00): 31, pid=12, name=python3, Ch 1");
  write_record("no record at all");
  write_record("nvidia-nvswitch3: SXid (PCI:0000:c5:00.0): 12028, Non-fatal, Link 32 x");
  for (int i = 0; i < 600; ++i)
    write_record("NVRM: Xid (PCI:0000:3b:00): " + std::to_string(1000 + i) + ", x");
  const auto lines = lines_.wait_for_values(602);
  ASSERT_EQ(lines.size(), 602u);
  EXPECT_EQ(code_of(lines[0]), 31u);
  EXPECT_TRUE(std::holds_alternative<health::SxidLine>(lines[1]));
  for (std::size_t i = 0; i < 600; ++i) EXPECT_EQ(code_of(lines[i + 2]), 1000 + i);
  write_text("4,1,2,-;NVRM: Xid (PCI:00");
  write_text("00:3b:00): 48, x\n");
  EXPECT_EQ(code_of(lines_.wait_for_values(603).at(602)), 48u);
  EXPECT_EQ(ended_.size(), 0u);
}

TEST_F(KernelLogTest, ReportsItsEndOnce) {
  ASSERT_TRUE(start_log(path_));
  open_writer();
  write_record("NVRM: Xid (PCI:0000:3b:00): 79, x");
  ASSERT_EQ(lines_.wait_for_values(1).size(), 1u);
  writer_.reset();
  ASSERT_EQ(ended_.wait_for_values(1).size(), 1u);
  EXPECT_EQ(ended_.wait_for_values(1)[0].code(), Code::kUnavailable);
}

TEST_F(KernelLogTest, RejectsWhatIsNotALog) {
  EXPECT_EQ(start_log(directory_ + "/none").error().code(), Code::kNotFound);
  EXPECT_FALSE(start_log(directory_));
  const FileDescriptor file(::open((directory_ + "/file").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  EXPECT_EQ(start_log(directory_ + "/file").error().code(), Code::kUnsupported);
}

}  // namespace
}  // namespace gpulet::agent

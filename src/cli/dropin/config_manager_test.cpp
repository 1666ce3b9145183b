#include "cli/dropin/config_manager.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/file.h"
#include "base/process.h"

namespace gpulet::cli {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string pattern = fs::temp_directory_path() / "gpulet-manager-XXXXXX";
    path_ = mkdtemp(pattern.data());
  }
  ~TemporaryDirectory() { fs::remove_all(path_); }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  std::string path_of(const std::string& name) const { return path_ / name; }
  void write_text(const std::string& name, const std::string& text) const {
    fs::create_directories(fs::path(path_of(name)).parent_path());
    std::ofstream(path_of(name)) << text;
  }
  std::vector<std::string> file_names(const std::string& directory) const {
    std::vector<std::string> all;
    for (const auto& entry : fs::directory_iterator(path_of(directory)))
      all.push_back(entry.path().filename());
    return all;
  }

 private:
  fs::path path_;
};

// A real process that is called `name` and that SIGHUP ends.
std::unique_ptr<Process> start_process(const std::string& name) {
  auto process = Process::spawn({.program = "/bin/sleep", .arguments = {name, "600"}});
  EXPECT_TRUE(process) << process.error().full_message();
  return process ? std::move(*process) : nullptr;
}
// Of this test alone, whatever else runs here.
std::string unique_name(const std::string& name) { return name + "-" + std::to_string(::getpid()); }

TEST(PointLink, CreatesMovesAndKeepsTheLink) {
  const TemporaryDirectory directory;
  const std::string link = directory.path_of("made/on/the/way/config.yaml");
  EXPECT_EQ(point_link(link, "/srv/a"), true);
  EXPECT_EQ(fs::read_symlink(link), "/srv/a");
  struct stat before{}, after{};
  ASSERT_EQ(::lstat(link.c_str(), &before), 0);
  EXPECT_EQ(point_link(link, "/srv/a"), false);
  ASSERT_EQ(::lstat(link.c_str(), &after), 0);
  EXPECT_EQ(before.st_ino, after.st_ino);
  EXPECT_EQ(point_link(link, "/dev/null"), true);
  EXPECT_EQ(fs::read_symlink(link), "/dev/null");
  EXPECT_EQ(directory.file_names("made/on/the/way"), (std::vector<std::string>{"config.yaml"}));
}

TEST(PointLink, ReplacesAFileButNotADirectory) {
  const TemporaryDirectory directory;
  directory.write_text("file", "x");
  EXPECT_EQ(point_link(directory.path_of("file"), "/dev/null"), true);
  EXPECT_TRUE(fs::is_symlink(directory.path_of("file")));
  fs::create_directory(directory.path_of("directory"));
  const auto refused = point_link(directory.path_of("directory"), "/dev/null");
  ASSERT_FALSE(refused);
  EXPECT_TRUE(fs::is_directory(directory.path_of("directory")));
  EXPECT_EQ(directory.file_names(".").size(), 2u) << "a temporary link is left";
}

// A reader sees one content or the other at every moment.
TEST(PointLink, NeverMissing) {
  const TemporaryDirectory directory;
  directory.write_text("a", "a");
  directory.write_text("b", "b");
  const std::string link = directory.path_of("link");
  ASSERT_TRUE(point_link(link, directory.path_of("a")));
  std::atomic<bool> done = false;
  int missing = 0, reads = 0;
  std::thread reader([&] {
    while (!done || reads == 0) {
      const auto content = read_file(link);
      missing += content == "a" || content == "b" ? 0 : 1;
      ++reads;
    }
  });
  for (int i = 0; i < 500; ++i) EXPECT_EQ(point_link(link, directory.path_of(i % 2 == 0 ? "b" : "a")), true);
  done = true;
  reader.join();
  EXPECT_EQ(missing, 0) << "of " << reads;
}

TEST(ProcessesCalled, MatchesTheLastPathSegment) {
  const std::string name = unique_name("gpulet-called");
  const auto bare = start_process(name), whole = start_process("/usr/bin/" + name),
             other = start_process(name + "-not");
  ASSERT_TRUE(bare && whole && other);
  std::vector<pid_t> both{bare->pid(), whole->pid()};
  std::ranges::sort(both);
  EXPECT_EQ(find_processes(name), both);
  EXPECT_EQ(find_processes("/opt/" + name), both);
  EXPECT_EQ(find_processes(unique_name("nobody")), std::vector<pid_t>());
}

TEST(ProcessesCalled, SkipsThisProcessAndNamelessOnes) {
  const TemporaryDirectory proc;
  proc.write_text(std::to_string(::getpid()) + "/cmdline", std::string("plugin\0--flag\0", 14));
  proc.write_text("7/cmdline", std::string("/bin/plugin\0plugin\0", 19));
  proc.write_text("8/cmdline", std::string("sh\0plugin\0", 10));
  proc.write_text("9/cmdline", "");
  proc.write_text("self/cmdline", std::string("plugin\0", 7));
  fs::create_directory(proc.path_of("10"));
  EXPECT_EQ(find_processes("plugin", proc.path_of(".")), (std::vector<pid_t>{7}));
  EXPECT_EQ(find_processes("plugin", proc.path_of("none")), std::vector<pid_t>());
}

class Manager : public testing::Test {
 protected:
  Manager() {
    options_.node_name = "node-1";
    options_.config_file_srcdir = directory_.path_of("available");
    options_.config_file_dst = directory_.path_of("config/config.yaml");
    options_.process_to_signal = unique_name("gpulet-plugin");
    directory_.write_text("available/a", "1");
    directory_.write_text("available/b", "2");
  }

  void start_manager() {
    auto started = ConfigManager::start_config_manager(loop_, options_, [this](const Status& status) {
      last_ = status;
      ++attempts_;
      if (attempts_ == awaited_) loop_.stop_loop();
    });
    ASSERT_TRUE(started) << started.error().full_message();
    manager_ = std::move(*started);
  }
  // Runs the loop until N more attempts were made.
  void run_until_attempts(int attempts = 1) {
    awaited_ = attempts_ + attempts;
    const auto limit = loop_.after(10s, [this] {
      ADD_FAILURE() << "nothing was done in time";
      loop_.stop_loop();
    });
    loop_.run_loop();
  }
  // Runs the loop for so long that a change of before would have been seen.
  int attempts_within_debounce() {
    const int before = attempts_;
    awaited_ = -1;
    const auto limit = loop_.after(kWatchDebounce * 8, [this] { loop_.stop_loop(); });
    loop_.run_loop();
    return attempts_ - before;
  }
  void apply_label(std::optional<std::string> value) {
    manager_->set_config_label(std::move(value));
    run_until_attempts();
  }
  std::string link_target_path() const { return fs::read_symlink(options_.config_file_dst); }
  static bool ended_by_hangup(Process& process) {
    const auto exit = process.wait_for_exit(10s);
    return exit && exit->signal == SIGHUP;
  }
  // Ends it. Of two signals that wait, SIGHUP is the one that a process is ended by.
  static bool ended_by_terminate(Process& process) {
    process.send_signal(SIGTERM);
    const auto exit = process.wait_for_exit(10s);
    return exit && exit->signal == SIGTERM;
  }

  TemporaryDirectory directory_;
  ConfigManagerOptions options_;
  EpollLoop loop_;
  std::unique_ptr<ConfigManager> manager_;
  Status last_;
  int attempts_ = 0, awaited_ = -1;
};

TEST_F(Manager, LinksAndSignalsEveryProcessOfTheName) {
  start_manager();
  EXPECT_EQ(attempts_within_debounce(), 0);
  EXPECT_FALSE(fs::exists(fs::path(options_.config_file_dst).parent_path())) << "before the label is known";
  const auto one = start_process(options_.process_to_signal),
             two = start_process("/usr/bin/" + options_.process_to_signal), other = start_process("other");
  ASSERT_TRUE(one && two && other);
  apply_label("b");
  EXPECT_TRUE(last_);
  EXPECT_EQ(link_target_path(), directory_.path_of("available/b"));
  EXPECT_TRUE(ended_by_hangup(*one));
  EXPECT_TRUE(ended_by_hangup(*two));
  EXPECT_TRUE(ended_by_terminate(*other));
}

TEST_F(Manager, AnUnchangedLinkSendsNoSignal) {
  ASSERT_TRUE(point_link(options_.config_file_dst, directory_.path_of("available/a")));
  const auto plugin = start_process(options_.process_to_signal);
  ASSERT_TRUE(plugin);
  start_manager();
  apply_label("a");
  EXPECT_TRUE(last_);
  // The same content written once more is no change either.
  directory_.write_text("available/a", "1");
  run_until_attempts();
  EXPECT_TRUE(ended_by_terminate(*plugin));
  EXPECT_EQ(link_target_path(), directory_.path_of("available/a"));
}

TEST_F(Manager, ChangedContentSendsASignal) {
  start_manager();
  apply_label("a");
  const auto plugin = start_process(options_.process_to_signal);
  ASSERT_TRUE(plugin);
  directory_.write_text("next", "3");
  fs::rename(directory_.path_of("next"), directory_.path_of("available/a"));
  run_until_attempts();
  EXPECT_TRUE(ended_by_hangup(*plugin));
  EXPECT_EQ(link_target_path(), directory_.path_of("available/a"));
}

TEST_F(Manager, AnotherSignalOrNone) {
  options_.signal = SIGUSR1;
  start_manager();
  const auto plugin = start_process(options_.process_to_signal);
  ASSERT_TRUE(plugin);
  apply_label("a");
  const auto exit = plugin->wait_for_exit(10s);
  ASSERT_TRUE(exit);
  EXPECT_EQ(exit->signal, SIGUSR1);

  options_.send_signal = false;
  start_manager();
  const auto other = start_process(options_.process_to_signal);
  apply_label("b");
  EXPECT_EQ(link_target_path(), directory_.path_of("available/b"));
  EXPECT_TRUE(ended_by_terminate(*other));
}

TEST_F(Manager, UnknownLabelsFallBackAndTheEmptyConfigIsDevNull) {
  options_.fallback_strategies = {"named", "single", "empty"};
  start_manager();
  apply_label("a");
  apply_label("x");
  EXPECT_TRUE(last_);
  EXPECT_EQ(link_target_path(), "/dev/null");
  directory_.write_text("available/default", "4");
  run_until_attempts();
  EXPECT_EQ(link_target_path(), directory_.path_of("available/default"));
  apply_label(std::nullopt);
  EXPECT_EQ(link_target_path(), directory_.path_of("available/default"));
}

TEST_F(Manager, NothingToFallBackOnLeavesTheLink) {
  start_manager();
  apply_label("a");
  apply_label("x");
  ASSERT_FALSE(last_);
  EXPECT_EQ(last_.error().full_message(), "the label nvidia.com/device-plugin.config=x names no config in " +
                                              directory_.path_of("available") +
                                              "; there are a, b; nothing to fall back on");
  EXPECT_EQ(link_target_path(), directory_.path_of("available/a"));
}

TEST_F(Manager, RejectsInvalidOptions) {
  const auto refusal = [&](auto change) {
    auto options = options_;
    change(options);
    const auto started = ConfigManager::start_config_manager(loop_, options, [](const Status&) {});
    return started ? std::string() : started.error().full_message();
  };
  EXPECT_EQ(refusal([](auto&) {}), "");
  EXPECT_EQ(refusal([](auto& o) { o.config_file_srcdir.clear(); }),
            "--config-file-srcdir: must not be empty");
  EXPECT_EQ(refusal([](auto& o) { o.config_file_dst.clear(); }), "--config-file-dst: must not be empty");
  EXPECT_EQ(refusal([](auto& o) { o.node_label.clear(); }), "--node-label: must not be empty");
  EXPECT_EQ(refusal([](auto& o) { o.signal = 0; }), "--signal: 0 is not a signal");
  EXPECT_EQ(refusal([](auto& o) { o.process_to_signal = "bin/"; }),
            "--process-to-signal: \"bin/\" is not a process name");
  EXPECT_EQ(refusal([](auto& o) {
              o.send_signal = false;
              o.signal = 0;
            }),
            "");
  EXPECT_EQ(refusal([](auto& o) { o.fallback_strategies = {"named", "any"}; }),
            "--fallback-strategies: \"any\" is no fallback strategy; they are named, single and empty");
}

LabelSource labelled(std::optional<std::string> value) {
  return [value](Loop& loop, std::function<void(std::optional<std::string>)> label) {
    loop.post([value, label] { label(value); });
    return std::shared_ptr<void>();
  };
}

TEST_F(Manager, OneshotLinksAndExits) {
  options_.oneshot = true;
  EXPECT_EQ(run_config_manager(options_, labelled("b")), 0);
  EXPECT_EQ(link_target_path(), directory_.path_of("available/b"));
  // Once more as an init container that was restarted.
  EXPECT_EQ(run_config_manager(options_, labelled("b")), 0);
  options_.fallback_strategies = {"empty"};
  EXPECT_EQ(run_config_manager(options_, labelled(std::nullopt)), 0);
  EXPECT_EQ(link_target_path(), "/dev/null");
}

TEST_F(Manager, OneshotWithoutAConfigFails) {
  options_.oneshot = true;
  EXPECT_EQ(run_config_manager(options_, labelled("x")), 1);
  EXPECT_FALSE(fs::is_symlink(options_.config_file_dst));
  options_.config_file_dst = directory_.path_of("available");  // a directory
  EXPECT_EQ(run_config_manager(options_, labelled("a")), 1);
}

TEST_F(Manager, FailsIfItCannotStart) {
  const auto never =
      [](Loop&, const std::function<void(std::optional<std::string>)>&) -> Result<std::shared_ptr<void>> {
    return fail(Code::kUnavailable, "not in a cluster");
  };
  EXPECT_EQ(run_config_manager(options_, never), 1);
  auto nameless = options_;
  nameless.node_name.clear();
  EXPECT_EQ(run_config_manager(nameless, labelled("a")), 1);
  auto wrong = options_;
  wrong.fallback_strategies = {"any"};
  EXPECT_EQ(run_config_manager(wrong, labelled("a")), 1);
}

TEST_F(Manager, RunsUntilASignal) {
  const auto looking = std::make_shared<Subscription>();
  std::function<void(Loop&)> look = [&](Loop& loop) {
    if (fs::is_symlink(options_.config_file_dst)) {
      ::raise(SIGTERM);
    } else {
      *looking = loop.after(1ms, [&] { look(loop); });
    }
  };
  const auto source = [&](Loop& loop, std::function<void(std::optional<std::string>)> label) {
    loop.post([&look, &loop, label] {
      label("a");
      look(loop);
    });
    return Result<std::shared_ptr<void>>(looking);
  };
  EXPECT_EQ(run_config_manager(options_, source), 0);
  EXPECT_EQ(link_target_path(), directory_.path_of("available/a"));
}

}  // namespace
}  // namespace gpulet::cli

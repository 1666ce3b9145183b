#include "cli/config_manager_command.h"

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

class Folder {
 public:
  Folder() {
    std::string pattern = fs::temp_directory_path() / "gpulet-manager-XXXXXX";
    path_ = mkdtemp(pattern.data());
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  std::string at(const std::string& name) const { return path_ / name; }
  void write(const std::string& name, const std::string& text) const {
    fs::create_directories(fs::path(at(name)).parent_path());
    std::ofstream(at(name)) << text;
  }
  std::vector<std::string> names(const std::string& folder) const {
    std::vector<std::string> all;
    for (const auto& entry : fs::directory_iterator(at(folder))) all.push_back(entry.path().filename());
    return all;
  }

 private:
  fs::path path_;
};

// A real process that is called `name` and that SIGHUP ends.
std::unique_ptr<Process> process_called(const std::string& name) {
  auto process = Process::start({.program = "/bin/sleep", .arguments = {name, "600"}});
  EXPECT_TRUE(process) << process.error().text();
  return process ? std::move(*process) : nullptr;
}
// Of this test alone, whatever else runs here.
std::string own_name(const std::string& name) { return name + "-" + std::to_string(::getpid()); }

TEST(PointLink, MadeMovedAndLeft) {
  const Folder folder;
  const std::string link = folder.at("made/on/the/way/config.yaml");
  EXPECT_EQ(point_link(link, "/srv/a"), true);
  EXPECT_EQ(fs::read_symlink(link), "/srv/a");
  struct stat before{}, after{};
  ASSERT_EQ(::lstat(link.c_str(), &before), 0);
  EXPECT_EQ(point_link(link, "/srv/a"), false);
  ASSERT_EQ(::lstat(link.c_str(), &after), 0);
  EXPECT_EQ(before.st_ino, after.st_ino);
  EXPECT_EQ(point_link(link, "/dev/null"), true);
  EXPECT_EQ(fs::read_symlink(link), "/dev/null");
  EXPECT_EQ(folder.names("made/on/the/way"), (std::vector<std::string>{"config.yaml"}));
}

TEST(PointLink, AFileIsReplacedAFolderIsNot) {
  const Folder folder;
  folder.write("file", "x");
  EXPECT_EQ(point_link(folder.at("file"), "/dev/null"), true);
  EXPECT_TRUE(fs::is_symlink(folder.at("file")));
  fs::create_directory(folder.at("folder"));
  const auto refused = point_link(folder.at("folder"), "/dev/null");
  ASSERT_FALSE(refused);
  EXPECT_TRUE(fs::is_directory(folder.at("folder")));
  EXPECT_EQ(folder.names(".").size(), 2u) << "a temporary link is left";
}

// A reader sees one content or the other at every moment.
TEST(PointLink, NeverMissing) {
  const Folder folder;
  folder.write("a", "a");
  folder.write("b", "b");
  const std::string link = folder.at("link");
  ASSERT_TRUE(point_link(link, folder.at("a")));
  std::atomic<bool> done = false;
  int missing = 0, reads = 0;
  std::thread reader([&] {
    while (!done || reads == 0) {
      const auto content = read_file(link);
      missing += content == "a" || content == "b" ? 0 : 1;
      ++reads;
    }
  });
  for (int i = 0; i < 500; ++i) EXPECT_EQ(point_link(link, folder.at(i % 2 == 0 ? "b" : "a")), true);
  done = true;
  reader.join();
  EXPECT_EQ(missing, 0) << "of " << reads;
}

TEST(ProcessesCalled, ByTheLastSegmentOnEitherSide) {
  const std::string name = own_name("gpulet-called");
  const auto bare = process_called(name), whole = process_called("/usr/bin/" + name),
             other = process_called(name + "-not");
  ASSERT_TRUE(bare && whole && other);
  std::vector<pid_t> both{bare->id(), whole->id()};
  std::ranges::sort(both);
  EXPECT_EQ(processes_called(name), both);
  EXPECT_EQ(processes_called("/opt/" + name), both);
  EXPECT_EQ(processes_called(own_name("nobody")), std::vector<pid_t>());
}

TEST(ProcessesCalled, NotThisOneAndNoneWithoutAName) {
  const Folder proc;
  proc.write(std::to_string(::getpid()) + "/cmdline", std::string("plugin\0--flag\0", 14));
  proc.write("7/cmdline", std::string("/bin/plugin\0plugin\0", 19));
  proc.write("8/cmdline", std::string("sh\0plugin\0", 10));
  proc.write("9/cmdline", "");
  proc.write("self/cmdline", std::string("plugin\0", 7));
  fs::create_directory(proc.at("10"));
  EXPECT_EQ(processes_called("plugin", proc.at(".")), (std::vector<pid_t>{7}));
  EXPECT_EQ(processes_called("plugin", proc.at("none")), std::vector<pid_t>());
}

class Manager : public testing::Test {
 protected:
  Manager() {
    options_.node_name = "node-1";
    options_.config_file_srcdir = folder_.at("available");
    options_.config_file_dst = folder_.at("config/config.yaml");
    options_.process_to_signal = own_name("gpulet-plugin");
    folder_.write("available/a", "1");
    folder_.write("available/b", "2");
  }

  void start() {
    auto started = ConfigManager::start(loop_, options_, [this](const Status& status) {
      last_ = status;
      ++told_;
      if (told_ == awaited_) loop_.stop();
    });
    ASSERT_TRUE(started) << started.error().text();
    manager_ = std::move(*started);
  }
  // Runs the loop until so many more attempts were made.
  void run(int attempts = 1) {
    awaited_ = told_ + attempts;
    const auto limit = loop_.after(10s, [this] {
      ADD_FAILURE() << "nothing was done in time";
      loop_.stop();
    });
    loop_.run();
  }
  // Runs the loop for so long that a change of before would have been seen.
  int attempts_of_a_while() {
    const int before = told_;
    awaited_ = -1;
    const auto limit = loop_.after(kWatchDebounce * 8, [this] { loop_.stop(); });
    loop_.run();
    return told_ - before;
  }
  void label(std::optional<std::string> value) {
    manager_->set_label(std::move(value));
    run();
  }
  std::string linked() const { return fs::read_symlink(options_.config_file_dst); }
  static bool hung_up(Process& process) {
    const auto exit = process.wait(10s);
    return exit && exit->signal == SIGHUP;
  }
  // Ends it. Of two signals that wait, SIGHUP is the one that a process is ended by.
  static bool spared(Process& process) {
    process.send_signal(SIGTERM);
    const auto exit = process.wait(10s);
    return exit && exit->signal == SIGTERM;
  }

  Folder folder_;
  ConfigManagerOptions options_;
  EpollLoop loop_;
  std::unique_ptr<ConfigManager> manager_;
  Status last_;
  int told_ = 0, awaited_ = -1;
};

TEST_F(Manager, LinksAndSignalsEveryProcessOfTheName) {
  start();
  EXPECT_EQ(attempts_of_a_while(), 0);
  EXPECT_FALSE(fs::exists(fs::path(options_.config_file_dst).parent_path())) << "before the label is known";
  const auto one = process_called(options_.process_to_signal),
             two = process_called("/usr/bin/" + options_.process_to_signal), other = process_called("other");
  ASSERT_TRUE(one && two && other);
  label("b");
  EXPECT_TRUE(last_);
  EXPECT_EQ(linked(), folder_.at("available/b"));
  EXPECT_TRUE(hung_up(*one));
  EXPECT_TRUE(hung_up(*two));
  EXPECT_TRUE(spared(*other));
}

TEST_F(Manager, AlreadyLinkedSignalsNobody) {
  ASSERT_TRUE(point_link(options_.config_file_dst, folder_.at("available/a")));
  const auto plugin = process_called(options_.process_to_signal);
  ASSERT_TRUE(plugin);
  start();
  label("a");
  EXPECT_TRUE(last_);
  // The same content written once more is no change either.
  folder_.write("available/a", "1");
  run();
  EXPECT_TRUE(spared(*plugin));
  EXPECT_EQ(linked(), folder_.at("available/a"));
}

TEST_F(Manager, ANewContentSignalsToo) {
  start();
  label("a");
  const auto plugin = process_called(options_.process_to_signal);
  ASSERT_TRUE(plugin);
  folder_.write("next", "3");
  fs::rename(folder_.at("next"), folder_.at("available/a"));
  run();
  EXPECT_TRUE(hung_up(*plugin));
  EXPECT_EQ(linked(), folder_.at("available/a"));
}

TEST_F(Manager, AnotherSignalOrNone) {
  options_.signal = SIGUSR1;
  start();
  const auto plugin = process_called(options_.process_to_signal);
  ASSERT_TRUE(plugin);
  label("a");
  const auto exit = plugin->wait(10s);
  ASSERT_TRUE(exit);
  EXPECT_EQ(exit->signal, SIGUSR1);

  options_.send_signal = false;
  start();
  const auto other = process_called(options_.process_to_signal);
  label("b");
  EXPECT_EQ(linked(), folder_.at("available/b"));
  EXPECT_TRUE(spared(*other));
}

TEST_F(Manager, UnknownLabelsFallBackAndTheEmptyConfigIsDevNull) {
  options_.fallback_strategies = {"named", "single", "empty"};
  start();
  label("a");
  label("x");
  EXPECT_TRUE(last_);
  EXPECT_EQ(linked(), "/dev/null");
  folder_.write("available/default", "4");
  run();
  EXPECT_EQ(linked(), folder_.at("available/default"));
  label(std::nullopt);
  EXPECT_EQ(linked(), folder_.at("available/default"));
}

TEST_F(Manager, NothingToFallBackOnLeavesTheLink) {
  start();
  label("a");
  label("x");
  ASSERT_FALSE(last_);
  EXPECT_EQ(last_.error().text(), "the label nvidia.com/device-plugin.config=x names no config in " +
                                      folder_.at("available") + "; there are a, b; nothing to fall back on");
  EXPECT_EQ(linked(), folder_.at("available/a"));
}

TEST_F(Manager, OptionsThatCannotWork) {
  const auto refusal = [&](auto change) {
    auto options = options_;
    change(options);
    const auto started = ConfigManager::start(loop_, options, [](const Status&) {});
    return started ? std::string() : started.error().text();
  };
  EXPECT_EQ(refusal([](auto&) {}), "");
  EXPECT_EQ(refusal([](auto& o) { o.config_file_srcdir.clear(); }),
            "--config-file-srcdir: must not be empty");
  EXPECT_EQ(refusal([](auto& o) { o.config_file_dst.clear(); }), "--config-file-dst: must not be empty");
  EXPECT_EQ(refusal([](auto& o) { o.node_label.clear(); }), "--node-label: must not be empty");
  EXPECT_EQ(refusal([](auto& o) { o.signal = 0; }), "--signal: 0 is no signal");
  EXPECT_EQ(refusal([](auto& o) { o.process_to_signal = "bin/"; }),
            "--process-to-signal: \"bin/\" is no process's name");
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

TEST_F(Manager, OneshotLinksAndEnds) {
  options_.oneshot = true;
  EXPECT_EQ(run_config_manager(options_, labelled("b")), 0);
  EXPECT_EQ(linked(), folder_.at("available/b"));
  // Once more as an init container that was restarted.
  EXPECT_EQ(run_config_manager(options_, labelled("b")), 0);
  options_.fallback_strategies = {"empty"};
  EXPECT_EQ(run_config_manager(options_, labelled(std::nullopt)), 0);
  EXPECT_EQ(linked(), "/dev/null");
}

TEST_F(Manager, OneshotWithoutAConfigFails) {
  options_.oneshot = true;
  EXPECT_EQ(run_config_manager(options_, labelled("x")), 1);
  EXPECT_FALSE(fs::is_symlink(options_.config_file_dst));
  options_.config_file_dst = folder_.at("available");  // a folder
  EXPECT_EQ(run_config_manager(options_, labelled("a")), 1);
}

TEST_F(Manager, ThatCannotStartFails) {
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

TEST_F(Manager, RunsUntilToldToEnd) {
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
  EXPECT_EQ(linked(), folder_.at("available/a"));
}

}  // namespace
}  // namespace gpulet::cli

#include "config/config_directory.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <span>
#include <thread>

namespace gpulet::config {
namespace {

namespace fs = std::filesystem;
using ChoiceKind = ConfigChoice::Kind;
using enum FallbackStrategy;

struct Case {
  const char* what;
  std::optional<std::string> label;
  std::string default_config;
  std::vector<FallbackStrategy> fallbacks;
  std::vector<std::string> names;
  ChoiceKind kind;
  std::string name;
  std::string problem;  // empty: no problem
};

const std::string kLabel = "the label nvidia.com/device-plugin.config=";

void expect_choices(std::span<const Case> cases) {
  for (const auto& c : cases) {
    SCOPED_TRACE(c.what);
    NodeConfig node;
    node.directory = "/f";
    node.default_config = c.default_config;
    node.fallbacks = c.fallbacks;
    const auto choice = choose_config(node, c.label, c.names);
    EXPECT_EQ(choice.kind, c.kind);
    EXPECT_EQ(choice.name, c.name);
    EXPECT_EQ(choice.problem.value_or(""), c.problem);
    EXPECT_EQ(choice.problem.has_value(), !c.problem.empty());
    EXPECT_EQ(choice.config_path("/f"), c.name.empty() ? "" : "/f/" + c.name);
  }
}

TEST(Choose, LabelThenDefaultThenFallbacks) {
  const std::string none =
      "the node has no label nvidia.com/device-plugin.config"
      ", there is no default config, and no fallback strategy finds one in /f; ";
  const Case cases[] = {
      {"the label first", "b", "a", {kNamed, kEmpty}, {"a", "b", "default"}, ChoiceKind::kFile, "b", ""},
      {"no label: the default config", {}, "a", {kNamed}, {"a", "b", "default"}, ChoiceKind::kFile, "a", ""},
      {"an empty label is none", "", "a", {}, {"a", "b"}, ChoiceKind::kFile, "a", ""},
      {"named", {}, "", {kNamed, kEmpty}, {"a", "default"}, ChoiceKind::kFile, "default", ""},
      {"named is not there", {}, "", {kNamed, kSingle}, {"a"}, ChoiceKind::kFile, "a", ""},
      {"single", {}, "", {kSingle, kNamed}, {"x"}, ChoiceKind::kFile, "x", ""},
      {"single of two", {}, "", {kSingle, kEmpty}, {"a", "b"}, ChoiceKind::kEmpty, "", ""},
      {"in the order given", {}, "", {kEmpty, kNamed}, {"default"}, ChoiceKind::kEmpty, "", ""},
      {"no fallback", {}, "", {}, {"a", "b"}, ChoiceKind::kNothing, "", none + "there are a, b"},
      {"fallbacks that find nothing",
       {},
       "",
       {kNamed, kSingle},
       {"a", "b"},
       ChoiceKind::kNothing,
       "",
       none + "there are a, b"},
  };
  expect_choices(cases);
}

TEST(Choose, MissingConfigIsReportedAndSkipped) {
  const Case cases[] = {
      {"an unknown label: the default config",
       "x",
       "default",
       {},
       {"b", "a", "default"},
       ChoiceKind::kFile,
       "default",
       kLabel + "x names no config in /f; there are a, b, default; using default"},
      {"an unknown label: a fallback",
       "x",
       "",
       {kSingle},
       {"a"},
       ChoiceKind::kFile,
       "a",
       kLabel + "x names no config in /f; there is a; using a"},
      {"an unknown label: the empty config",
       "x",
       "",
       {kNamed, kEmpty},
       {"a"},
       ChoiceKind::kEmpty,
       "",
       kLabel + "x names no config in /f; there is a; using the empty config"},
      {"an unknown label: nothing",
       "x",
       "",
       {},
       {"a"},
       ChoiceKind::kNothing,
       "",
       kLabel + "x names no config in /f; there is a; nothing to fall back on"},
      {"an unknown default",
       {},
       "y",
       {kSingle},
       {"a"},
       ChoiceKind::kFile,
       "a",
       "the default config y is not in /f; there is a; using a"},
      {"both unknown",
       "x",
       "y",
       {kEmpty},
       {"a"},
       ChoiceKind::kEmpty,
       "",
       kLabel + "x names no config in /f and the default config y is not there either; there is a; using the "
                "empty config"},
  };
  expect_choices(cases);
}

TEST(Choose, AcceptsOnlyPlainFileNames) {
  const Case cases[] = {
      {"a directory of none, even with empty",
       "x",
       "y",
       {kEmpty},
       {},
       ChoiceKind::kNothing,
       "",
       "there is no config in /f for " + kLabel + "x"},
      {"nor with no label",
       {},
       "",
       {kEmpty},
       {"..data", "..2026"},
       ChoiceKind::kNothing,
       "",
       "there is no config in /f"},
      {"a ConfigMap's own entries are none",
       {},
       "",
       {kSingle},
       {"..data", "..2026", "a"},
       ChoiceKind::kFile,
       "a",
       ""},
      {"nor can the label name one",
       "..data",
       "",
       {kSingle},
       {"..data", "a"},
       ChoiceKind::kFile,
       "a",
       kLabel + "..data names no config in /f; there is a; using a"},
      {"nor what leads out",
       {},
       "../b",
       {kSingle},
       {"../b", "a/b", ".", "c"},
       ChoiceKind::kFile,
       "c",
       "the default config ../b is not in /f; there is c; using c"},
      {"a hidden file is one", ".a", "", {}, {".a", "b"}, ChoiceKind::kFile, ".a", ""},
  };
  expect_choices(cases);
}

TEST(Choose, ListsOnlySomeOfManyNames) {
  NodeConfig node;
  node.directory = "/f";
  std::vector<std::string> names;
  for (char name = 'a'; name <= 'l'; ++name) names.emplace_back(1, name);
  const auto choice = choose_config(node, "x", names);
  ASSERT_TRUE(choice.problem);
  EXPECT_NE(choice.problem->find("there are a, b, c, d, e, f, g, h, i, j and 2 more;"), std::string::npos)
      << *choice.problem;
}

TEST(Choose, Strategies) {
  EXPECT_EQ(parse_fallback_strategy("named"), kNamed);
  EXPECT_EQ(parse_fallback_strategy("single"), kSingle);
  EXPECT_EQ(parse_fallback_strategy("empty"), kEmpty);
  const auto other = parse_fallback_strategy("Named");
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().full_message(),
            "\"Named\" is no fallback strategy; they are named, single and empty");
}

class Directory : public testing::Test {
 protected:
  struct Change {
    std::string path;
    std::optional<std::string> problem;
    std::string content;
  };

  void SetUp() override {
    std::string pattern = fs::temp_directory_path() / "gpulet-directory-XXXXXX";
    base_ = mkdtemp(pattern.data());
    node_.directory = base_ / "f";
  }
  void TearDown() override {
    loop_.stop_loop();
    if (runner_.joinable()) runner_.join();
    watcher_.reset();
    fs::remove_all(base_);
  }

  static void write(const fs::path& path, const std::string& text) { std::ofstream(path) << text; }
  static std::string content(const std::string& path) {
    std::ifstream in(path);
    return std::string(std::istreambuf_iterator<char>(in), {});
  }
  fs::path at(const std::string& name) const { return fs::path(node_.directory) / name; }

  // As the kubelet writes a ConfigMap: name → ..data/name, ..data → a directory of its own, replaced by a
  // rename.
  void publish(const std::map<std::string, std::string>& files) {
    const std::string version = "..version" + std::to_string(++version_);
    fs::create_directories(at(version));
    for (const auto& [name, text] : files) write(at(version) / name, text);
    const fs::path old = fs::is_symlink(at("..data")) ? at(fs::read_symlink(at("..data"))) : fs::path();
    fs::create_symlink(version, at("..data_tmp"));
    fs::rename(at("..data_tmp"), at("..data"));
    for (const auto& [name, text] : files) {
      if (!fs::is_symlink(at(name))) fs::create_symlink("..data/" + name, at(name));
    }
    for (const auto& entry : fs::directory_iterator(node_.directory)) {
      const std::string name = entry.path().filename();
      if (!name.starts_with("..") && !files.contains(name)) fs::remove(entry.path());
    }
    if (!old.empty()) fs::remove_all(old);
  }

  void start() {
    auto started = ConfigDirectoryWatcher::watch_directory(
        loop_, node_, [this](const std::string& path, const std::optional<std::string>& problem) {
          const std::lock_guard lock(mutex_);
          changes_.push_back({path, problem, path.empty() ? "" : content(path)});
          changed_.notify_all();
        });
    ASSERT_TRUE(started) << started.error().full_message();
    watcher_ = std::move(*started);
    runner_ = std::thread([this] { loop_.run_loop(); });
  }
  void label(std::optional<std::string> value) {
    loop_.post([this, value = std::move(value)] { watcher_->set_label(value); });
  }
  // Waits until this is the last reported choice.
  testing::AssertionResult comes(const std::string& name, const std::string& text,
                                 const std::string& problem = "", Duration limit = std::chrono::seconds(10)) {
    const std::string path = name.empty() ? "" : at(name).string();
    std::unique_lock lock(mutex_);
    const bool came = changed_.wait_for(lock, limit, [&] {
      return !changes_.empty() && changes_.back().path == path && changes_.back().content == text &&
             changes_.back().problem.value_or("").starts_with(problem) &&
             changes_.back().problem.has_value() == !problem.empty();
    });
    if (came) return testing::AssertionSuccess();
    if (changes_.empty()) return testing::AssertionFailure() << "nothing was reported";
    return testing::AssertionFailure() << changes_.back().path << " with " << changes_.back().content << ": "
                                       << changes_.back().problem.value_or("no problem");
  }
  std::size_t change_count() {
    const std::lock_guard lock(mutex_);
    return changes_.size();
  }
  // Runs the loop long enough for pending changes to be reported, and returns the number of reports.
  std::size_t changes_after(std::size_t before) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kWatchDebounce * 8, [&] { return changes_.size() > before; });
    return changes_.size() - before;
  }

  EpollLoop loop_;
  fs::path base_;
  NodeConfig node_;
  std::unique_ptr<ConfigDirectoryWatcher> watcher_;
  std::thread runner_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Change> changes_;
  int version_ = 0;
};

TEST_F(Directory, NamesAreFilesAndLinksToFiles) {
  publish({{"a", "1"}, {"b", "2"}});
  fs::create_directory(at("directory"));
  fs::create_symlink("nowhere", at("dangling"));
  write(at("c.yaml"), "3");
  const auto names = list_config_names(node_.directory);
  ASSERT_TRUE(names) << names.error().full_message();
  EXPECT_EQ(*names, (std::vector<std::string>{"a", "b", "c.yaml"}));
  const auto none = list_config_names(base_ / "none");
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code(), Code::kNotFound);
}

TEST_F(Directory, LabelSelectsTheConfig) {
  publish({{"a", "1"}, {"b", "2"}});
  node_.default_config = "a";
  start();
  EXPECT_EQ(changes_after(0), 0u) << "reported before the label was known";
  label("b");
  EXPECT_TRUE(comes("b", "2"));
  label("b");
  EXPECT_EQ(changes_after(1), 0u);
  label("x");
  EXPECT_TRUE(comes("a", "1", "the label nvidia.com/device-plugin.config=x names no config in"));
  label(std::nullopt);
  EXPECT_TRUE(comes("a", "1"));
}

TEST_F(Directory, SwappedConfigMapIsDetectedWithinASecond) {
  publish({{"a", "1"}, {"b", "2"}});
  start();
  label("a");
  ASSERT_TRUE(comes("a", "1"));
  for (int i = 0; i < 5; ++i) {
    const std::string text = "next " + std::to_string(i);
    publish({{"a", text}, {"b", "2"}});
    EXPECT_TRUE(comes("a", text, "", std::chrono::seconds(1)));
  }
}

TEST_F(Directory, CreatedOrRemovedFileChangesTheChoice) {
  publish({{"a", "1"}});
  node_.fallbacks = {kNamed, kSingle};
  start();
  label("x");
  EXPECT_TRUE(comes("a", "1", "the label"));
  publish({{"a", "1"}, {"x", "2"}});
  EXPECT_TRUE(comes("x", "2"));
  publish({{"a", "1"}, {"x", "3"}});
  EXPECT_TRUE(comes("x", "3"));
  publish({{"a", "1"}, {"default", "4"}});
  EXPECT_TRUE(comes("default", "4", "the label"));
  publish({{"a", "5"}, {"b", "6"}});
  EXPECT_TRUE(comes("", "", "the label"));
}

TEST_F(Directory, OtherFilesAreIgnored) {
  fs::create_directories(node_.directory);
  write(at("a"), "1");
  start();
  label("a");
  ASSERT_TRUE(comes("a", "1"));
  const auto before = change_count();
  write(at("b"), "2");
  fs::remove(at("b"));
  EXPECT_EQ(changes_after(before), 0u);
  write(at("a"), "3");
  EXPECT_TRUE(comes("a", "3"));
}

TEST_F(Directory, DirectoryMayBeCreatedRemovedAndRecreated) {
  node_.fallbacks = {kEmpty};
  start();
  label("a");
  EXPECT_TRUE(comes("", "", node_.directory + ": cannot be read"));
  publish({{"a", "1"}});
  EXPECT_TRUE(comes("a", "1"));
  fs::remove_all(node_.directory);
  EXPECT_TRUE(comes("", "", node_.directory + ": cannot be read"));
  publish({{"a", "2"}});
  EXPECT_TRUE(comes("a", "2"));
  publish({{"a", "3"}});
  EXPECT_TRUE(comes("a", "3"));
}

}  // namespace
}  // namespace gpulet::config

// For tests: a bundle with a hostile root directory, a tree beside it that nothing may change, and the hook
// as a process.
#pragma once

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace gpulet::hook {

struct HookRun {
  int status = -1;           // exit status; 1000 + signal
  std::string error_output;  // standard error
};

class TestImage {
 public:
  TestImage() {
    std::string pattern = std::filesystem::temp_directory_path() / "gpulet-hook-XXXXXX";
    if (::mkdtemp(pattern.data()) == nullptr) std::abort();
    base_ = pattern;
    std::filesystem::create_directories(root_directory());
    std::filesystem::create_directories(outside_directory() / "directory");
    std::ofstream(outside_directory() / "secret") << "the host's";
    std::ofstream(outside_directory() / "directory" / "libcuda.so.999.1") << "the host's";
    std::filesystem::create_symlink("secret", outside_directory() / "link");
    set_environment({});
    before_ = snapshot();
  }
  ~TestImage() { std::filesystem::remove_all(base_); }
  TestImage(const TestImage&) = delete;

  std::filesystem::path base_directory() const { return base_; }
  std::filesystem::path root_directory() const { return base_ / "bundle" / "rootfs"; }
  // Stands for the host's files.
  std::filesystem::path outside_directory() const { return base_ / "outside"; }

  void make_directory(const std::string& path) const {
    std::filesystem::create_directories(root_directory() / path);
  }
  void add_file(const std::string& path, const std::string& content = {}) const {
    std::filesystem::create_directories((root_directory() / path).parent_path());
    std::ofstream(root_directory() / path) << content;
  }
  void make_symlink(const std::string& target, const std::string& path) const {
    std::filesystem::create_directories((root_directory() / path).parent_path());
    std::filesystem::create_symlink(target, root_directory() / path);
  }
  void make_fifo(const std::string& path) const {
    std::filesystem::create_directories((root_directory() / path).parent_path());
    ASSERT_EQ(::mkfifo((root_directory() / path).c_str(), 0644), 0);
  }
  std::string read_text(const std::string& path) const { return file_content(root_directory() / path); }
  static std::string file_content(const std::filesystem::path& path) {
    std::ifstream in(path);
    std::ostringstream out;
    out << in.rdbuf();
    return out.str();
  }

  // Sets the container's environment in config.json. Entries must not need escapes.
  void set_environment(const std::vector<std::string>& entries) const {
    std::string list;
    for (const auto& entry : entries) list += (list.empty() ? "\"" : ",\"") + entry + "\"";
    std::ofstream(base_ / "bundle" / "config.json")
        << R"({"ociVersion":"1.2.0","process":{"env":[)" << list << R"(]},"root":{"path":"rootfs"}})";
  }

  // Returns the state of the outside tree, to detect changes.
  std::string snapshot() const {
    std::ostringstream out;
    std::vector<std::filesystem::path> paths;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(outside_directory()))
      paths.push_back(entry.path());
    paths.push_back(outside_directory());
    std::sort(paths.begin(), paths.end());
    for (const auto& path : paths) {
      struct stat status{};
      if (::lstat(path.c_str(), &status) != 0) std::abort();
      out << path << ' ' << status.st_mode << ' ' << status.st_uid << ' ' << status.st_ino << ' '
          << status.st_mtim.tv_sec << '.' << status.st_mtim.tv_nsec << ' ' << status.st_ctim.tv_sec << '.'
          << status.st_ctim.tv_nsec << ' ' << (S_ISREG(status.st_mode) ? file_content(path) : "") << '\n';
    }
    return out.str();
  }
  bool outside_is_untouched() const { return snapshot() == before_; }

  // Returns temporary files that the hook did not remove.
  std::vector<std::string> leftover_files() const {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(
             root_directory(), std::filesystem::directory_options::skip_permission_denied))
      if (entry.path().filename().string().starts_with(".gpulet-")) found.push_back(entry.path());
    return found;
  }

  std::string oci_state() const { return R"({"id":"test","bundle":")" + (base_ / "bundle").string() + "\"}"; }

  // Runs gpulet-hook with these arguments, as `called` and in this environment. Kills it after 30 s.
  HookRun run_hook(const std::vector<std::string>& arguments, const std::vector<std::string>& variables = {},
                   const std::string& called = "gpulet-hook") const {
    return run_hook_with_state(oci_state(), arguments, variables, called);
  }
  HookRun run_hook_with_state(const std::string& state, const std::vector<std::string>& arguments,
                              const std::vector<std::string>& variables = {},
                              const std::string& called = "gpulet-hook") const {
    const auto input = base_ / "state.json";
    const auto output = base_ / "output";
    std::ofstream(input) << state;
    std::vector<std::string> texts{called};
    texts.insert(texts.end(), arguments.begin(), arguments.end());
    std::vector<char*> argv;
    for (auto& text : texts) argv.push_back(text.data());
    argv.push_back(nullptr);
    std::vector<std::string> kept = variables;
    std::vector<char*> environment;
    for (auto& text : kept) environment.push_back(text.data());
    environment.push_back(nullptr);
    const pid_t child = ::fork();
    if (child == 0) {
      const int in = ::open(input.c_str(), O_RDONLY);
      const int out = ::open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
      if (in < 0 || out < 0 || ::dup2(in, 0) != 0 || ::dup2(out, 1) != 1 || ::dup2(out, 2) != 2) ::_exit(120);
      if (::chdir(root_directory().c_str()) != 0) ::_exit(121);  // as runc does
      ::alarm(30);
      ::execve(GPULET_HOOK_PROGRAM, argv.data(), environment.data());
      ::_exit(122);
    }
    int status = 0;
    if (child < 0 || ::waitpid(child, &status, 0) != child) std::abort();
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status), file_content(output)};
  }

 private:
  std::filesystem::path base_;
  std::string before_;
};

// Runs `body` in a process with a private mount namespace (and a user namespace, unless root). Returns its
// error text, "" for success.
inline std::string run_with_private_mounts(const std::function<std::string()>& body) {
  int pipe[2];
  if (::pipe2(pipe, O_CLOEXEC) != 0) return "no pipe";
  const pid_t child = ::fork();
  if (child == 0) {
    const auto answer = [&]() -> std::string {
      const uid_t user = ::getuid();
      const gid_t group = ::getgid();
      if (::unshare(user == 0 ? CLONE_NEWNS : CLONE_NEWNS | CLONE_NEWUSER) != 0) return "cannot unshare";
      if (user != 0) {
        std::ofstream("/proc/self/setgroups") << "deny";
        std::ofstream("/proc/self/uid_map") << "0 " << user << " 1";
        std::ofstream("/proc/self/gid_map") << "0 " << group << " 1";
      }
      if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
        return "cannot make mounts private";
      return body();
    }();
    if (::write(pipe[1], answer.data(), answer.size()) < 0) ::_exit(1);
    ::_exit(0);
  }
  ::close(pipe[1]);
  std::string answer;
  char buffer[4096];
  for (ssize_t got = 0; (got = ::read(pipe[0], buffer, sizeof buffer)) > 0;)
    answer.append(buffer, static_cast<std::size_t>(got));
  ::close(pipe[0]);
  int status = 0;
  if (::waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
    return "the process with its own mounts ended badly: " + answer;
  return answer;
}

// Checks after an attack that the outside tree is unchanged and that no temporary file is left.
inline void expect_untouched(const TestImage& image) {
  EXPECT_TRUE(image.outside_is_untouched());
  EXPECT_TRUE(image.leftover_files().empty()) << image.leftover_files().front();
}

// For tests: a concurrent attacker.

// Swaps a file of the image with a link, again and again, while the hook runs. Its thread does not allocate
// after the constructor: the test forks, which a sanitizer's allocator does not support.
class Swapper {
 public:
  Swapper(const std::filesystem::path& place, const std::string& target)
      : path_(place), other_(place.string() + ".other") {
    std::filesystem::create_directories(path_);
    std::filesystem::create_symlink(target, other_);
    thread_ = std::thread([this] {
      while (!stop_) {
        ::syscall(SYS_renameat2, AT_FDCWD, path_.c_str(), AT_FDCWD, other_.c_str(), RENAME_EXCHANGE);
        swaps_++;
      }
    });
    while (swaps_ == 0) std::this_thread::yield();
  }
  ~Swapper() {
    stop_ = true;
    thread_.join();
  }
  unsigned long swap_count() const { return swaps_; }

 private:
  const std::filesystem::path path_, other_;
  std::atomic<bool> stop_{false};
  std::atomic<unsigned long> swaps_{0};
  std::thread thread_;
};

}  // namespace gpulet::hook

// For tests: a bundle with a root folder to be attacked from, a tree beside it that nothing may change, and
// the hook run as a process over it.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

namespace gpulet::hook {

struct Ran {
  int status = -1;   // exit status; 1000 + signal
  std::string told;  // standard error
};

class TestImage {
 public:
  TestImage() {
    std::string pattern = std::filesystem::temp_directory_path() / "gpulet-hook-XXXXXX";
    if (::mkdtemp(pattern.data()) == nullptr) std::abort();
    base_ = pattern;
    std::filesystem::create_directories(root());
    std::filesystem::create_directories(outside() / "folder");
    std::ofstream(outside() / "secret") << "the host's";
    std::ofstream(outside() / "folder" / "libcuda.so.999.1") << "the host's";
    std::filesystem::create_symlink("secret", outside() / "link");
    environment({});
    before_ = snapshot();
  }
  ~TestImage() { std::filesystem::remove_all(base_); }
  TestImage(const TestImage&) = delete;

  std::filesystem::path base() const { return base_; }
  std::filesystem::path root() const { return base_ / "bundle" / "rootfs"; }
  // What stands for the host's files.
  std::filesystem::path outside() const { return base_ / "outside"; }

  void folder(const std::string& path) const { std::filesystem::create_directories(root() / path); }
  void file(const std::string& path, const std::string& content = {}) const {
    std::filesystem::create_directories((root() / path).parent_path());
    std::ofstream(root() / path) << content;
  }
  void link(const std::string& target, const std::string& path) const {
    std::filesystem::create_directories((root() / path).parent_path());
    std::filesystem::create_symlink(target, root() / path);
  }
  void fifo(const std::string& path) const {
    std::filesystem::create_directories((root() / path).parent_path());
    ASSERT_EQ(::mkfifo((root() / path).c_str(), 0644), 0);
  }
  std::string read(const std::string& path) const { return content_of(root() / path); }
  static std::string content_of(const std::filesystem::path& path) {
    std::ifstream in(path);
    std::ostringstream out;
    out << in.rdbuf();
    return out.str();
  }

  // The container's environment as config.json has it; entries must need no escape.
  void environment(const std::vector<std::string>& entries) const {
    std::string list;
    for (const auto& entry : entries) list += (list.empty() ? "\"" : ",\"") + entry + "\"";
    std::ofstream(base_ / "bundle" / "config.json")
        << R"({"ociVersion":"1.2.0","process":{"env":[)" << list << R"(]},"root":{"path":"rootfs"}})";
  }

  // Everything of the outside tree that a change would show in.
  std::string snapshot() const {
    std::ostringstream out;
    std::vector<std::filesystem::path> paths;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(outside()))
      paths.push_back(entry.path());
    paths.push_back(outside());
    std::sort(paths.begin(), paths.end());
    for (const auto& path : paths) {
      struct stat status{};
      if (::lstat(path.c_str(), &status) != 0) std::abort();
      out << path << ' ' << status.st_mode << ' ' << status.st_uid << ' ' << status.st_ino << ' '
          << status.st_mtim.tv_sec << '.' << status.st_mtim.tv_nsec << ' ' << status.st_ctim.tv_sec << '.'
          << status.st_ctim.tv_nsec << ' ' << (S_ISREG(status.st_mode) ? content_of(path) : "") << '\n';
    }
    return out.str();
  }
  bool outside_is_untouched() const { return snapshot() == before_; }

  // What a hook leaves for a moment and must take away.
  std::vector<std::string> left_overs() const {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(
             root(), std::filesystem::directory_options::skip_permission_denied))
      if (entry.path().filename().string().starts_with(".gpulet-")) found.push_back(entry.path());
    return found;
  }

  std::string state() const { return R"({"id":"test","bundle":")" + (base_ / "bundle").string() + "\"}"; }

  // gpulet-hook with these arguments, under `called`'s name and this environment. It is killed when it takes
  // 30 s.
  Ran run(const std::vector<std::string>& arguments, const std::vector<std::string>& variables = {},
          const std::string& called = "gpulet-hook") const {
    return run_with(state(), arguments, variables, called);
  }
  Ran run_with(const std::string& state, const std::vector<std::string>& arguments,
               const std::vector<std::string>& variables = {},
               const std::string& called = "gpulet-hook") const {
    const auto input = base_ / "state.json";
    const auto output = base_ / "told";
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
      if (::chdir(root().c_str()) != 0) ::_exit(121);  // as runc does
      ::alarm(30);
      ::execve(GPULET_HOOK_PROGRAM, argv.data(), environment.data());
      ::_exit(122);
    }
    int status = 0;
    if (child < 0 || ::waitpid(child, &status, 0) != child) std::abort();
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status), content_of(output)};
  }

 private:
  std::filesystem::path base_;
  std::string before_;
};

// Runs `body` in a process with mounts of its own (and a user namespace, where we are not root). It returns
// what is wrong, "" for nothing; so does this.
inline std::string with_own_mounts(const std::function<std::string()>& body) {
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

// After an attack: the tree beside the image is as it was, and nothing of the hook's lies about in it.
inline void expect_untouched(const TestImage& image) {
  EXPECT_TRUE(image.outside_is_untouched());
  EXPECT_TRUE(image.left_overs().empty()) << image.left_overs().front();
}

}  // namespace gpulet::hook

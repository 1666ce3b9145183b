// Images and Pods that attack the hook. In each case nothing outside the root directory changes.
#include <elf.h>
#include <gmock/gmock.h>
#include <poll.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "hook/test_image.h"

namespace gpulet::hook {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

// create-container without ldconfig, with an old driver so that compat libraries are used.
std::vector<std::string> all_steps(const std::vector<std::string>& more = {}) {
  std::vector<std::string> arguments{"create-container",
                                     "--disable=update-ldcache",
                                     "--host-driver-version=535.1.2",
                                     "--host-cuda-version=12.2",
                                     "--link",
                                     "libcuda.so.1::/usr/lib/libcuda.so"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

TEST(Attack, LinksToTheHostResolveInTheImage) {
  for (const bool with_dots : {false, true}) {
    const TestImage image;
    const std::string host = image.outside_directory() / "directory";
    const std::string target = with_dots ? "../../../../../../../../../../.." + host : host;
    image.make_symlink(target, "usr/lib");
    const HookRun ran = image.run_hook(all_steps());
    // No such directory inside: the link dangles, and nothing is created outside.
    EXPECT_EQ(ran.status, 1) << ran.error_output;
    EXPECT_THAT(ran.error_output, HasSubstr("a dangling link"));
    expect_untouched(image);
    // If the image has that path, it is used.
    image.make_directory(host.substr(1));
    EXPECT_EQ(image.run_hook(all_steps()).status, 0);
    EXPECT_EQ(std::filesystem::read_symlink(image.root_directory().string() + host + "/libcuda.so"),
              "libcuda.so.1");
    expect_untouched(image);
  }
}

TEST(Attack, ReplacesALinkInTheFilesPlace) {
  const TestImage image;
  image.make_symlink(image.outside_directory() / "secret", "usr/lib/libcuda.so");
  image.make_symlink(image.outside_directory() / "secret",
                     "etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf");
  image.make_symlink("../../../../../../../.." + (image.outside_directory() / "secret").string(),
                     "etc/ld.so.conf.d/00-compat-gpulet.conf");
  image.add_file("usr/local/cuda/compat/libcuda.so.550.54.14");
  EXPECT_EQ(image.run_hook(all_steps()).status, 0);
  EXPECT_EQ(std::filesystem::read_symlink(image.root_directory() / "usr/lib/libcuda.so"), "libcuda.so.1");
  expect_untouched(image);
}

TEST(Attack, BoundsLinkLoopsAndChains) {
  const TestImage image;
  image.make_symlink("lib", "usr/lib");
  EXPECT_EQ(image.run_hook(all_steps()).status, 1);
  const TestImage deep;
  for (int i = 0; i < 100; ++i) deep.make_symlink("l" + std::to_string(i + 1), "l" + std::to_string(i));
  deep.make_directory("l100");
  const HookRun ran = deep.run_hook({"create-symlinks", "--link", "a::/l0/b"});
  EXPECT_EQ(ran.status, 1);
  EXPECT_THAT(ran.error_output, HasSubstr("link loop"));
  // A chain that the kernel accepts works, and so does a long existing path.
  EXPECT_EQ(deep.run_hook({"create-symlinks", "--link", "a::/l70/b"}).status, 0);
  std::string path;
  for (int i = 0; i < 100; ++i) path += "/d" + std::to_string(i);
  EXPECT_EQ(deep.run_hook({"create-symlinks", "--link", "a::" + path + "/b"}).status, 0);
  EXPECT_EQ(std::filesystem::read_symlink(deep.root_directory().string() + path + "/b"), "a");
  expect_untouched(deep);
}

TEST(Attack, HandlesDirectoriesAndFilesInTheWay) {
  const TestImage image;
  image.make_directory("usr/lib/libcuda.so/full");
  const HookRun directory = image.run_hook(all_steps());
  EXPECT_EQ(directory.status, 1);
  EXPECT_THAT(directory.error_output,
              HasSubstr("create-symlinks: /usr/lib/libcuda.so: cannot replace: a directory is in its place"));
  const TestImage file;
  file.add_file("usr", "a file");
  EXPECT_EQ(file.run_hook(all_steps()).status, 1);
  expect_untouched(file);
  expect_untouched(image);
}

TEST(Attack, DoesNotBlockOnFifosAndDevices) {
  const TestImage image;
  image.make_fifo("usr/local/cuda/compat/libcuda.so.550.54.14");
  image.make_fifo("etc/ld.so.conf.d/00-compat-gpulet.conf");
  image.make_fifo("usr/lib/libcuda.so");
  image.make_fifo("dev/nvidia0");
  const HookRun ran = image.run_hook(all_steps());
  EXPECT_EQ(ran.status, 0) << ran.error_output;
  EXPECT_FALSE(std::filesystem::exists(image.root_directory() / "etc/nvidia"));
  EXPECT_FALSE(std::filesystem::exists(image.root_directory() / "etc/ld.so.conf.d/00-compat-gpulet.conf"));
  const TestImage directories;
  directories.make_fifo("usr/local/cuda/compat");
  directories.make_fifo("etc/ld.so.conf.d");
  directories.make_fifo("dev");
  EXPECT_EQ(directories.run_hook({"enable-cuda-compat", "--host-driver-version=535.1"}).status, 1);
  EXPECT_EQ(directories.run_hook({"update-application-profile"}).status, 0);
  expect_untouched(directories);
}

// CVE-2024-0132, CVE-2025-23359: the compat library's path led to host files, which were mounted into the
// container.
TEST(Attack, IgnoresCompatLibrariesThatLinkToTheHost) {
  const TestImage library;
  library.make_symlink(library.outside_directory() / "directory" / "libcuda.so.999.1",
                       "usr/local/cuda/compat/libcuda.so.999.1");
  const TestImage directory;
  directory.make_symlink(
      "../../../../../../../../../.." + (directory.outside_directory() / "directory").string(),
      "usr/local/cuda/compat");
  const TestImage magic;
  magic.make_symlink("/proc/self/root" + (magic.outside_directory() / "directory").string(),
                     "usr/local/cuda/compat");
  const TestImage root;
  root.make_symlink("/", "usr/local/cuda/compat/libcuda.so.999.1");
  for (const TestImage* image : {&library, &directory, &magic, &root}) {
    const std::string before = TestImage::file_content("/proc/self/mountinfo");
    EXPECT_EQ(image->run_hook(all_steps()).status, 0);
    EXPECT_EQ(TestImage::file_content("/proc/self/mountinfo"), before);
    EXPECT_FALSE(std::filesystem::exists(image->root_directory() / "etc/ld.so.conf.d"));
    expect_untouched(*image);
  }
}

// CVE-2025-23266: the image's environment reached the hook, and LD_PRELOAD ran its library as root.
TEST(Attack, IgnoresItsEnvironment) {
  const TestImage image;
  // Only the container's environment can turn the check off.
  image.set_environment({"NVIDIA_REQUIRE_CUDA=cuda>=13.0"});
  EXPECT_EQ(image.run_hook(all_steps(), {"NVIDIA_DISABLE_REQUIRE=1"}).status, 1);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // sanitized programs are dynamic
  image.set_environment({});
  image.add_file("evil.so", "no library at all: a dynamic program would say so");
  const HookRun ran = image.run_hook(all_steps(), {"LD_PRELOAD=/evil.so", "LD_AUDIT=evil.so", "PATH=."});
  EXPECT_EQ(ran.status, 0);
  EXPECT_THAT(ran.error_output, IsEmpty());
  // No interpreter: the kernel starts it alone.
  const std::string program = TestImage::file_content(GPULET_HOOK_PROGRAM);
  Elf64_Ehdr header{};
  std::memcpy(&header, program.data(), sizeof header);
  ASSERT_GT(header.e_phnum, 0);
  for (std::size_t i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment{};
    std::memcpy(&segment, program.data() + header.e_phoff + i * sizeof segment, sizeof segment);
    EXPECT_NE(segment.p_type, static_cast<Elf64_Word>(PT_INTERP));
  }
#endif
}

constexpr int kRuns = 60;

TEST(Attack, SwappedLinksStayInTheRoot) {
  const TestImage image;
  image.add_file("usr/local/cuda/compat/libcuda.so.550.54.14");
  const std::string up = "../../../../../../../../../../../..";
  // The links' targets also exist in the image, so that most runs complete.
  image.make_directory((image.outside_directory() / "directory").string().substr(1));
  {
    const Swapper libraries(image.root_directory() / "usr/lib",
                            up + (image.outside_directory() / "directory").string());
    const Swapper configs(image.root_directory() / "etc", image.outside_directory());
    const Swapper compat(image.root_directory() / "usr/local/cuda/compat",
                         image.outside_directory() / "directory");
    int failed = 0;
    for (int i = 0; i < kRuns; ++i) {
      const std::string n = std::to_string(i);
      const HookRun ran =
          image.run_hook(all_steps({"--link", "x::/usr/lib/" + n, "--link", "x::/usr/lib/../lib/" + n}));
      ASSERT_LT(ran.status, 2) << ran.error_output;  // refused or completed, never killed
      failed += ran.status;
    }
    EXPECT_LT(failed, kRuns);
    EXPECT_GT(libraries.swap_count(), 10u * kRuns);
  }
  EXPECT_TRUE(image.outside_is_untouched());
}

// The same with the directory itself moved away and back.
TEST(Attack, DirectoriesThatMoveWhileInUse) {
  const TestImage image;
  image.make_directory("a/b/c/d");
  image.make_directory("z");
  // Like Swapper's, its thread does not allocate while the test forks.
  const std::filesystem::path here = image.root_directory() / "a/b/c", there = image.root_directory() / "z/c";
  std::atomic<bool> stop{false};
  std::atomic<unsigned long> moves{0};
  std::thread mover([&] {
    while (!stop) {
      ::rename(here.c_str(), there.c_str());
      ::rename(there.c_str(), here.c_str());
      moves++;
    }
  });
  while (moves == 0) std::this_thread::yield();
  for (int i = 0; i < kRuns; ++i) {
    const auto n = std::to_string(i);
    EXPECT_LT(
        image.run_hook({"create-symlinks", "--link", "x::/a/b/c/d/../../../../../../outside/" + n}).status,
        2);
  }
  stop = true;
  mover.join();
  EXPECT_TRUE(image.outside_is_untouched());
}

TEST(Attack, BoundsHugeFilesAndDirectories) {
  const TestImage image;
  image.make_directory("usr/local/cuda/compat");
  for (int i = 0; i < 2000; ++i) image.add_file("usr/local/cuda/compat/f" + std::to_string(i));
  EXPECT_EQ(image.run_hook(all_steps()).status, 0);
  const TestImage sparse;
  sparse.add_file("usr/local/cuda/compat/libcuda.so.550.54.14",
                  "\x7f"
                  "ELF");
  std::filesystem::resize_file(sparse.root_directory() / "usr/local/cuda/compat/libcuda.so.550.54.14",
                               8ull << 30);
  EXPECT_EQ(sparse.run_hook(all_steps()).status, 0);
  EXPECT_FALSE(std::filesystem::exists(sparse.root_directory() / "etc"));
}

TEST(Attack, RefusesHostileStates) {
  const TestImage image;
  const std::string bundle = (image.base_directory() / "bundle").string();
  const auto refused = [&](const std::string& state) {
    const HookRun ran = image.run_hook_with_state(state, all_steps());
    EXPECT_EQ(ran.status, 1) << state.substr(0, 100);
    EXPECT_EQ(std::count(ran.error_output.begin(), ran.error_output.end(), '\n'), 1) << ran.error_output;
    EXPECT_LT(ran.error_output.size(), 1100u);
  };
  for (const char* state : {"", "{", "[]", "null", "{}", "{\"root\":\"\"}", "{\"root\":\"/\"}",
                            "{\"root\":\"//\"}", "{\"root\":\"/..\"}", "{\"root\":\"/./\"}",
                            "{\"root\":\"/proc/self/root\"}", "{\"root\":\"relative\"}",
                            "{\"bundle\":\"relative\"}", "{\"root\":7}", "{\"bundle\":\"/nonexistent\"}",
                            "{\"root\":\"/tmp\\u0000x\"}", "{\"root\":\"/\"} x", "{\"root\":\"/dev/null\"}"})
    refused(state);
  refused(std::string(100'000, '['));
  refused("{\"id\":\"" + std::string(2u << 20, 'x') + "\",\"bundle\":\"" + bundle + "\"}");
  std::filesystem::remove(image.base_directory() / "bundle/config.json");
  refused(image.oci_state());
  ASSERT_EQ(::mkfifo((image.base_directory() / "bundle/config.json").c_str(), 0644), 0);
  refused(image.oci_state());
  std::filesystem::remove(image.base_directory() / "bundle/config.json");
  std::ofstream(image.base_directory() / "bundle/config.json") << R"({"root":{"path":"/"}})";
  refused(image.oci_state());
  expect_untouched(image);
}

TEST(Attack, PrintsOneCleanLine) {
  const TestImage image;
  image.set_environment({"NVIDIA_REQUIRE_CUDA=cuda>=99.0,\\u001b[31mbrand=x\\nFAKE: all is well"});
  const HookRun ran = image.run_hook(all_steps());
  EXPECT_EQ(ran.status, 1);
  EXPECT_EQ(std::count(ran.error_output.begin(), ran.error_output.end(), '\n'), 1);
  EXPECT_EQ(ran.error_output.find('\x1b'), std::string::npos);
}

// A runtime that never sends the state: nothing has been checked, so the container must not start.
TEST(Attack, EndsWithoutAState) {
  int input[2];
  ASSERT_EQ(::pipe2(input, O_CLOEXEC), 0);
  const auto begin = std::chrono::steady_clock::now();
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(input[0], 0);
    const char* const arguments[] = {"gpulet-hook", "create-container", nullptr};
    const char* const none[] = {nullptr};
    ::alarm(30);
    ::execve(GPULET_HOOK_PROGRAM, const_cast<char**>(arguments), const_cast<char**>(none));
    ::_exit(122);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 1);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(4));
  ::close(input[0]);
  ::close(input[1]);
}

TEST(Attack, ClosesStrayDescriptorsFirst) {
  int stray[2];
  int input[2];
  ASSERT_EQ(::pipe(stray), 0);
  ASSERT_EQ(::pipe2(input, O_CLOEXEC), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(input[0], 0);
    const char* const arguments[] = {"gpulet-hook", "create-symlinks", nullptr};
    const char* const none[] = {nullptr};
    ::execve(GPULET_HOOK_PROGRAM, const_cast<char**>(arguments), const_cast<char**>(none));
    ::_exit(1);
  }
  ::close(stray[1]);
  // The hook still waits for its state; the inherited pipe has been closed.
  pollfd ended{stray[0], POLLIN, 0};
  EXPECT_EQ(::poll(&ended, 1, 20'000), 1);
  EXPECT_TRUE(ended.revents & POLLHUP);
  EXPECT_EQ(::waitpid(child, nullptr, WNOHANG), 0);
  ::close(input[1]);
  ::close(stray[0]);
  ::close(input[0]);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 1);
}

}  // namespace
}  // namespace gpulet::hook

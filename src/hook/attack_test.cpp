// Images and Pods that attack the hook. One property holds them together: nothing outside the root folder
// changes.
#include <elf.h>
#include <gmock/gmock.h>
#include <poll.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "hook/test_image.h"
#include "hook/test_swapper.h"

namespace gpulet::hook {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

// All of create-container that needs no ldconfig, told of an old driver so that compat libraries are wanted.
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

TEST(Attack, LinksToTheHostLeadIntoTheImage) {
  for (const bool with_dots : {false, true}) {
    const TestImage image;
    const std::string host = image.outside() / "folder";
    const std::string target = with_dots ? "../../../../../../../../../../.." + host : host;
    image.link(target, "usr/lib");
    const Ran ran = image.run(all_steps());
    // No such folder inside: the link is dangling there, and nobody makes what it means outside.
    EXPECT_EQ(ran.status, 1) << ran.told;
    EXPECT_THAT(ran.told, HasSubstr("a link to nothing"));
    expect_untouched(image);
    // Once the image has that path itself, it is what is used.
    image.folder(host.substr(1));
    EXPECT_EQ(image.run(all_steps()).status, 0);
    EXPECT_EQ(std::filesystem::read_symlink(image.root().string() + host + "/libcuda.so"), "libcuda.so.1");
    expect_untouched(image);
  }
}

TEST(Attack, ALinkInTheFilesPlaceIsReplacedNotFollowed) {
  const TestImage image;
  image.link(image.outside() / "secret", "usr/lib/libcuda.so");
  image.link(image.outside() / "secret", "etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf");
  image.link("../../../../../../../.." + (image.outside() / "secret").string(),
             "etc/ld.so.conf.d/00-compat-gpulet.conf");
  image.file("usr/local/cuda/compat/libcuda.so.550.54.14");
  EXPECT_EQ(image.run(all_steps()).status, 0);
  EXPECT_EQ(std::filesystem::read_symlink(image.root() / "usr/lib/libcuda.so"), "libcuda.so.1");
  expect_untouched(image);
}

TEST(Attack, LoopsAndDeepChainsOfLinksEnd) {
  const TestImage image;
  image.link("lib", "usr/lib");
  EXPECT_EQ(image.run(all_steps()).status, 1);
  const TestImage deep;
  for (int i = 0; i < 100; ++i) deep.link("l" + std::to_string(i + 1), "l" + std::to_string(i));
  deep.folder("l100");
  const Ran ran = deep.run({"create-symlinks", "--link", "a::/l0/b"});
  EXPECT_EQ(ran.status, 1);
  EXPECT_THAT(ran.told, HasSubstr("loop of links"));
  // A chain that the kernel takes is fine, and a path that is long but real too.
  EXPECT_EQ(deep.run({"create-symlinks", "--link", "a::/l70/b"}).status, 0);
  std::string path;
  for (int i = 0; i < 100; ++i) path += "/d" + std::to_string(i);
  EXPECT_EQ(deep.run({"create-symlinks", "--link", "a::" + path + "/b"}).status, 0);
  EXPECT_EQ(std::filesystem::read_symlink(deep.root().string() + path + "/b"), "a");
  expect_untouched(deep);
}

TEST(Attack, FoldersAndFilesInTheWay) {
  const TestImage image;
  image.folder("usr/lib/libcuda.so/full");
  const Ran folder = image.run(all_steps());
  EXPECT_EQ(folder.status, 1);
  EXPECT_THAT(folder.told,
              HasSubstr("create-symlinks: /usr/lib/libcuda.so: cannot replace: a folder is in its place"));
  const TestImage file;
  file.file("usr", "a file");
  EXPECT_EQ(file.run(all_steps()).status, 1);
  expect_untouched(file);
  expect_untouched(image);
}

TEST(Attack, FifosAndDevicesInPlaceOfFilesDoNotStopIt) {
  const TestImage image;
  image.fifo("usr/local/cuda/compat/libcuda.so.550.54.14");
  image.fifo("etc/ld.so.conf.d/00-compat-gpulet.conf");
  image.fifo("usr/lib/libcuda.so");
  image.fifo("dev/nvidia0");
  const Ran ran = image.run(all_steps());
  EXPECT_EQ(ran.status, 0) << ran.told;
  EXPECT_FALSE(std::filesystem::exists(image.root() / "etc/nvidia"));
  EXPECT_FALSE(std::filesystem::exists(image.root() / "etc/ld.so.conf.d/00-compat-gpulet.conf"));
  const TestImage folders;
  folders.fifo("usr/local/cuda/compat");
  folders.fifo("etc/ld.so.conf.d");
  folders.fifo("dev");
  EXPECT_EQ(folders.run({"enable-cuda-compat", "--host-driver-version=535.1"}).status, 1);
  EXPECT_EQ(folders.run({"update-application-profile"}).status, 0);
  expect_untouched(folders);
}

// CVE-2024-0132, CVE-2025-23359: the compat library's path led to the host's files, which were mounted into
// the container.
TEST(Attack, CompatLibrariesThatAreLinksToTheHostAreNotTaken) {
  const TestImage library;
  library.link(library.outside() / "folder" / "libcuda.so.999.1", "usr/local/cuda/compat/libcuda.so.999.1");
  const TestImage folder;
  folder.link("../../../../../../../../../.." + (folder.outside() / "folder").string(),
              "usr/local/cuda/compat");
  const TestImage magic;
  magic.link("/proc/self/root" + (magic.outside() / "folder").string(), "usr/local/cuda/compat");
  const TestImage root;
  root.link("/", "usr/local/cuda/compat/libcuda.so.999.1");
  for (const TestImage* image : {&library, &folder, &magic, &root}) {
    const std::string before = TestImage::content_of("/proc/self/mountinfo");
    EXPECT_EQ(image->run(all_steps()).status, 0);
    EXPECT_EQ(TestImage::content_of("/proc/self/mountinfo"), before);
    EXPECT_FALSE(std::filesystem::exists(image->root() / "etc/ld.so.conf.d"));
    expect_untouched(*image);
  }
}

// CVE-2025-23266: the image's environment reached the hook, and LD_PRELOAD ran its library as root.
TEST(Attack, NothingOfTheEnvironmentCounts) {
  const TestImage image;
  // Only the container's environment may switch the check off.
  image.environment({"NVIDIA_REQUIRE_CUDA=cuda>=13.0"});
  EXPECT_EQ(image.run(all_steps(), {"NVIDIA_DISABLE_REQUIRE=1"}).status, 1);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // whose programs are dynamic
  image.environment({});
  image.file("evil.so", "no library at all: a dynamic program would say so");
  const Ran ran = image.run(all_steps(), {"LD_PRELOAD=/evil.so", "LD_AUDIT=evil.so", "PATH=."});
  EXPECT_EQ(ran.status, 0);
  EXPECT_THAT(ran.told, IsEmpty());
  // No interpreter: it is the kernel alone that starts it.
  const std::string program = TestImage::content_of(GPULET_HOOK_PROGRAM);
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

TEST(Attack, SwappedLinksNeverLeadOut) {
  const TestImage image;
  image.file("usr/local/cuda/compat/libcuda.so.550.54.14");
  const std::string up = "../../../../../../../../../../../..";
  // What the links mean inside the image is there too, so that most runs come to their end.
  image.folder((image.outside() / "folder").string().substr(1));
  {
    const Swapper libraries(image.root() / "usr/lib", up + (image.outside() / "folder").string());
    const Swapper configs(image.root() / "etc", image.outside());
    const Swapper compat(image.root() / "usr/local/cuda/compat", image.outside() / "folder");
    int failed = 0;
    for (int i = 0; i < kRuns; ++i) {
      const std::string n = std::to_string(i);
      const Ran ran =
          image.run(all_steps({"--link", "x::/usr/lib/" + n, "--link", "x::/usr/lib/../lib/" + n}));
      ASSERT_LT(ran.status, 2) << ran.told;  // refused or done, never killed
      failed += ran.status;
    }
    EXPECT_LT(failed, kRuns);
    EXPECT_GT(libraries.swaps(), 10u * kRuns);
  }
  EXPECT_TRUE(image.outside_is_untouched());
}

// The same for the folder itself being moved away and back.
TEST(Attack, FoldersThatMoveWhileTheyAreUsed) {
  const TestImage image;
  image.folder("a/b/c/d");
  image.folder("z");
  // As Swapper's, its thread allocates nothing while the test forks.
  const std::filesystem::path here = image.root() / "a/b/c", there = image.root() / "z/c";
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
    EXPECT_LT(image.run({"create-symlinks", "--link", "x::/a/b/c/d/../../../../../../outside/" + n}).status,
              2);
  }
  stop = true;
  mover.join();
  EXPECT_TRUE(image.outside_is_untouched());
}

TEST(Attack, HugeFilesAndFoldersAreBounded) {
  const TestImage image;
  image.folder("usr/local/cuda/compat");
  for (int i = 0; i < 2000; ++i) image.file("usr/local/cuda/compat/f" + std::to_string(i));
  EXPECT_EQ(image.run(all_steps()).status, 0);
  const TestImage sparse;
  sparse.file("usr/local/cuda/compat/libcuda.so.550.54.14",
              "\x7f"
              "ELF");
  std::filesystem::resize_file(sparse.root() / "usr/local/cuda/compat/libcuda.so.550.54.14", 8ull << 30);
  EXPECT_EQ(sparse.run(all_steps()).status, 0);
  EXPECT_FALSE(std::filesystem::exists(sparse.root() / "etc"));
}

TEST(Attack, HostileStates) {
  const TestImage image;
  const std::string bundle = (image.base() / "bundle").string();
  const auto refused = [&](const std::string& state) {
    const Ran ran = image.run_with(state, all_steps());
    EXPECT_EQ(ran.status, 1) << state.substr(0, 100);
    EXPECT_EQ(std::count(ran.told.begin(), ran.told.end(), '\n'), 1) << ran.told;
    EXPECT_LT(ran.told.size(), 1100u);
  };
  for (const char* state : {"", "{", "[]", "null", "{}", "{\"root\":\"\"}", "{\"root\":\"/\"}",
                            "{\"root\":\"//\"}", "{\"root\":\"/..\"}", "{\"root\":\"/./\"}",
                            "{\"root\":\"/proc/self/root\"}", "{\"root\":\"relative\"}",
                            "{\"bundle\":\"relative\"}", "{\"root\":7}", "{\"bundle\":\"/nonexistent\"}",
                            "{\"root\":\"/tmp\\u0000x\"}", "{\"root\":\"/\"} x", "{\"root\":\"/dev/null\"}"})
    refused(state);
  refused(std::string(100'000, '['));
  refused("{\"id\":\"" + std::string(2u << 20, 'x') + "\",\"bundle\":\"" + bundle + "\"}");
  std::filesystem::remove(image.base() / "bundle/config.json");
  refused(image.state());
  ASSERT_EQ(::mkfifo((image.base() / "bundle/config.json").c_str(), 0644), 0);
  refused(image.state());
  std::filesystem::remove(image.base() / "bundle/config.json");
  std::ofstream(image.base() / "bundle/config.json") << R"({"root":{"path":"/"}})";
  refused(image.state());
  expect_untouched(image);
}

TEST(Attack, MessagesAreOneCleanLine) {
  const TestImage image;
  image.environment({"NVIDIA_REQUIRE_CUDA=cuda>=99.0,\\u001b[31mbrand=x\\nFAKE: all is well"});
  const Ran ran = image.run(all_steps());
  EXPECT_EQ(ran.status, 1);
  EXPECT_EQ(std::count(ran.told.begin(), ran.told.end(), '\n'), 1);
  EXPECT_EQ(ran.told.find('\x1b'), std::string::npos);
}

TEST(Attack, StrayDescriptorsAreClosedBeforeAnythingIsRead) {
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
  // The hook still waits for its state; the pipe that it inherited has nobody at its other end.
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

// For tests of update-ldcache: images with a driver's library, and queries by ldconfig -p.
#pragma once

#include <string>

#include "base/process.h"
#include "hook/test_elf.h"
#include "hook/test_image.h"

namespace gpulet::hook {

#if defined(__x86_64__)
inline const std::string kTestTriplet = "x86_64-linux-gnu";
inline const std::string kTestLoader = "lib64/ld-linux-x86-64.so.2";
inline const std::string kTestMusl = "x86_64";
#else
inline const std::string kTestTriplet = "aarch64-linux-gnu";
inline const std::string kTestLoader = "lib/ld-linux-aarch64.so.1";
inline const std::string kTestMusl = "aarch64";
#endif

#define SKIP_WITHOUT_LDCACHE_RIGHTS()                                                                \
  do {                                                                                               \
    if (::geteuid() != 0) GTEST_SKIP() << "only root may create the sandbox mounts here";            \
    if (::access("/sbin/ldconfig", X_OK) != 0) GTEST_SKIP() << "this machine has no /sbin/ldconfig"; \
  } while (false)

// Adds the driver's library to `directory` as an engine binds it: under its versioned name only.
inline void add_driver_library(const TestImage& image, const std::string& directory) {
  image.add_file(directory + "/libcuda.so.535.104.5", shared_object("libcuda.so.1"));
}

// Lays out a Debian image: UsrMerge, multiarch, ld.so.conf.d.
inline void make_debian(const TestImage& image) {
  image.make_directory("usr/lib/" + kTestTriplet);
  image.make_symlink("usr/lib", "lib");
  image.make_symlink("usr/lib64", "lib64");
  for (const char* directory : {"usr/lib64", "proc", "sys", "dev", "tmp", "var/cache/ldconfig"})
    image.make_directory(directory);
  image.add_file("etc/debian_version", "12.1\n");
  image.add_file("etc/ld.so.conf", "include /etc/ld.so.conf.d/*.conf\n");
  image.add_file("etc/ld.so.conf.d/libc.conf", "# libc default configuration\n/usr/local/lib\n");
  image.add_file("etc/ld.so.conf.d/" + kTestTriplet + ".conf",
                 "/lib/" + kTestTriplet + "\n/usr/lib/" + kTestTriplet);
  image.add_file("usr/lib/" + kTestTriplet + "/libz.so.1.2.13", shared_object("libz.so.1"));
  image.make_symlink("libz.so.1.2.13", "usr/lib/" + kTestTriplet + "/libz.so.1");
}

// Returns the path of a library in the image's cache, or "".
inline std::string cached_path(const TestImage& image, const std::string& library) {
  const std::string listing = image.base_directory() / "listing";
  const FileDescriptor out(::open(listing.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  ProcessOptions options;
  options.program = "/sbin/ldconfig";
  options.arguments = {"ldconfig", "-p", "-C", image.root_directory() / "etc/ld.so.cache"};
  options.descriptors = {{out.get(), 1}};
  const auto process = Process::spawn(options);
  if (!process) return process.error().full_message();
  if (const auto ended = (*process)->wait_for_exit(std::chrono::seconds(20)); !ended || !ended->succeeded())
    return "";
  const std::string all = TestImage::file_content(listing);
  const auto at = all.find("\t" + library + " (");
  if (at == std::string::npos) return "";
  const auto arrow = all.find("=> ", at);
  return all.substr(arrow + 3, all.find('\n', arrow) - arrow - 3);
}

// Returns every name, type, size and time in the image.
inline std::string tree_snapshot(const TestImage& image) {
  std::vector<std::string> lines;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(image.root_directory())) {
    struct stat status{};
    if (::lstat(entry.path().c_str(), &status) != 0) std::abort();
    std::ostringstream line;
    line << entry.path() << ' ' << status.st_mode << ' ' << status.st_ino << ' ' << status.st_size << ' '
         << status.st_mtim.tv_sec << '.' << status.st_mtim.tv_nsec;
    lines.push_back(line.str());
  }
  std::sort(lines.begin(), lines.end());
  std::string all;
  for (const auto& line : lines) all += line + "\n";
  return all;
}

inline HookRun run_update_ldcache(const TestImage& image, const std::vector<std::string>& directories,
                                  const std::vector<std::string>& variables = {}) {
  std::vector<std::string> arguments{"update-ldcache", "--ldconfig-path=@/sbin/ldconfig"};
  for (const auto& directory : directories) arguments.push_back("--folder=" + directory);
  return image.run_hook(arguments, variables);
}

}  // namespace gpulet::hook

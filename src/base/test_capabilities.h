// For tests: runs a part of a test with fewer capabilities. They are those of a thread, so that the others of
// the test keep theirs. Source: capabilities(7), "Thread capability sets".
#pragma once

#include <linux/capability.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

namespace gpulet {

// Runs `run` on a thread without `capability` (CAP_SYS_ADMIN), and returns when it has ended.
template <class Run>
void run_without_capability(int capability, Run run) {
  std::thread([&] {
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct sets[_LINUX_CAPABILITY_U32S_3]{};
    if (::syscall(SYS_capget, &header, sets) != 0) std::abort();
    sets[CAP_TO_INDEX(capability)].effective &= ~CAP_TO_MASK(capability);
    sets[CAP_TO_INDEX(capability)].permitted &= ~CAP_TO_MASK(capability);
    if (::syscall(SYS_capset, &header, sets) != 0) std::abort();
    run();
  }).join();
}

}  // namespace gpulet

// The C ABI of libcuda.so.1, loaded as a client loads it: each test's clients are processes of their own.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <numeric>
#include <vector>

#include "sim/cuda/abi.h"
#include "sim/state/test_machine.h"

namespace gpulet::sim {
namespace {

constexpr std::uint64_t kCudaMiB = 1U << 20;
constexpr std::uint64_t kLimit = 700 * kCudaMiB, kChunk = 16 * kCudaMiB;

class CudaLibrary {
 public:
  CudaLibrary() : library_(dlopen(GPULET_SIM_CUDA_LIBRARY, RTLD_NOW)) {
    EXPECT_NE(library_, nullptr) << dlerror();
  }
  template <class... Arguments>
  int call(const char* name, Arguments... arguments) const {
    const auto function = reinterpret_cast<int (*)(Arguments...)>(dlsym(library_, name));
    EXPECT_NE(function, nullptr) << name;
    return function == nullptr ? -1 : function(arguments...);
  }
  void start(int device = 0) {
    EXPECT_EQ(call("cuInit", 0U), CUDA_SUCCESS);
    EXPECT_EQ(call("cuDevicePrimaryCtxRetain", &context, device), CUDA_SUCCESS);
    EXPECT_EQ(call("cuCtxSetCurrent", context), CUDA_SUCCESS);
  }
  int count() const {
    int found = -1;
    EXPECT_EQ(call("cuDeviceGetCount", &found), CUDA_SUCCESS);
    return found;
  }

  CUcontext context = nullptr;

 private:
  void* library_;
};

// A way to take GPU memory: allocates `bytes`, and returns the code and, with success, how to free them.
struct Route {
  const char* name;
  std::uint64_t bytes;
  std::function<int(CudaLibrary&, std::uint64_t, CUdeviceptr&)> take;
  std::function<int(CudaLibrary&, CUdeviceptr)> free;
};

int take_physical(CudaLibrary& cuda, std::uint64_t bytes, CUdeviceptr& address) {
  const CUmemAllocationProp properties{
      CU_MEM_ALLOCATION_TYPE_PINNED, 0, {CU_MEM_LOCATION_TYPE_DEVICE, 0}, nullptr, {}};
  CUmemHandle handle = 0;
  const int code = cuda.call("cuMemCreate", &handle, bytes, &properties, std::uint64_t{0});
  if (code != CUDA_SUCCESS) return code;
  EXPECT_EQ(
      cuda.call("cuMemAddressReserve", &address, bytes, std::size_t{0}, CUdeviceptr{0}, std::uint64_t{0}), 0);
  EXPECT_EQ(cuda.call("cuMemMap", address, bytes, std::size_t{0}, handle, std::uint64_t{0}), 0);
  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  EXPECT_EQ(cuda.call("cuMemcpyDtoD_v2", address, address, std::size_t{1}), CUDA_ERROR_INVALID_VALUE)
      << "no access yet";
  EXPECT_EQ(cuda.call("cuMemSetAccess", address, bytes, &access, std::size_t{1}), 0);
  EXPECT_EQ(cuda.call("cuMemRelease", handle), 0) << "the mapping keeps it";
  return code;
}

int free_physical(CudaLibrary& cuda, CUdeviceptr address) {
  const int code = cuda.call("cuMemUnmap", address, kChunk);
  EXPECT_EQ(cuda.call("cuMemAddressFree", address, kChunk), 0);
  return code;
}

int take_by_graph(CudaLibrary& cuda, std::uint64_t bytes, CUdeviceptr& address) {
  CUgraph graph = nullptr;
  CUgraphNode node = nullptr;
  CUgraphExec executable = nullptr;
  CUDA_MEM_ALLOC_NODE_PARAMS parameters{};
  parameters.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  parameters.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  parameters.bytesize = bytes;
  EXPECT_EQ(cuda.call("cuGraphCreate", &graph, 0U), 0);
  const CUgraphNode* const none = nullptr;
  EXPECT_EQ(cuda.call("cuGraphAddMemAllocNode", &node, graph, none, std::size_t{0}, &parameters), 0);
  EXPECT_EQ(cuda.call("cuGraphInstantiateWithFlags", &executable, graph, 0ULL), 0);
  address = parameters.dptr;
  return cuda.call("cuGraphLaunch", executable, CUstream{nullptr});
}

int free_plain(CudaLibrary& cuda, CUdeviceptr address) { return cuda.call("cuMemFree_v2", address); }

const std::vector<Route>& routes() {
  static const std::vector<Route> kRoutes = {
      {"plain", kChunk,
       [](auto& cuda, auto bytes, auto& at) { return cuda.call("cuMemAlloc_v2", &at, bytes); }, free_plain},
      {"small", 65536,
       [](auto& cuda, auto bytes, auto& at) { return cuda.call("cuMemAlloc_v2", &at, bytes); }, free_plain},
      {"odd", kCudaMiB + 4096,
       [](auto& cuda, auto bytes, auto& at) { return cuda.call("cuMemAlloc_v2", &at, bytes); }, free_plain},
      {"pitch", kChunk,
       [](auto& cuda, auto bytes, auto& at) {
         std::size_t pitch = 0;
         return cuda.call("cuMemAllocPitch_v2", &at, &pitch, bytes / 1024, std::size_t{1024}, 4U);
       },
       free_plain},
      {"pool", kChunk,
       [](auto& cuda, auto bytes, auto& at) {
         return cuda.call("cuMemAllocAsync", &at, bytes, CUstream{nullptr});
       },
       [](auto& cuda, auto at) { return cuda.call("cuMemFreeAsync", at, CUstream{nullptr}); }},
      {"vmm", kChunk, take_physical, free_physical},
      {"graph", kChunk, take_by_graph, free_plain},
  };
  return kRoutes;
}

class CudaTest : public testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/gpulet-sim-XXXXXX";
    ASSERT_NE(mkdtemp(pattern), nullptr);
    directory_ = pattern;
    start_machine(MemoryBackend::kMisc);
    setenv("GPULET_SIM_STATE", (directory_ + "/state").c_str(), 1);
    std::filesystem::create_directories(container());
  }
  void TearDown() override {
    for (const char* name : {"GPULET_SIM_STATE", "GPULET_SIM_CGROUP", "CUDA_VISIBLE_DEVICES"}) unsetenv(name);
    std::filesystem::remove_all(directory_);
  }
  void start_machine(MemoryBackend backend) {
    auto made = StateFile::create_state(directory_ + "/state", *machine_with_memory_limits(backend));
    ASSERT_TRUE(made) << made.error().full_message();
    state_ = std::move(*made);
  }
  std::string container() const { return directory_ + "/pod/container"; }
  Cgroup cgroup() const { return look_up_cgroup(container()).chain.front(); }

  // Runs `act` in a process of its own, whose failed expectations fail the test.
  static void run_client(const std::function<void(CudaLibrary&)>& act) {
    const pid_t child = fork();
    if (child == 0) {
      CudaLibrary cuda;
      act(cuda);
      std::fflush(nullptr);
      _exit(testing::Test::HasFailure() ? 1 : 0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << "of the client";
  }
  std::uint64_t listed_bytes() const {
    const ReadGuard machine = state_.lock_for_read();
    return std::accumulate(
        std::begin(machine->gpus[0].processes), std::end(machine->gpus[0].processes), std::uint64_t{0},
        [](std::uint64_t sum, const Process& p) { return sum + (p.pid == 0 ? 0 : p.memory_bytes); });
  }
  std::uint64_t charged() const { return find_memory_limit(*state_.lock_for_read(), 0, cgroup())->used; }

  std::string directory_;
  StateFile state_;
};

// Takes memory up to the limit, and frees all: what the driver shows agrees at each step.
void use_up(CudaLibrary& cuda, const Route& route, const std::function<std::uint64_t()>& used) {
  std::size_t free = 0, total = 0;
  EXPECT_EQ(cuda.call("cuMemGetInfo_v2", &free, &total), 0);
  EXPECT_EQ(total, kLimit);
  EXPECT_EQ(free, kLimit - used());
  EXPECT_EQ(cuda.call("cuDeviceTotalMem_v2", &total, 0), 0);
  EXPECT_EQ(total, kLimit);
  const std::uint64_t before = used();
  std::vector<CUdeviceptr> taken;
  CUdeviceptr address = 0;
  int code = 0;
  while ((code = route.take(cuda, route.bytes, address)) == 0 && used() <= kLimit) taken.push_back(address);
  EXPECT_EQ(code, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_LE(used(), kLimit) << "no byte over";
  EXPECT_GT(used() + kChunk, kLimit) << "all but what is less than one more";
  for (const CUdeviceptr one : taken) EXPECT_EQ(route.free(cuda, one), 0);
  EXPECT_EQ(used(), before);
}

TEST_F(CudaTest, EachRouteEndsExactlyAtTheLimit) {
  setenv("GPULET_SIM_CGROUP", container().c_str(), 1);
  for (const auto backend : {MemoryBackend::kMisc, MemoryBackend::kDmem}) {
    for (const Route& route : routes()) {
      SCOPED_TRACE(route.name);
      start_machine(backend);
      ASSERT_EQ(set_memory_limit(*state_.lock_for_edit(), 0, cgroup(), kLimit, kLimit), LimitOutcome::kOk);
      run_client([&](CudaLibrary& cuda) {
        cuda.start();
        EXPECT_EQ(listed_bytes(), 518 * kCudaMiB);
        use_up(cuda, route, [this] { return charged(); });
        EXPECT_EQ(listed_bytes(), charged());
        EXPECT_EQ(cuda.call("cuDevicePrimaryCtxRelease_v2", 0), 0);
        EXPECT_EQ(listed_bytes(), 0U);
      });
      EXPECT_EQ(charged(), 0U);
    }
  }
}

TEST_F(CudaTest, AContextBeyondTheLimitIsRefused) {
  setenv("GPULET_SIM_CGROUP", container().c_str(), 1);
  ASSERT_EQ(set_memory_limit(*state_.lock_for_edit(), 0, cgroup(), 0, 500 * kCudaMiB), LimitOutcome::kOk);
  run_client([&](CudaLibrary& cuda) {
    EXPECT_EQ(cuda.call("cuInit", 0U), 0);
    EXPECT_EQ(cuda.call("cuDevicePrimaryCtxRetain", &cuda.context, 0), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(listed_bytes(), 0U);
  });
}

TEST_F(CudaTest, TheWholeGpuIsTheLimitOfAProcessWithoutOne) {
  run_client([&](CudaLibrary& cuda) {
    cuda.start();
    std::size_t free = 0, total = 0;
    EXPECT_EQ(cuda.call("cuMemGetInfo_v2", &free, &total), 0);
    EXPECT_EQ(total, (81559 - 551) * kCudaMiB);
    EXPECT_EQ(free, total - 518 * kCudaMiB);
    CUdeviceptr address = 0;
    EXPECT_EQ(cuda.call("cuMemAlloc_v2", &address, free + 1), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(cuda.call("cuMemAlloc_v2", &address, free), 0);
    EXPECT_EQ(cuda.call("cuMemAlloc_v2", &address, std::size_t{1}), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(cuda.call("cuMemAlloc_v2", &address, ~std::size_t{0}), CUDA_ERROR_OUT_OF_MEMORY);
  });
}

TEST_F(CudaTest, ManagedMemoryCountsForTheGpuAloneAndGivesWay) {
  setenv("GPULET_SIM_CGROUP", container().c_str(), 1);
  ASSERT_EQ(set_memory_limit(*state_.lock_for_edit(), 0, cgroup(), 0, kLimit), LimitOutcome::kOk);
  run_client([&](CudaLibrary& cuda) {
    cuda.start();
    const auto in_use = [this] { return memory_in_use(state_.lock_for_read()->gpus[0]); };
    const std::uint64_t before = in_use();
    CUdeviceptr address = 0;
    EXPECT_EQ(cuda.call("cuMemAllocManaged", &address, 2 * kLimit, 1U), 0);
    EXPECT_EQ(in_use(), before) << "no page of it is on the GPU yet";
    EXPECT_EQ(cuda.call("cuMemsetD8_v2", address, static_cast<unsigned char>(1), kChunk), 0);
    EXPECT_EQ(in_use(), before + kChunk);
    EXPECT_EQ(listed_bytes(), charged()) << "neither listed nor charged";
    EXPECT_EQ(cuda.call("cuMemFree_v2", address), 0);
    EXPECT_EQ(in_use(), before);
  });
}

TEST_F(CudaTest, AKilledClientsMemoryReturns) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    CudaLibrary cuda;
    cuda.start();
    CUdeviceptr address = 0;
    cuda.call("cuMemAlloc_v2", &address, kChunk);
    {
      const auto other = StateFile::open_state(directory_ + "/state");
    }  // whose close ends no lock
    [[maybe_unused]] const auto written = write(ready[1], "x", 1);
    pause();
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  EXPECT_EQ(listed_bytes(), 518 * kCudaMiB + kChunk);
  EXPECT_EQ(state_.lock_for_read()->gpus[0].processes[0].pid, static_cast<std::uint32_t>(child));
  ASSERT_EQ(kill(child, SIGKILL), 0);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_EQ(listed_bytes(), 0U);
  EXPECT_EQ(state_.lock_for_read()->cuda.count, 0U);
  close(ready[0]);
  close(ready[1]);
}

TEST_F(CudaTest, VisibleDevicesAreThoseOfTheEnvironment) {
  const std::string second = state_.lock_for_read()->gpus[1].uuid;
  const std::pair<std::string, int> cases[] = {
      {"", 0},    {"0,1", 2},  {"1", 1},           {"0,7,1", 1}, {"7,0", 0},    {"-1", 0},
      {"0,0", 0}, {second, 1}, {"0," + second, 2}, {"GPU-", 0},  {"GPU-zz", 0}, {second.substr(0, 12), 1}};
  for (const auto& [names, count] : cases) {
    SCOPED_TRACE(names);
    setenv("CUDA_VISIBLE_DEVICES", names.c_str(), 1);
    const int wanted = count;
    run_client([wanted, &second](CudaLibrary& cuda) {
      EXPECT_EQ(cuda.call("cuInit", 0U), wanted == 0 ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS);
      if (wanted == 0) return;
      EXPECT_EQ(cuda.count(), wanted);
      const char* const names = std::getenv("CUDA_VISIBLE_DEVICES");
      if (wanted == 2 || names[0] == '0') return;
      CUuuid uuid{};
      EXPECT_EQ(cuda.call("cuDeviceGetUuid_v2", &uuid, 0), 0);
      char first[16];
      std::snprintf(first, sizeof(first), "GPU-%02x%02x%02x%02x", uuid[0], uuid[1], uuid[2], uuid[3]);
      EXPECT_TRUE(second.starts_with(first)) << first;
    });
  }
}

TEST_F(CudaTest, InitialisationFailsAsOnHardware) {
  struct Case {
    const char* name;
    std::function<void(Machine&)> change;
    int initialised, retained;
  };
  const Case cases[] = {
      {"exclusive, in use",
       [](Machine& machine) {
         machine.gpus[0].compute_mode = 3;
         Process other{};
         other.pid = 7;
         add_process(machine.gpus[0], other);
       },
       CUDA_SUCCESS, CUDA_ERROR_DEVICE_UNAVAILABLE},
      {"exclusive, free", [](Machine& machine) { machine.gpus[0].compute_mode = 3; }, CUDA_SUCCESS,
       CUDA_SUCCESS},
      {"prohibited", [](Machine& machine) { machine.gpus[0].compute_mode = 2; }, CUDA_SUCCESS,
       CUDA_ERROR_DEVICE_UNAVAILABLE},
      {"all lost", [](Machine& machine) { machine.gpus[0].faults.lost = machine.gpus[1].faults.lost = 1; },
       CUDA_ERROR_NO_DEVICE, CUDA_ERROR_NOT_INITIALIZED},
      {"no driver", [](Machine& machine) { machine.driver.loaded = 0; }, CUDA_ERROR_NO_DEVICE,
       CUDA_ERROR_NOT_INITIALIZED},
      {"fabric", [](Machine& machine) { machine.gpus[0].fabric.state = 2; }, CUDA_ERROR_SYSTEM_NOT_READY,
       CUDA_ERROR_NOT_INITIALIZED},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.name);
    start_machine(MemoryBackend::kMisc);
    one.change(*state_.lock_for_edit());
    run_client([&one](CudaLibrary& cuda) {
      EXPECT_EQ(cuda.call("cuDevicePrimaryCtxRetain", &cuda.context, 0), CUDA_ERROR_NOT_INITIALIZED);
      EXPECT_EQ(cuda.call("cuInit", 1U), CUDA_ERROR_INVALID_VALUE);
      EXPECT_EQ(cuda.call("cuInit", 0U), one.initialised);
      EXPECT_EQ(cuda.call("cuDevicePrimaryCtxRetain", &cuda.context, 0), one.retained);
    });
  }
  setenv("GPULET_SIM_STATE", (directory_ + "/none").c_str(), 1);
  run_client([](CudaLibrary& cuda) { EXPECT_EQ(cuda.call("cuInit", 0U), CUDA_ERROR_NO_DEVICE); });
}

TEST_F(CudaTest, PeersCopyAtTheSpeedOfTheirLinks) {
  {
    const auto machine = state_.lock_for_edit();
    for (Gpu* const gpu : {&machine->gpus[0], &machine->gpus[1]}) {
      for (NvLink& link : gpu->links) link.active = 0;
      gpu->links[0].active = 1;
      gpu->links[0].speed_mbps = 1000;
    }
  }
  run_client([](CudaLibrary& cuda) {
    cuda.start();
    CUcontext peer = nullptr;
    CUdeviceptr near = 0, far = 0;
    CUevent start = nullptr, stop = nullptr;
    int can = -1;
    float milliseconds = 0;
    EXPECT_EQ(cuda.call("cuDeviceCanAccessPeer", &can, 0, 0), 0);
    EXPECT_EQ(can, 0);
    EXPECT_EQ(cuda.call("cuDeviceCanAccessPeer", &can, 0, 1), 0);
    EXPECT_EQ(can, 1);
    EXPECT_EQ(cuda.call("cuMemAlloc_v2", &near, kChunk), 0);
    EXPECT_EQ(cuda.call("cuDevicePrimaryCtxRetain", &peer, 1), 0);
    EXPECT_EQ(cuda.call("cuCtxEnablePeerAccess", peer, 0U), 0);
    EXPECT_EQ(cuda.call("cuCtxSetCurrent", peer), 0);
    EXPECT_EQ(cuda.call("cuMemAlloc_v2", &far, kChunk), 0);
    EXPECT_EQ(cuda.call("cuEventCreate", &start, 0U), 0);
    EXPECT_EQ(cuda.call("cuEventCreate", &stop, 0U), 0);
    EXPECT_EQ(cuda.call("cuEventRecord", start, CUstream{nullptr}), 0);
    EXPECT_EQ(cuda.call("cuMemcpyPeer", near, cuda.context, far, peer, std::size_t{kChunk}), 0);
    EXPECT_EQ(cuda.call("cuEventRecord", stop, CUstream{nullptr}), 0);
    EXPECT_EQ(cuda.call("cuEventElapsedTime", &milliseconds, start, stop), 0);
    EXPECT_GE(milliseconds, 16.7 / 0.85) << "16 MiB at 85 % of 1 GB/s";
    EXPECT_EQ(cuda.call("cuMemcpyPeer", near, cuda.context, far + 1, peer, std::size_t{kChunk}),
              CUDA_ERROR_INVALID_VALUE);
  });
}

TEST_F(CudaTest, AGpuOrDriverThatGoesFailsLaterCalls) {
  for (const bool reload : {false, true}) {
    start_machine(MemoryBackend::kMisc);
    run_client([&](CudaLibrary& cuda) {
      cuda.start();
      if (reload) {
        unload_driver(*state_.lock_for_edit());
        load_driver(*state_.lock_for_edit());
        EXPECT_EQ(listed_bytes(), 0U);
      } else {
        state_.lock_for_edit()->gpus[0].faults.lost = 1;
      }
      CUdeviceptr address = 0;
      EXPECT_EQ(cuda.call("cuMemAlloc_v2", &address, kChunk), CUDA_ERROR_UNKNOWN);
      EXPECT_EQ(cuda.call("cuCtxSynchronize"), CUDA_ERROR_UNKNOWN);
      EXPECT_EQ(cuda.call("cuDevicePrimaryCtxRelease_v2", 0), 0);
    });
  }
}

TEST_F(CudaTest, AChildOfForkIsNotInitialised) {
  run_client([](CudaLibrary& cuda) {
    cuda.start();
    run_client([](CudaLibrary& inner) {
      int count = 0;
      EXPECT_EQ(inner.call("cuDeviceGetCount", &count), CUDA_ERROR_NOT_INITIALIZED);
      EXPECT_EQ(inner.call("cuInit", 0U), CUDA_ERROR_NOT_INITIALIZED);
    });
    EXPECT_EQ(cuda.count(), 2);
  });
}

TEST_F(CudaTest, CopiesReallyCopyAndStayInside) {
  run_client([](CudaLibrary& cuda) {
    cuda.start();
    for (const Route& route : routes()) {
      SCOPED_TRACE(route.name);
      CUdeviceptr address = 0;
      ASSERT_EQ(route.take(cuda, route.bytes, address), 0);
      std::vector<unsigned char> sent(4096), received(4096);
      std::iota(sent.begin(), sent.end(), static_cast<unsigned char>(1));
      EXPECT_EQ(cuda.call("cuMemcpyHtoD_v2", address, static_cast<const void*>(sent.data()), sent.size()), 0);
      EXPECT_EQ(cuda.call("cuMemsetD32_v2", address + 2048, 0x01020304U, std::size_t{2}), 0);
      EXPECT_EQ(cuda.call("cuMemcpyDtoH_v2", static_cast<void*>(received.data()), address, received.size()),
                0);
      EXPECT_EQ(received[2047], sent[2047]);
      EXPECT_EQ(received[2048], 4);
      EXPECT_EQ(received[2056], sent[2056]);
      EXPECT_EQ(cuda.call("cuMemcpyHtoD_v2", address + route.bytes - 1, static_cast<const void*>(sent.data()),
                          std::size_t{2}),
                CUDA_ERROR_INVALID_VALUE);
      EXPECT_EQ(cuda.call("cuMemsetD8_v2", address + 1, static_cast<unsigned char>(1),
                          static_cast<std::size_t>(route.bytes)),
                CUDA_ERROR_INVALID_VALUE);
      EXPECT_EQ(route.free(cuda, address), 0);
      EXPECT_EQ(cuda.call("cuMemcpyDtoH_v2", static_cast<void*>(received.data()), address, received.size()),
                CUDA_ERROR_INVALID_VALUE);
    }
  });
}

TEST_F(CudaTest, NoHandleOrPointerOfAClientIsTrusted) {
  run_client([](CudaLibrary& cuda) {
    CUdeviceptr address = 0;
    EXPECT_EQ(cuda.call("cuMemAlloc_v2", &address, kChunk), CUDA_ERROR_NOT_INITIALIZED);
    EXPECT_EQ(cuda.call("cuInit", 0U), 0);
    EXPECT_EQ(cuda.call("cuMemAlloc_v2", &address, kChunk), CUDA_ERROR_INVALID_CONTEXT);
    cuda.start();
    const auto wrong = reinterpret_cast<CUcontext>(0x1234);
    int value = 0;
    EXPECT_EQ(cuda.call("cuDevicePrimaryCtxRetain", &cuda.context, 2), CUDA_ERROR_INVALID_DEVICE);
    EXPECT_EQ(cuda.call("cuDevicePrimaryCtxRetain", &cuda.context, -1), CUDA_ERROR_INVALID_DEVICE);
    EXPECT_EQ(cuda.call("cuCtxSetCurrent", wrong), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(cuda.call("cuCtxDestroy_v2", wrong), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(cuda.call("cuDeviceGetAttribute", &value, 0, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuda.call("cuDeviceGetAttribute", &value, 16, 0), 0);
    EXPECT_EQ(value, 132);
    EXPECT_EQ(cuda.call("cuMemFree_v2", CUdeviceptr{0x1234}), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuda.call("cuMemFree_v2", CUdeviceptr{0}), 0);
    EXPECT_EQ(cuda.call("cuMemAlloc_v2", &address, std::size_t{0}), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuda.call("cuMemAlloc_v2", static_cast<CUdeviceptr*>(nullptr), kChunk),
              CUDA_ERROR_INVALID_VALUE);
    for (const char* const name : {"cuStreamSynchronize", "cuStreamDestroy_v2", "cuEventSynchronize",
                                   "cuEventDestroy_v2", "cuModuleUnload"})
      EXPECT_EQ(cuda.call(name, wrong), CUDA_ERROR_INVALID_HANDLE) << name;
    for (const char* const name :
         {"cuMemRelease", "cuGraphDestroy", "cuGraphExecDestroy", "cuMemPoolDestroy", "cuMemFreeHost"})
      EXPECT_EQ(cuda.call(name, wrong), CUDA_ERROR_INVALID_VALUE) << name;
  });
}

TEST_F(CudaTest, FunctionsAreFoundByNameAndVersion) {
  run_client([](CudaLibrary& cuda) {
    const auto find = [&cuda](const char* name, int version) {
      void* function = nullptr;
      int status = -1;
      EXPECT_EQ(cuda.call("cuGetProcAddress_v2", name, &function, version, std::uint64_t{0}, &status), 0);
      EXPECT_EQ(function != nullptr, status == 0) << name;
      return status;
    };
    EXPECT_EQ(find("cuMemAlloc", 3020), 0);
    EXPECT_EQ(find("cuMemAlloc", 2000), 2);
    EXPECT_EQ(find("cuInit", 2000), 0);
    EXPECT_EQ(find("cuNoSuchFunction", 13000), 1);
    EXPECT_EQ(find("malloc", 13000), 1);
    void* function = nullptr;
    EXPECT_EQ(cuda.call("cuGetProcAddress", "cuNoSuchFunction", &function, 13000, std::uint64_t{0}),
              CUDA_ERROR_NOT_FOUND);
    const char* text = nullptr;
    EXPECT_EQ(cuda.call("cuGetErrorName", 2, &text), 0);
    EXPECT_STREQ(text, "CUDA_ERROR_OUT_OF_MEMORY");
    EXPECT_EQ(cuda.call("cuGetErrorName", 12345, &text), CUDA_ERROR_INVALID_VALUE);
  });
}

}  // namespace
}  // namespace gpulet::sim

// Files of GPUDirect Storage and of WSL 2, which go into specs of their own.
#include "base/text.h"
#include "cdi/driver_search.h"

namespace gpulet::cdi {
namespace {

constexpr std::string_view kStores = "/usr/lib/wsl/drivers";
constexpr std::string_view kWslLibraries = "/usr/lib/wsl/lib";
// What a driver store must have; it is looked for in the folder of WSL's libraries too.
constexpr std::string_view kRequired[] = {
    "libcuda.so.1.1",    "libcuda_loader.so",      "libnvidia-ptxjitcompiler.so.1",
    "libnvidia-ml.so.1", "libnvidia-ml_loader.so", "libdxcore.so",
    "libnvdxgdmal.so.1", "nvcubins.bin",           "nvidia-smi",
};

// The driver store of the GPU: the one that holds CUDA.
const Folder* driver_store(Search& search) {
  const Folder* stores = search.folders.get(kStores);
  if (stores == nullptr) return nullptr;
  const Folder* chosen = nullptr;
  for (std::size_t index = 0; index < stores->size(); ++index) {
    const Folder::Entry entry = stores->entry(index);
    if (entry.type != FileType::kFolder || !text::starts_with(entry.name, "nv")) continue;
    const Folder* store = search.folders.get(in_folder(stores->path(), entry.name));
    if (store == nullptr || !store->has("libcuda.so.1.1")) continue;
    if (chosen == nullptr) {
      chosen = store;
    } else {
      search.warn("left out: " + store->path() + " is a second driver store");
    }
  }
  return chosen;
}

bool wanted_of_store(std::string_view name) {
  return matches("*.so*", name) || matches("*.bin", name) || matches("*.dll", name) || name == "nvidia-smi";
}

void mount_wsl_file(Search& search, const Folder& folder, std::string_view name) {
  const std::string path = in_folder(folder.path(), name);
  const bool program = name == "nvidia-smi";
  if (!search.mount(program ? search.found.binaries : search.found.libraries, folder, name, path)) return;
  if (program) search.found.links.push_back({path, "/usr/bin/nvidia-smi"});
  if (text::starts_with(name, "lib")) search.found.library_dirs.push_back(folder.path());
}

}  // namespace

std::vector<FileMount> find_gds_files(const Roots& roots) {
  std::vector<FileMount> mounts;
  for (const std::string path : {"/etc/cufile.json", "/run/udev"}) {
    const FileType wanted = path == "/run/udev" ? FileType::kFolder : FileType::kRegular;
    const auto there = roots.driver.look(path);
    if (there && there->status.type == wanted) mounts.push_back({roots.driver.on_host(there->path), path});
  }
  return mounts;
}

Result<DriverFiles> find_wsl_files(const Roots& roots) {
  const DriverFileOptions options;
  Search search(roots, options);
  const Folder* store = driver_store(search);
  if (store == nullptr)
    return fail(Code::kNotFound, "no driver store with libcuda.so.1.1 below " + std::string(kStores),
                roots.driver.path());
  for (std::size_t index = 0; index < store->size(); ++index) {
    if (wanted_of_store(store->entry(index).name)) mount_wsl_file(search, *store, store->entry(index).name);
  }
  const Folder* libraries = search.folders.get(kWslLibraries);
  for (const std::string_view name : kRequired) {
    if (store->has(name)) continue;
    if (libraries != nullptr && libraries->has(name)) {
      mount_wsl_file(search, *libraries, name);
    } else {
      search.warn("not found: " + std::string(name));
    }
  }
  search.found.cuda_library_dirs.push_back(store->path());
  put_in_order(search.found);
  return std::move(search.found);
}

}  // namespace gpulet::cdi

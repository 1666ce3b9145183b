// "GPU not found": from the slot to a driver that answers.
#include <algorithm>

#include "base/text.h"
#include "doctor/judges.h"

namespace gpulet::doctor {
namespace {

constexpr const char *kDriver = "nvidia", *kNouveau = "nouveau";
constexpr const char* kReload =
    "reboot; or, with nothing on the GPUs, `modprobe -r nvidia_uvm nvidia_drm nvidia_modeset nvidia && "
    "modprobe nvidia`";

std::vector<std::string> held_by(const Bus& bus, std::string_view driver) {
  std::vector<std::string> addresses;
  for (const auto& gpu : bus.gpus) {
    if (gpu.driver == driver) addresses.push_back(gpu.address);
  }
  return addresses;
}

// A driver that answers is loaded, whether or not its module is seen: in a container, or simulated.
bool is_loaded(const Facts& facts) { return facts.installed.module.has_value() || facts.driver.has_value(); }

std::vector<std::string> paths_with(const Nodes& nodes, Code code) {
  std::vector<std::string> paths;
  for (const auto& node : nodes.needed) {
    if (node.trouble && node.trouble->code() == code) paths.push_back(node.path);
  }
  return paths;
}

}  // namespace

std::string counted(std::size_t count, std::string_view thing) {
  return std::to_string(count) + " " + std::string(thing) + (count == 1 ? "" : "s");
}

std::string some_of(const std::vector<std::string>& things, std::size_t most) {
  if (things.size() <= most) return text::join(things, ", ");
  return text::join(std::span(things).first(most), ", ") + " and " + std::to_string(things.size() - most) +
         " more";
}

Judgement judge_bus(const Facts& facts) {
  if (!facts.bus) return cannot_tell(facts.bus.error());
  const auto& gpus = facts.bus->gpus;
  if (gpus.empty() && facts.driver && !facts.driver->gpus.empty())
    return pass("not seen on a PCI bus, and the driver has " + counted(facts.driver->gpus.size(), "GPU"));
  if (gpus.empty()) {
    return fails(
        "no NVIDIA GPU is on the PCI bus",
        "see `lspci -d 10de:`; reseat the card, switch its slot on in the firmware, or pass it through to "
        "this virtual machine");
  }
  const auto away = held_by(*facts.bus, "vfio-pci");
  if (away.size() == gpus.size()) {
    return fails(
        "all of " + counted(gpus.size(), "GPU") + " are set aside for virtual machines (vfio-pci)",
        "take this node out of the pool, or give them back: `driverctl unset-override " + away.front() + "`");
  }
  std::string found = counted(gpus.size(), "NVIDIA GPU") + " on the PCI bus";
  if (!away.empty()) found += ", " + std::to_string(away.size()) + " of them set aside for virtual machines";
  return pass(std::move(found));
}

Judgement judge_nouveau(const Facts& facts) {
  if (!facts.bus) return cannot_tell(facts.bus.error());
  const std::string fix =
      "`printf 'blacklist nouveau\\noptions nouveau modeset=0\\n' > /etc/modprobe.d/blacklist-nouveau.conf`, "
      "renew the "
      "initramfs (`update-initramfs -u` or `dracut --force`) and reboot";
  const auto held = held_by(*facts.bus, kNouveau);
  if (!held.empty()) return fails("Nouveau has " + some_of(held), fix);
  if (!facts.bus->nouveau) return pass("Nouveau is not loaded");
  if (is_loaded(facts)) return warn("Nouveau is loaded beside the NVIDIA driver", fix);
  return fails("Nouveau is loaded, and the NVIDIA driver is not", fix);
}

Judgement judge_driver(const Facts& facts) {
  const auto& module = facts.installed.module;
  if (module) return pass("the kernel module " + *module + " is loaded");
  if (module.error().code() != Code::kNotFound) return cannot_tell(module.error());
  if (is_loaded(facts))
    return pass("its kernel module is not seen from here, and driver " + facts.driver->version + " answers");
  if (facts.installed.libraries.empty()) {
    return fails(
        "no NVIDIA driver: neither its kernel module is loaded nor are its libraries below " +
            facts.driver_root,
        "install the driver (`apt-get install nvidia-driver`, or NVIDIA's own package), then reboot");
  }
  return fails("the NVIDIA kernel module is not loaded",
               "`modprobe nvidia`; where that fails, `dmesg` says why (Secure Boot refuses an unsigned "
               "module, another "
               "kernel needs it built anew: `dkms autoinstall`)");
}

Judgement judge_library(const Facts& facts) {
  const auto& libraries = facts.installed.libraries;
  if (!libraries.empty()) return pass("libnvidia-ml " + text::join(libraries, ", "));
  return fails(
      "libnvidia-ml.so.1 is not below " + facts.driver_root,
      "install the driver's libraries (`apt-get install libnvidia-ml1 libcuda1`), or name their root with "
      "--driver-root (of a driver container: /run/nvidia/driver)");
}

Judgement judge_version(const Facts& facts) {
  const auto& installed = facts.installed;
  if (!installed.module && facts.driver)
    return pass("driver " + facts.driver->version + " answers its library");
  if (!installed.module) return cannot_tell(installed.module.error());
  const auto& libraries = installed.libraries;
  if (std::ranges::find(libraries, *installed.module) != libraries.end()) {
    if (libraries.size() == 1) return pass("libraries and kernel module are both " + *installed.module);
    return warn("libraries of several versions are there: " + text::join(libraries, ", "),
                "remove those that are not " + *installed.module);
  }
  return fails("the libraries are " + text::join(libraries, ", ") + ", the loaded kernel module is " +
                   *installed.module,
               kReload);
}

Judgement judge_nodes(const Facts& facts) {
  if (!facts.nodes) return cannot_tell(facts.nodes.error());
  const auto missing = paths_with(*facts.nodes, Code::kNotFound);
  if (!missing.empty()) {
    return fails("missing: " + some_of(missing, 4),
                 "`nvidia-modprobe -c 0 -u`, or run nvidia-persistenced, which keeps "
                 "them; in a container, give it the host's /dev");
  }
  const auto wrong = paths_with(*facts.nodes, Code::kFailedPrecondition);
  if (!wrong.empty()) {
    for (const auto& node : facts.nodes->needed) {
      if (node.path == wrong.front())
        return fails(node.path + ": " + node.trouble->message(),
                     "`rm " + node.path + " && nvidia-modprobe -c 0 -u`");
    }
  }
  return pass(counted(facts.nodes->needed.size(), "device node") + " as the driver wants them");
}

Judgement judge_rights_of_nodes(const Facts& facts) {
  if (!facts.nodes) return cannot_tell(facts.nodes.error());
  const auto refused = paths_with(*facts.nodes, Code::kPermissionDenied);
  if (!refused.empty()) {
    return fails("may not be opened: " + some_of(refused),
                 "run this as root; where root may not either, the device cgroup or a nodev mount forbids "
                 "it: give the "
                 "container these devices, or `privileged: true`");
  }
  std::vector<std::string> closed;
  for (const auto& node : facts.nodes->needed) {
    if (!node.for_all) closed.push_back(node.path);
  }
  if (!closed.empty()) {
    return warn(
        "only some users may open " + some_of(closed) + ", so that containers of other users see no GPU",
        "set NVreg_DeviceFileMode=0666 (`options nvidia …` in /etc/modprobe.d), or `chmod 0666` them");
  }
  if (!facts.nodes->without_char_link.empty()) {
    return warn("no link in /dev/char leads to " + some_of(facts.nodes->without_char_link) +
                    ": after `systemctl daemon-reload`, running containers lose their GPUs",
                "`for d in /dev/nvidia*; do [ -c $d ] && ln -sf $d /dev/char/$((0x$(stat -c %t "
                "$d))):$((0x$(stat -c %T "
                "$d))); done`, from a udev rule");
  }
  return pass("everybody may open them");
}

Judgement judge_answers(const Facts& facts) {
  if (!facts.driver) {
    const auto& error = facts.driver.error();
    if (error.code() == Code::kPermissionDenied)
      return fails("the driver refuses: " + error.text(), "run this as root, with the GPUs' device nodes");
    if (error.text().find("version mismatch") != std::string::npos)
      return fails("the driver does not answer: " + error.text(), kReload);
    return fails("the driver does not answer: " + error.text(),
                 "`dmesg | grep -e NVRM -e Xid` says why; a driver that hangs ends with a reboot");
  }
  const std::size_t seen = facts.driver->gpus.size();
  const std::size_t here = facts.bus ? held_by(*facts.bus, kDriver).size() : seen;
  if (seen < here) {
    return fails("the driver has " + std::to_string(seen) + " of the " + counted(here, "GPU") +
                     " that are bound to it",
                 "`dmesg | grep -e NVRM -e Xid`: one that fell off the bus needs a reboot, and a look at "
                 "power and seat");
  }
  if (seen == 0)
    return fails("the driver answers and has no GPU", "`dmesg | grep NVRM` says why it takes none");
  return pass("driver " + facts.driver->version + " answers with " + counted(seen, "GPU"));
}

}  // namespace gpulet::doctor

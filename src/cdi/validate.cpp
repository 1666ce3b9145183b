#include "cdi/validate.h"

#include <algorithm>
#include <limits>
#include <set>

#include "cdi/names.h"
#include "cdi/spec_reader.h"

namespace gpulet::cdi {
namespace {

constexpr std::size_t kMaxAnnotationBytes = 256u << 10;  // of all annotations of one object

constexpr std::int64_t kMaxUint32 = std::numeric_limits<std::uint32_t>::max();
constexpr std::int64_t kMaxInt64 = std::numeric_limits<std::int64_t>::max();

void not_empty(Reader& reader, const Node& node, const std::string& field, const std::string& value) {
  if (value.empty()) reader.wrong(node, field, "must not be empty");
}

void check_env(Reader& reader, const Node& node, const std::string& field, std::vector<std::string>& to) {
  reader.list(node, field, [&](const Node& item, const std::string& name) {
    auto& variable = to.emplace_back();
    const auto before = reader.problems.size();
    reader.text(variable)(item, name);
    const auto equals = variable.find('=');
    if (reader.problems.size() == before && (equals == std::string::npos || equals == 0)) {
      reader.wrong(item, name, "an environment variable NAME=VALUE is wanted");
    }
  });
}

void read_node(Reader& reader, const Node& node, const std::string& field, NodeEdit& to) {
  const std::vector<Reader::Field> fields{
      {"path", reader.text(to.path), true},
      {"hostPath", reader.text(to.host_path)},
      {"type", reader.text(to.type)},
      {"major", reader.number(to.major, 0, kMaxInt64)},
      {"minor", reader.number(to.minor, 0, kMaxInt64)},
      {"fileMode", reader.number(to.file_mode, 0, kMaxUint32)},
      {"permissions", reader.text(to.permissions)},
      {"uid", reader.number(to.uid, 0, kMaxUint32)},
      {"gid", reader.number(to.gid, 0, kMaxUint32)},
  };
  const auto before = reader.problems.size();
  reader.object(node, field, fields);
  if (reader.problems.size() != before) return;
  not_empty(reader, node, field + ".path", to.path);
  if (to.type.size() > 1 || std::string_view("bcup").find(to.type) == std::string_view::npos) {
    reader.wrong(node, field + ".type", "'" + to.type + "' is none of b, c, u and p");
  }
  if (to.permissions != "none" && to.permissions.find_first_not_of("rwm") != std::string::npos) {
    reader.wrong(node, field + ".permissions", "'" + to.permissions + "' is neither of r, w and m nor none");
  }
}

void read_mount(Reader& reader, const Node& node, const std::string& field, MountEdit& to) {
  const std::vector<Reader::Field> fields{
      {"hostPath", reader.text(to.host_path), true},
      {"containerPath", reader.text(to.container_path), true},
      {"options", reader.texts(to.options)},
      {"type", reader.text(to.type)},
  };
  const auto before = reader.problems.size();
  reader.object(node, field, fields);
  if (reader.problems.size() != before) return;
  not_empty(reader, node, field + ".hostPath", to.host_path);
  not_empty(reader, node, field + ".containerPath", to.container_path);
}

void read_hook(Reader& reader, const Node& node, const std::string& field, HookEdit& to) {
  const std::vector<Reader::Field> fields{
      {"hookName", reader.text(to.hook_name), true},
      {"path", reader.text(to.path), true},
      {"args", reader.texts(to.args)},
      {"env", [&](const Node& env, const std::string& name) { check_env(reader, env, name, to.env); }},
      {"timeout", reader.number(to.timeout, 0, kMaxUint32)},
  };
  const auto before = reader.problems.size();
  reader.object(node, field, fields);
  if (reader.problems.size() != before) return;
  not_empty(reader, node, field + ".path", to.path);
  static const std::set<std::string_view> kHooks{"prestart",       "createRuntime", "createContainer",
                                                 "startContainer", "poststart",     "poststop"};
  if (!kHooks.contains(to.hook_name)) {
    reader.wrong(node, field + ".hookName", "there is no OCI hook '" + to.hook_name + "'");
  }
}

void read_net_device(Reader& reader, const Node& node, const std::string& field, NetDeviceEdit& to) {
  const std::vector<Reader::Field> fields{
      {"hostInterfaceName", reader.text(to.host_interface_name), true},
      {"name", reader.text(to.name), true},
  };
  const auto before = reader.problems.size();
  reader.object(node, field, fields);
  if (reader.problems.size() != before) return;
  not_empty(reader, node, field + ".hostInterfaceName", to.host_interface_name);
  not_empty(reader, node, field + ".name", to.name);
}

void read_rdt(Reader& reader, const Node& node, const std::string& field, IntelRdt& to) {
  const std::vector<Reader::Field> fields{
      {"closID", reader.text(to.clos_id)},
      {"l3CacheSchema", reader.text(to.l3_cache_schema)},
      {"memBwSchema", reader.text(to.mem_bw_schema)},
      {"schemata", reader.texts(to.schemata)},
      {"enableMonitoring", reader.flag(to.enable_monitoring)},
      {"enableCMT", reader.flag(to.enable_cmt)},
      {"enableMBM", reader.flag(to.enable_mbm)},
  };
  reader.object(node, field, fields);
  const std::string& id = to.clos_id;
  if (id != "/" &&
      (id.size() >= 4096 || id == "." || id == ".." || id.find_first_of("/\n") != std::string::npos)) {
    reader.wrong(node, field + ".closID", "is no file name");
  }
}

template <class T>
auto list_of(Reader& reader, std::vector<T>& to, void (*read)(Reader&, const Node&, const std::string&, T&)) {
  return [&reader, &to, read](const Node& node, const std::string& field) {
    reader.list(node, field, [&](const Node& item, const std::string& name) {
      read(reader, item, name, to.emplace_back());
    });
  };
}

void check_net_devices(Reader& reader, const Node& node, const std::string& field,
                       const ContainerEdits& edits) {
  std::set<std::string> hosts, names;
  for (const auto& device : edits.net_devices) {
    if (!hosts.insert(device.host_interface_name).second) {
      reader.wrong(node, field, "names the host's interface '" + device.host_interface_name + "' twice");
    }
    if (!names.insert(device.name).second) {
      reader.wrong(node, field, "has two interfaces '" + device.name + "'");
    }
  }
}

void read_edits(Reader& reader, const Node& node, const std::string& field, ContainerEdits& to) {
  const std::vector<Reader::Field> fields{
      {"env", [&](const Node& env, const std::string& name) { check_env(reader, env, name, to.env); }},
      {"deviceNodes", list_of(reader, to.device_nodes, &read_node)},
      {"netDevices",
       [&](const Node& list, const std::string& name) {
         list_of(reader, to.net_devices, &read_net_device)(list, name);
         check_net_devices(reader, list, name, to);
       }},
      {"hooks", list_of(reader, to.hooks, &read_hook)},
      {"mounts", list_of(reader, to.mounts, &read_mount)},
      {"intelRdt", [&](const Node& rdt,
                       const std::string& name) { read_rdt(reader, rdt, name, to.intel_rdt.emplace()); }},
      {"additionalGids",
       [&](const Node& gids, const std::string& name) {
         reader.list(gids, name, [&](const Node& gid, const std::string& which) {
           reader.number(to.additional_gids.emplace_back(), 0, kMaxUint32)(gid, which);
         });
       }},
  };
  reader.object(node, field, fields);
}

bool is_name_part(std::string_view text, std::string_view inner, std::size_t most) {
  const auto alnum = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
  };
  return !text.empty() && text.size() <= most && alnum(text.front()) && alnum(text.back()) &&
         std::ranges::all_of(text,
                             [&](char c) { return alnum(c) || inner.find(c) != std::string_view::npos; });
}

// Kubernetes' rules: "prefix.example.com/Name_1", 253 and 63 characters.
void read_annotations(Reader& reader, const Node& node, const std::string& field, Annotations& to) {
  if (node.kind != Node::Kind::kMapping) return reader.wrong(node, field, "an object is wanted");
  std::size_t bytes = 0;
  for (const auto& entry : node.entries) {
    const std::string which = field + "." + entry.key;
    const auto slash = entry.key.rfind('/');
    const bool prefixed = slash != std::string::npos;
    if ((prefixed && !is_name_part(std::string_view(entry.key).substr(0, slash), "-.", 253)) ||
        !is_name_part(std::string_view(entry.key).substr(prefixed ? slash + 1 : 0), "-_.", 63)) {
      reader.wrong(entry.position, which, "is no annotation's key: [prefix/]name");
    }
    reader.text(to[entry.key])(entry.value, which);
    bytes += entry.key.size() + entry.value.scalar.size();
  }
  if (bytes > kMaxAnnotationBytes) reader.wrong(node, field, "is larger than 256 KiB");
}

void read_device(Reader& reader, const Node& node, const std::string& field, Device& to) {
  const std::vector<Reader::Field> fields{
      {"name",
       [&](const Node& name, const std::string& which) {
         const auto before = reader.problems.size();
         reader.text(to.name)(name, which);
         if (reader.problems.size() != before) return;
         if (const auto good = check_device_name(to.name); !good) {
           reader.wrong(name, which, good.error().message());
         }
       },
       true},
      {"annotations",
       [&](const Node& list, const std::string& which) {
         read_annotations(reader, list, which, to.annotations);
       }},
      {"containerEdits",
       [&](const Node& value, const std::string& which) {
         const auto before = reader.problems.size();
         read_edits(reader, value, which, to.edits);
         if (reader.problems.size() == before && to.edits.empty()) {
           reader.wrong(value, which, "a device must change something");
         }
       },
       true},
  };
  reader.object(node, field, fields);
}

void check_kind(Reader& reader, const Node& node, const std::string& field, const std::string& kind) {
  const auto slash = kind.find('/');
  if (slash == std::string::npos) return reader.wrong(node, field, "'" + kind + "' is not vendor/class");
  const auto vendor = check_vendor(std::string_view(kind).substr(0, slash));
  if (!vendor) reader.wrong(node, field, vendor.error().message());
  const auto device_class = check_class(std::string_view(kind).substr(slash + 1));
  if (!device_class) reader.wrong(node, field, device_class.error().message());
}

void read_devices(Reader& reader, const Node& node, const std::string& field, std::vector<Device>& to) {
  std::set<std::string> names;
  reader.list(node, field, [&](const Node& item, const std::string& name) {
    auto& device = to.emplace_back();
    read_device(reader, item, name, device);
    if (!device.name.empty() && !names.insert(device.name).second) {
      reader.wrong(item, name + ".name", "a device '" + device.name + "' is there already");
    }
  });
}

void read_document(Reader& reader, const Node& root, Spec& spec) {
  const Node* version = nullptr;
  const std::vector<Reader::Field> fields{
      {"cdiVersion",
       [&](const Node& node, const std::string& field) {
         const auto before = reader.problems.size();
         reader.text(spec.version)(node, field);
         if (reader.problems.size() == before) version = &node;
       },
       true},
      {"kind",
       [&](const Node& node, const std::string& field) {
         reader.text(spec.kind)(node, field);
         if (node.kind == Node::Kind::kScalar) check_kind(reader, node, field, spec.kind);
       },
       true},
      {"annotations",
       [&](const Node& node, const std::string& field) {
         read_annotations(reader, node, field, spec.annotations);
       }},
      {"devices",
       [&](const Node& node, const std::string& field) { read_devices(reader, node, field, spec.devices); },
       true},
      {"containerEdits",
       [&](const Node& node, const std::string& field) { read_edits(reader, node, field, spec.edits); }},
  };
  reader.object(root, "", fields);
  if (version == nullptr) return;
  const auto rank = version_rank(spec.version);
  const auto least = minimum_version(spec);
  if (!rank) {
    reader.wrong(*version, "cdiVersion", "there is no version '" + spec.version + "' of the CDI");
  } else if (*rank < *version_rank(least)) {
    reader.wrong(*version, "cdiVersion", "this document needs " + least + " for what it uses");
  }
}

}  // namespace

std::string SpecProblem::text() const {
  std::string place = position.line == 0 ? file : config::yaml::place(file, position);
  return place + ": " + (field.empty() ? "" : field + ": ") + message;
}

ReadSpec read_spec(std::string_view text, const std::string& file) {
  ReadSpec result;
  const auto document = config::yaml::parse(text, file);
  if (!document) {
    const auto& error = document.error();
    result.problems.push_back({error.about().empty() ? file : error.about(), {}, {}, error.message()});
    return result;
  }
  Reader reader(file);
  for (const auto& duplicate : document->duplicates) {
    reader.wrong(duplicate.position, duplicate.key, "is there twice");
  }
  if (document->second) reader.wrong(*document->second, "", "a second document begins here");
  Spec spec;
  read_document(reader, document->root, spec);
  std::ranges::stable_sort(reader.problems, {},
                           [](const SpecProblem& problem) { return problem.position.line; });
  result.problems = std::move(reader.problems);
  if (result.problems.empty()) result.spec = std::move(spec);
  return result;
}

}  // namespace gpulet::cdi

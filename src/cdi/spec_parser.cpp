#include "cdi/spec.h"

#include <algorithm>
#include <charconv>
#include <functional>
#include <limits>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"

namespace gpulet::cdi {
namespace {

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_letter_or_digit(char c) { return is_letter(c) || (c >= '0' && c <= '9'); }

Status check_name(const std::string& what, std::string_view text, std::string_view inner, bool letter_first) {
  const auto wrong = [&](const std::string& why) {
    return fail(Code::kInvalidArgument, what + " '" + std::string(text) + "' " + why);
  };
  if (text.empty()) return fail(Code::kInvalidArgument, "the " + what + " is empty");
  if (letter_first && !is_letter(text.front())) return wrong("does not begin with a letter");
  if (!is_letter_or_digit(text.front())) return wrong("does not begin with a letter or digit");
  for (const char c : text) {
    if (!is_letter_or_digit(c) && inner.find(c) == std::string_view::npos) {
      return wrong("may contain only letters, digits and " + std::string(inner));
    }
  }
  if (!is_letter_or_digit(text.back())) return wrong("does not end with a letter or digit");
  return {};
}

}  // namespace

Status check_vendor(std::string_view vendor) { return check_name("vendor", vendor, "_-.", true); }
Status check_class(std::string_view device_class) { return check_name("class", device_class, "_-.", true); }
Status check_device_name(std::string_view name) { return check_name("device name", name, "_-.:", false); }

std::string qualified_name(std::string_view kind, std::string_view device) {
  return std::string(kind) + "=" + std::string(device);
}

namespace {

using config::yaml::Node;
using config::yaml::Position;

// A plain scalar that YAML reads as a number, a boolean or null.
bool is_number(const Node& node) {
  if (!node.plain || node.scalar.empty()) return false;
  double ignored = 0;
  const char* end = node.scalar.data() + node.scalar.size();
  const auto read = std::from_chars(node.scalar.data(), end, ignored);
  return read.ec == std::errc{} && read.ptr == end;
}
bool is_bool(const Node& node) { return node.plain && (node.scalar == "true" || node.scalar == "false"); }

// Reads the tree of a document into values: a reader for each field, and every problem with its
// position.
class SpecFieldReader {
 public:
  explicit SpecFieldReader(const std::string& file) : file_(file) {}

  std::vector<SpecProblem> problems;

  void add_problem(const Node& node, const std::string& field, std::string message) {
    problems.push_back({file_, node.position, field, std::move(message)});
  }
  void add_problem(Position position, const std::string& field, std::string message) {
    problems.push_back({file_, position, field, std::move(message)});
  }

  struct Field {
    std::string_view key;
    std::function<void(const Node&, const std::string&)> read;
    bool required = false;
  };

  // Reads the members of a mapping, each with its reader.
  void read_object(const Node& node, const std::string& field, std::span<const Field> fields) {
    if (node.kind != Node::Kind::kMapping) return add_problem(node, field, "expected an object");
    for (const auto& entry : node.entries) {
      const auto found = std::ranges::find(fields, entry.key, &Field::key);
      const std::string name = field.empty() ? entry.key : field + "." + entry.key;
      if (found == fields.end()) {
        add_unknown_field(entry, name, fields);
      } else if (entry.value.kind != Node::Kind::kNull) {
        found->read(entry.value, name);
      } else if (found->required) {
        add_problem(entry.value, name, "is empty");
      }
    }
    for (const auto& expected : fields) {
      const bool present =
          std::ranges::any_of(node.entries, [&](const auto& e) { return e.key == expected.key; });
      if (expected.required && !present) {
        add_problem(node, field.empty() ? std::string(expected.key) : field + "." + std::string(expected.key),
                    "is missing");
      }
    }
  }

  void read_items(const Node& node, const std::string& field,
                  const std::function<void(const Node&, const std::string&)>& read) {
    if (node.kind != Node::Kind::kSequence) return add_problem(node, field, "expected a list");
    for (std::size_t i = 0; i < node.items.size(); ++i) {
      read(node.items[i], field + "[" + std::to_string(i) + "]");
    }
  }

  auto text_reader(std::string& to) {
    return [this, &to](const Node& node, const std::string& field) {
      if (node.kind != Node::Kind::kScalar || is_number(node) || is_bool(node)) {
        return add_problem(node, field, "expected a string" + quoted_hint(node));
      }
      to = node.scalar;
    };
  }
  auto texts_reader(std::vector<std::string>& to) {
    return [this, &to](const Node& node, const std::string& field) {
      read_items(node, field, [&](const Node& item, const std::string& name) {
        text_reader(to.emplace_back())(item, name);
      });
    };
  }
  template <class T>
  auto number_reader(T& to, std::int64_t low, std::int64_t high) {
    return [this, &to, low, high](const Node& node, const std::string& field) {
      std::int64_t value = 0;
      const char* end = node.scalar.data() + node.scalar.size();
      const auto read = std::from_chars(node.scalar.data(), end, value);
      if (node.kind != Node::Kind::kScalar || !node.plain || node.scalar.empty() ||
          (node.scalar.size() > 1 && node.scalar.front() == '0') || read.ec != std::errc{} ||
          read.ptr != end || value < low || value > high) {
        return add_problem(
            node, field,
            "expected a whole number from " + std::to_string(low) + " to " + std::to_string(high));
      }
      if constexpr (requires { to.emplace(); }) {
        to = static_cast<typename T::value_type>(value);
      } else {
        to = static_cast<T>(value);
      }
    };
  }
  auto flag_reader(bool& to) {
    return [this, &to](const Node& node, const std::string& field) {
      if (node.kind != Node::Kind::kScalar || !is_bool(node)) {
        return add_problem(node, field, "expected true or false");
      }
      to = node.scalar == "true";
    };
  }

 private:
  static std::string quoted_hint(const Node& node) {
    return node.kind == Node::Kind::kScalar ? "; put '" + node.scalar + "' in quotes" : "";
  }

  void add_unknown_field(const config::yaml::Entry& entry, const std::string& name,
                         std::span<const Field> fields) {
    std::vector<std::string> keys;
    for (const auto& field : fields) keys.emplace_back(field.key);
    const auto near = text::nearest(entry.key, keys);
    add_problem(entry.position, name, "unknown field" + (near ? "; did you mean " + *near + "?" : ""));
  }

  std::string file_;
};

constexpr std::size_t kMaxAnnotationBytes = 256u << 10;  // total size of one object's annotations

constexpr std::int64_t kMaxUint32 = std::numeric_limits<std::uint32_t>::max();
constexpr std::int64_t kMaxInt64 = std::numeric_limits<std::int64_t>::max();

void not_empty(SpecFieldReader& reader, const Node& node, const std::string& field,
               const std::string& value) {
  if (value.empty()) reader.add_problem(node, field, "must not be empty");
}

void check_env(SpecFieldReader& reader, const Node& node, const std::string& field,
               std::vector<std::string>& to) {
  reader.read_items(node, field, [&](const Node& item, const std::string& name) {
    auto& variable = to.emplace_back();
    const auto before = reader.problems.size();
    reader.text_reader(variable)(item, name);
    const auto equals = variable.find('=');
    if (reader.problems.size() == before && (equals == std::string::npos || equals == 0)) {
      reader.add_problem(item, name, "expected an environment variable NAME=VALUE");
    }
  });
}

void read_node(SpecFieldReader& reader, const Node& node, const std::string& field, NodeEdit& to) {
  const std::vector<SpecFieldReader::Field> fields{
      {"path", reader.text_reader(to.path), true},
      {"hostPath", reader.text_reader(to.host_path)},
      {"type", reader.text_reader(to.type)},
      {"major", reader.number_reader(to.major, 0, kMaxInt64)},
      {"minor", reader.number_reader(to.minor, 0, kMaxInt64)},
      {"fileMode", reader.number_reader(to.file_mode, 0, kMaxUint32)},
      {"permissions", reader.text_reader(to.permissions)},
      {"uid", reader.number_reader(to.uid, 0, kMaxUint32)},
      {"gid", reader.number_reader(to.gid, 0, kMaxUint32)},
  };
  const auto before = reader.problems.size();
  reader.read_object(node, field, fields);
  if (reader.problems.size() != before) return;
  not_empty(reader, node, field + ".path", to.path);
  if (to.type.size() > 1 || std::string_view("bcup").find(to.type) == std::string_view::npos) {
    reader.add_problem(node, field + ".type", "'" + to.type + "' is not one of b, c, u and p");
  }
  if (to.permissions != "none" && to.permissions.find_first_not_of("rwm") != std::string::npos) {
    reader.add_problem(node, field + ".permissions",
                       "'" + to.permissions + "' is neither of r, w and m nor none");
  }
}

void read_mount(SpecFieldReader& reader, const Node& node, const std::string& field, MountEdit& to) {
  const std::vector<SpecFieldReader::Field> fields{
      {"hostPath", reader.text_reader(to.host_path), true},
      {"containerPath", reader.text_reader(to.container_path), true},
      {"options", reader.texts_reader(to.options)},
      {"type", reader.text_reader(to.type)},
  };
  const auto before = reader.problems.size();
  reader.read_object(node, field, fields);
  if (reader.problems.size() != before) return;
  not_empty(reader, node, field + ".hostPath", to.host_path);
  not_empty(reader, node, field + ".containerPath", to.container_path);
}

void read_hook(SpecFieldReader& reader, const Node& node, const std::string& field, HookEdit& to) {
  const std::vector<SpecFieldReader::Field> fields{
      {"hookName", reader.text_reader(to.hook_name), true},
      {"path", reader.text_reader(to.path), true},
      {"args", reader.texts_reader(to.args)},
      {"env", [&](const Node& env, const std::string& name) { check_env(reader, env, name, to.env); }},
      {"timeout", reader.number_reader(to.timeout, 0, kMaxUint32)},
  };
  const auto before = reader.problems.size();
  reader.read_object(node, field, fields);
  if (reader.problems.size() != before) return;
  not_empty(reader, node, field + ".path", to.path);
  static const std::set<std::string_view> kHooks{"prestart",       "createRuntime", "createContainer",
                                                 "startContainer", "poststart",     "poststop"};
  if (!kHooks.contains(to.hook_name)) {
    reader.add_problem(node, field + ".hookName", "unknown OCI hook '" + to.hook_name + "'");
  }
}

void read_net_device(SpecFieldReader& reader, const Node& node, const std::string& field, NetDeviceEdit& to) {
  const std::vector<SpecFieldReader::Field> fields{
      {"hostInterfaceName", reader.text_reader(to.host_interface_name), true},
      {"name", reader.text_reader(to.name), true},
  };
  const auto before = reader.problems.size();
  reader.read_object(node, field, fields);
  if (reader.problems.size() != before) return;
  not_empty(reader, node, field + ".hostInterfaceName", to.host_interface_name);
  not_empty(reader, node, field + ".name", to.name);
}

void read_rdt(SpecFieldReader& reader, const Node& node, const std::string& field, IntelRdt& to) {
  const std::vector<SpecFieldReader::Field> fields{
      {"closID", reader.text_reader(to.clos_id)},
      {"l3CacheSchema", reader.text_reader(to.l3_cache_schema)},
      {"memBwSchema", reader.text_reader(to.mem_bw_schema)},
      {"schemata", reader.texts_reader(to.schemata)},
      {"enableMonitoring", reader.flag_reader(to.enable_monitoring)},
      {"enableCMT", reader.flag_reader(to.enable_cmt)},
      {"enableMBM", reader.flag_reader(to.enable_mbm)},
  };
  reader.read_object(node, field, fields);
  const std::string& id = to.clos_id;
  if (id != "/" &&
      (id.size() >= 4096 || id == "." || id == ".." || id.find_first_of("/\n") != std::string::npos)) {
    reader.add_problem(node, field + ".closID", "is not a file name");
  }
}

template <class T>
auto list_of(SpecFieldReader& reader, std::vector<T>& to,
             void (*read)(SpecFieldReader&, const Node&, const std::string&, T&)) {
  return [&reader, &to, read](const Node& node, const std::string& field) {
    reader.read_items(node, field, [&](const Node& item, const std::string& name) {
      read(reader, item, name, to.emplace_back());
    });
  };
}

void check_net_devices(SpecFieldReader& reader, const Node& node, const std::string& field,
                       const ContainerEdits& edits) {
  std::set<std::string> hosts, names;
  for (const auto& device : edits.net_devices) {
    if (!hosts.insert(device.host_interface_name).second) {
      reader.add_problem(node, field,
                         "names the host's interface '" + device.host_interface_name + "' twice");
    }
    if (!names.insert(device.name).second) {
      reader.add_problem(node, field, "has two interfaces '" + device.name + "'");
    }
  }
}

void read_edits(SpecFieldReader& reader, const Node& node, const std::string& field, ContainerEdits& to) {
  const std::vector<SpecFieldReader::Field> fields{
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
         reader.read_items(gids, name, [&](const Node& gid, const std::string& which) {
           reader.number_reader(to.additional_gids.emplace_back(), 0, kMaxUint32)(gid, which);
         });
       }},
  };
  reader.read_object(node, field, fields);
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
void read_annotations(SpecFieldReader& reader, const Node& node, const std::string& field, Annotations& to) {
  if (node.kind != Node::Kind::kMapping) return reader.add_problem(node, field, "expected an object");
  std::size_t bytes = 0;
  for (const auto& entry : node.entries) {
    const std::string which = field + "." + entry.key;
    const auto slash = entry.key.rfind('/');
    const bool prefixed = slash != std::string::npos;
    if ((prefixed && !is_name_part(std::string_view(entry.key).substr(0, slash), "-.", 253)) ||
        !is_name_part(std::string_view(entry.key).substr(prefixed ? slash + 1 : 0), "-_.", 63)) {
      reader.add_problem(entry.position, which, "is not an annotation key: [prefix/]name");
    }
    reader.text_reader(to[entry.key])(entry.value, which);
    bytes += entry.key.size() + entry.value.scalar.size();
  }
  if (bytes > kMaxAnnotationBytes) reader.add_problem(node, field, "is larger than 256 KiB");
}

void read_device(SpecFieldReader& reader, const Node& node, const std::string& field, Device& to) {
  const std::vector<SpecFieldReader::Field> fields{
      {"name",
       [&](const Node& name, const std::string& which) {
         const auto before = reader.problems.size();
         reader.text_reader(to.name)(name, which);
         if (reader.problems.size() != before) return;
         if (const auto good = check_device_name(to.name); !good) {
           reader.add_problem(name, which, good.error().message());
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
           reader.add_problem(value, which, "a device must change something");
         }
       },
       true},
  };
  reader.read_object(node, field, fields);
}

void check_kind(SpecFieldReader& reader, const Node& node, const std::string& field,
                const std::string& kind) {
  const auto slash = kind.find('/');
  if (slash == std::string::npos)
    return reader.add_problem(node, field, "'" + kind + "' is not vendor/class");
  const auto vendor = check_vendor(std::string_view(kind).substr(0, slash));
  if (!vendor) reader.add_problem(node, field, vendor.error().message());
  const auto device_class = check_class(std::string_view(kind).substr(slash + 1));
  if (!device_class) reader.add_problem(node, field, device_class.error().message());
}

void read_devices(SpecFieldReader& reader, const Node& node, const std::string& field,
                  std::vector<Device>& to) {
  std::set<std::string> names;
  reader.read_items(node, field, [&](const Node& item, const std::string& name) {
    auto& device = to.emplace_back();
    read_device(reader, item, name, device);
    if (!device.name.empty() && !names.insert(device.name).second) {
      reader.add_problem(item, name + ".name", "duplicate device '" + device.name + "'");
    }
  });
}

void read_document(SpecFieldReader& reader, const Node& root, Spec& spec) {
  const Node* version = nullptr;
  const std::vector<SpecFieldReader::Field> fields{
      {"cdiVersion",
       [&](const Node& node, const std::string& field) {
         const auto before = reader.problems.size();
         reader.text_reader(spec.version)(node, field);
         if (reader.problems.size() == before) version = &node;
       },
       true},
      {"kind",
       [&](const Node& node, const std::string& field) {
         reader.text_reader(spec.kind)(node, field);
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
  reader.read_object(root, "", fields);
  if (version == nullptr) return;
  const auto rank = version_rank(spec.version);
  const auto least = minimum_version(spec);
  if (!rank) {
    reader.add_problem(*version, "cdiVersion", "unknown CDI version '" + spec.version + "'");
  } else if (*rank < *version_rank(least)) {
    reader.add_problem(*version, "cdiVersion", "this document needs at least version " + least);
  }
}

}  // namespace

std::string SpecProblem::problem_text() const {
  std::string place = position.line == 0 ? file : config::yaml::position_text(file, position);
  return place + ": " + (field.empty() ? "" : field + ": ") + message;
}

ReadSpec read_spec(std::string_view text, const std::string& file) {
  ReadSpec result;
  const auto document = config::yaml::parse_yaml(text, file);
  if (!document) {
    const auto& error = document.error();
    result.problems.push_back({error.subject().empty() ? file : error.subject(), {}, {}, error.message()});
    return result;
  }
  SpecFieldReader reader(file);
  for (const auto& duplicate : document->duplicates) {
    reader.add_problem(duplicate.position, duplicate.key, "is duplicated");
  }
  if (document->second) reader.add_problem(*document->second, "", "a second document begins here");
  Spec spec;
  read_document(reader, document->root, spec);
  std::ranges::stable_sort(reader.problems, {},
                           [](const SpecProblem& problem) { return problem.position.line; });
  result.problems = std::move(reader.problems);
  if (result.problems.empty()) result.spec = std::move(spec);
  return result;
}

}  // namespace gpulet::cdi

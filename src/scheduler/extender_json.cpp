#include "scheduler/extender_json.h"

#include <rapidjson/document.h>
#include <rapidjson/stringbuffer.h>
#include <rapidjson/writer.h>

#include "base/text.h"
#include "scheduler/pod_json.h"

namespace gpulet::scheduler {
namespace {

using rapidjson::Document;
using rapidjson::Value;
using Writer = rapidjson::Writer<rapidjson::StringBuffer>;

// As Go's JSON: in any case.
const Value* find(const Value& object, std::string_view name) {
  if (!object.IsObject()) return nullptr;
  for (const auto& [key, value] : object.GetObject()) {
    const std::string_view found(key.GetString(), key.GetStringLength());
    if (found.size() == name.size() && text::lower(found) == name && !value.IsNull()) return &value;
  }
  return nullptr;
}

std::string_view view_of(const Value* value) {
  if (value == nullptr || !value->IsString()) return {};
  return {value->GetString(), value->GetStringLength()};
}

void write(Writer& writer, std::string_view text) {
  writer.String(text.data(), static_cast<rapidjson::SizeType>(text.size()));
}
void write_key(Writer& writer, std::string_view text) {
  writer.Key(text.data(), static_cast<rapidjson::SizeType>(text.size()));
}

}  // namespace

struct ExtenderArgs::Parsed {
  std::string body;  // parsed in place: the document points into it
  Document document;
  const Value* items = nullptr;  // whole Nodes
};

ExtenderArgs::ExtenderArgs() : parsed_(std::make_unique<Parsed>()) {}
ExtenderArgs::ExtenderArgs(ExtenderArgs&&) noexcept = default;
ExtenderArgs& ExtenderArgs::operator=(ExtenderArgs&&) noexcept = default;
ExtenderArgs::~ExtenderArgs() = default;

Result<ExtenderArgs> ExtenderArgs::parse(std::string body) {
  ExtenderArgs args;
  auto& parsed = *args.parsed_;
  parsed.body = std::move(body);
  // Iterative: however deep a body nests, the stack does not grow.
  parsed.document.ParseInsitu<rapidjson::kParseIterativeFlag>(parsed.body.data());
  if (parsed.document.HasParseError()) return fail(Code::kInvalidArgument, "the body is no JSON");
  const auto* const pod = find(parsed.document, "pod");
  if (pod == nullptr) return fail(Code::kInvalidArgument, "the body has no Pod");
  GPULET_TRY_ASSIGN(args.pod_, pod_of(*pod));
  if (const auto* const names = find(parsed.document, "nodenames"); names != nullptr) {
    if (!names->IsArray() || names->Size() > kMaxAskedNodes) {
      return fail(Code::kInvalidArgument, "NodeNames is no list, or one of more than 100000 names");
    }
    args.nodes_.reserve(names->Size());
    for (const auto& name : names->GetArray()) args.nodes_.push_back(view_of(&name));
    return args;
  }
  const auto* const nodes = find(parsed.document, "nodes");
  const auto* const items = nodes == nullptr ? nullptr : find(*nodes, "items");
  if (nodes == nullptr) return fail(Code::kInvalidArgument, "the body has neither NodeNames nor Nodes");
  args.whole_ = true;
  if (items == nullptr) return args;
  if (!items->IsArray() || items->Size() > kMaxAskedNodes) {
    return fail(Code::kInvalidArgument, "Nodes.items is no list, or one of more than 100000");
  }
  parsed.items = items;
  for (const auto& node : items->GetArray()) {
    const auto* const metadata = find(node, "metadata");
    args.nodes_.push_back(metadata == nullptr ? std::string_view() : view_of(find(*metadata, "name")));
  }
  return args;
}

std::string ExtenderArgs::filter_result(std::span<const std::size_t> passed,
                                        std::span<const Failed> failed) const {
  rapidjson::StringBuffer buffer;
  Writer writer(buffer);
  writer.StartObject();
  if (whole_) {
    write_key(writer, "Nodes");
    writer.StartObject();
    write_key(writer, "metadata");
    writer.StartObject();
    writer.EndObject();
    write_key(writer, "items");
    writer.StartArray();
    for (const auto node : passed) (*parsed_->items)[static_cast<rapidjson::SizeType>(node)].Accept(writer);
    writer.EndArray();
    writer.EndObject();
  } else {
    write_key(writer, "NodeNames");
    writer.StartArray();
    for (const auto node : passed) write(writer, nodes_[node]);
    writer.EndArray();
  }
  for (const bool resolvable : {true, false}) {
    write_key(writer, resolvable ? "FailedNodes" : "FailedAndUnresolvableNodes");
    writer.StartObject();
    for (const auto& one : failed) {
      if (one.resolvable != resolvable) continue;
      write_key(writer, nodes_[one.node]);
      write(writer, one.reason);
    }
    writer.EndObject();
  }
  write_key(writer, "Error");
  write(writer, "");
  writer.EndObject();
  return {buffer.GetString(), buffer.GetSize()};
}

std::string ExtenderArgs::priorities(std::span<const int> scores) const {
  rapidjson::StringBuffer buffer;
  Writer writer(buffer);
  writer.StartArray();
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    writer.StartObject();
    write_key(writer, "Host");
    write(writer, nodes_[i]);
    write_key(writer, "Score");
    writer.Int(scores[i]);
    writer.EndObject();
  }
  writer.EndArray();
  return {buffer.GetString(), buffer.GetSize()};
}

}  // namespace gpulet::scheduler

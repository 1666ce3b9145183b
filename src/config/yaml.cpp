#include "config/yaml.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "base/json.h"
#include "config/yaml_documents.h"

namespace gpulet::config::yaml {
namespace {

Position position_of(const YAML::Mark& mark) {
  if (mark.line < 0 || mark.column < 0) return {1, 1};
  return {static_cast<unsigned>(mark.line) + 1, static_cast<unsigned>(mark.column) + 1};
}

// Leaves yaml-cpp's parser from inside an event; caught in parse().
struct Refusal {
  Position position;
  std::string message;
};

// What the documents of one text use together, aliases expanded.
struct Usage {
  std::size_t nodes = 0, bytes = 0;
};

// Builds the tree from yaml-cpp's events: its own Node would hide duplicate keys and expand aliases without a
// limit.
class TreeBuilder : public YAML::EventHandler {
 public:
  TreeBuilder(Document& document, Usage& usage) : document_(document), usage_(usage) {}

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    Node node;
    node.position = position_of(mark);
    charge(node.position, 1, 0);
    remember(anchor, node, 1, 0);
    add_node(std::move(node));
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto position = position_of(mark);
    const auto found = anchors_.find(anchor);
    if (found == anchors_.end()) throw Refusal{position, "an alias inside its own anchor"};
    charge(position, found->second.nodes, found->second.bytes);
    if (stack_.size() + found->second.depth > kMaxNesting) throw too_deep(position);
    add_node(found->second.node);
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    Node node;
    node.kind = Node::Kind::kScalar;
    node.position = position_of(mark);
    node.scalar = value;
    node.plain = tag == "?";
    charge(node.position, 1, value.size());
    remember(anchor, node, 1, value.size());
    add_node(std::move(node));
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    begin(mark, Node::Kind::kSequence, anchor);
  }
  void OnSequenceEnd() override { end(); }
  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    begin(mark, Node::Kind::kMapping, anchor);
  }
  void OnMapEnd() override { end(); }

 private:
  struct Frame {
    Node node;
    YAML::anchor_t anchor = 0;
    std::optional<Entry> key;          // a key that waits for its value
    std::vector<Node> merged;          // values of "<<"
    std::size_t nodes = 0, bytes = 0;  // used before it
    std::size_t depth = 1;
  };
  struct Anchored {
    Node node;
    std::size_t nodes = 1, bytes = 0, depth = 0;
  };

  static Refusal too_deep(Position position) {
    return {position, "nested deeper than " + std::to_string(kMaxNesting) + " levels"};
  }

  void charge(Position position, std::size_t nodes, std::size_t bytes) {
    usage_.nodes += nodes;
    usage_.bytes += bytes;
    if (usage_.nodes > kMaxNodes || usage_.bytes > kMaxScalarBytes)
      throw Refusal{position, "more values than any configuration has"};
  }

  void remember(YAML::anchor_t anchor, const Node& node, std::size_t nodes, std::size_t bytes,
                std::size_t depth = 0) {
    if (anchor != 0) anchors_[anchor] = Anchored{node, nodes, bytes, depth};
  }

  void begin(const YAML::Mark& mark, Node::Kind kind, YAML::anchor_t anchor) {
    const auto position = position_of(mark);
    if (stack_.size() >= kMaxNesting) throw too_deep(position);
    Frame frame;
    frame.node.kind = kind;
    frame.node.position = position;
    frame.anchor = anchor;
    frame.nodes = usage_.nodes;
    frame.bytes = usage_.bytes;
    charge(position, 1, 0);
    stack_.push_back(std::move(frame));
  }

  void end() {
    Frame frame = std::move(stack_.back());
    stack_.pop_back();
    for (auto& merged : frame.merged) merge_mapping(frame.node, std::move(merged));
    remember(frame.anchor, frame.node, usage_.nodes - frame.nodes, usage_.bytes - frame.bytes, frame.depth);
    if (!stack_.empty()) stack_.back().depth = std::max(stack_.back().depth, frame.depth + 1);
    add_node(std::move(frame.node));
  }

  void add_node(Node node) {
    if (stack_.empty()) {
      document_.root = std::move(node);
      return;
    }
    Frame& frame = stack_.back();
    if (frame.node.kind == Node::Kind::kSequence) {
      frame.node.items.push_back(std::move(node));
      return;
    }
    if (!frame.key) {
      if (node.kind != Node::Kind::kScalar) throw Refusal{node.position, "a key must be a text"};
      frame.key = Entry{std::move(node.scalar), node.position, {}};
      frame.key->value.plain = node.plain;
      return;
    }
    Entry entry = std::move(*frame.key);
    frame.key.reset();
    if (entry.key == "<<" && entry.value.plain) {
      frame.merged.push_back(std::move(node));
      return;
    }
    entry.value = std::move(node);
    const auto same = std::ranges::find(frame.node.entries, entry.key, &Entry::key);
    if (same == frame.node.entries.end()) {
      frame.node.entries.push_back(std::move(entry));
      return;
    }
    document_.duplicates.push_back({entry.key, entry.position, same->position});
    *same = std::move(entry);
  }

  // YAML 1.1's merge key: the mapping's own entries win, then the first mapping of a list.
  void merge_mapping(Node& into, Node from) {
    if (from.kind == Node::Kind::kSequence) {
      for (auto& item : from.items) merge_mapping(into, std::move(item));
      return;
    }
    if (from.kind != Node::Kind::kMapping) throw Refusal{from.position, "<< must be given a mapping"};
    for (auto& entry : from.entries) {
      if (std::ranges::find(into.entries, entry.key, &Entry::key) == into.entries.end()) {
        into.entries.push_back(std::move(entry));
      }
    }
  }

  Document& document_;
  Usage& usage_;
  std::vector<Frame> stack_;
  std::map<YAML::anchor_t, Anchored> anchors_;
};

// Only records that there is another document.
class SecondDocumentFinder : public YAML::EventHandler {
 public:
  std::optional<Position> position;
  void OnDocumentStart(const YAML::Mark& mark) override { position = position_of(mark); }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override { position.reset(); }
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override { stop_parsing(); }
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t, const std::string&) override {
    stop_parsing();
  }
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {
    stop_parsing();
  }
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {
    stop_parsing();
  }
  void OnMapEnd() override {}

 private:
  [[noreturn]] static void stop_parsing() { throw Refusal{}; }
};

std::optional<Position> second_document(YAML::Parser& parser) {
  SecondDocumentFinder second;
  try {
    parser.HandleNextDocument(second);
  } catch (const Refusal&) {
  } catch (const YAML::Exception&) {
    // Valid or not, it is not read.
  }
  return second.position;
}

Error parse_error(const std::string& file, Position position, std::string message) {
  return Error(Code::kInvalidArgument, std::move(message), position_text(file, position));
}

// Bytes that yaml-cpp would treat as the end of input or ignore.
std::optional<Error> control_character(std::string_view text, const std::string& file) {
  Position position{1, 1};
  for (const char c : text) {
    if (c == '\0' || (static_cast<unsigned char>(c) < 0x20 && c != '\t' && c != '\n' && c != '\r')) {
      return parse_error(file, position, "a control character (code " + std::to_string(int{c}) + ")");
    }
    if (c == '\n') {
      ++position.line;
      position.column = 1;
    } else {
      ++position.column;
    }
  }
  return std::nullopt;
}

// The first tab in the indentation of a line up to `last`, which the library reports as something else.
std::optional<Position> indented_by_tab(std::string_view text, unsigned last) {
  for (unsigned line = 1; line <= last && !text.empty(); ++line) {
    const auto content = text.find_first_not_of(" \t");
    if (content == std::string_view::npos) return std::nullopt;
    const auto tab = text.substr(0, content).find('\t');
    if (text[content] != '\n' && text[content] != '#' && tab != std::string_view::npos)
      return Position{line, static_cast<unsigned>(tab) + 1};
    const auto end = text.find('\n');
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return std::nullopt;
}

// Runs `read` on a parser of the text.
template <class Read>
Status read_text(std::string_view text, const std::string& file, const Read& read) {
  if (text.size() > kMaxTextBytes) {
    return fail(Code::kInvalidArgument, "larger than " + std::to_string(kMaxTextBytes) + " bytes", file);
  }
  if (auto error = control_character(text, file)) return fail(std::move(*error));
  try {
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    read(parser);
  } catch (const Refusal& refusal) {
    return fail(parse_error(file, refusal.position, refusal.message));
  } catch (const YAML::Exception& exception) {
    const auto position = position_of(exception.mark);
    if (const auto tab = indented_by_tab(text, position.line))
      return fail(parse_error(file, *tab, "a tab in the indentation; YAML is indented by spaces"));
    return fail(parse_error(file, position, exception.msg));
  } catch (const std::exception& exception) {
    return fail(parse_error(file, {1, 1}, exception.what()));
  }
  return {};
}

}  // namespace

std::string position_text(const std::string& file, Position position) {
  return file + ":" + std::to_string(position.line) + ":" + std::to_string(position.column);
}

Result<Document> parse_yaml(std::string_view text, const std::string& file) {
  Document document;
  GPULET_TRY(read_text(text, file, [&](YAML::Parser& parser) {
    Usage usage;
    TreeBuilder builder(document, usage);
    if (parser.HandleNextDocument(builder)) document.second = second_document(parser);
  }));
  return document;
}

Result<std::vector<Document>> parse_documents(std::string_view text, const std::string& file) {
  std::vector<Document> documents;
  GPULET_TRY(read_text(text, file, [&](YAML::Parser& parser) {
    Usage usage;
    for (;;) {
      Document document;
      TreeBuilder builder(document, usage);
      if (!parser.HandleNextDocument(builder)) return;
      if (document.root.kind == Node::Kind::kNull) continue;
      if (documents.size() == kMaxDocuments) {
        throw Refusal{document.root.position, "more than " + std::to_string(kMaxDocuments) + " documents"};
      }
      documents.push_back(std::move(document));
    }
  }));
  return documents;
}

}  // namespace gpulet::config::yaml

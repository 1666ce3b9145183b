// Man pages, in the macros of man(7).
#include <algorithm>

#include "arguments/command_doc.h"
#include "base/text.h"

namespace gpulet::arguments {
namespace {

constexpr const char* kExitCodes = R"(.SH EXIT STATUS
.TP
0
Done, and nothing is wrong.
.TP
1
Not done, or something is wrong; standard error or the report says what.
.TP
2
An option or argument is invalid; nothing was done.
.TP
3
Done, and the report has something to act on.
)";

// Text that is shown as it is: no escapes, no macros at the start of a line. "-" stays what can be copied.
std::string escape_roff(std::string_view text) {
  std::string escaped;
  bool line_start = true;
  for (const char c : text) {
    if (line_start && (c == '.' || c == '\'')) escaped += "\\&";
    line_start = c == '\n';
    switch (c) {
      case '\\':
        escaped += "\\e";
        break;
      case '-':
        escaped += "\\-";
        break;
      case '\'':
        escaped += "\\(aq";
        break;
      case '`':
        escaped += "\\(ga";
        break;
      case '^':
        escaped += "\\(ha";
        break;
      case '~':
        escaped += "\\(ti";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

std::string paragraph(std::string_view text) { return escape_roff(text::trim(text)) + "\n"; }

// ".TP", then the names in bold and the value in italics, then the text.
std::string option_entry(const OptionDoc& option) {
  std::vector<std::string> names;
  const bool argument = option.value.empty() && !option.names.front().starts_with('-');
  for (const auto& name : option.names)
    names.push_back((argument ? "\\fI" : "\\fB") + escape_roff(name) + "\\fR");
  std::string entry = ".TP\n" + text::join(names, ", ");
  if (!option.value.empty()) entry += " \\fI" + escape_roff(option.value) + "\\fR";
  return entry + (option.repeats ? "..." : "") + "\n" +
         (option.help.empty() ? std::string("\\&\n") : paragraph(option.help));
}

std::string examples_block(const std::string& examples) {
  return ".nf\n.RS\n" + escape_roff(examples) + "\n.RE\n.fi\n";
}

// The options and arguments, each group below a title of the macro `heading`.
std::string option_groups(const CommandDoc& doc, const std::string& heading) {
  std::string page;
  for (const auto* docs : {&doc.arguments, &doc.options}) {
    for (const auto& title : group_titles(*docs)) {
      page += heading + " \"" + escape_roff(title) + "\"\n";
      for (const auto& option : *docs) {
        if (option.group == title) page += option_entry(option);
      }
    }
  }
  return page;
}

// A subcommand as a section of its parent's page.
std::string command_section(const CommandDoc& doc) {
  std::string page = ".SS \"" + escape_roff(doc.path) + "\"\n" + paragraph(doc.summary + ".");
  if (!doc.details.empty()) page += ".PP\n" + paragraph(doc.details);
  page += ".PP\nUsage: \\fB" + escape_roff(usage_line(doc)) + "\\fR\n";
  for (const auto* docs : {&doc.arguments, &doc.options}) {
    for (const auto& option : *docs) page += option_entry(option);
  }
  if (!doc.examples.empty()) page += ".PP\nExamples:\n.PP\n" + examples_block(doc.examples);
  for (const auto& one : doc.commands) page += command_section(one);
  return page;
}

std::string upper_text(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) {
    return static_cast<char>(c >= 'a' && c <= 'z' ? c - 32 : c);
  });
  return text;
}

}  // namespace

std::string manual_name(const CommandDoc& doc) {
  std::string name = doc.path;
  std::ranges::replace(name, ' ', '-');
  return name;
}

std::string manual_page(const CommandDoc& doc, const std::string& version) {
  const std::string name = manual_name(doc), program = doc.path.substr(0, doc.path.find(' '));
  const bool whole_program = program == doc.path;
  std::string page = ".TH \"" + escape_roff(upper_text(name)) + "\" 1 \"\" \"" + escape_roff(program) + " " +
                     version + "\" \"User Commands\"\n.SH NAME\n" + escape_roff(name) + " \\- " +
                     paragraph(doc.summary) + ".SH SYNOPSIS\n\\fB" + escape_roff(usage_line(doc)) + "\\fR\n";
  page += ".SH DESCRIPTION\n" + paragraph(doc.details.empty() ? doc.summary + "." : doc.details);
  if (whole_program) {
    for (const auto& title : group_titles(doc.commands)) {
      page += ".SS \"" + escape_roff(title) + "\"\n";
      for (const auto& one : doc.commands) {
        if (one.group == title)
          page += ".TP\n\\fB" + escape_roff(manual_name(one)) + "\\fR(1)\n" + paragraph(one.summary + ".");
      }
    }
  }
  page += ".SH OPTIONS\n" + option_groups(doc, ".SS");
  if (!whole_program && !doc.commands.empty()) {
    page += ".SH COMMANDS\n";
    for (const auto& one : doc.commands) page += command_section(one);
  }
  if (!doc.examples.empty()) page += ".SH EXAMPLES\n" + examples_block(doc.examples);
  page += kExitCodes;
  if (!whole_program) page += ".SH SEE ALSO\n\\fB" + escape_roff(program) + "\\fR(1)\n";
  return page;
}

}  // namespace gpulet::arguments

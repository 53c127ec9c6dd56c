#include "common/config.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/version.h"

namespace pdserve {
namespace {

using Text = std::string;
using Integer = int64_t;
using Time = absl::Duration;
using Switch = bool;

}  // namespace
}  // namespace pdserve

#define PD_FLAG(type, name, standard, low, high, help) \
  ABSL_FLAG(pdserve::Config::type, name, standard, help);
PD_OPTIONS(PD_FLAG)
#undef PD_FLAG

namespace pdserve {
namespace {

constexpr int kMaxFlagfileDepth = 8;

const std::map<std::string, Role, std::less<>>& Roles() {
  static const auto* roles =
      new std::map<std::string, Role, std::less<>>{{"router", Role::kRouter},
                                                   {"prefill", Role::kPrefill},
                                                   {"decode", Role::kDecode},
                                                   {"both", Role::kBoth},
                                                   {"all", Role::kAll}};
  return *roles;
}

// ---- an option's range, as text and as a check

std::string RangeText(const Text& /*standard*/, std::string_view low, std::string_view /*high*/) {
  return low.empty()
             ? ""
             : absl::StrCat("one of ", absl::StrJoin(absl::StrSplit(std::string(low), '|'), ", "));
}
std::string RangeText(Integer /*standard*/, Integer low, Integer high) {
  return absl::StrCat("a whole number from ", low, " to ", high);
}
std::string RangeText(Time /*standard*/, Time low, Time high) {
  return absl::StrCat("a time from ", absl::FormatDuration(low), " to ",
                      absl::FormatDuration(high));
}

std::string RangeText(Switch /*standard*/, Switch /*low*/, Switch /*high*/) {
  return "true or false";
}

bool InRange(const Text& value, std::string_view low, std::string_view /*high*/) {
  if (low.empty()) return true;
  const std::vector<std::string> allowed = absl::StrSplit(std::string(low), '|');
  return std::find(allowed.begin(), allowed.end(), value) != allowed.end();
}
bool InRange(Integer value, Integer low, Integer high) { return low <= value && value <= high; }
bool InRange(Time value, Time low, Time high) { return low <= value && value <= high; }
bool InRange(Switch /*value*/, Switch /*low*/, Switch /*high*/) { return true; }

struct Option {
  std::string name;
  std::string standard;
  std::string range;
  std::string help;
};

std::vector<Option> Options() {
  std::vector<Option> options;
#define PD_DESCRIBE(type, name, standard, low, high, help)                                 \
  options.push_back({#name, std::string(absl::FindCommandLineFlag(#name)->DefaultValue()), \
                     RangeText(type(standard), low, high), help});
  PD_OPTIONS(PD_DESCRIBE)
#undef PD_DESCRIBE
  return options;
}

const Option* FindOption(std::string_view name) {
  static const auto* options = new std::vector<Option>(Options());
  for (const Option& option : *options) {
    if (option.name == name) return &option;
  }
  return nullptr;
}

std::string OneOf(const std::vector<std::string>& names) {
  return absl::StrCat("one of ", absl::StrJoin(names, ", "));
}

std::string HelpText(const VariantNames& variants) {
  std::string text =
      "pdserve ROLE [--option=value ...]\n\nroles: router, prefill, decode, both (one node, both "
      "roles), all (router, prefill and decode node in one process)\n\noptions:\n";
  for (const Option& option : Options()) {
    absl::StrAppend(&text, "  --", option.name, "  ", option.help);
    const auto names = variants.find(option.name);
    const std::string range = names == variants.end() ? option.range : OneOf(names->second);
    if (!range.empty()) absl::StrAppend(&text, "; ", range);
    absl::StrAppend(&text, "; default ", option.standard.empty() ? "none" : option.standard, "\n");
  }
  absl::StrAppend(&text, "  --flagfile  a file of options, one a line\n", "  --help, --version\n");
  return text;
}

CommandLine Refuse(const std::string& line) {
  CommandLine result;
  result.text = absl::StrCat("pdserve: ", line, "\n");
  result.exit_code = 2;
  return result;
}

std::string WrongValue(std::string_view name, std::string_view value, std::string_view wanted) {
  return absl::StrCat("--", std::string(name), "=", std::string(value), ": want ",
                      std::string(wanted));
}

// ---- arguments: --name=value, --name value, --flagfile expanded in place

struct Arguments {
  std::vector<std::string> words;                            // what is no option
  std::vector<std::pair<std::string, std::string>> options;  // in order
  bool help = false;
  bool version = false;
  std::string error;
};

void Collect(const std::vector<std::string>& arguments, int depth, Arguments& out);

void CollectFile(const std::string& path, int depth, Arguments& out) {
  std::ifstream in(path);
  if (!in || depth >= kMaxFlagfileDepth) {
    out.error = absl::StrCat("--flagfile=", path, in ? ": nested too deep" : ": cannot be read");
    return;
  }
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) {
    const std::string stripped(absl::StripAsciiWhitespace(line));
    if (!stripped.empty() && stripped.front() != '#') lines.push_back(stripped);
  }
  Collect(lines, depth + 1, out);
}

void Collect(const std::vector<std::string>& arguments, int depth, Arguments& out) {
  for (size_t i = 0; i < arguments.size() && out.error.empty(); ++i) {
    const std::string& argument = arguments[i];
    if (argument.size() < 2 || argument.compare(0, 2, "--") != 0) {
      out.words.push_back(argument);
      continue;
    }
    const size_t equals = argument.find('=');
    const std::string name = argument.substr(2, equals == std::string::npos ? equals : equals - 2);
    if (name == "help" || name == "version") {
      (name == "help" ? out.help : out.version) = true;
      continue;
    }
    if (equals == std::string::npos && i + 1 >= arguments.size()) {
      out.error = absl::StrCat("--", name, ": wants a value");
      return;
    }
    const std::string value =
        equals == std::string::npos ? arguments[++i] : argument.substr(equals + 1);
    if (name == "flagfile") {
      CollectFile(value, depth, out);
    } else {
      out.options.emplace_back(name, value);
    }
  }
}

std::optional<std::string> Apply(const std::string& name, const std::string& value) {
  const Option* option = FindOption(name);
  if (option == nullptr) return absl::StrCat("--", name, ": no such option (see --help)");
  std::string error;
  if (!absl::FindCommandLineFlag(name)->ParseFrom(value, &error)) {
    return WrongValue(name, value, option->range);
  }
  return std::nullopt;
}

std::optional<std::string> CheckRanges(Config& config) {
#define PD_CHECK_RANGE(type, name, standard, low, high, help)                  \
  config.name = absl::GetFlag(FLAGS_##name);                                   \
  if (!InRange(config.name, low, high)) {                                      \
    return WrongValue(#name, absl::FindCommandLineFlag(#name)->CurrentValue(), \
                      RangeText(type(standard), low, high));                   \
  }
  PD_OPTIONS(PD_CHECK_RANGE)
#undef PD_CHECK_RANGE
  return std::nullopt;
}

std::optional<std::string> CheckVariants(const VariantNames& variants) {
  for (const auto& [name, names] : variants) {
    const std::string value = absl::FindCommandLineFlag(name)->CurrentValue();
    if (std::find(names.begin(), names.end(), value) != names.end()) continue;
    return WrongValue(name, value, OneOf(names));
  }
  return std::nullopt;
}

bool IsAddress(const std::string& address) {
  const size_t colon = address.rfind(':');
  uint32_t port = 0;
  return colon != std::string::npos && colon > 0 &&
         absl::SimpleAtoi(address.substr(colon + 1), &port) && port <= 65535;
}

std::optional<std::string> CheckAddresses(const Config& config) {
  const std::string wanted = "host:port";
  for (const auto& [name, value] :
       {std::pair{"listen", config.listen}, std::pair{"transfer_listen", config.transfer_listen},
        std::pair{"metrics_listen", config.metrics_listen}}) {
    if (!value.empty() && !IsAddress(value)) return WrongValue(name, value, wanted);
  }
  std::set<std::string> seen;
  for (const std::string& node : config.node_addresses()) {
    if (!IsAddress(node)) return WrongValue("nodes", node, wanted);
    if (!seen.insert(node).second) return WrongValue("nodes", node, "each address once");
  }
  return std::nullopt;
}

// It stands in log lines and as a label.
bool IsName(const std::string& text) {
  constexpr size_t kLongest = 128;
  return text.size() <= kLongest &&
         std::all_of(text.begin(), text.end(), [](char c) { return c > 0x20 && c < 0x7f; });
}

// What options demand of each other.
std::optional<std::string> CheckTogether(const Config& config) {
  if (config.role == Role::kRouter && config.node_addresses().empty()) {
    return "--nodes: a router wants the addresses of its nodes";
  }
  const bool has_router = config.role == Role::kRouter || config.role == Role::kAll;
  if (!has_router && !config.nodes.empty()) {
    return absl::StrCat("--nodes: only a router uses it, this is ", RoleName(config.role));
  }
  if (config.role != Role::kRouter && config.model.empty()) {
    return absl::StrCat("--model: ", RoleName(config.role), " wants a model file");
  }
  if (config.role != Role::kAll && config.transport == "inproc") {
    return WrongValue("transport", config.transport, "tcp between processes");
  }
  if (!IsName(config.node_id)) {
    return "--node_id: want at most 128 printable ASCII characters without spaces";
  }
  if (config.peer_timeout < 2 * config.heartbeat_interval) {
    return WrongValue("peer_timeout", absl::FormatDuration(config.peer_timeout),
                      "at least twice --heartbeat_interval");
  }
  return std::nullopt;
}

void FillByRole(Config& config) {
  if (config.listen.empty()) {
    config.listen = config.role == Role::kDecode ? "127.0.0.1:9002"
                    : config.role == Role::kPrefill || config.role == Role::kBoth
                        ? "127.0.0.1:9001"
                        : "127.0.0.1:8000";
  }
  if (config.node_id.empty()) {
    config.node_id = absl::StrCat(RoleName(config.role), "@", config.listen);
  }
}

}  // namespace

std::vector<std::string> Config::node_addresses() const {
  return absl::StrSplit(nodes, ',', absl::SkipWhitespace());
}

std::string RoleName(Role role) {
  for (const auto& [name, value] : Roles()) {
    if (value == role) return name;
  }
  return "unknown";
}

CommandLine ParseCommandLine(int argc, char** argv, const VariantNames& variants) {
  Arguments arguments;
  Collect(std::vector<std::string>(argv + std::min(argc, 1), argv + argc), 0, arguments);
  CommandLine result;
  if (arguments.help) {
    result.text = HelpText(variants);
    return result;
  }
  if (arguments.version) {
    result.text = absl::StrCat("pdserve ", std::string(kVersion), "\n");
    return result;
  }
  if (!arguments.error.empty()) return Refuse(arguments.error);
  if (arguments.words.size() != 1) {
    return Refuse("want one role: router, prefill, decode, both or all (see --help)");
  }
  const auto role = Roles().find(arguments.words.front());
  if (role == Roles().end()) {
    return Refuse(absl::StrCat("no such role: ", arguments.words.front(),
                               " (want router, prefill, decode, both or all)"));
  }
  result.config.role = role->second;
  for (const auto& [name, value] : arguments.options) {
    if (auto error = Apply(name, value)) return Refuse(*error);
  }
  if (auto error = CheckVariants(variants)) return Refuse(*error);
  for (auto* check :
       {+[](Config& c) { return CheckRanges(c); }, +[](Config& c) { return CheckAddresses(c); },
        +[](Config& c) { return CheckTogether(c); }}) {
    if (auto error = check(result.config)) return Refuse(*error);
  }
  FillByRole(result.config);
  return result;
}

}  // namespace pdserve

// The house style as a test: sizes, include directions, names, and that every test is listed.
// CONTRIBUTING.md says what to do when a limit is reached (split the file; not raise the limit).
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/testing/files.h"
#include "tests/tidy_source.h"

namespace pdserve::tidy {
namespace {

namespace fs = std::filesystem;
using Names = std::set<std::string>;

constexpr int kFunctionLines = 70;
constexpr int kLongFunctionLines = 120;  // a model's forward pass, and main
constexpr int kSourceLines = 500;
constexpr int kHeaderLines = 200;
constexpr int kProtoLines = 150;
constexpr int kProductLines = 30000;  // of code: blank and comment lines are free
constexpr int kParameters = 5;
constexpr int kVirtuals = 8;
constexpr int kHeaderCommentLines = 15;
constexpr int kOptions = 60;
constexpr int kPartsInFolder = 30;  // a header and its source are one part
constexpr uintmax_t kTestDataBytes = 25u << 20;

const Names& ProductFolders() {
  static const Names folders{"common",  "proto",  "text", "engine", "kvtransfer",
                             "prefill", "decode", "node", "router", "ctl"};
  return folders;
}

// What a folder's files may include, beside their own folder and common.
const std::map<std::string, Names>& Allowed() {
  static const std::map<std::string, Names> allowed{
      {"common", {}},
      {"proto", {}},
      {"text", {}},
      {"engine", {}},
      {"kvtransfer", {"proto"}},
      {"prefill", {"proto", "engine", "kvtransfer", "text"}},
      {"decode", {"proto", "engine", "kvtransfer", "text"}},
      {"node", {"proto", "engine", "kvtransfer", "prefill", "decode"}},
      {"router", {"proto", "text"}},
      {"ctl", {"proto"}},
  };
  return allowed;
}

struct SourceFile {
  std::string path;    // from the root
  std::string folder;  // its first part; "" in the root
  std::string stem;    // without folder and extension
  std::string extension;
  std::string text;

  bool IsProduct() const { return ProductFolders().count(folder) > 0 || path == "main.cc"; }
  bool IsCpp() const { return IsHeader() || extension == ".cc" || extension == ".cu"; }
  bool IsHeader() const { return extension == ".h"; }
};

bool IsSkipped(const std::string& relative) {
  static const std::regex skipped(
      R"(^(build|\.git|\.cache|\.venv|text/rust/target|text/rust/vendor|tests/data)(/|$)|__pycache__|\.pytest_cache)");
  return std::regex_search(relative, skipped);
}

std::vector<SourceFile> ReadTree() {
  const fs::path root = testing::SourcePath("");
  static const Names texts{".h",   ".cc",    ".cu",   ".proto", ".rs",  ".py",      ".sh", ".md",
                           ".txt", ".cmake", ".toml", ".json",  ".yml", ".service", ""};
  std::vector<SourceFile> files;
  for (auto it = fs::recursive_directory_iterator(root); it != fs::recursive_directory_iterator();
       ++it) {
    const std::string relative = it->path().lexically_relative(root).string();
    if (IsSkipped(relative)) {
      it.disable_recursion_pending();
      continue;
    }
    if (!it->is_regular_file() || texts.count(it->path().extension().string()) == 0) continue;
    const size_t slash = relative.find('/');
    files.push_back({relative, slash == std::string::npos ? "" : relative.substr(0, slash),
                     it->path().stem().string(), it->path().extension().string(),
                     testing::ReadFile(it->path().string())});
  }
  std::sort(files.begin(), files.end(), [](auto& a, auto& b) { return a.path < b.path; });
  return files;
}

const std::vector<SourceFile>& Tree() {
  static const auto* files = new std::vector<SourceFile>(ReadTree());
  return *files;
}

// ---- rules: each returns what is wrong with a file, a line each

using Faults = std::vector<std::string>;

void CheckFunction(const SourceFile& file, const Function& function, Faults& faults) {
  const bool is_forward = file.folder == "engine" && file.stem.rfind("model_", 0) == 0;
  const int limit = is_forward || function.name == "main" ? kLongFunctionLines : kFunctionLines;
  const std::string where =
      file.path + ":" + std::to_string(function.first_line) + " " + function.name;
  if (function.lines > limit) {
    faults.push_back(where + " has " + std::to_string(function.lines) + " lines, limit " +
                     std::to_string(limit));
  }
  if (function.parameters > kParameters) {
    faults.push_back(where + " has " + std::to_string(function.parameters) + " parameters, limit " +
                     std::to_string(kParameters));
  }
}

Faults SizeFaults(const SourceFile& file) {
  Faults faults;
  static const std::map<std::string, int> limits{{".cc", kSourceLines}, {".cu", kSourceLines},
                                                 {".rs", kSourceLines}, {".py", kSourceLines},
                                                 {".h", kHeaderLines},  {".proto", kProtoLines}};
  const auto limit = limits.find(file.extension);
  if (limit != limits.end() && CountLines(file.text) > limit->second) {
    faults.push_back(file.path + " has " + std::to_string(CountLines(file.text)) +
                     " lines, limit " + std::to_string(limit->second));
  }
  if (!file.IsCpp()) return faults;
  for (const Function& function : Scan(file.text).functions) CheckFunction(file, function, faults);
  return faults;
}

Faults InterfaceFaults(const SourceFile& file) {
  std::map<std::string, int> virtuals;
  for (const Function& function : Scan(file.text).functions) {
    if (function.pure) ++virtuals[function.class_name];
  }
  Faults faults;
  for (const auto& [name, count] : virtuals) {
    if (count > kVirtuals) {
      faults.push_back(file.path + " " + name + " has " + std::to_string(count) + " virtuals");
    }
  }
  return faults;
}

// Generated protobuf headers stay at the edge: in the files that speak to a peer, and in the ones
// that say what a hand-over's two sides tell each other.
bool MayIncludeGenerated(const SourceFile& file) {
  static const std::regex edges(
      R"((^|_)(session|role|dispatch|outbox|handshake|wire|hand_over|links)(_|$))");
  return std::regex_search(file.stem, edges);
}

Faults IncludeFaults(const SourceFile& file) {
  Faults faults;
  if (Allowed().count(file.folder) == 0) return faults;
  const Names& allowed = Allowed().at(file.folder);
  for (const std::string& include : Includes(file.text)) {
    const std::string folder = include.substr(0, include.find('/'));
    const bool is_ours =
        ProductFolders().count(folder) > 0 || folder == "tests" || folder == "bench";
    const bool is_allowed =
        folder == file.folder || folder == "common" || allowed.count(folder) > 0;
    if (is_ours && !is_allowed) faults.push_back(file.path + " includes " + include);
    if (include.find(".pb.h") != std::string::npos && !MayIncludeGenerated(file)) {
      faults.push_back(file.path + " includes the generated " + include);
    }
  }
  return faults;
}

Faults HardwareFaults(const SourceFile& file) {
  static const std::regex device_header(R"(^<?(cuda|cublas|nccl|nvml|curand|cufft))");
  static const std::regex condition(
      R"((^|\n)[ \t]*#\s*(if|ifdef|ifndef|elif)\b.*(__AVX|__SSE|__AMX|__ARM|__x86|__amd64|__aarch64|__CUDA|CUDA|NCCL|UCX))");
  Faults faults;
  for (const std::string& include : Includes(file.text)) {
    if (std::regex_search(include, device_header) && file.extension != ".cu" &&
        file.stem != "transport_nccl") {
      faults.push_back(file.path + " includes " + include);
    }
  }
  if (std::regex_search(file.text, condition)) faults.push_back(file.path + " asks for hardware");
  return faults;
}

Faults NameFaults(const SourceFile& file) {
  static const std::regex class_suffix("(Manager|Helpers?|Utils?|Impl|Base|Common|Data|Info)$");
  static const std::regex stem_suffix("(^|_)(manager|helpers?|utils?|impl|base|common|data|info)$");
  Faults faults;
  if (std::regex_search(file.stem, stem_suffix)) faults.push_back(file.path + " is named so");
  for (const Class& found : Scan(file.text).classes) {
    if (std::regex_search(found.name, class_suffix)) {
      faults.push_back(file.path + " class " + found.name);
    }
  }
  return faults;
}

int OpeningCommentLines(const std::string& text) {
  if (text.compare(0, 2, "/*") == 0) return CountLines(text.substr(0, text.find("*/")));
  int lines = 0;
  for (size_t at = 0; text.compare(at, 2, "//") == 0; ++lines) {
    const size_t end = text.find('\n', at);
    if (end == std::string::npos) return lines + 1;
    at = end + 1;
  }
  return lines;
}

Faults HeaderCommentFaults(const SourceFile& file) {
  const int lines = OpeningCommentLines(file.text);
  if (!file.IsHeader() || (lines >= 1 && lines <= kHeaderCommentLines)) return {};
  return {file.path + " opens with " + std::to_string(lines) + " lines of comment"};
}

// Written in two parts, so that this file does not break its own rule.
Faults PlaceFaults(const SourceFile& file) {
  static const std::regex places(std::string("/ro") + "ot/|/ho" + "me/[a-z]|/wo" + "rk/|pyth" +
                                 "onhosted|py" + "pi\\.org|cra" + "tes\\.io|npm" +
                                 "js\\.(org|com)|deb\\.deb" + "ian|proxy\\.gol" + "ang");
  if (file.path == "text/rust/Cargo.lock") return {};
  std::smatch match;
  if (!std::regex_search(file.text, match, places)) return {};
  return {file.path + " names " + match.str()};
}

Faults TurnedOffFaults(const SourceFile& file) {
  static const std::regex off(std::string("DISAB") + "LED_|mark\\.sk" + "ip\\(|mark\\.xf" + "ail");
  if (!std::regex_search(file.text, off)) return {};
  return {file.path + " turns a test off"};
}

Faults UnlistedFaults(const SourceFile& file) {
  static const std::regex test(R"(^tests/(.*/)?(\w+_test\.cc|test_\w+\.py)$)");
  if (!std::regex_match(file.path, test)) return {};
  const std::string folder = file.path.substr(0, file.path.rfind('/'));
  const std::string list = testing::ReadFile(testing::SourcePath(folder + "/CMakeLists.txt"));
  const std::regex listed("[^A-Za-z0-9_]" + file.stem + "(\\" + file.extension + ")?[^A-Za-z0-9_]");
  // foreach(name x y) pd_test(... ${name}_test.cc
  const std::regex in_a_loop("foreach\\(name[^)]*[ \n]" +
                             file.stem.substr(0, file.stem.rfind("_test")) +
                             "[ \n)][^$]*\\$\\{name\\}_test");
  if (std::regex_search(list, listed) || std::regex_search(list, in_a_loop)) return {};
  return {file.path + " is in no CMakeLists.txt"};
}

// Runs a rule over the files that `selects` takes, and fails with every fault found.
template <typename Rule, typename Selects>
void ExpectNoFaults(Rule rule, Selects selects) {
  int files = 0;
  for (const SourceFile& file : Tree()) {
    if (!selects(file)) continue;
    ++files;
    for (const std::string& fault : rule(file)) ADD_FAILURE() << fault;
  }
  EXPECT_GT(files, 10) << "the tree was not found";
}

bool IsAny(const SourceFile& /*file*/) { return true; }
bool IsCpp(const SourceFile& file) { return file.IsCpp(); }

TEST(TidyTest, FilesFunctionsAndParametersKeepTheirLimits) { ExpectNoFaults(SizeFaults, IsAny); }
TEST(TidyTest, InterfacesHaveFewVirtuals) { ExpectNoFaults(InterfaceFaults, IsCpp); }
TEST(TidyTest, IncludesGoOneWay) { ExpectNoFaults(IncludeFaults, IsCpp); }
TEST(TidyTest, HardwareIsChosenByFilesNotByConditions) { ExpectNoFaults(HardwareFaults, IsCpp); }
TEST(TidyTest, NamesAreNounsOfTheDomain) { ExpectNoFaults(NameFaults, IsCpp); }
TEST(TidyTest, HeadersOpenWithWhatTheyAre) { ExpectNoFaults(HeaderCommentFaults, IsCpp); }
TEST(TidyTest, NoFileNamesAMachinesPlaces) { ExpectNoFaults(PlaceFaults, IsAny); }
TEST(TidyTest, NoTestIsTurnedOff) { ExpectNoFaults(TurnedOffFaults, IsAny); }
TEST(TidyTest, EveryTestIsListed) { ExpectNoFaults(UnlistedFaults, IsAny); }

TEST(TidyTest, NoClassIsDeeperThanOneInheritanceStep) {
  Names derived;
  std::vector<std::pair<std::string, Class>> classes;
  for (const SourceFile& file : Tree()) {
    if (!file.IsCpp() || !file.IsProduct()) continue;
    for (const Class& found : Scan(file.text).classes) {
      classes.emplace_back(file.path, found);
      if (!found.bases.empty()) derived.insert(found.name);
    }
  }
  for (const auto& [path, found] : classes) {
    for (const std::string& base : found.bases) {
      EXPECT_EQ(derived.count(base), 0u) << path << " " << found.name << " : " << base;
    }
  }
}

TEST(TidyTest, TheRouterBuildsWithoutTheEngine) {
  const std::string list = testing::ReadFile(testing::SourcePath("router/CMakeLists.txt"));
  ASSERT_FALSE(list.empty());
  EXPECT_FALSE(
      std::regex_search(list, std::regex("pd_(engine|kvtransfer|node|prefill|decode)\\b")));
}

TEST(TidyTest, OptionsAreFew) {
  const std::string text = testing::ReadFile(testing::SourcePath("common/config.h"));
  const std::regex option(R"(\n\s*X\((Text|Integer|Time|Switch),)");
  const auto count = std::distance(std::sregex_iterator(text.begin(), text.end(), option), {});
  EXPECT_GT(count, 10);
  EXPECT_LE(count, kOptions);
}

TEST(TidyTest, FoldersStaySmall) {
  std::map<std::string, Names> parts;
  for (const SourceFile& file : Tree()) {
    if (file.IsCpp()) parts[file.path.substr(0, file.path.rfind('/'))].insert(file.stem);
  }
  for (const auto& [folder, stems] : parts) {
    EXPECT_LE(stems.size(), static_cast<size_t>(kPartsInFolder)) << folder;
  }
}

int CountCodeLines(const std::string& text) {
  static const std::regex no_code(R"(\s*(//.*|/\*.*\*/\s*)?)");
  std::stringstream lines(text);
  int count = 0;
  for (std::string line; std::getline(lines, line);)
    count += std::regex_match(line, no_code) ? 0 : 1;
  return count;
}

TEST(TidyTest, TheProductStaysSmall) {
  int lines = 0;
  for (const SourceFile& file : Tree()) {
    const bool is_code = file.IsCpp() || file.extension == ".proto" || file.extension == ".rs";
    if (file.IsProduct() && is_code) lines += CountCodeLines(file.text);
  }
  EXPECT_LE(lines, kProductLines);
  RecordProperty("product_lines", lines);
}

TEST(TidyTest, TestDataStaysSmall) {
  uintmax_t bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(testing::TestData(""))) {
    if (entry.is_regular_file()) bytes += entry.file_size();
  }
  EXPECT_LE(bytes, kTestDataBytes);
}

// ---- that the rules can fail

SourceFile Fake(const std::string& path, const std::string& text) {
  const fs::path name(path);
  return {path, path.substr(0, path.find('/')), name.stem().string(), name.extension().string(),
          text};
}

std::string LongFunction(int lines) {
  std::string text = "int Long(int a) {\n";
  for (int i = 0; i < lines - 2; ++i) text += "  a += 1;  // }\n";
  return text + "}\n";
}

TEST(TidyRulesTest, AFunctionOverTheLimitIsFound) {
  EXPECT_TRUE(SizeFaults(Fake("node/a.cc", LongFunction(kFunctionLines))).empty());
  EXPECT_EQ(SizeFaults(Fake("node/a.cc", LongFunction(kFunctionLines + 1))).size(), 1u);
  EXPECT_TRUE(SizeFaults(Fake("engine/model_x.cc", LongFunction(kLongFunctionLines))).empty());
  EXPECT_EQ(SizeFaults(Fake("engine/ops.cc", LongFunction(kLongFunctionLines))).size(), 1u);
}

TEST(TidyRulesTest, ALongFileIsFound) {
  const auto lines = [](int count) { return std::string(count, '\n'); };
  EXPECT_TRUE(SizeFaults(Fake("node/a.cc", lines(kSourceLines))).empty());
  EXPECT_FALSE(SizeFaults(Fake("node/a.cc", lines(kSourceLines + 1))).empty());
  EXPECT_FALSE(SizeFaults(Fake("node/a.h", lines(kHeaderLines + 1))).empty());
  EXPECT_FALSE(SizeFaults(Fake("proto/a.proto", lines(kProtoLines + 1))).empty());
}

TEST(TidyRulesTest, ASixthParameterIsFound) {
  EXPECT_TRUE(
      SizeFaults(Fake("node/a.h", "void F(int a, std::map<int, int> b, int c, int d, int e);"))
          .empty());
  EXPECT_FALSE(
      SizeFaults(Fake("node/a.h", "void F(int a, int b, int c, int d, int e, int f);")).empty());
}

TEST(TidyRulesTest, AWrongIncludeIsFound) {
  EXPECT_TRUE(IncludeFaults(Fake("engine/a.cc", "#include \"common/ids.h\"\n")).empty());
  EXPECT_FALSE(IncludeFaults(Fake("engine/a.cc", "#include \"kvtransfer/pump.h\"\n")).empty());
  EXPECT_FALSE(IncludeFaults(Fake("router/a.cc", "#include \"engine/ops.h\"\n")).empty());
  EXPECT_FALSE(IncludeFaults(Fake("router/a.cc", "#include \"proto/node.pb.h\"\n")).empty());
  EXPECT_TRUE(IncludeFaults(Fake("router/session.cc", "#include \"proto/node.pb.h\"\n")).empty());
}

TEST(TidyRulesTest, OtherRulesCanFail) {
  EXPECT_FALSE(HardwareFaults(Fake("engine/a.cc", "#ifdef __AVX2__\n")).empty());
  EXPECT_FALSE(HardwareFaults(Fake("engine/a.cc", "#include <cuda_runtime.h>\n")).empty());
  EXPECT_FALSE(
      NameFaults(Fake("node/a.h", "class BlockManager final : public Blocks {};")).empty());
  EXPECT_FALSE(NameFaults(Fake("node/string_utils.h", "")).empty());
  EXPECT_FALSE(HeaderCommentFaults(Fake("node/a.h", "#ifndef A\n")).empty());
  EXPECT_FALSE(PlaceFaults(Fake("a.sh", std::string("cd /ro") + "ot/x")).empty());
  EXPECT_FALSE(TurnedOffFaults(Fake("a.cc", std::string("TEST(A, DISAB") + "LED_B)")).empty());
  EXPECT_FALSE(UnlistedFaults(Fake("tests/common/nowhere_test.cc", "")).empty());
  const std::string nine =
      "class A {\n" + std::string("virtual void F() = 0;\n") + "virtual int G(int a) const = 0;\n";
  EXPECT_TRUE(InterfaceFaults(Fake("node/a.h", nine + "};")).empty());
  std::string more = nine;
  for (int i = 0; i < 7; ++i) more += "virtual void H() = 0;\n";
  EXPECT_FALSE(InterfaceFaults(Fake("node/a.h", more + "};")).empty());
}

TEST(TidyScanTest, TellsFunctionsFromWhatLooksLikeThem) {
  const Outline outline = Scan(R"code(
namespace a {
constexpr int kTable[] = {1, 2, 3};
std::function<void(int)> hook = [](int x) { Use(x); };
class Foo final : public ns::Bar<int>, private Baz {
 public:
  explicit Foo(int a, int b) : a_{a}, b_(b) {
    Init();
  }
  bool operator==(const Foo& other) const { return a_ == other.a_; }
  void operator()(int x) {}
  int a_{3};
  virtual absl::StatusOr<std::function<void(int)>> Pure(int a) const = 0;
 private:
  std::vector<int> b_ ABSL_GUARDED_BY(mutex_);
};
template <typename T, int N>
std::map<int, T> Foo::Make(T a) ABSL_LOCKS_EXCLUDED(mutex_) {
  if (a) { return {}; }  // "}" and '}' and }
  const char* text = "}}}";
  return R"({)" ? x : y;
}
}  // namespace a
)code");
  std::vector<std::string> found;
  for (const Function& function : outline.functions) {
    found.push_back(function.name + "/" + std::to_string(function.parameters) + "/" +
                    std::to_string(function.lines));
  }
  EXPECT_EQ(found, (std::vector<std::string>{"Foo/2/3", "operator==/1/1", "operator()/1/1",
                                             "Pure/1/0", "Foo::Make/1/6"}));
  ASSERT_EQ(outline.classes.size(), 1u);
  EXPECT_EQ(outline.classes[0].name, "Foo");
  EXPECT_EQ(outline.classes[0].bases, (std::vector<std::string>{"Bar", "Baz"}));
}

TEST(TidyScanTest, BlankKeepsLines) {
  const std::string blank =
      BlankOut("a /* { \n */ b // }\n#define X { \\\n  }\nc = \"{\\\"\" + '{';\n");
  EXPECT_EQ(CountLines(blank), 5);
  EXPECT_EQ(std::count_if(blank.begin(), blank.end(), [](char c) { return c == '{' || c == '}'; }),
            0);
}

}  // namespace
}  // namespace pdserve::tidy

#include "tests/tidy_source.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <regex>
#include <sstream>

namespace pdserve::tidy {
namespace {

bool IsWord(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

std::string Trim(std::string_view text) {
  const size_t first = text.find_first_not_of(" \n\t");
  if (first == std::string_view::npos) return "";
  return std::string(text.substr(first, text.find_last_not_of(" \n\t") - first + 1));
}

// ---- BlankOut

// Replaces [from, to) by spaces, but for its newlines.
void Blank(std::string& text, size_t from, size_t to) {
  for (size_t i = from; i < std::min(to, text.size()); ++i) {
    if (text[i] != '\n') text[i] = ' ';
  }
}

// End of the literal that opens at `open` with its quote; one past its closing quote.
size_t EndOfLiteral(const std::string& text, size_t open) {
  size_t i = open + 1;
  while (i < text.size() && text[i] != text[open] && text[i] != '\n') i += text[i] == '\\' ? 2 : 1;
  return i + 1;
}

// End of R"x( ... )x" whose quote is at `open`.
size_t EndOfRawLiteral(const std::string& text, size_t open) {
  const size_t parenthesis = text.find('(', open);
  if (parenthesis == std::string::npos) return text.size();
  const std::string closing = ")" + text.substr(open + 1, parenthesis - open - 1) + "\"";
  const size_t end = text.find(closing, parenthesis);
  return end == std::string::npos ? text.size() : end + closing.size();
}

// A preprocessor line goes on while its lines end in a backslash.
size_t EndOfDirective(const std::string& text, size_t hash) {
  size_t end = text.find('\n', hash);
  while (end != std::string::npos && end > 0 && text[end - 1] == '\\') {
    end = text.find('\n', end + 1);
  }
  return end == std::string::npos ? text.size() : end;
}

// What begins at `i` and has to go: its end; nullopt: nothing does.
std::optional<size_t> EndOfBlank(const std::string& text, size_t i, bool starts_line) {
  const std::string_view rest = std::string_view(text).substr(i);
  if (rest.substr(0, 2) == "//") return std::min(text.find('\n', i), text.size());
  if (rest.substr(0, 2) == "/*") {
    const size_t end = text.find("*/", i + 2);
    return end == std::string::npos ? text.size() : end + 2;
  }
  if (starts_line && text[i] == '#') return EndOfDirective(text, i);
  return std::nullopt;
}

}  // namespace

std::string BlankOut(std::string_view original) {
  std::string text(original);
  bool starts_line = true;  // only spaces so far
  for (size_t i = 0; i < text.size();) {
    if (const auto end = EndOfBlank(text, i, starts_line)) {
      Blank(text, i, *end);
      i = *end;
    } else if (text[i] == '"' || (text[i] == '\'' && (i == 0 || !IsWord(text[i - 1])))) {
      const bool raw = text[i] == '"' && i > 0 && text[i - 1] == 'R';
      const size_t end = raw ? EndOfRawLiteral(text, i) : EndOfLiteral(text, i);
      Blank(text, i + 1, end - 1);
      i = end;
      starts_line = false;
    } else {
      if (text[i] == '\n') starts_line = true;
      if (std::isspace(static_cast<unsigned char>(text[i])) == 0) starts_line = false;
      ++i;
    }
  }
  return text;
}

namespace {

// ---- Scan. A head is the text between the last ; { or } and the next ; or {.

bool Opens(char c) { return c == '(' || c == '[' || c == '{'; }
bool Closes(char c) { return c == ')' || c == ']' || c == '}'; }

size_t MatchingClose(std::string_view text, size_t open) {
  int depth = 0;
  for (size_t i = open; i < text.size(); ++i) {
    if (Opens(text[i])) ++depth;
    if (Closes(text[i]) && --depth == 0) return i;
  }
  return text.size();
}

// The head without what its parentheses and angle brackets hold: `void f() const`.
std::string Flat(std::string_view head) {
  std::string flat;
  int depth = 0;
  for (char c : head) {
    if (Closes(c)) --depth;
    if (depth == 0) flat += c;
    if (Opens(c)) ++depth;
  }
  return flat;
}

bool StartsWithWord(const std::string& text, std::string_view word) {
  return text.compare(0, word.size(), word) == 0 &&
         (text.size() == word.size() || !IsWord(text[word.size()]));
}

// Where a function's parameter list opens in its head; npos: it is no function.
size_t ParameterList(const std::string& head) {
  const size_t call = head.find("operator()");
  size_t open = head.find('(', call == std::string::npos ? 0 : call + 10);
  // Annotations and decltype before the name have lists of their own: take the list before the
  // body, a qualifier, or an initialiser.
  while (open != std::string::npos) {
    const size_t close = MatchingClose(head, open);
    const std::string after = Trim(std::string_view(head).substr(std::min(close + 1, head.size())));
    const bool goes_on =
        !after.empty() &&
        (IsWord(after[0]) || std::string_view("*&>").find(after[0]) != std::string_view::npos);
    const bool is_qualifier = std::regex_search(
        after, std::regex("^(const|noexcept|override|final|requires|mutable|&&?$|&&? |ABSL_)"));
    if (!goes_on || is_qualifier) return open;
    open = head.find('(', close);
  }
  return std::string::npos;
}

int CountParameters(std::string_view list) {
  if (Trim(list).empty() || Trim(list) == "void") return 0;
  int depth = 0;
  int count = 1;
  for (size_t i = 0; i < list.size(); ++i) {
    if (Opens(list[i]) || (list[i] == '<' && i > 0 && IsWord(list[i - 1]))) ++depth;
    if (Closes(list[i]) || (list[i] == '>' && depth > 0 && list[i - 1] != '-')) --depth;
    if (list[i] == ',' && depth == 0) ++count;
  }
  return count;
}

std::string NameBefore(const std::string& head, size_t open) {
  size_t end = open;
  while (end > 0 && std::isspace(static_cast<unsigned char>(head[end - 1])) != 0) --end;
  if (const size_t at = head.rfind("operator", end); at != std::string::npos && at + 12 >= end) {
    return head.substr(at, end - at);
  }
  size_t begin = end;
  while (begin > 0 &&
         (IsWord(head[begin - 1]) || head[begin - 1] == ':' || head[begin - 1] == '~')) {
    --begin;
  }
  return head.substr(begin, end - begin);
}

// Where the head that begins at `from` really begins: after spaces and access labels.
size_t SkipAccess(std::string_view text, size_t from) {
  const size_t first = std::min(text.find_first_not_of(" \n\t", from), text.size());
  for (const std::string_view label : {"public:", "private:", "protected:"}) {
    if (text.compare(first, label.size(), label) == 0) {
      return SkipAccess(text, first + label.size());
    }
  }
  return first;
}

std::string WithoutTemplate(std::string head) {
  if (!StartsWithWord(head, "template")) return head;
  int depth = 0;
  for (size_t i = head.find('<'); i < head.size(); ++i) {
    if (head[i] == '<') ++depth;
    if (head[i] == '>' && --depth == 0) return WithoutTemplate(Trim(head.substr(i + 1)));
  }
  return head;
}

// A function's head, or nullopt: a variable, a type, a namespace, an expression.
std::optional<Function> FunctionOf(const std::string& head) {
  const std::string flat = Flat(head);
  static const std::regex assigns(R"((^|[^=<>!~%^&|+*/-])=([^=]|$))");
  static const std::regex pure_or_default(R"(=\s*(0|default|delete)\s*$)");
  const bool is_operator = flat.find("operator") != std::string::npos;
  const bool is_special = std::regex_search(flat, pure_or_default);
  if (!is_operator && !is_special && std::regex_search(flat, assigns)) return std::nullopt;
  for (const char* word :
       {"namespace", "enum", "using", "typedef", "return", "extern", "static_assert", "friend"}) {
    if (StartsWithWord(head, word)) return std::nullopt;
  }
  const size_t open = ParameterList(head);
  if (open == std::string::npos) return std::nullopt;
  Function function;
  function.name = NameBefore(head, open);
  if (function.name.empty()) return std::nullopt;
  function.parameters = CountParameters(
      std::string_view(head).substr(open + 1, MatchingClose(head, open) - open - 1));
  function.pure = std::regex_search(flat, std::regex(R"(=\s*0\s*$)"));
  return function;
}

std::optional<Class> ClassOf(const std::string& head) {
  static const std::regex pattern(
      R"(^(?:class|struct|union)\s+(?:alignas\(.*?\)\s*|\[\[.*?\]\]\s*)*(\w+)\s*(?:final)?\s*(?::\s*([^:][\s\S]*))?$)");
  std::smatch match;
  if (!std::regex_match(head, match, pattern)) return std::nullopt;
  Class found{match[1], {}, 0};
  std::stringstream list(match[2]);
  for (std::string base; std::getline(list, base, ',');) {
    const size_t arguments = base.find('<');
    base = Trim(base.substr(0, arguments));
    size_t begin = base.size();
    while (begin > 0 && IsWord(base[begin - 1])) --begin;
    found.bases.push_back(base.substr(begin));
  }
  return found;
}

// In a constructor's initialisers, `a_{1}` opens a brace that is no body.
bool IsMemberInitializer(const std::string& head) {
  static const std::regex initializers(R"(\)\s*(?:noexcept\s*)?:[^:])");
  return std::regex_search(Flat(head), initializers) && !head.empty() &&
         (IsWord(head.back()) || head.back() == '>');
}

class Scanner {
 public:
  explicit Scanner(std::string text) : text_(std::move(text)) {}

  Outline Run() {
    for (; at_ < text_.size(); ++at_) {
      if (text_[at_] == '(' || text_[at_] == '[') {
        at_ = MatchingClose(text_, at_);
      } else if (text_[at_] == ';') {
        Declare();
      } else if (text_[at_] == '{') {
        Open();
      } else if (text_[at_] == '}') {
        if (!scopes_.empty()) scopes_.pop_back();
        head_ = at_ + 1;
      }
    }
    return std::move(outline_);
  }

 private:
  std::string Head() const {
    const size_t begin = SkipAccess(text_, head_);
    return begin >= at_ ? "" : WithoutTemplate(Trim(text_.substr(begin, at_ - begin)));
  }
  int LineOf(size_t position) const {
    return 1 + static_cast<int>(std::count(text_.begin(), text_.begin() + position, '\n'));
  }
  int FirstLine() const { return LineOf(SkipAccess(text_, head_)); }
  std::string Innermost() const { return scopes_.empty() ? "" : scopes_.back(); }

  void Declare() {
    const std::string head = Head();
    // A constructor's declaration looks like a macro's call; it has a definition somewhere.
    // So do an annotation and what it is written on.
    if (const auto function = FunctionOf(head);
        function && function->name != head.substr(0, function->name.size()) &&
        !StartsWithWord(function->name, "ABSL_GUARDED_BY")) {
      Add(*function, 0);
    }
    head_ = at_ + 1;
  }

  void Open() {
    const std::string head = Head();
    if (IsMemberInitializer(head)) {
      at_ = MatchingClose(text_, at_);
      return;
    }
    if (auto found = ClassOf(head)) {
      found->first_line = FirstLine();
      scopes_.push_back(found->name);
      outline_.classes.push_back(*found);
      head_ = at_ + 1;
      return;
    }
    if (const auto function = FunctionOf(head)) {
      const size_t close = MatchingClose(text_, at_);
      Add(*function, LineOf(close) - FirstLine() + 1);
      at_ = close;
      head_ = close + 1;
      return;
    }
    if (StartsWithWord(head, "namespace") || StartsWithWord(head, "extern")) {
      scopes_.push_back("");
      head_ = at_ + 1;
      return;
    }
    at_ = MatchingClose(text_, at_);  // an initialiser: its statement goes on
  }

  void Add(Function function, int lines) {
    function.first_line = FirstLine();
    function.lines = lines;
    function.class_name = Innermost();
    outline_.functions.push_back(std::move(function));
  }

  const std::string text_;
  size_t at_ = 0;
  size_t head_ = 0;                  // where the present head begins
  std::vector<std::string> scopes_;  // class names; "" for a namespace
  Outline outline_;
};

}  // namespace

Outline Scan(std::string_view text) { return Scanner(BlankOut(text)).Run(); }

int CountLines(std::string_view text) {
  const auto newlines = std::count(text.begin(), text.end(), '\n');
  return static_cast<int>(newlines) + (!text.empty() && text.back() != '\n' ? 1 : 0);
}

std::vector<std::string> Includes(std::string_view text) {
  std::vector<std::string> found;
  std::stringstream lines{std::string(text)};
  static const std::regex pattern(R"re(^\s*#\s*include\s*(?:"([^"]+)"|(<[^>]+>)))re");
  for (std::string line; std::getline(lines, line);) {
    std::smatch match;
    if (std::regex_search(line, match, pattern))
      found.push_back(match[1].matched ? match[1] : match[2]);
  }
  return found;
}

}  // namespace pdserve::tidy

// What the tidy test knows of a source file: a scanner of C++ that is good enough to measure
// functions and classes, and no more. Pure functions of the text; any thread.
#ifndef PDSERVE_TESTS_TIDY_SOURCE_H_
#define PDSERVE_TESTS_TIDY_SOURCE_H_

#include <string>
#include <string_view>
#include <vector>

namespace pdserve::tidy {

/// The text with comments, the insides of string and character literals, and preprocessor
/// lines turned to spaces; every line keeps its number.
std::string BlankOut(std::string_view text);

struct Function {
  std::string name;  // with its class where it is written so: Foo::Bar
  int first_line = 0;
  int lines = 0;  // from the first line of its head to its closing brace; 0: a declaration
  int parameters = 0;
  bool pure = false;       // declared = 0
  std::string class_name;  // the innermost class around it
};

struct Class {
  std::string name;
  std::vector<std::string> bases;
  int first_line = 0;
};

struct Outline {
  std::vector<Function> functions;
  std::vector<Class> classes;
};

/// Functions (outermost ones: a lambda counts as part of what holds it) and classes of C++ text.
Outline Scan(std::string_view text);

/// Number of lines; a last line without a newline counts.
int CountLines(std::string_view text);

/// What the text includes: "common/check.h" or <vector> (with its brackets).
std::vector<std::string> Includes(std::string_view text);

}  // namespace pdserve::tidy

#endif  // PDSERVE_TESTS_TIDY_SOURCE_H_

// Where tests find their files: the source tree, and the real model outside it.
#ifndef PDSERVE_TESTS_TESTING_FILES_H_
#define PDSERVE_TESTS_TESTING_FILES_H_

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

namespace pdserve::testing {

inline std::string SourcePath(const std::string& relative) {
  return std::string(PD_SOURCE_DIR) + "/" + relative;
}

/// tests/data/`relative`.
inline std::string TestData(const std::string& relative) {
  return SourcePath("tests/data/" + relative);
}

/// The default model's file: $PD_MODEL, else where deploy/fetch_model.sh puts it.
inline std::string RealModelPath() {
  if (const char* path = std::getenv("PD_MODEL")) return path;
  const char* home = std::getenv("HOME");
  return std::string(home ? home : "") + "/.cache/pdserve/models/SmolLM2-135M-Instruct.Q4_1.gguf";
}

inline std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

}  // namespace pdserve::testing

#endif  // PDSERVE_TESTS_TESTING_FILES_H_

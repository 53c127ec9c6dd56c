// Token bytes to text, a token at a time: holds back an unfinished code point, and replaces each
// maximal part of a bad sequence with U+FFFD as soon as it is known to be bad.
// Owned by one stream; one thread at a time. Between calls at most three bytes are held back, and
// they are the start of at least one valid code point.
#ifndef PDSERVE_TEXT_UTF8_STREAM_H_
#define PDSERVE_TEXT_UTF8_STREAM_H_

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace pdserve::text {

class Utf8Stream {
 public:
  /// What can be shown after `bytes`: valid UTF-8, maybe empty.
  std::string Next(std::string_view bytes);
  /// Ends the stream: U+FFFD for an unfinished code point, else nothing.
  std::string Finish();

 private:
  void Push(uint8_t byte, std::string* shown);
  void Begin(uint8_t byte, std::string* shown);

  std::array<char, 4> held_{};
  uint8_t num_held_ = 0;
  uint8_t num_missing_ = 0;
  // The range of the next continuation byte; narrower than 80..BF only after some first bytes.
  uint8_t low_ = 0x80;
  uint8_t high_ = 0xbf;
};

}  // namespace pdserve::text

#endif  // PDSERVE_TEXT_UTF8_STREAM_H_

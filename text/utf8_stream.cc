#include "text/utf8_stream.h"

namespace pdserve::text {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";

}  // namespace

std::string Utf8Stream::Next(std::string_view bytes) {
  std::string shown;
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (num_missing_ == 0) {
      const size_t start = i;
      while (i < bytes.size() && static_cast<uint8_t>(bytes[i]) < 0x80) ++i;
      shown.append(bytes, start, i - start);
      if (i == bytes.size()) break;
    }
    Push(static_cast<uint8_t>(bytes[i]), &shown);
  }
  return shown;
}

std::string Utf8Stream::Finish() {
  const bool unfinished = num_missing_ > 0;
  num_held_ = num_missing_ = 0;
  return unfinished ? std::string(kReplacement) : std::string();
}

void Utf8Stream::Push(uint8_t byte, std::string* shown) {
  if (num_missing_ == 0) return Begin(byte, shown);
  if (byte < low_ || byte > high_) {
    shown->append(kReplacement);
    return Begin(byte, shown);
  }
  held_[num_held_++] = static_cast<char>(byte);
  low_ = 0x80;
  high_ = 0xbf;
  if (--num_missing_ == 0) shown->append(held_.data(), num_held_);
}

// Unicode 15, table 3-7: the second byte's range keeps out overlong forms, surrogates and what
// lies beyond U+10FFFF.
void Utf8Stream::Begin(uint8_t byte, std::string* shown) {
  held_[0] = static_cast<char>(byte);
  num_held_ = 1;
  num_missing_ = 0;
  low_ = 0x80;
  high_ = 0xbf;
  if (byte < 0x80) {
    shown->push_back(static_cast<char>(byte));
  } else if (byte >= 0xc2 && byte <= 0xdf) {
    num_missing_ = 1;
  } else if (byte >= 0xe0 && byte <= 0xef) {
    num_missing_ = 2;
    if (byte == 0xe0) low_ = 0xa0;
    if (byte == 0xed) high_ = 0x9f;
  } else if (byte >= 0xf0 && byte <= 0xf4) {
    num_missing_ = 3;
    if (byte == 0xf0) low_ = 0x90;
    if (byte == 0xf4) high_ = 0x8f;
  } else {
    shown->append(kReplacement);
  }
}

}  // namespace pdserve::text

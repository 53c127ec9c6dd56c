// The size of a message between router and node, the same on both sides: the largest is a hello
// with the vocabulary of a model, some 20 MB at most.
#ifndef PDSERVE_COMMON_MESSAGE_LIMIT_H_
#define PDSERVE_COMMON_MESSAGE_LIMIT_H_

namespace pdserve {

inline constexpr int kLargestMessageBytes = 64 << 20;

}  // namespace pdserve

#endif  // PDSERVE_COMMON_MESSAGE_LIMIT_H_

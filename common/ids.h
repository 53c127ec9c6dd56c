// Identifiers that do not mix: each is its own type over a plain integer or byte array.
#ifndef PDSERVE_COMMON_IDS_H_
#define PDSERVE_COMMON_IDS_H_

#include <array>
#include <compare>
#include <cstdint>
#include <utility>

namespace pdserve {

template <typename Tag, typename Rep>
struct Id {
  Rep value{};

  friend auto operator<=>(const Id&, const Id&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const Id& id) {
    return H::combine(std::move(state), id.value);
  }
};

/// An entry of the model's vocabulary.
using TokenId = Id<struct TokenTag, uint32_t>;
/// A block of a node's cache pool; an index below the pool's capacity.
using BlockId = Id<struct BlockTag, uint32_t>;
/// One try to serve a generation; unique for the router that chose it.
using AttemptId = Id<struct AttemptTag, uint64_t>;
/// One session on a node: a router's stream, from its opening to its loss; never used again.
using SessionId = Id<struct SessionTag, uint64_t>;
/// One life of a process; what was said to an earlier one is void.
using Incarnation = Id<struct IncarnationTag, uint64_t>;
/// Known to an attempt's two nodes and its router alone, good for one hand-over.
using Ticket = Id<struct TicketTag, std::array<uint8_t, 16>>;
/// SHA-256 over weights, tokenizer, architecture, cache layout and numerics.
using Fingerprint = Id<struct FingerprintTag, std::array<uint8_t, 32>>;

}  // namespace pdserve

#endif  // PDSERVE_COMMON_IDS_H_

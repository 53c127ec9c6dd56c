// Which blocks hold the cache of which tokens: a trie over runs of `block_tokens` tokens, a node
// for each known block, its parent the block of the run before, the roots the tenants' salts.
// Exact: the nodes keep their tokens and these are compared, hashes only speed the way, so no
// collision can ever lend a wrong block. Knows nothing of memory. Owner: the block pool; the step
// loop's thread. Invariants: a block has one node at most; a block that rests (nobody holds it) has
// no descendant that is held, so that every resting block can be evicted, leaves first.
#ifndef PDSERVE_ENGINE_CACHE_PREFIX_CACHE_H_
#define PDSERVE_ENGINE_CACHE_PREFIX_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/hash/hash.h"
#include "common/ids.h"

namespace pdserve::engine {

/// Tokens from a sequence's start, and the salt of the tenant whose they are.
struct Prefix {
  std::string_view salt;
  std::span<const TokenId> tokens;
};

struct PrefixStats {  // since the start
  uint64_t query_tokens = 0;
  uint64_t hit_tokens = 0;

  void Count(size_t query, int32_t hit) {
    query_tokens += query;
    hit_tokens += static_cast<uint64_t>(hit);
  }
};

class PrefixCache {
 public:
  PrefixCache(int32_t capacity_blocks, int32_t block_tokens);
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  int32_t block_tokens() const { return block_tokens_; }
  bool contains(BlockId block) const { return nodes_[block.value].known; }

  /// The blocks of the longest known run of whole blocks from the start of `prefix.tokens`.
  std::vector<BlockId> Find(const Prefix& prefix) const;

  /// Makes the next block after `chain` known: `chain` are the blocks of the tokens before it, all
  /// known, and `prefix.tokens` end with it. `block` is held and not known. Returns the block that
  /// stands for these tokens from here on: another one where they were known already.
  BlockId Insert(const Prefix& prefix, std::span<const BlockId> chain, BlockId block);

  /// Nobody holds this known block any more: it may be evicted when it is a leaf.
  void Rest(BlockId block);
  /// Somebody holds it again.
  void Wake(BlockId block);
  /// Forgets the leaf that has rested longest and returns it. There must be a resting block.
  BlockId EvictOldest();

  size_t num_known() const { return index_.size(); }
  bool resting(BlockId block) const { return nodes_[block.value].resting; }
  /// True when index, leaves, roots and the tree agree; O(capacity).
  bool CheckIntegrity() const;

 private:
  // Names a node's parent: a block's number, or kRootBit + the number of a salt.
  using Parent = uint64_t;
  struct Node {
    Parent parent = 0;
    uint64_t rested = 0;  // when it began to rest; orders evictions
    int32_t children = 0;
    bool known = false;
    bool resting = false;
  };
  struct Root {
    uint64_t number = 0;  // never used again
    int32_t children = 0;
  };
  struct Key {
    Parent parent;
    std::span<const TokenId> tokens;

    template <typename H>
    friend H AbslHashValue(H state, const Key& key) {
      // As bytes, which hash in one go.
      const auto* bytes = reinterpret_cast<const unsigned char*>(key.tokens.data());
      return H::combine(H::combine_contiguous(std::move(state), bytes, key.tokens.size_bytes()),
                        key.parent);
    }
  };
  struct KeyHash {
    using is_transparent = void;
    const PrefixCache* cache;
    size_t operator()(const Key& key) const { return absl::HashOf(key); }
    size_t operator()(int32_t block) const { return (*this)(cache->KeyOf(block)); }
  };
  struct KeyEqual {
    using is_transparent = void;
    const PrefixCache* cache;
    bool operator()(int32_t a, int32_t b) const { return a == b; }
    bool operator()(int32_t block, const Key& key) const;
    bool operator()(const Key& key, int32_t block) const { return (*this)(block, key); }
  };

  Key KeyOf(int32_t block) const;
  Key ChildKey(Parent parent, const Prefix& prefix, size_t block_idx) const;
  void AddChild(Parent parent);
  void RemoveChild(Parent parent);
  Parent RootFor(std::string_view salt);

  const int32_t block_tokens_;
  std::vector<Node> nodes_;                           // [capacity]
  std::vector<TokenId> tokens_;                       // [capacity][block_tokens], of known blocks
  std::map<std::string, Root, std::less<>> roots_;    // by salt; only those with children
  absl::flat_hash_map<uint64_t, std::string> salts_;  // by root number
  absl::flat_hash_set<int32_t, KeyHash, KeyEqual> index_;  // known blocks
  absl::btree_set<std::pair<uint64_t, int32_t>> leaves_;   // (rested, block): resting, no children
  uint64_t clock_ = 0;
  uint64_t next_root_ = 0;
};

}  // namespace pdserve::engine

#endif  // PDSERVE_ENGINE_CACHE_PREFIX_CACHE_H_

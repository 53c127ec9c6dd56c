#include "engine/cache/prefix_cache.h"

#include <algorithm>

#include "common/check.h"

namespace pdserve::engine {
namespace {

constexpr uint64_t kRootBit = uint64_t{1} << 63;

}  // namespace

bool PrefixCache::KeyEqual::operator()(int32_t block, const Key& key) const {
  const Key own = cache->KeyOf(block);
  return own.parent == key.parent &&
         std::equal(own.tokens.begin(), own.tokens.end(), key.tokens.begin(), key.tokens.end());
}

PrefixCache::PrefixCache(int32_t capacity_blocks, int32_t block_tokens)
    : block_tokens_(block_tokens),
      nodes_(static_cast<size_t>(capacity_blocks)),
      tokens_(static_cast<size_t>(capacity_blocks) * block_tokens),
      index_(0, KeyHash{this}, KeyEqual{this}) {}

PrefixCache::Key PrefixCache::KeyOf(int32_t block) const {
  const auto length = static_cast<size_t>(block_tokens_);
  return {nodes_[block].parent, std::span(tokens_).subspan(size_t(block) * length, length)};
}

PrefixCache::Key PrefixCache::ChildKey(Parent parent, const Prefix& prefix,
                                       size_t block_idx) const {
  const auto length = static_cast<size_t>(block_tokens_);
  return {parent, prefix.tokens.subspan(block_idx * length, length)};
}

std::vector<BlockId> PrefixCache::Find(const Prefix& prefix) const {
  std::vector<BlockId> found;
  const auto root = roots_.find(prefix.salt);
  if (root == roots_.end()) return found;
  Parent parent = kRootBit | root->second.number;
  const size_t most = prefix.tokens.size() / static_cast<size_t>(block_tokens_);
  while (found.size() < most) {
    const auto child = index_.find(ChildKey(parent, prefix, found.size()));
    if (child == index_.end()) break;
    found.push_back(BlockId{static_cast<uint32_t>(*child)});
    parent = static_cast<Parent>(*child);
  }
  return found;
}

PrefixCache::Parent PrefixCache::RootFor(std::string_view salt) {
  auto root = roots_.find(salt);
  if (root == roots_.end()) {
    root = roots_.emplace(salt, Root{next_root_++, 0}).first;
    salts_.emplace(root->second.number, salt);
  }
  return kRootBit | root->second.number;
}

BlockId PrefixCache::Insert(const Prefix& prefix, std::span<const BlockId> chain, BlockId block) {
  PD_CHECK(prefix.tokens.size() == (chain.size() + 1) * static_cast<size_t>(block_tokens_));
  PD_CHECK(chain.empty() || contains(chain.back()));
  const Parent parent = chain.empty() ? RootFor(prefix.salt) : chain.back().value;
  const Key key = ChildKey(parent, prefix, chain.size());
  const auto known = index_.find(key);
  if (known != index_.end()) return BlockId{static_cast<uint32_t>(*known)};
  Node& node = nodes_[block.value];
  PD_CHECK(!node.known);
  node = {.parent = parent, .known = true};
  std::copy(key.tokens.begin(), key.tokens.end(),
            tokens_.begin() + size_t{block.value} * static_cast<size_t>(block_tokens_));
  AddChild(parent);
  index_.insert(static_cast<int32_t>(block.value));
  return block;
}

void PrefixCache::AddChild(Parent parent) {
  if (parent & kRootBit) {
    ++roots_.at(salts_.at(parent & ~kRootBit)).children;
    return;
  }
  PD_CHECK(!nodes_[parent].resting);  // who holds the child holds the parent
  ++nodes_[parent].children;
}

void PrefixCache::RemoveChild(Parent parent) {
  if (parent & kRootBit) {
    const auto salt = salts_.find(parent & ~kRootBit);
    const auto root = roots_.find(salt->second);
    if (--root->second.children > 0) return;
    roots_.erase(root);
    salts_.erase(salt);
    return;
  }
  Node& node = nodes_[parent];
  if (--node.children == 0 && node.resting) {
    leaves_.emplace(node.rested, static_cast<int32_t>(parent));
  }
}

void PrefixCache::Rest(BlockId block) {
  Node& node = nodes_[block.value];
  PD_CHECK(node.known && !node.resting);
  node.resting = true;
  node.rested = ++clock_;
  if (node.children == 0) leaves_.emplace(node.rested, static_cast<int32_t>(block.value));
}

void PrefixCache::Wake(BlockId block) {
  Node& node = nodes_[block.value];
  PD_CHECK(node.known && node.resting);
  node.resting = false;
  leaves_.erase({node.rested, static_cast<int32_t>(block.value)});
}

BlockId PrefixCache::EvictOldest() {
  PD_CHECK(!leaves_.empty());
  const int32_t block = leaves_.begin()->second;
  leaves_.erase(leaves_.begin());
  index_.erase(block);
  const Parent parent = nodes_[block].parent;
  nodes_[block] = {};
  RemoveChild(parent);
  return BlockId{static_cast<uint32_t>(block)};
}

bool PrefixCache::CheckIntegrity() const {
  size_t known = 0;
  size_t leaves = 0;
  std::vector<int32_t> children(nodes_.size(), 0);
  absl::flat_hash_map<uint64_t, int32_t> of_roots;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    if (!node.known) continue;
    ++known;
    const auto block = static_cast<int32_t>(i);
    const auto found = index_.find(KeyOf(block));
    if (found == index_.end() || *found != block) return false;
    if (node.resting && node.children == 0) {
      ++leaves;
      if (!leaves_.contains({node.rested, block})) return false;
    }
    if (node.parent & kRootBit) {
      ++of_roots[node.parent & ~kRootBit];
    } else {
      const Node& parent = nodes_[node.parent];
      if (!parent.known || (parent.resting && !node.resting)) return false;
      ++children[node.parent];
    }
  }
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (children[i] != nodes_[i].children) return false;
  }
  for (const auto& [salt, root] : roots_) {
    const auto named = salts_.find(root.number);
    if (named == salts_.end() || named->second != salt) return false;
    if (root.children == 0 || of_roots[root.number] != root.children) return false;
  }
  return known == index_.size() && leaves == leaves_.size() && of_roots.size() == roots_.size() &&
         roots_.size() == salts_.size();
}

}  // namespace pdserve::engine

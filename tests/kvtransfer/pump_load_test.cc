// Pumps under load: many hand-overs at once, and very many one after the other.
#include <dirent.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "kvtransfer/transport.h"
#include "tests/kvtransfer/pump_parts.h"

namespace pdserve::kvtransfer {
namespace {

int OpenDescriptors() {
  DIR* directory = opendir("/proc/self/fd");
  int count = 0;
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

int Threads() {
  DIR* directory = opendir("/proc/self/task");
  int count = 0;
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

int64_t ResidentBytes() {
  std::ifstream in("/proc/self/statm");
  int64_t total = 0, resident = 0;
  in >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

// A sanitizer keeps freed memory for a while, on purpose.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int64_t kAllowedGrowth = 1 << 30;
#else
constexpr int64_t kAllowedGrowth = 4 << 20;
#endif

class PumpLoadTest : public ::testing::TestWithParam<std::string> {
 protected:
  static void OfferAll(Node& node, Ticket ticket, const Blocks& blocks) {
    const auto count = static_cast<uint32_t>(blocks.spans().size());
    ASSERT_TRUE(node.pump->Offer({ticket, count, Soon()}).ok());
    node.pump->Extend(ticket, blocks.All());
    node.pump->Commit(ticket, RecordFor(count));
  }
};

TEST_P(PumpLoadTest, HundredsAtOnceFromTwoPeersAllArrive) {
  Node p(TestOptions(GetParam(), 11)), q(TestOptions(GetParam(), 12));
  Node d(TestOptions(GetParam(), 22));
  constexpr uint64_t kCount = 600;
  std::vector<std::unique_ptr<Blocks>> from, to;
  const int threads = Threads();
  for (uint64_t i = 0; i < kCount; ++i) {
    from.push_back(std::make_unique<Blocks>(1 + i % 17, i % 2 == 0));
    to.push_back(std::make_unique<Blocks>(1 + i % 17, i % 3 == 0));
    from[i]->Fill(i);
    Node& peer = i % 2 == 0 ? p : q;
    ASSERT_TRUE(d.pump->Fetch(FetchFrom(peer, TicketOf(i + 1), *to[i])).ok());
    OfferAll(peer, TicketOf(i + 1), *from[i]);
  }
  for (uint64_t i = 0; i < kCount; ++i) {
    ASSERT_TRUE(d.events.WaitFetch(TicketOf(i + 1)).commit.ok());
    ASSERT_TRUE((i % 2 == 0 ? p : q).events.WaitOffer(TicketOf(i + 1)).status.ok());
    ASSERT_TRUE(to[i]->Same(*from[i])) << i;
  }
  EXPECT_EQ(Threads(), threads);
}

// The long one is under way when the short ones come behind it on the same link.
TEST_P(PumpLoadTest, ShortHandOversDoNotWaitForALongOne) {
  PumpOptions options = TestOptions(GetParam(), 11);
  options.piece_bytes = kBlockBytes;
  options.pieces_in_flight = 2;
  Node p(options), d(TestOptions(GetParam(), 22));
  constexpr uint32_t kLong = 20'000;
  Blocks from(kLong, true), to(kLong, true), small(1, true), small_to(1, true);
  const Ticket large = TicketOf(1'000'000);
  ASSERT_TRUE(p.pump->Offer({large, kLong, Soon()}).ok());
  ASSERT_TRUE(d.pump->Fetch(FetchFrom(p, large, to)).ok());
  p.pump->Extend(large, from.All());
  p.pump->Commit(large, RecordFor(kLong));
  OfferAll(p, TicketOf(1), small);
  ASSERT_TRUE(d.pump->Fetch(FetchFrom(p, TicketOf(1), small_to)).ok());
  ASSERT_TRUE(d.events.WaitFetch(TicketOf(1)).commit.ok());
  EXPECT_FALSE(d.events.fetch_ended(large));
  EXPECT_TRUE(d.events.WaitFetch(large).commit.ok());
  EXPECT_TRUE(p.events.WaitOffer(TicketOf(1)).status.ok());
  EXPECT_TRUE(p.events.WaitOffer(large).status.ok());
}

TEST_P(PumpLoadTest, TwentyThousandInARowLeaveNothingBehind) {
  Blocks from(3, true), to(3, true);
  Node p(TestOptions(GetParam(), 11)), d(TestOptions(GetParam(), 22));
  uint64_t number = 0;
  const auto run = [&](int count) {
    for (int i = 0; i < count; ++i) {
      const Ticket ticket = TicketOf(++number);
      ASSERT_TRUE(d.pump->Fetch(FetchFrom(p, ticket, to)).ok());
      OfferAll(p, ticket, from);
      if (i % 10 == 9) d.pump->CancelFetch(ticket, "every tenth");
      d.events.WaitFetch(ticket);
      if (i % 10 == 9) p.pump->Withdraw(ticket, "every tenth");
      p.events.WaitOffer(ticket);
      p.events.Clear();
      d.events.Clear();
    }
  };
  run(18'000);  // the used tickets' memory has filled up by now
  const int descriptors = OpenDescriptors();
  const int threads = Threads();
  const int64_t resident = ResidentBytes();
  run(2'000);
  EXPECT_EQ(OpenDescriptors(), descriptors);
  EXPECT_EQ(Threads(), threads);
  EXPECT_LT(ResidentBytes() - resident, kAllowedGrowth);
}

TEST_P(PumpLoadTest, PeersThatComeAndGoLeaveNothingBehind) {
  Node d(TestOptions(GetParam(), 22));
  int descriptors = 0;
  for (uint64_t life = 1; life <= 200; ++life) {
    Node p(TestOptions(GetParam(), 100 + life));
    Blocks from(2, true), to(2, true);
    OfferAll(p, TicketOf(life), from);
    ASSERT_TRUE(d.pump->Fetch(FetchFrom(p, TicketOf(life), to)).ok());
    ASSERT_TRUE(d.events.WaitFetch(TicketOf(life)).commit.ok());
    ASSERT_TRUE(p.events.WaitOffer(TicketOf(life)).status.ok());  // till then `from` is read
    if (life == 100) descriptors = OpenDescriptors();
  }
  // The last few links may still be closing.
  EXPECT_LE(OpenDescriptors(), descriptors + 10);
}

INSTANTIATE_TEST_SUITE_P(Transports, PumpLoadTest, ::testing::ValuesIn(TransportNames()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace pdserve::kvtransfer

// Pumps over TCP against peers that are broken, hostile, frozen or behind a bad wire.
#include <csignal>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "kvtransfer/pump.h"
#include "tests/kvtransfer/pump_parts.h"
#include "tests/kvtransfer/raw_peer.h"

namespace pdserve::kvtransfer {
namespace {

PumpOptions Impatient(uint64_t incarnation) {
  PumpOptions options = TestOptions("tcp", incarnation);
  options.peer_timeout = absl::Seconds(2);
  return options;
}

class PumpHostileTest : public ::testing::Test {
 protected:
  // A whole hand-over between two good nodes.
  void ExpectHealthy() {
    const Ticket ticket = TicketOf(next_ticket++);
    Blocks from(9, true), to(9, true);
    from.Fill(next_ticket);
    ASSERT_TRUE(p.pump->Offer({ticket, 9, Soon()}).ok());
    p.pump->Extend(ticket, from.All());
    p.pump->Commit(ticket, RecordFor(9));
    ASSERT_TRUE(d.pump->Fetch(FetchFrom(p, ticket, to)).ok());
    const auto fetched = d.events.WaitFetch(ticket);
    ASSERT_TRUE(fetched.commit.ok()) << fetched.commit.status();
    ASSERT_TRUE(p.events.WaitOffer(ticket).status.ok());
    EXPECT_TRUE(to.Same(from));
  }
  RawPeer Dial() { return RawPeer::Connect(p.pump->address()); }
  RawPeer DialAndAgree() {
    RawPeer peer = Dial();
    peer.SayHello(as_decode);
    const auto hello = peer.Read();
    EXPECT_TRUE(hello && hello->control.has_hello() && hello->control.hello().refusal().empty());
    return peer;
  }
  static v1::Control FetchOf(Ticket ticket, uint64_t name) {
    v1::Control control;
    control.mutable_fetch()->set_ticket(TicketToBytes(ticket));
    control.mutable_fetch()->set_fetch(name);
    return control;
  }
  // D fetches from a listener of ours; the link is agreed on and the fetch read.
  RawPeer AcceptFetch(RawListener& listener, Ticket ticket, const Blocks& to) {
    EXPECT_TRUE(
        d.pump->Fetch({ticket, listener.address(), Incarnation{99}, to.spans(), Soon()}).ok());
    RawPeer peer = listener.Accept();
    const auto hello = peer.Read();
    EXPECT_TRUE(hello && hello->control.has_hello());
    EXPECT_TRUE(peer.SayHello(TestOptions("tcp", 99)));
    const auto fetch = peer.ReadWord();
    EXPECT_TRUE(fetch && fetch->control.has_fetch());
    if (fetch) last_fetch = fetch->control.fetch();
    return peer;
  }
  v1::Control PieceOf(const Blocks& from, uint32_t first, uint32_t count, std::string& payload) {
    v1::Control control;
    v1::Piece* piece = control.mutable_piece();
    piece->set_fetch(last_fetch.fetch());
    piece->set_first_block(first);
    piece->set_num_blocks(count);
    payload.assign(reinterpret_cast<const char*>(from.spans()[first].data()), count * kBlockBytes);
    piece->set_payload_bytes(payload.size());
    piece->set_payload_crc32c(Crc32cOf(payload));
    return control;
  }
  static uint32_t Crc32cOf(const std::string& text);

  Node p{Impatient(11)}, d{Impatient(22)};
  PumpOptions as_decode = TestOptions("tcp", 33);
  uint64_t next_ticket = 1'000'000;
  v1::Fetch last_fetch;
};

uint32_t PumpHostileTest::Crc32cOf(const std::string& text) {
  uint32_t header[8];
  const std::string head = EncodeFrameHead(text, 0);  // carries the control's checksum
  std::memcpy(header, head.data(), sizeof header);
  return header[3];
}

TEST_F(PumpHostileTest, WhateverAStrangerSendsItsLinkIsClosedAndNobodyElseNotices) {
  const uint64_t seed = ::testing::UnitTest::GetInstance()->random_seed();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  std::vector<RawPeer> strangers;
  const auto stranger = [&](const std::string& bytes) {
    strangers.push_back(Dial());
    strangers.back().Send(bytes);
  };
  for (int i = 0; i < 20; ++i) {  // rubbish
    std::string bytes(1 + random() % 5000, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    stranger(bytes);
  }
  v1::Control hello;
  *hello.mutable_hello() = MakeHello(as_decode, {});
  const std::string greeting = EncodeFrameHead(hello.SerializeAsString(), 0);
  stranger("");                                  // says nothing
  stranger(greeting.substr(0, 17));              // half a header
  stranger(greeting.substr(0, 40));              // half a control
  stranger(greeting + greeting);                 // two hellos
  stranger(EncodeFrameHead("\xFF\xFF\xFF", 0));  // no control
  stranger(EncodeFrameHead("", 0));              // an unknown kind before the hello
  stranger(EncodeFrameHead(FetchOf(TicketOf(1), 1).SerializeAsString(), 0));  // no hello
  for (const FrameHeader huge : {FrameHeader{UINT32_MAX, 0, 0}, FrameHeader{1, 0, UINT64_MAX},
                                 FrameHeader{1, 0, uint64_t{1} << 40}}) {
    const auto bytes = EncodeFrameHeader(huge);
    stranger({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  }
  std::string other_version = greeting;
  other_version[4] = 7;
  stranger(other_version);
  ExpectHealthy();
  for (RawPeer& peer : strangers) EXPECT_TRUE(peer.ReadUntilClosed());
  ExpectHealthy();
}

TEST_F(PumpHostileTest, BytesThatDripInDoNotKeepALinkAlive) {
  RawPeer before = Dial();
  RawPeer after = DialAndAgree();
  v1::Control hello;
  *hello.mutable_hello() = MakeHello(as_decode, {});
  const std::string bytes = EncodeFrameHead(hello.SerializeAsString() + std::string(4000, '\0'), 0);
  bool before_open = true, after_open = true;
  for (size_t i = 0; i < bytes.size() && (before_open || after_open); ++i) {
    before_open = before_open && before.Send(bytes.substr(i, 1));
    after_open = after_open && after.Send(bytes.substr(i, 1));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // the drip itself
  }
  EXPECT_FALSE(before_open);
  EXPECT_FALSE(after_open);
  ExpectHealthy();
}

TEST_F(PumpHostileTest, AnOlderProtocolIsToldWhyBeforeTheEnd) {
  RawPeer peer = Dial();
  v1::Control control;
  *control.mutable_hello() = MakeHello(as_decode, {});
  control.mutable_hello()->set_protocol_major(0);
  peer.Send(control);
  const auto answer = peer.Read();
  ASSERT_TRUE(answer && answer->control.has_hello());
  EXPECT_EQ(answer->control.hello().refusal(), "protocol version differs: 1 here, 0 there");
  EXPECT_TRUE(peer.ReadUntilClosed());
}

TEST_F(PumpHostileTest, APeerThatOffersOverItsOwnLinkIsCutOff) {
  RawPeer peer = DialAndAgree();
  v1::Control control;
  control.mutable_piece()->set_num_blocks(1);
  peer.Send(control, std::string(kBlockBytes, 'x'));
  EXPECT_TRUE(peer.ReadUntilClosed());
  ExpectHealthy();
}

TEST_F(PumpHostileTest, AFloodOfUnknownFetchesIsRefusedBeyondTheTable) {
  PumpOptions options = Impatient(44);
  options.max_unknown_fetches = 10;
  Node small(options);
  RawPeer peer = RawPeer::Connect(small.pump->address());
  peer.SayHello(as_decode);
  ASSERT_TRUE(peer.Read().has_value());
  for (uint64_t i = 1; i <= 1000; ++i) peer.Send(FetchOf(TicketOf(i), i));
  for (int refused = 0; refused < 990; ++refused) {
    const auto answer = peer.ReadWord();
    ASSERT_TRUE(answer && answer->control.has_cancel());
    EXPECT_EQ(answer->control.cancel().reason(), "too many fetches wait for their offer");
  }
}

TEST_F(PumpHostileTest, TheSameFetchTwiceIsOneAndTwoUnderOneNameEndTheLink) {
  RawPeer peer = DialAndAgree();
  ASSERT_TRUE(p.pump->Offer({TicketOf(1), 0, Soon()}).ok());
  ASSERT_TRUE(p.pump->Offer({TicketOf(2), 0, Soon()}).ok());
  peer.Send(FetchOf(TicketOf(1), 5));
  peer.Send(FetchOf(TicketOf(1), 5));
  p.pump->Commit(TicketOf(1), RecordFor(0));
  const auto commit = peer.ReadWord();
  ASSERT_TRUE(commit && commit->control.has_commit());
  peer.Send(FetchOf(TicketOf(2), 5));
  EXPECT_TRUE(peer.ReadUntilClosed());
  EXPECT_EQ(p.events.WaitOffer(TicketOf(1)).status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(p.events.offer_ended(TicketOf(2)));
}

TEST_F(PumpHostileTest, ACancelIsAcknowledgedHoweverOftenItComes) {
  RawPeer peer = DialAndAgree();
  ASSERT_TRUE(p.pump->Offer({TicketOf(1), 1, Soon()}).ok());
  peer.Send(FetchOf(TicketOf(1), 5));
  for (int i = 0; i < 3; ++i) {
    v1::Control cancel;
    cancel.mutable_cancel()->set_fetch(5);
    cancel.mutable_cancel()->set_reason("enough");
    peer.Send(cancel);
    const auto answer = peer.ReadWord();
    ASSERT_TRUE(answer && answer->control.has_cancel());
    EXPECT_TRUE(answer->control.cancel().acknowledges());
    EXPECT_EQ(answer->control.cancel().fetch(), 5u);
  }
  EXPECT_EQ(p.events.WaitOffer(TicketOf(1)).status.code(), absl::StatusCode::kAborted);
}

TEST_F(PumpHostileTest, AFrozenOffererIsNoticedByItsSilence) {
  RawListener listener;
  Blocks to(4, true);
  RawPeer peer = AcceptFetch(listener, TicketOf(1), to);
  const auto fetched = d.events.WaitFetch(TicketOf(1));
  EXPECT_EQ(fetched.commit.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(fetched.commit.status().message().find("nothing heard"), absl::string_view::npos);
  ExpectHealthy();
}

TEST_F(PumpHostileTest, APeerThatNeverAnswersTheHelloIsGivenUp) {
  RawListener listener;
  Blocks to(1, true);
  ASSERT_TRUE(
      d.pump->Fetch({TicketOf(1), listener.address(), Incarnation{99}, to.spans(), Soon()}).ok());
  EXPECT_EQ(d.events.WaitFetch(TicketOf(1)).commit.status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(PumpHostileTest, ACancelDuringAStalledPayloadEndsAtOnceAndTheLinkLivesOn) {
  RawListener listener;
  Blocks from(4, true), to(4, true);
  from.Fill(1);
  RawPeer peer = AcceptFetch(listener, TicketOf(1), to);
  std::string payload;
  const v1::Control piece = PieceOf(from, 0, 4, payload);
  const std::string frame = EncodeFrameHead(piece.SerializeAsString(), payload.size()) + payload;
  peer.Send(frame.substr(0, frame.size() - 5000));
  d.pump->CancelFetch(TicketOf(1), "the client has left");
  EXPECT_EQ(d.events.WaitFetch(TicketOf(1)).commit.status().code(), absl::StatusCode::kCancelled);
  to.Poison();
  const auto cancel = peer.ReadWord();
  ASSERT_TRUE(cancel && cancel->control.has_cancel());
  peer.Send(frame.substr(frame.size() - 5000));
  // Another fetch over the same link: the stream is in step, and nothing has landed.
  Blocks other(0, true);
  ASSERT_TRUE(
      d.pump->Fetch({TicketOf(2), listener.address(), Incarnation{99}, other.spans(), Soon()})
          .ok());
  const auto next = peer.ReadWord();
  ASSERT_TRUE(next && next->control.has_fetch());
  v1::Control commit;
  commit.mutable_commit()->set_fetch(next->control.fetch().fetch());
  peer.Send(commit);
  EXPECT_TRUE(d.events.WaitFetch(TicketOf(2)).commit.ok());
  EXPECT_TRUE(to.AllPoison());
}

TEST_F(PumpHostileTest, ADamagedPieceIsAskedForAgainAndTheSecondTimeFails) {
  for (const bool second_is_good : {true, false}) {
    RawListener listener;
    Blocks from(2, true), to(2, true);
    from.Fill(2);
    const Ticket ticket = TicketOf(second_is_good ? 1 : 2);
    RawPeer peer = AcceptFetch(listener, ticket, to);
    std::string payload;
    const v1::Control piece = PieceOf(from, 0, 2, payload);
    std::string damaged = payload;
    damaged[5000] ^= 1;
    peer.Send(piece, damaged);
    const auto resend = peer.ReadWord();
    ASSERT_TRUE(resend && resend->control.has_resend());
    peer.Send(piece, second_is_good ? payload : damaged);
    v1::Control commit;
    commit.mutable_commit()->set_fetch(last_fetch.fetch());
    commit.mutable_commit()->set_num_pieces(1);
    commit.mutable_commit()->set_num_tokens(2 * kBlockTokens);
    peer.Send(commit);
    const auto fetched = d.events.WaitFetch(ticket);
    EXPECT_EQ(fetched.stats.resent_pieces, 1u);
    const auto answer = peer.ReadWord();
    ASSERT_TRUE(answer.has_value());
    if (second_is_good) {
      EXPECT_TRUE(fetched.commit.ok()) << fetched.commit.status();
      EXPECT_TRUE(to.Same(from));
      EXPECT_TRUE(answer->control.has_acknowledge());
    } else {
      EXPECT_EQ(fetched.commit.status().code(), absl::StatusCode::kDataLoss);
      EXPECT_TRUE(answer->control.has_cancel());
    }
  }
}

TEST_F(PumpHostileTest, AFetcherThatStopsReadingCannotHoldTheBlocks) {
  PumpOptions options = Impatient(55);
  options.block_bytes = 4 << 20;
  options.piece_bytes = 4 << 20;
  Node large(options);
  Blocks from(16, true, options.block_bytes);
  RawPeer peer = RawPeer::Connect(large.pump->address());
  PumpOptions as = as_decode;
  as.block_bytes = options.block_bytes;
  peer.SayHello(as);
  ASSERT_TRUE(peer.Read().has_value());
  ASSERT_TRUE(large.pump->Offer({TicketOf(1), 16, Soon()}).ok());
  large.pump->Extend(TicketOf(1), from.All());
  peer.Send(FetchOf(TicketOf(1), 1));
  // It goes on to live, but takes nothing.
  std::atomic<bool> stop = false;
  std::thread beats([&] {
    v1::Control beat;
    beat.mutable_heartbeat();
    while (!stop && peer.Send(beat)) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  });
  char first;
  ASSERT_EQ(recv(peer.fd(), &first, 1, MSG_PEEK), 1);
  large.pump->Withdraw(TicketOf(1), "the client has left");
  EXPECT_EQ(large.events.WaitOffer(TicketOf(1)).status.code(), absl::StatusCode::kCancelled);
  stop = true;
  beats.join();
}

// Passes bytes on in both directions, but one bit of what comes back is wrong.
class BadWire {
 public:
  BadWire(const std::string& to, uint64_t wrong_bit) {
    thread_ = std::thread([this, to, wrong_bit] {
      RawPeer near = listener_.Accept();
      RawPeer far = RawPeer::Connect(to);
      std::thread out([&] { Pass(near, far, UINT64_MAX); });
      Pass(far, near, wrong_bit);
      out.join();
    });
  }
  ~BadWire() { thread_.join(); }
  const std::string& address() const { return listener_.address(); }

 private:
  static void Pass(RawPeer& from, RawPeer& to, uint64_t wrong_bit) {
    char bytes[65536];
    uint64_t passed = 0;
    ssize_t got;
    while ((got = recv(from.fd(), bytes, sizeof bytes, 0)) > 0) {
      const uint64_t at = wrong_bit / 8;
      if (at >= passed && at < passed + got) bytes[at - passed] ^= 1 << (wrong_bit % 8);
      passed += got;
      if (!to.Send(std::string(bytes, got))) break;
    }
    shutdown(to.fd(), SHUT_RDWR);
    shutdown(from.fd(), SHUT_RDWR);
  }

  RawListener listener_;
  std::thread thread_;
};

TEST_F(PumpHostileTest, NoFlippedBitEverBecomesAGoodEnd) {
  const uint64_t seed = ::testing::UnitTest::GetInstance()->random_seed();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  int good = 0;
  for (uint64_t round = 1; round <= 60; ++round) {
    Blocks from(3, true), to(3, true);
    from.Fill(round);
    PumpOptions options = Impatient(1000 + round);
    auto fetcher = std::make_unique<Node>(options);  // its links end with it
    // Half of the rounds hit the frames before and after the payload.
    const uint64_t stream = 3 * kBlockBytes + 400;
    const uint64_t bit = round % 2 == 0 ? random() % (8 * 300) : random() % (8 * stream);
    {
      BadWire wire(p.pump->address(), bit);
      ASSERT_TRUE(p.pump->Offer({TicketOf(round), 3, Soon()}).ok());
      p.pump->Extend(TicketOf(round), from.All());
      p.pump->Commit(TicketOf(round), RecordFor(3));
      ASSERT_TRUE(
          fetcher->pump
              ->Fetch({TicketOf(round), wire.address(), p.options.incarnation, to.spans(), Soon()})
              .ok());
      const auto fetched = fetcher->events.WaitFetch(TicketOf(round));
      if (fetched.commit.ok()) {
        ++good;
        EXPECT_TRUE(to.Same(from)) << bit;
        EXPECT_EQ(fetched.commit->sampler_state, RecordFor(3).sampler_state) << bit;
        EXPECT_EQ(fetched.commit->first_token, RecordFor(3).first_token) << bit;
        EXPECT_EQ(fetched.commit->num_tokens, RecordFor(3).num_tokens) << bit;
      }
      p.pump->Withdraw(TicketOf(round), "in case it was never fetched");
      p.events.WaitOffer(TicketOf(round));
      fetcher.reset();
    }
  }
  EXPECT_GT(good, 0) << "a damaged payload can be sent again";
  ExpectHealthy();
}

}  // namespace
}  // namespace pdserve::kvtransfer

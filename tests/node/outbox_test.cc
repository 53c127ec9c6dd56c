#include "node/outbox.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace pdserve::node {
namespace {

using engine::AttemptKey;

class Port final : public SessionPort {
 public:
  void Send(SessionId session, v1::NodeMessage message) override {
    sent.emplace_back(session, std::move(message));
  }
  void Broadcast(const v1::NodeMessage&) override { ADD_FAILURE() << "an outbox never does"; }
  absl::Time DropSilent(absl::Time) override { return absl::InfiniteFuture(); }

  std::vector<v1::NodeMessage> To(uint64_t session) const {
    std::vector<v1::NodeMessage> messages;
    for (const auto& [to, message] : sent) {
      if (to.value == session) messages.push_back(message);
    }
    return messages;
  }

  std::vector<std::pair<SessionId, v1::NodeMessage>> sent;
};

AttemptKey Key(uint64_t session, uint64_t attempt) {
  return {SessionId{session}, AttemptId{attempt}};
}

TEST(OutboxTest, AnAttemptsAnswerItsTokensAndItsEndGoOutInThatOrder) {
  Outbox outbox;
  Port port;
  outbox.Finished(Key(1, 7), {});
  outbox.Token(Key(1, 7), 0, TokenId{5});
  outbox.Refused(Key(1, 8), {"full", true, absl::Seconds(1)});
  outbox.Accepted(Key(1, 7));
  outbox.Flush(port);
  ASSERT_EQ(port.sent.size(), 4u);
  EXPECT_EQ(port.sent[0].second.refused().attempt(), 8u);
  EXPECT_EQ(port.sent[1].second.accepted().attempt(), 7u);
  EXPECT_TRUE(port.sent[2].second.has_tokens());
  EXPECT_EQ(port.sent[3].second.finished().attempt(), 7u);
}

TEST(OutboxTest, AllTokensOfASessionGoInOneMessage) {
  Outbox outbox;
  Port port;
  outbox.Token(Key(1, 7), 3, TokenId{30});
  outbox.Token(Key(1, 8), 0, TokenId{40});
  outbox.Token(Key(1, 7), 4, TokenId{31});
  outbox.Flush(port);
  ASSERT_EQ(port.sent.size(), 1u);
  const v1::Tokens& tokens = port.sent[0].second.tokens();
  ASSERT_EQ(tokens.attempts_size(), 2);
  EXPECT_EQ(tokens.attempts(0).attempt(), 7u);
  EXPECT_EQ(tokens.attempts(0).first_index(), 3u);
  ASSERT_EQ(tokens.attempts(0).token_ids_size(), 2);
  EXPECT_EQ(tokens.attempts(0).token_ids(1), 31u);
  EXPECT_EQ(tokens.attempts(1).first_index(), 0u);
}

TEST(OutboxTest, SessionsDoNotSeeEachOthersAttempts) {
  Outbox outbox;
  Port port;
  outbox.Token(Key(1, 7), 0, TokenId{30});
  outbox.Token(Key(2, 7), 9, TokenId{40});  // the same id, chosen by another router
  outbox.Finished(Key(2, 7), {});
  outbox.Flush(port);
  ASSERT_EQ(port.To(1).size(), 1u);
  EXPECT_EQ(port.To(1)[0].tokens().attempts(0).token_ids(0), 30u);
  ASSERT_EQ(port.To(2).size(), 2u);
  EXPECT_EQ(port.To(2)[0].tokens().attempts(0).first_index(), 9u);
}

TEST(OutboxTest, WhatWasSentIsNotSentAgain) {
  Outbox outbox;
  Port port;
  outbox.Accepted(Key(1, 7));
  outbox.Token(Key(1, 7), 0, TokenId{1});
  outbox.Flush(port);
  port.sent.clear();
  outbox.Flush(port);
  EXPECT_TRUE(port.sent.empty());
  outbox.Token(Key(1, 7), 1, TokenId{2});
  outbox.Flush(port);
  ASSERT_EQ(port.sent.size(), 1u);
  EXPECT_EQ(port.sent[0].second.tokens().attempts(0).first_index(), 1u);
}

}  // namespace
}  // namespace pdserve::node

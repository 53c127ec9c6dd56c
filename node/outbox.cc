#include "node/outbox.h"

#include <utility>

#include "node/session_messages.h"

namespace pdserve::node {

void Outbox::Accepted(const engine::AttemptKey& key) {
  pending_[key.session].answers.push_back(AcceptedMessage(key.attempt));
}

void Outbox::Refused(const engine::AttemptKey& key, const engine::Refusal& refusal) {
  pending_[key.session].answers.push_back(RefusedMessage(key.attempt, refusal));
}

void Outbox::Token(const engine::AttemptKey& key, uint32_t index, TokenId token) {
  Pending& pending = pending_[key.session];
  const auto [place, added] =
      pending.places.try_emplace(key.attempt, pending.tokens.attempts_size());
  if (added) {
    v1::AttemptTokens* tokens = pending.tokens.add_attempts();
    tokens->set_attempt(key.attempt.value);
    tokens->set_first_index(index);
  }
  pending.tokens.mutable_attempts(place->second)->add_token_ids(token.value);
}

void Outbox::Finished(const engine::AttemptKey& key, const engine::Ending& ending) {
  pending_[key.session].endings.push_back(FinishedMessage(key.attempt, ending));
}

void Outbox::Flush(SessionPort& port) {
  for (auto& [session, pending] : pending_) {
    for (v1::NodeMessage& message : pending.answers) port.Send(session, std::move(message));
    if (pending.tokens.attempts_size() > 0) {
      v1::NodeMessage message;
      *message.mutable_tokens() = std::move(pending.tokens);
      port.Send(session, std::move(message));
    }
    for (v1::NodeMessage& message : pending.endings) port.Send(session, std::move(message));
  }
  pending_.clear();
}

}  // namespace pdserve::node

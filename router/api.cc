#include "router/api.h"

#include <boost/asio/co_spawn.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "router/random.h"
#include "spdlog/fmt/fmt.h"

namespace pdserve::router {

namespace asio = boost::asio;

namespace {

constexpr int kClientLeft = 499;
constexpr int64_t kLongTextBytes = 32 << 10;

struct LeavesGate {
  Gate& gate;
  int64_t choices = 1;
  ~LeavesGate() { gate.Leave(choices); }
};

bool IsJson(const std::string& content_type) {
  const std::string type = absl::AsciiStrToLower(content_type.substr(0, content_type.find(';')));
  return type == "application/json" || absl::EndsWith(type, "+json");
}

std::optional<ApiError> CheckContent(const HttpRequest& request) {
  if (!request.content_encoding.empty() &&
      !absl::EqualsIgnoreCase(request.content_encoding, "identity")) {
    return UnsupportedMedia(fmt::format("a body in content encoding {} is not read; send it plain",
                                        request.content_encoding.substr(0, 100)));
  }
  // A web page can post text to any host without asking it first, but not JSON.
  if (!request.origin.empty() && !IsJson(request.content_type)) {
    return UnsupportedMedia("the content type must be application/json");
  }
  return std::nullopt;
}

AnswerHead HeadOf(const AnswerShape& shape, const ServedModel& model, absl::Time now) {
  return {fmt::format("{}{:016x}{:08x}", shape.id_prefix(), RandomBits(),
                      static_cast<uint32_t>(RandomBits())),
          absl::ToUnixSeconds(now), model.name, model.system_fingerprint};
}

}  // namespace

// A dispatch in progress: listed as running, and let go of in the end.
class Api::Registration {
 public:
  Registration(Api& api, std::shared_ptr<Dispatch> dispatch)
      : api_(api), dispatch_(std::move(dispatch)) {
    MutexLock lock(&api_.mutex_);
    is_too_late_ = api_.is_expiring_;
    api_.running_.insert(dispatch_);
  }
  ~Registration() {
    dispatch_->Detach();
    MutexLock lock(&api_.mutex_);
    api_.running_.erase(dispatch_);
  }
  bool is_too_late() const { return is_too_late_; }

 private:
  Api& api_;
  const std::shared_ptr<Dispatch> dispatch_;
  bool is_too_late_ = false;
};

Api::Api(const RouterOptions& options, DispatchContext* context)
    : options_(options),
      context_(context),
      gate_(options.max_requests, context->metrics, context->clock) {}

void Api::ExpireRunning() {
  MutexLock lock(&mutex_);
  is_expiring_ = true;
  for (const auto& dispatch : running_) dispatch->PostExpire(ShuttingDown());
}

int Api::Refuse(Exchange& exchange, const ApiError& error) {
  Answer answer = AnswerFrom(error);
  answer.must_close = gate_.is_shut();
  exchange.Respond(answer);
  return error.status;
}

asio::awaitable<void> Api::Handle(Exchange& exchange) {
  const absl::Time received = context_->clock->Now();
  std::string_view name = "other";
  int status = 0;
  if (const auto& broken = exchange.broken()) {
    status = Refuse(exchange, *broken);
  } else {
    const Result<Route> route = FindRoute(exchange.request().method, exchange.request().target);
    if (const auto* error = std::get_if<ApiError>(&route)) {
      status = Refuse(exchange, *error);
    } else {
      name = RouteName(std::get<Route>(route).kind);
      status = co_await Serve(exchange, std::get<Route>(route), received);
    }
  }
  context_->metrics->Add(Series::kRequests, {name, std::to_string(status)}, 1);
}

asio::awaitable<int> Api::Serve(Exchange& exchange, const Route& route, absl::Time received) {
  const auto snapshot = context_->fleet->snapshot();
  Answer answer;
  switch (route.kind) {
    case RouteKind::kChat:
      co_return co_await Generate(exchange, Endpoint::kChat, received);
    case RouteKind::kCompletions:
      co_return co_await Generate(exchange, Endpoint::kCompletions, received);
    case RouteKind::kModels:
      answer = ModelsAnswer(*snapshot);
      break;
    case RouteKind::kModel:
      answer = ModelAnswer(*snapshot, route.model_id);
      break;
    case RouteKind::kHealth:
      answer = HealthAnswer(*snapshot, gate_.is_shut());
      break;
    case RouteKind::kLive:
      answer.body = R"({"status":"ok"})";
      break;
    case RouteKind::kReady:
      answer = ReadyAnswer(*snapshot, gate_.is_shut());
      break;
    case RouteKind::kMetrics:
      answer.content_type = "text/plain; version=0.0.4; charset=utf-8";
      answer.body = context_->metrics->Render();
      break;
  }
  answer.must_close = gate_.is_shut();
  exchange.Respond(answer);
  co_return answer.status;
}

asio::awaitable<int> Api::Generate(Exchange& exchange, Endpoint endpoint, absl::Time received) {
  const Gate::Entry entry = gate_.Enter();
  if (entry == Gate::Entry::kFull) co_return Refuse(exchange, TooManyRequests());
  if (entry == Gate::Entry::kClosed) {
    co_return Refuse(exchange, ShuttingDown());
  }
  LeavesGate leaves{gate_};
  if (const auto error = CheckContent(exchange.request())) co_return Refuse(exchange, *error);
  const Result<Ask> ask = ParseAsk(endpoint, exchange.request().body, options_.max_choices);
  if (const auto* error = std::get_if<ApiError>(&ask)) co_return Refuse(exchange, *error);
  const int64_t more = NumChoices(std::get<Ask>(ask)) - 1;
  if (!gate_.Widen(more)) co_return Refuse(exchange, TooManyRequests());
  leaves.choices += more;
  int status = co_await Run(exchange, std::get<Ask>(ask), received);
  // Inside the gate, as a drain waits for what is in it.
  if (!co_await exchange.Flush()) status = kClientLeft;
  if (status == 200) {
    context_->metrics->Observe(Series::kE2e, {},
                               absl::ToDoubleSeconds(context_->clock->Now() - received));
  }
  co_return status;
}

asio::awaitable<Result<std::vector<PreparedPrompt>>> Api::PrepareOffThread(
    const Ask& ask, const FleetSnapshot& snapshot) {
  const auto prepare = [&] { return Prepare(ask, *snapshot.model, snapshot.max_context_tokens); };
  if (TextBytes(ask) < kLongTextBytes) co_return prepare();
  const auto work = [&]() -> asio::awaitable<Result<std::vector<PreparedPrompt>>> {
    co_return prepare();
  };
  co_return co_await asio::co_spawn(text_threads_, work, asio::use_awaitable);
}

asio::awaitable<int> Api::Run(Exchange& exchange, const Ask& ask, absl::Time received) {
  const auto snapshot = context_->fleet->snapshot();
  if (snapshot->model == nullptr) {
    co_return Refuse(exchange, Overloaded("no node has told its model yet", absl::Seconds(1)));
  }
  const Result<std::vector<PreparedPrompt>> prepared = co_await PrepareOffThread(ask, *snapshot);
  if (const auto* error = std::get_if<ApiError>(&prepared)) co_return Refuse(exchange, *error);
  const auto& prompts = std::get<std::vector<PreparedPrompt>>(prepared);

  const auto dispatch = std::make_shared<Dispatch>(context_, snapshot->model, exchange.strand(),
                                                   received, received + options_.request_timeout);
  const Registration registration(*this, dispatch);
  if (registration.is_too_late()) co_return Refuse(exchange, ShuttingDown());
  const uint64_t seed = ask.seed ? *ask.seed : RandomBits();
  for (const PreparedPrompt& prompt : prompts) {
    for (int32_t sample = 0; sample < ask.n; ++sample) {
      dispatch->Add(ask, prompt, static_cast<uint32_t>(sample), seed);
    }
  }
  dispatch->Start(&exchange.event());
  const AnswerShape& shape = ask.endpoint == Endpoint::kChat ? ChatShape() : CompletionsShape();
  AnswerSender sender(exchange, ask, dispatch, prompts,
                      HeadOf(shape, *snapshot->model, context_->clock->Now()));
  if (ask.stream) {
    co_return co_await sender.SendStream(*context_->clock, options_.keepalive_interval);
  }
  co_return co_await sender.SendWhole(gate_);
}

}  // namespace pdserve::router

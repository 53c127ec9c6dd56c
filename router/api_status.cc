// GET /v1/models, /health, /readyz: what the fleet looks like from outside.
#include "absl/strings/str_join.h"
#include "router/api.h"
#include "spdlog/fmt/fmt.h"

namespace pdserve::router {
namespace {

OrderedJson ModelJson(const FleetSnapshot& snapshot) {
  return {{"id", snapshot.model->name},
          {"object", "model"},
          {"created", absl::ToUnixSeconds(snapshot.model->created)},
          {"owned_by", "pdserve"},
          {"max_model_len", snapshot.max_context_tokens}};
}

std::string Missing(const FleetSnapshot& snapshot, bool is_draining) {
  if (is_draining) return "the server is shutting down";
  return "no live node with role: " + absl::StrJoin(MissingRoles(snapshot), ", ");
}

bool IsReady(const FleetSnapshot& snapshot, bool is_draining) {
  return !is_draining && MissingRoles(snapshot).empty();
}

}  // namespace

Answer ModelsAnswer(const FleetSnapshot& snapshot) {
  OrderedJson body = {{"object", "list"}, {"data", OrderedJson::array()}};
  if (snapshot.model != nullptr) body["data"].push_back(ModelJson(snapshot));
  Answer answer;
  answer.body = body.dump();
  return answer;
}

Answer ModelAnswer(const FleetSnapshot& snapshot, const std::string& id) {
  if (snapshot.model == nullptr || id != snapshot.model->name) {
    ApiError error = NotFound("model_not_found", fmt::format("the model '{}' does not exist", id));
    error.param = "model";
    return AnswerFrom(error);
  }
  Answer answer;
  answer.body = ModelJson(snapshot).dump();
  return answer;
}

Answer HealthAnswer(const FleetSnapshot& snapshot, bool is_draining) {
  if (!IsReady(snapshot, is_draining)) {
    return AnswerFrom(Overloaded(Missing(snapshot, is_draining), absl::Seconds(1)));
  }
  Answer answer;
  answer.body = R"({"status":"ok"})";
  return answer;
}

Answer ReadyAnswer(const FleetSnapshot& snapshot, bool is_draining) {
  Answer answer = HealthAnswer(snapshot, is_draining);
  OrderedJson body = OrderedJson::parse(answer.body);
  body["missing"] = MissingRoles(snapshot);
  body["draining"] = is_draining;
  body["nodes"] = OrderedJson::array();
  for (const NodeState& node : snapshot.nodes) {
    OrderedJson entry = {{"id", node.facts.id},
                         {"address", node.address},
                         {"role", RoleOf(node)},
                         {"state", StageName(node.stage)}};
    if (!node.problem.empty()) entry["problem"] = node.problem;
    body["nodes"].push_back(entry);
  }
  answer.body = body.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
  return answer;
}

}  // namespace pdserve::router

// The `messages` of a chat request, checked and brought into the form that chat templates take.
// Pure; any thread.
#ifndef PDSERVE_ROUTER_MESSAGES_H_
#define PDSERVE_ROUTER_MESSAGES_H_

#include <string>

#include "router/errors.h"
#include "router/fields.h"

namespace pdserve::router {

/// A JSON array of {role, content, ...}: content parts are joined to one string, developer becomes
/// system. Errors name the place, like messages[2].content[0].type.
Result<std::string> ReadMessages(const Json& messages);

}  // namespace pdserve::router

#endif  // PDSERVE_ROUTER_MESSAGES_H_

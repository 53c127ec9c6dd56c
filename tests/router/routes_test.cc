#include "router/routes.h"

#include "gtest/gtest.h"

namespace pdserve::router {
namespace {

TEST(RoutesTest, EveryRouteWorksWithAndWithoutV1AndTrailingSlash) {
  const std::pair<const char*, RouteKind> gets[] = {{"/models", RouteKind::kModels},
                                                    {"/health", RouteKind::kHealth},
                                                    {"/livez", RouteKind::kLive},
                                                    {"/readyz", RouteKind::kReady},
                                                    {"/metrics", RouteKind::kMetrics}};
  for (const auto& [path, kind] : gets) {
    for (const std::string& target : {std::string(path), "/v1" + std::string(path),
                                      std::string(path) + "/", std::string(path) + "?a=b"}) {
      const auto route = FindRoute("GET", target);
      ASSERT_TRUE(std::holds_alternative<Route>(route)) << target;
      EXPECT_EQ(std::get<Route>(route).kind, kind);
    }
  }
  EXPECT_EQ(std::get<Route>(FindRoute("POST", "/v1/chat/completions/")).kind, RouteKind::kChat);
  EXPECT_EQ(std::get<Route>(FindRoute("POST", "/completions")).kind, RouteKind::kCompletions);
}

TEST(RoutesTest, ModelIdsMayHoldSlashesColonsAndEscapes) {
  const auto id = [](std::string_view target) {
    return std::get<Route>(FindRoute("GET", target)).model_id;
  };
  EXPECT_EQ(id("/v1/models/org/name:tag"), "org/name:tag");
  EXPECT_EQ(id("/models/org%2Fname"), "org/name");
  EXPECT_EQ(id("/models/100%"), "100%");
  EXPECT_EQ(id("/models/a%2"), "a%2");
  EXPECT_EQ(id("/models/a%zz"), "a%zz");
}

TEST(RoutesTest, AWholeUrlMeansItsPath) {
  for (const char* target : {"http://host/v1/models", "https://host:8000/models/?a=b",
                             "HTTP://user@[::1]:80/v1/models#x"}) {
    const auto route = FindRoute("GET", target);
    ASSERT_TRUE(std::holds_alternative<Route>(route)) << target;
    EXPECT_EQ(std::get<Route>(route).kind, RouteKind::kModels);
  }
  EXPECT_EQ(std::get<Route>(FindRoute("GET", "/v1/models/s3://bucket/m")).model_id,
            "s3://bucket/m");
  for (const char* target : {"http://host", "http://", "://", "http://host?/v1/models"}) {
    EXPECT_EQ(std::get<ApiError>(FindRoute("GET", target)).status, 404) << target;
  }
}

TEST(RoutesTest, UnknownRoutesNameTheSupportedOnes) {
  for (const char* target :
       {"/", "", "/v1", "/v1/", "/v1/embeddings", "/v1/v1/models", "models", "/v1/chat", "*"}) {
    const auto route = FindRoute("GET", target);
    ASSERT_TRUE(std::holds_alternative<ApiError>(route)) << target;
    EXPECT_EQ(std::get<ApiError>(route).status, 404);
    EXPECT_NE(std::get<ApiError>(route).message.find("/v1/chat/completions"), std::string::npos);
  }
}

TEST(RoutesTest, WrongMethodSaysWhatIsAllowed) {
  EXPECT_EQ(std::get<ApiError>(FindRoute("GET", "/v1/completions")).allow, "POST");
  EXPECT_EQ(std::get<ApiError>(FindRoute("POST", "/health")).allow, "GET, HEAD");
  EXPECT_EQ(std::get<ApiError>(FindRoute("DELETE", "/v1/models/x")).status, 405);
  EXPECT_EQ(std::get<ApiError>(FindRoute("OPTIONS", "/v1/completions")).status, 405);
}

}  // namespace
}  // namespace pdserve::router

// A blocking HTTP/1.1 client over a raw socket, for tests that care about bytes. Belongs to one
// thread. Every read gives up after 20 s.
#ifndef PDSERVE_TESTS_ROUTER_HTTP_CLIENT_H_
#define PDSERVE_TESTS_ROUTER_HTTP_CLIENT_H_

#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "nlohmann/json.hpp"

namespace pdserve::testing {

struct HttpAnswer {
  int status = 0;                              // 0: the connection ended before a whole answer came
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // without the framing of chunks
  nlohmann::json json() const { return nlohmann::json::parse(body, nullptr, false); }
  /// error.code and error.param; "null" where null.
  std::string code() const;
  std::string param() const;
};

class HttpClient {
 public:
  /// receive_buffer_bytes: of the kernel; 0 leaves it to the kernel.
  explicit HttpClient(const std::string& address, int receive_buffer_bytes = 0);
  ~HttpClient();

  void Send(const std::string& bytes);
  /// A request with a body and its length.
  void Post(const std::string& path, const std::string& body, const std::string& headers = "");
  void Get(const std::string& path, const std::string& method = "GET");

  /// The next whole answer. is_head: it has no body, whatever its length says.
  HttpAnswer Read(bool is_head = false);
  /// Status line and headers of the next answer; then events with ReadEvent.
  HttpAnswer ReadHead();
  /// The next `data:` of a chunked stream; empty at its end.
  std::string ReadEvent();
  /// Bytes as they come, until `text` was seen; all that was read, or "" when the peer ended first.
  std::string ReadUntil(const std::string& text);
  bool IsClosedByPeer();
  /// Bytes or the peer's end have come, or do within `patience`.
  bool HasInput(absl::Duration patience);

  void ShutdownWrite();
  void Close();
  /// Closes with a reset.
  void Reset();

 private:
  bool Fill();
  std::string Line();
  std::string Bytes(size_t count);
  std::string Chunk();

  int socket_ = -1;
  std::string buffer_;
  std::string events_;
};

HttpAnswer Post(const std::string& address, const std::string& path, const std::string& body,
                const std::string& headers = "");
HttpAnswer Get(const std::string& address, const std::string& path);

/// The `data:` of each event in an answer's body.
std::vector<std::string> Events(const std::string& body);

}  // namespace pdserve::testing

#endif  // PDSERVE_TESTS_ROUTER_HTTP_CLIENT_H_

#include "kvtransfer/handshake.h"

#include <string>

#include "gtest/gtest.h"
#include "tests/kvtransfer/pump_parts.h"

namespace pdserve::kvtransfer {
namespace {

const PumpOptions kOurs = TestOptions("tcp", 1);
const PumpOptions kTheirs = TestOptions("tcp", 2);

std::string Refusal(const v1::LinkHello& theirs, Incarnation expected = {}) {
  return std::string(CheckHello(kOurs, expected, theirs).message());
}

TEST(HandshakeTest, EqualNodesAgree) {
  EXPECT_TRUE(CheckHello(kOurs, {}, MakeHello(kTheirs, {})).ok());
  EXPECT_TRUE(CheckHello(kOurs, Incarnation{2}, MakeHello(kTheirs, Incarnation{1})).ok());
}

TEST(HandshakeTest, ALaterMinorVersionIsTaken) {
  auto hello = MakeHello(kTheirs, {});
  hello.set_protocol_minor(kProtocolMinor + 5);
  EXPECT_TRUE(CheckHello(kOurs, {}, hello).ok());
}

TEST(HandshakeTest, AnotherMajorVersionIsRefusedWithBothNumbers) {
  auto hello = MakeHello(kTheirs, {});
  hello.set_protocol_major(77);
  EXPECT_EQ(Refusal(hello), "protocol version differs: 1 here, 77 there");
}

TEST(HandshakeTest, BothSidesRefuseTheWrongProcess) {
  EXPECT_NE(Refusal(MakeHello(kTheirs, Incarnation{9})).find("incarnation 9 was meant"),
            std::string::npos);
  EXPECT_NE(Refusal(MakeHello(kTheirs, {}), Incarnation{3}).find("incarnation 3 was meant"),
            std::string::npos);
}

TEST(HandshakeTest, DifferencesAreRefusedWithBothValues) {
  auto hello = MakeHello(kTheirs, {});
  hello.set_block_bytes(5);
  EXPECT_EQ(Refusal(hello), "block size in bytes differs: 4096 here, 5 there");
  hello = MakeHello(kTheirs, {});
  hello.set_block_tokens(6);
  EXPECT_EQ(Refusal(hello), "block size in tokens differs: 32 here, 6 there");
  hello = MakeHello(kTheirs, {});
  hello.mutable_fingerprint()->at(31) = 1;
  EXPECT_NE(Refusal(hello).find("0701 there"), std::string::npos) << Refusal(hello);
}

TEST(HandshakeTest, ThePeersOwnWordsAreMadePrintable) {
  auto hello = MakeHello(kTheirs, {});
  hello.set_refusal("no\n\x01" + std::string(5000, 'x'));
  const std::string refusal = Refusal(hello);
  EXPECT_LT(refusal.size(), 1000u);
  EXPECT_EQ(refusal.find('\n'), std::string::npos);
  EXPECT_NE(refusal.find("no\\n\\001"), std::string::npos) << refusal;
}

}  // namespace
}  // namespace pdserve::kvtransfer

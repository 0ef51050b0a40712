#include "io/pickle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "support/bytes.h"
#include "support/pickle_builder.h"

namespace self_attention::io_test {
namespace {

using io::Pickle;
using io::PickleKind;
using io::PickleValue;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::uint64_t kAmple = 100'000'000;

/// A parsed pickle and the bytes it points to.
struct Parsed {
  explicit Parsed(const std::string& text, std::uint64_t allowance = kAmple)
      : bytes(to_bytes(text)), pickle(Pickle::parse({"test.file", bytes, allowance})) {}

  PickleValue root() const { return pickle[pickle.root()]; }
  PickleValue item(std::size_t i) const { return pickle[root().items[i]]; }

  std::vector<std::byte> bytes;
  Pickle pickle;
};

PickleValue parse_one(const std::string& body) { return Parsed(pickled::program(body)).root(); }

TEST(Pickle, ReadsScalarsOfAllProtocols) {
  EXPECT_EQ(parse_one("N").kind, PickleKind::kNone);
  EXPECT_EQ(parse_one("\x88").integer, 1);
  EXPECT_EQ(parse_one("\x89").kind, PickleKind::kBool);
  EXPECT_EQ(parse_one("I01\n").kind, PickleKind::kBool);
  EXPECT_EQ(parse_one("I-7\n").integer, -7);
  EXPECT_EQ(parse_one("L123456789012L\n").integer, 123456789012);
  EXPECT_EQ(parse_one("L99999999999999999999L\n").kind, PickleKind::kBigInteger);
  EXPECT_EQ(parse_one("K\xff").integer, 255);
  EXPECT_EQ(parse_one("M\xff\xff").integer, 65535);
  EXPECT_EQ(parse_one("J\xff\xff\xff\xff").integer, -1);
  EXPECT_EQ(parse_one(std::string("\x8a\0", 2)).integer, 0);
  EXPECT_EQ(parse_one("\x8a\x01\xff").integer, -1);
  EXPECT_EQ(parse_one(std::string("\x8a\x02\xff\0", 4)).integer, 255);
  EXPECT_EQ(parse_one("\x8a\x09" + std::string(9, 'x')).kind, PickleKind::kBigInteger);
  EXPECT_EQ(parse_one(std::string("\x8b\1\0\0\0\x05", 6)).integer, 5);
  EXPECT_EQ(parse_one("G" + std::string(8, '\0')).kind, PickleKind::kFloat);
}

TEST(Pickle, ReadsTexts) {
  const std::vector<std::pair<std::string, PickleKind>> texts = {
      {std::string("X\3\0\0\0abc", 8), PickleKind::kString},
      {"\x8c\3abc", PickleKind::kString},
      {std::string("\x8d\3\0\0\0\0\0\0\0abc", 12), PickleKind::kString},
      {"U\3abc", PickleKind::kString},
      {std::string("T\3\0\0\0abc", 8), PickleKind::kString},
      {"C\3abc", PickleKind::kBytes},
      {std::string("B\3\0\0\0abc", 8), PickleKind::kBytes},
      {std::string("\x8e\3\0\0\0\0\0\0\0abc", 12), PickleKind::kBytes},
      {std::string("\x96\3\0\0\0\0\0\0\0abc", 12), PickleKind::kBytes},
  };
  for (const auto& [body, kind] : texts) {
    const Parsed parsed(pickled::program(body));
    EXPECT_EQ(parsed.root().kind, kind) << body;
    EXPECT_EQ(parsed.root().text, "abc") << body;
  }
}

TEST(Pickle, ReadsContainers) {
  EXPECT_EQ(parse_one(")").kind, PickleKind::kTuple);
  EXPECT_EQ(parse_one("NN\x86").items.size(), 2U);
  EXPECT_EQ(parse_one("(NNNNt").items.size(), 4U);
  EXPECT_EQ(parse_one("](NNe").items.size(), 2U);
  EXPECT_EQ(parse_one("]Na").items.size(), 1U);
  EXPECT_EQ(parse_one("(NNl").kind, PickleKind::kList);
  EXPECT_EQ(parse_one("(NNd").items.size(), 2U);
  EXPECT_EQ(parse_one("}NNs(NNNNu").items.size(), 6U);
  EXPECT_EQ(parse_one("\x8f(NN\x90").items.size(), 2U);
  EXPECT_EQ(parse_one("(NN\x91").kind, PickleKind::kSet);
}

TEST(Pickle, KeepsCallsAsTheirParts) {
  const Parsed parsed(pickled::program("cposix\nsystem\n" + pickled::text("rm") + "\x85R"));
  EXPECT_EQ(parsed.root().kind, PickleKind::kCall);
  EXPECT_EQ(parsed.pickle.describe(parsed.pickle.root()), "the result of calling posix.system");
  const Parsed object(pickled::program("\x8c\1m\x8c\1C\x93)\x81}b"));
  EXPECT_EQ(object.pickle.describe(object.pickle.root()), "an object of class m.C");
  EXPECT_NE(object.root().state, io::kNoPickleId);
  const Parsed with_keywords(pickled::program("cm\nC\n)}\x92"));
  EXPECT_EQ(with_keywords.root().kind, PickleKind::kObject);
}

TEST(Pickle, KnowsTheCallsThatMakeDicts) {
  const Parsed ordered(pickled::program(pickled::ordered_dict({{"a", "N"}}) + "}b"));
  EXPECT_EQ(ordered.root().kind, PickleKind::kDict);
  EXPECT_EQ(ordered.root().items.size(), 2U);
  const Parsed of_python2(pickled::program(
      pickled::call(pickled::global("collections", "OrderedDict"), "](](K\1K\2ee\x85")));
  EXPECT_EQ(of_python2.root().kind, PickleKind::kDict);
  EXPECT_EQ(of_python2.item(1).integer, 2);
  const Parsed with_default(pickled::program(
      pickled::call(pickled::global("collections", "defaultdict"), "c__builtin__\nint\n\x85")));
  EXPECT_EQ(with_default.root().kind, PickleKind::kDict);
}

TEST(Pickle, SharesValuesThroughTheMemo) {
  const Parsed parsed(
      pickled::program("(]q" + std::string(1, '\0') + "h" + std::string(1, '\0') + "2t"));
  ASSERT_EQ(parsed.root().items.size(), 3U);
  EXPECT_EQ(parsed.root().items[0], parsed.root().items[1]);
  EXPECT_EQ(parsed.root().items[0], parsed.root().items[2]);
  const Parsed memoized(pickled::program(std::string("(]\x94h\0t", 6)));
  EXPECT_EQ(memoized.root().items[0], memoized.root().items[1]);
  const Parsed wide(pickled::program(std::string("(]r\0\0\0\0j\0\0\0\0t", 13)));
  EXPECT_EQ(wide.root().items[0], wide.root().items[1]);
  const Parsed itself(pickled::program(std::string("]q\0h\0a", 6)));
  EXPECT_EQ(itself.root().items[0], itself.pickle.root());
}

TEST(Pickle, ReadsWhereTheStopIs) {
  const Parsed parsed("\x80\x04\x95" + std::string(8, '\0') + "N.more");
  EXPECT_EQ(parsed.pickle.bytes(), 13U);
  EXPECT_EQ(parse_one("(N0N1N").kind, PickleKind::kNone);
  EXPECT_EQ(parse_one("(N00N").kind, PickleKind::kNone);
}

TEST(Pickle, DeepNestingCostsNoStack) {
  const std::string deep = std::string(100'000, ']') + std::string(99'999, 'a');
  EXPECT_EQ(Parsed(pickled::program(deep)).root().items.size(), 1U);
  const std::string marks = std::string(100'000, '(') + std::string(100'000, 't');
  EXPECT_EQ(Parsed(pickled::program(marks)).root().kind, PickleKind::kTuple);
}

TEST(Pickle, DoublingThroughTheMemoCostsOnlyItsOwnSize) {
  std::string body = "]q" + std::string(1, '\0');
  for (char level = 1; level < 100; ++level) {
    const std::string below = std::string("h") + static_cast<char>(level - 1);
    body += below + below + "\x86q" + level;
  }
  const Parsed parsed(pickled::program(body));
  EXPECT_LT(parsed.pickle.size(), 200U);
}

TEST(Pickle, StopsAtItsAllowance) {
  // Each repeats an opcode of a byte or two that costs more memory than that.
  for (const std::string& body :
       {std::string(2000, ']'), std::string(2000, '('), "N" + std::string(2000, '2'),
        "]q" + std::string(1, '\0') +
            pickled::joined(std::vector<std::string>(2000, {"h\0", 2}))}) {
    EXPECT_THAT(error_of([&] { Parsed(pickled::program(body), 10'000); }),
                HasSubstr("its values need more memory than a file of this size justifies"));
  }
}

TEST(Pickle, CopiesOfSharedPairsArePaidFor) {
  // A list of 100 pairs, given to OrderedDict again and again.
  std::string body = "](" + pickled::joined(std::vector<std::string>(100, "NN\x86")) + "e\x85q\1";
  for (int i = 0; i < 100; ++i) body += "0ccollections\nOrderedDict\nh\1R";
  EXPECT_THAT(error_of([&] { Parsed(pickled::program(body), 60'000); }),
              HasSubstr("its values need more memory"));
}

TEST(Pickle, RefusesEveryTruncation) {
  const std::string whole = pickled::program(pickled::ordered_dict(
      {{"w", pickled::TensorText()()}, {"n", "\x8a\x02\x01\x01"}, {"i", "I12\n"}}));
  for (std::size_t length = 0; length < whole.size(); ++length) {
    EXPECT_THROW(Parsed(whole.substr(0, length)), io::PickleTruncated) << length << " bytes";
  }
}

class MalformedPickle : public ::testing::TestWithParam<Malformed> {};

TEST_P(MalformedPickle, IsRefusedWithItsOwnMessage) {
  EXPECT_THAT(error_of([&] { Parsed parsed(GetParam().bytes); }),
              AllOf(HasSubstr("test.file: pickle at byte "), HasSubstr(GetParam().message)));
}

INSTANTIATE_TEST_SUITE_P(
    Files, MalformedPickle,
    ::testing::Values(
        Malformed{"Empty", "", "byte 0: expected 1 bytes more, found 0: the file is truncated"},
        Malformed{"NewerProtocol", "\x80\x06N.", "expected protocol 5 at most, found 6"},
        Malformed{"UnknownOpcode", "\xff.", "opcode 0xff is unknown or not supported"},
        Malformed{"ExtensionRegistry", "\x82\x01.", "opcode 0x82 is unknown or not supported"},
        Malformed{"BufferOutsideOfTheFile", "\x97.", "opcode 0x97 is unknown or not supported"},
        Malformed{"StopOnAnEmptyStack", ".", "expected 1 values on the stack, found 0"},
        Malformed{"StopBelowAMark", "N(.", "expected 1 values on the stack, found 0"},
        Malformed{"TextOf2To32", "X\xff\xff\xff\xff.", "expected 4294967295 bytes more, found 1"},
        Malformed{"BytesOf2To64", "\x8e" + std::string(8, '\xff') + ".",
                  "expected 18446744073709551615 bytes more"},
        Malformed{"LineWithoutEnd", "cposix", "expected a line, found no end of it"},
        Malformed{"NoInteger", "I1x\n.", R"(expected an integer, found "1x")"},
        Malformed{"TupleWithoutMark", "Nt.", "expected a mark on the stack, found none"},
        Malformed{"TupleOfThreeFromTwo", "NN\x87.", "expected 3 values on the stack, found 2"},
        Malformed{"KeyWithoutValue", "}(Nu.", "a key without a value"},
        Malformed{"DictOfThree", "(NNNd.", "a key without a value"},
        Malformed{"AppendToADict", "}Na.", "items for a list given to a dict"},
        Malformed{"SetItemOnATuple", ")NNs.", "items for a dict given to a tuple"},
        Malformed{"AddItemsToAList", "](N\x90.", "items for a set given to a list"},
        Malformed{"CallWithoutTuple", "cm\nf\n]R.", "expected a tuple, found a list"},
        Malformed{"ObjectWithoutTuple", "cm\nC\nN\x81.", "expected a tuple, found None"},
        Malformed{"KeywordsAreNoDict", "cm\nC\n))\x92.", "expected a dict, found a tuple"},
        Malformed{"GlobalOfNumbers", "NN\x93.", "expected a str, found None"},
        Malformed{"BuildOnNothing", "Nb.", "expected 1 values on the stack, found 0"},
        Malformed{"MemoPlaceIsEmpty", "Nh\x05.", "memo place 5 is empty"},
        Malformed{"MemoizedWithoutEnd", "N\x94\x94\x94.", "memo place 2 is out of order"},
        Malformed{"MemoPlaceWasSkipped", "NNq\x02h\x01.", "memo place 1 is empty"},
        Malformed{"MemoPlaceOf2To32", "Nr\xff\xff\xff\xff.",
                  "memo place 4294967295 is out of order"}),
    row_name<::testing::TestParamInfo<Malformed>>);

}  // namespace
}  // namespace self_attention::io_test
